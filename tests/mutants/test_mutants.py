"""The files that `make mutants` works by, and how it counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.mutants.__main__ import chosen
from scripts.mutants.book import Book, Mutant
from scripts.mutants.judge import Verdict, path_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
MODULES = tomllib.loads((ROOT / "tests/mutants/modules.toml").read_text())["modules"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with one module and one test file."""
    (tmp_path / "tests/mutants").mkdir(parents=True)
    (tmp_path / "tests/mutants/modules.toml").write_text('[modules]\n"a.py" = ["tests/test_a.py"]\n')
    (tmp_path / "tests/mutants/survivors.toml").write_text("")
    (tmp_path / "tests/test_a.py").write_text("def test_one(): pass\n\ndef test_two(): pass\n")
    return tmp_path


def mutant(number: int = 0) -> Mutant:
    return Mutant(module="a.py", owner="f", change=f"{number} -> None", lines=(1, 1), text=f"{number}")


def book(root: Path, *, fresh: bool = False) -> Book:
    return Book(root, root / "kept", fresh=fresh)


KILLED = Verdict(outcome="killed", test="tests/test_a.py::test_one[x]")
SURVIVED = Verdict(outcome="survived")


def test_each_module_and_each_of_its_tests_is_there():
    assert [name for name in MODULES if not (ROOT / path_of(name)).is_file()] == []
    assert {
        name for names in MODULES.values() for name in names if not (ROOT / path_of(name)).exists()
    } == set()


def test_each_listed_survivor_has_a_module_and_a_reason():
    listed = tomllib.loads((ROOT / "tests/mutants/survivors.toml").read_text()).get("survivor", [])
    assert [item for item in listed if item["module"] not in MODULES or not item["reason"].strip()] == []


def test_modules_are_named_by_the_end_of_their_path_or_by_their_folder():
    modules = ["a/gang.py", "a/agent/guard.py", "a/copying/lanes.py", "a/copying/meter.py"]
    assert chosen([], modules) == modules
    assert chosen(["gang", "agent/guard.py"], modules) == modules[:2]
    assert chosen(["copying"], modules) == modules[2:]
    with pytest.raises(ValueError, match="ang: no module"):
        chosen(["ang"], modules)


def test_verdicts_are_kept_until_what_they_rest_on_changes(root: Path):
    book(root).note(mutant(1), KILLED)
    book(root).note(mutant(2), SURVIVED)
    again = book(root)
    assert [again.known(mutant(number)) for number in (1, 2, 3)] == [KILLED, SURVIVED, None]
    assert book(root, fresh=True).known(mutant(1)) is None
    (root / "tests/test_a.py").write_text("def test_one(): pass\n\ndef test_two(): assert 1\n")
    again = book(root)
    assert [again.known(mutant(number)) for number in (1, 2)] == [KILLED, None]
    (root / "tests/test_a.py").write_text("def test_one(): assert 1\n")
    assert book(root).known(mutant(1)) is None


def test_survivors_that_are_listed_do_not_count_and_are_missed_when_they_die(root: Path):
    entry = '[[survivor]]\nmodule = "a.py"\nmutation = "f: {} -> None"\nreason = "the same"\n'
    (root / "tests/mutants/survivors.toml").write_text(entry.format(1) + entry.format(9))
    known = {mutant(0): KILLED, mutant(1): SURVIVED, mutant(2): SURVIVED, mutant(3): Verdict(outcome="hung")}
    score = book(root).score("a.py", known)
    assert (score.killed, score.hung, score.equivalent, score.survivors) == (1, 1, 1, ["f: 2 -> None"])
    assert score.needless == ["f: 9 -> None"]
    assert round(score.percent) == 67
    assert book(root).score("a.py", {mutant(0): None}).untried == 1


def test_a_part_of_a_module_is_named_by_the_beginning_of_its_functions():
    part = "a.py::Store.claim"
    assert path_of(part) == path_of("a.py") == "a.py"
    owners = ["Store.claim", "Store.claimed_by", "Store.read", "claim", ""]
    asked = [Mutant(module=part, owner=owner, change="x", lines=(1, 1), text="x") for owner in owners]
    assert [each.is_asked_for for each in asked] == [True, True, False, False, False]
    assert mutant().is_asked_for
    assert chosen(["a"], [part]) == chosen([], [part]) == [part]


def test_a_line_of_the_table_says_how_many_faults_there_were_and_what_became_of_them(root: Path):
    known = {mutant(0): KILLED, mutant(1): SURVIVED, mutant(2): None, mutant(3): Verdict(outcome="hung")}
    row = book(root).score("a.py", known).row()
    assert row == "| `a.py` | 4 | 3 | 2 | 0 | 1 | 66.7 % |"
