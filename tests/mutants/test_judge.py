"""The judge of mutants, on a small project of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scripts.mutants.judge import Baseline

ROOT = Path(__file__).resolve().parents[2]
MODULE = """LIMIT = 3


def is_long(name):
    return len(name) > LIMIT


def says(name):
    return f"<{name}>"


def untested(name):
    return name
"""
TESTS = """
import subprocess
import sys

import pytest

from a import LIMIT, is_long, says


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("place")


@pytest.mark.parametrize("length", range(1, LIMIT + 1))
def test_short(length):
    assert not is_long("x" * length)


def test_long(place):
    assert not list(place.iterdir())
    (place / "one").touch()
    assert is_long("xxxx")


def test_program(tmp_path):
    command = [sys.executable, "-c", "import a; assert a.untested('x') == 'x' and a.says('x') == '<x>'"]
    subprocess.run(command, check=True)
"""
CONFTEST = """
import gc

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    yield
    # As tests/conftest.py: what was collected is never gone through again.
    gc.freeze()
"""
DRIVER = """
import json
import sys
from pathlib import Path

import pytest

from scripts.mutants.judge import Bench, Place, settle

tree, folder, changes = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
place = Place(tree=tree, folder=folder, log=folder / "log")
settle(place)
text = (tree / "a.py").read_text()
bench = Bench(place=place, module="a.py", tests=["test_a.py"])
for old, new in changes:
    line = text[: text.index(old)].count("\\n") + 1
    verdict = bench.judge("f", text.replace(old, new), (line, line))
    print(json.dumps([verdict.outcome, verdict.test]), flush=True)
bench.end()
assert (tree / "a.py").read_text() == text
"""
CHANGES = {
    ("> LIMIT", ">= LIMIT"): ("killed", "test_a.py::test_short[3]"),
    ("> LIMIT", "> LIMIT + 1"): ("killed", "test_a.py::test_long"),
    ("> LIMIT", "> LIMIT + 0"): ("survived", ""),
    ("LIMIT = 3", "LIMIT = 4"): ("killed", "test_a.py::test_long"),
    ("LIMIT = 3", "LIMIT = 1 // 0"): ("killed", "test_a.py"),
    ("return name", "return 1"): ("killed", "test_a.py::test_program"),
    ('f"<{name}>"', '"XX"'): ("killed", "test_a.py::test_program"),
    ("return len(name) > LIMIT", "import os; os._exit(0)"): ("hung", ""),
}


@pytest.mark.parametrize("conftest", ["", CONFTEST], ids=["plain", "frozen"])
def test_each_mutant_is_judged_by_the_tests_that_run_it_and_leaves_nothing_behind(
    tmp_path: Path, conftest: str
):
    tree, folder = tmp_path / "tree", tmp_path / "work"
    for path in (tree, folder):
        path.mkdir()
    (tree / "a.py").write_text(MODULE)
    (tree / "test_a.py").write_text(TESTS)
    (tree / "conftest.py").write_text(conftest)
    (tree / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    # All of them twice: what one mutant leaves would be found by the next.
    changes = [*CHANGES, *CHANGES]
    command = [sys.executable, "-c", DRIVER, str(tree), str(folder), json.dumps(changes)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr + (folder / "log").read_text()
    verdicts = [tuple(json.loads(line)) for line in ran.stdout.splitlines()]
    assert dict(zip(changes[: len(CHANGES)], verdicts, strict=False)) == CHANGES
    assert verdicts == [*CHANGES.values()] * 2


SERVANTS = """
import os
from scripts.mutants.children import Servant


def serve(connection):
    while True:
        connection.send({"was asked": connection.recv()})


for number in range(40):
    servant = Servant(serve)
    assert servant.ask(number) == {"was asked": number}
    servant.end()
os.write(1, b"once")
"""


def test_a_servant_that_is_ended_at_whatever_moment_does_nothing_else() -> None:
    """It is a fork, so what it did not leave to its end would be done twice."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SERVANTS]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "once", "")


def test_those_that_have_killed_most_come_first_and_then_the_shortest_of_the_shortest_file():
    durations = {"b.py::long": 3.0, "a.py::long": 2.0, "b.py::short": 0.1, "a.py::short": 0.2}
    base = Baseline(durations=durations, covering={5: frozenset({"b.py::long", "a.py::long"})})
    assert base.in_order(list(durations), Counter()) == [
        "a.py::short",
        "a.py::long",
        "b.py::short",
        "b.py::long",
    ]
    kills = Counter({"b.py::long": 2, "a.py::long": 1})
    assert base.in_order(list(durations), kills) == ["b.py::long", "a.py::long", "a.py::short", "b.py::short"]


def test_only_tests_that_run_a_line_judge_it_and_all_where_none_does():
    base = Baseline(durations={"one": 1.0, "two": 1.0}, covering={5: frozenset({"two"})})
    assert base.running((4, 5)) == base.running((5, 6)) == ["two"]
    assert base.running((6, 9)) == ["one", "two"]
