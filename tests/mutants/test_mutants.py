"""The files that `make mutants` works by, and how it counts."""

from __future__ import annotations

import itertools
import random
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.mutants.__main__ import chosen, sampled, updated
from scripts.mutants.book import Book, Mutant, has_lines
from scripts.mutants.judge import Verdict, path_of
from scripts.mutants.page import PACKAGE, Entries, Entry, Stamp, page_of, read_page

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
TABLES = tomllib.loads((ROOT / "tests/mutants/modules.toml").read_text())
MODULES: dict[str, list[str]] = TABLES["modules"]
LEFT_OUT: dict[str, list[str]] = TABLES["left_out"]
DECIDING = (
    "gangs",
    "model",
    "storage",
    *(f"agent/{name}" for name in ("join", "save", "stages", "train", "monitor")),
)
"""Packages each module of which is tried, or has a reason why it is not."""
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


def test_each_module_that_may_decide_is_tried_or_has_a_reason_why_it_is_not() -> None:
    folder = ROOT / PACKAGE
    files = [path for name in DECIDING for path in (folder / name).rglob("*.py")]
    # An `__init__.py` of one line is its docstring.
    known = {str(path.relative_to(folder)) for path in files if path.read_text().count("\n") > 1}
    known |= {path.relative_to(folder).as_posix() for path in (folder / "agent").glob("guard*.py")}
    tried = {path_of(name).removeprefix(PACKAGE) for name in MODULES}
    left_out = Counter(itertools.chain.from_iterable(LEFT_OUT.values()))
    assert sorted(known - tried - {*left_out}) == []
    assert [name for name, count in left_out.items() if count > 1 or name in tried] == []


def test_each_listed_survivor_has_a_module_and_a_reason():
    assert [item for item in LISTED if item["module"] not in MODULES or not item["reason"].strip()] == []


def test_each_listed_survivor_changes_lines_that_its_function_has():
    """`make mutants` looks for the mutant itself; to make all of them takes minutes."""
    stale = [item["mutation"] for item in LISTED if not has_lines(ROOT, item["module"], item["mutation"])]
    assert stale == []


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
    assert (score.killed, score.hung, score.explained, score.survivors) == (1, 1, 1, ["f: 2 -> None"])
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


def an_entry(root: Path, date: str, *survivors: int, module: str = "a.py", untried: int = 1) -> Entry:
    known = {mutant(0): KILLED, mutant(10): Verdict(outcome="hung")}
    known |= {mutant(number): SURVIVED for number in survivors}
    score = book(root).score(module, known | {mutant(20 + number): None for number in range(untried)})
    return Entry.of(score, Stamp(date=date, commit="1a2b3c4+"))


def in_package(module: str, entry: Entry) -> tuple[str, Entry]:
    return PACKAGE + module, replace(entry, module=PACKAGE + module)


def test_a_line_says_how_many_faults_there_were_and_what_became_of_them(root: Path) -> None:
    entry = an_entry(root, "2026-11-25", 1)
    assert entry.row == "| `a.py` | 66.7 % | 4 | 3 | 2 | 0 | 1 | 2026-11-25, 1a2b3c4+ |"
    whole = an_entry(root, "2026-11-25", untried=0)
    assert whole.row == "| `a.py` | 100.0 % | 2 | all | 2 | 0 | 0 | 2026-11-25, 1a2b3c4+ |"


def test_the_page_has_the_last_run_of_each_module_the_worst_first_and_each_in_its_package(root: Path) -> None:
    kept = Entries(root / "kept")
    assert kept.read() == {}
    found = (("b/x.py", (1, 2)), ("a/y.py", (1,)), ("a/y.py", (2,)), ("a/c/z.py", ()))
    for module, survivors in found:
        kept.add(in_package(module, an_entry(root, "2026-11-25", *survivors))[1])
    modules = [PACKAGE + name for name in ("b/x.py", "a/y.py", "a/c/z.py", "b/never.py")]
    page = page_of(modules, kept.read())
    heads = [line for line in page.splitlines() if line.startswith("### ")]
    assert heads == [
        "### `b/x.py`: 50.0 % of a sample of 4 of 5",
        "### `a/y.py`: 66.7 % of a sample of 3 of 4",
        "### a",
        "### b",
    ]
    assert "4 of 5\n\n- `` f: 1 -> None ``\n- `` f: 2 -> None ``\n\n###" in page
    assert "3 of 4\n\n- `` f: 2 -> None ``\n\n## All modules" in page
    assert page.endswith("\n\nNot tried as they are now: `b/never.py`.\n")
    assert {line.count("|") for line in page.splitlines() if line.startswith("|")} == {9}


def test_the_page_begins_with_what_is_known_of_all_modules(root: Path) -> None:
    known = dict([in_package("x.py", an_entry(root, "2026-11-25", 1, 2))])
    known |= dict([in_package("y.py", an_entry(root, "2026-11-25", untried=0))])
    page = page_of([*known, PACKAGE + "z.py"], known).replace("\n", " ")
    assert (
        " **66.7 %** of 6 faults in 2 of 3 modules are killed, with 1 of these modules below 90 %. "
        "2 survive without a reason" in page
    )
    assert "Of 7 faults 6 were tried: all of 1 modules" in page
    assert "None of 1 modules was tried." in page_of(["x.py"])


@pytest.mark.parametrize("seed", range(20))
def test_what_was_not_tried_since_stays_on_the_page_as_it_is(root: Path, seed: int) -> None:
    dice = random.Random(seed)
    modules = [
        f"{PACKAGE}{dice.choice(('', 'a/', 'a/b/'))}{number}.py{dice.choice(('', '::F.f'))}"
        for number in range(9)
    ]
    known = {
        module: replace(
            an_entry(
                root,
                f"2026-11-2{dice.randrange(10)}",
                *range(1, dice.randint(1, 4)),
                untried=dice.randrange(2),
            ),
            module=module,
        )
        for module in modules
        if dice.random() < 0.8
    }
    before = page_of(modules, known)
    assert read_page(before) == known
    assert page_of(modules, {}, read_page(before)) == before
    gone, *left = known
    assert gone.removeprefix(PACKAGE) not in page_of(left, {}, read_page(before))
    older = replace(known[gone], date="2026-11-19", killed=9)
    assert page_of(modules, {gone: older}, read_page(before)) == before
    for date in (known[gone].date, "2026-12-01"):
        newer = replace(known[gone], date=date, killed=9)
        assert read_page(page_of(modules, {gone: newer}, read_page(before))) == known | {gone: newer}


def test_a_survivor_that_has_its_reason_by_now_is_explained(root: Path) -> None:
    module, entry = in_package("x.py", an_entry(root, "2026-11-25", 1, 2))
    reasons = {(module, "f: 1 -> None"), (f"{module}::f", "f: 2 -> None"), (module, "f: 8 -> None")}
    page = page_of([module], {module: entry}, reasons=reasons)
    assert read_page(page)[module] == replace(entry, explained=1, survivors=("f: 2 -> None",))


def test_a_module_whose_survivors_are_not_named_is_as_one_that_was_not_tried(root: Path) -> None:
    module, entry = in_package("x.py", an_entry(root, "2026-11-25", 1, 2))
    page = page_of([module], {module: entry}).replace("- `` f: 1 -> None ``\n", "")
    assert read_page(page) == {}
    assert "Not tried as they are now: `x.py`." in page_of([module], read_page(page))


def test_scores_that_an_earlier_version_has_kept_are_passed_over(root: Path) -> None:
    kept = Entries(root / "kept")
    entry = an_entry(root, "2026-11-25", 1)
    (root / "kept/scores.jsonl").write_text('{"module": "b.py", "row": "| |", "date": "", "survivors": []}\n')
    kept.add(entry)
    assert kept.read() == {"a.py": entry}


def test_a_module_with_a_survivor_whose_lines_have_changed_is_as_one_that_was_not_tried(root: Path) -> None:
    module, entry = in_package("x.py", an_entry(root, "2026-11-25"))
    (root / "tests/mutants/modules.toml").write_text(f'[modules]\n"{module}" = []\n')
    (root / PACKAGE).mkdir()
    (root / module).write_text("def f():\n    return 1\n")
    page = root / "page.md"
    for name, is_there in (
        ("f: return 1 -> 2", True),
        ("f: return 2 -> 3", False),
        ("g: return 1 -> 2", False),
    ):
        page.write_text(page_of([module], {module: replace(entry, survivors=(name,))}))
        text = updated(page, book(root))
        assert (name in text) is is_there
        assert ("Not tried as they are now: `x.py`." in text) is not is_there


def test_a_page_that_is_not_there_yet_is_written(root: Path):
    assert "Not tried as they are now: `a.py`." in updated(root / "page.md", book(root))


def test_the_page_in_the_documents_names_each_module_and_no_other():
    page = (ROOT / "docs/mutants.md").read_text()
    named = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert sorted(named + untried_on(page)) == sorted(name.removeprefix(PACKAGE) for name in MODULES)
    assert len(read_page(page)) == len(named), "each survivor has its name"


def untried_on(page: str) -> list[str]:
    return (
        re.findall(r"`([^`]+)`", page.rpartition("Not tried as they are now: ")[2])
        if "Not tried as they are now: " in page
        else []
    )


@pytest.mark.parametrize("seed", range(30))
def test_a_sample_is_never_of_less_than_is_known_of_it(root: Path, seed: int) -> None:
    """Of what an earlier run has tried, the killed are known for longer than those that survived."""
    dice = random.Random(seed)
    notes = book(root)
    order = sorted(map(mutant, range(50)), key=notes.key_of)
    survive = {each for each in order if dice.random() < 0.2}
    tried = dice.randrange(51)
    for each in order[:tried]:
        notes.note(each, SURVIVED if each in survive else KILLED)
    (root / "tests/test_a.py").write_text("def test_one(): pass\n\ndef test_two(): assert 1\n")
    again = book(root)
    known = {each: again.known(each) for each in order}
    killed = sum(each not in survive for each in order[:tried])
    assert sum(map(bool, known.values())) == killed, "no survivor is known any more"
    for sample in (dice.randrange(tried + 1), dice.randint(tried, 50)):
        asked = sampled(order, known, sample)
        last = max((number for number, each in enumerate(order, 1) if known[each]), default=0)
        assert asked == order[: max(sample, last)]
        assert {each for each in order if known[each]} <= set(asked)
    assert sampled(order, known, None) == order
