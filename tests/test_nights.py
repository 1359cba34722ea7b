"""What CI and make leave to the night: only what is named, and only there."""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from tests.inner_runs import run_in_ci
from tests.nights import LEFT, Left

ROOT = Path(__file__).resolve().parent.parent
FILE = """
import pytest

@pytest.mark.parametrize("number", [{numbers}])
def test_some(number):
    pass

def test_other():
    pass
"""
PLUGIN = """
from pathlib import Path

from tests import nights

nights.LEFT = Path({path!r})
pytest_configure = nights.pytest_configure
"""


@pytest.mark.parametrize("keeps", range(4))
def test_of_many_draws_the_first_few_of_each_test_are_kept(keeps: int) -> None:
    names = [f"tests/test_a.py::test_{name}[{number}]" for name in "xy" for number in range(3)]
    others = ["tests/test_a.py::test_z[0]", "tests/test_a.py::TestX::test_x[0]"]
    left = Left(tests=["tests/test_a.py::test_x*", "tests/test_a.py::test_y[*]"], why="draws", keeps=keeps)
    out = list(left.out_of([*names, *others]))
    assert out == [name for name in names if int(name[-2]) >= keeps]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ci, asked", [(True, ""), (False, "1"), (False, "")])
def test_only_ci_and_make_leave_tests_to_the_night_and_only_those_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, ci: bool, asked: str
) -> None:
    monkeypatch.setenv("LEAVE_TO_NIGHT", asked)
    leaves = ci or bool(asked)
    numbers = random.sample(range(100), random.randint(2, 5))
    (tmp_path / "test_file.py").write_text(FILE.format(numbers=", ".join(map(str, numbers))))
    left = f"test_file.py::test_some[{numbers[0]}]"
    (tmp_path / "nights.toml").write_text(f'[[left]]\ntests = ["{left}"]\nwhy = "one is enough"\n')
    (tmp_path / "plugin.py").write_text(PLUGIN.format(path=str(tmp_path / "nights.toml")))
    options = ["-v", "-pplugin", "-pno:cacheprovider", "test_file.py"]
    options += ["-pxdist", "-n", str(workers)] if workers else []
    with run_in_ci(tmp_path, "pytest", options, ci=ci) as process:
        said, _ = process.communicate(timeout=120)
    assert f"{len(numbers) + (0 if leaves else 1)} passed" in said
    assert (left in said) is not leaves
    assert ("to the night" in said) is leaves


def test_each_entry_names_tests_that_exist_and_says_what_ci_runs_instead() -> None:
    for left in Left.read(LEFT):
        assert left.why
        for tests in left.tests:
            file, _, name = tests.partition("::")
            tree = ast.parse((ROOT / file).read_text())
            function = name.split("[")[0].split("::")[-1]
            names = {
                node.name
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert function == "*" or function in names, tests


@pytest.mark.parametrize("asked, left", [((), "1"), (("NIGHT=1",), ""), (("TESTS=tests/cli",), "")])
def test_make_leaves_them_unless_night_is_asked_for_or_tests_are_named(
    asked: tuple[str, ...], left: str
) -> None:
    command = [
        "make",
        "--no-print-directory",
        "--dry-run",
        "--eval",
        "shown: ; @echo $(LEAVE_TO_NIGHT)",
        "shown",
    ]
    # What the make that runs these tests was given is none of this one's.
    others = ("MAKE", "MFLAGS", "NIGHT", "TESTS", "LEAVE_TO_NIGHT")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    done = subprocess.run(
        [*command, *asked], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["echo", *left]


def test_the_night_runs_all() -> None:
    assert re.search(r"^export NIGHT=1$", (ROOT / ".ci" / "nightly").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "nodeid, is_left", [("a.py::t[x-y]", True), ("a.py::t[y]", False), ("a.py::t", False)]
)
def test_brackets_are_no_set_of_characters(nodeid: str, is_left: bool) -> None:
    left = Left(["b.py::t", "a.py::t[x*]"], "it varies")
    assert list(left.out_of([nodeid])) == ([nodeid] if is_left else [])
