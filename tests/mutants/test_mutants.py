"""The files that `make mutants` works by, and how it counts."""

from __future__ import annotations

import ast
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.mutants.__main__ import chosen, updated
from scripts.mutants.book import Book, Mutant
from scripts.mutants.judge import Verdict, path_of
from scripts.mutants.page import Entries, Entry, Stamp, page_of, read_page

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
MODULES = tomllib.loads((ROOT / "tests/mutants/modules.toml").read_text())["modules"]
LISTED = tomllib.loads((ROOT / "tests/mutants/survivors.toml").read_text()).get("survivor", [])


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
    assert [item for item in LISTED if item["module"] not in MODULES or not item["reason"].strip()] == []


def test_each_listed_survivor_changes_lines_that_its_function_has():
    """`make mutants` looks for the mutant itself; to make all of them takes minutes."""
    stale = [item["mutation"] for item in LISTED if not _has_lines(item["module"], item["mutation"])]
    assert stale == []


def _has_lines(module: str, mutation: str) -> bool:
    owner, _, change = mutation.partition(": ")
    lines = _lines_of(ROOT / path_of(module), owner)
    sides = change.split(" -> ")
    for count in range(1, len(sides)):
        removed = " -> ".join(sides[:count])
        if removed in lines or set(removed.split(" / ")) <= lines:
            return True
    return False


def _lines_of(path: Path, owner: str) -> set[str]:
    """Return the lines of a function or class, or of all of these of one name; empty: those of the file."""
    text = path.read_text()
    found: list[Any] = [ast.parse(text)]
    for name in filter(None, owner.split(".")):
        inner = itertools.chain.from_iterable(ast.walk(each) for each in found)
        found = [each for each in inner if getattr(each, "name", None) == name and hasattr(each, "body")]
    lines = [line.strip() for line in text.splitlines()]
    return set(lines) if not owner else {line for each in found for line in _within(each, lines)}


def _within(node: Any, lines: list[str]) -> list[str]:
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return lines[first - 1 : node.end_lineno]


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
    assert (score.needless, score.stale) == ([], ["f: 9 -> None"])
    assert "no such mutant, in survivors.toml  f: 9 -> None" in score.text()
    killed = {mutant(1): KILLED, mutant(9): None}
    assert (book(root).score("a.py", killed).needless, book(root).score("a.py", killed).stale) == (
        ["f: 1 -> None"],
        [],
    )
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


def an_entry(root: Path, date: str, *survivors: int) -> Entry:
    known = {mutant(0): KILLED, mutant(9): None, **{mutant(number): SURVIVED for number in survivors}}
    return Entry.of(book(root).score("a.py", known), Stamp(date=date, commit="1a2b3c4+"))


def test_the_page_has_the_last_run_of_each_module_with_its_date_and_commit(root: Path):
    kept = Entries(root / "kept")
    assert kept.read() == {}
    for entry in (an_entry(root, "2026-11-24", 1, 2), an_entry(root, "2026-11-25", 2)):
        kept.add(entry)
    page = page_of(["a.py", "b.py"], kept.read())
    assert "\n| `a.py` | 3 | 2 | 1 | 0 | 1 | 50.0 % | 2026-11-25 | 1a2b3c4+ |\n| `b.py` |  | 0 |" in page
    assert page.endswith("\n- `a.py`: `` f: 2 -> None ``\n")
    header, rule, *rows = [line for line in page.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in (header, rule, *rows)} == {10}


def test_what_was_not_tried_since_stays_on_the_page_as_it_is(root: Path):
    before = page_of(["a.py", "b.py"], {"a.py": an_entry(root, "2026-11-24", 1)})
    assert read_page(before)["a.py"] == an_entry(root, "2026-11-24", 1)
    assert page_of(["a.py", "b.py"], {}, read_page(before)) == before
    for date, expected in (
        ("2026-11-23", "2026-11-24"),
        ("2026-11-24", "2026-11-24"),
        ("2026-11-25", "2026-11-25"),
    ):
        newer = an_entry(root, date)
        found = read_page(page_of(["a.py"], {"a.py": newer}, read_page(before)))["a.py"]
        assert found.date == expected
        assert (found == newer) == (date >= "2026-11-24")
    assert "a.py" not in page_of(["b.py"], {}, read_page(before))
    nameless = replace(an_entry(root, "2026-11-24", 1, 2), survivors=())
    page = page_of(["a.py"], {"a.py": nameless})
    assert page.endswith("\n- `a.py`: 2, whose names that run has not kept\n")
    assert page_of(["a.py"], {}, read_page(page)) == page


def test_a_page_that_is_not_there_yet_is_written(tmp_path: Path):
    assert "| `no such module` |  | 0 |" in updated(tmp_path / "page.md", ["no such module"])


def test_the_page_in_the_documents_names_each_module_and_no_other():
    assert list(read_page((ROOT / "docs/mutants.md").read_text())) == list(MODULES)
