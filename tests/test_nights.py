"""What CI leaves to the night: only what is named, and only there."""

from __future__ import annotations

import ast
import random
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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ci", [True, False])
def test_only_ci_leaves_tests_to_the_night_and_only_those_that_are_named(
    tmp_path: Path, workers: int, ci: bool
) -> None:
    numbers = random.sample(range(100), random.randint(2, 5))
    (tmp_path / "test_file.py").write_text(FILE.format(numbers=", ".join(map(str, numbers))))
    left = f"test_file.py::test_some[{numbers[0]}]"
    (tmp_path / "nights.toml").write_text(f'[[left]]\ntests = "{left}"\nwhy = "one is enough"\n')
    (tmp_path / "plugin.py").write_text(PLUGIN.format(path=str(tmp_path / "nights.toml")))
    options = ["-v", "-pplugin", "-pno:cacheprovider", "test_file.py"]
    options += ["-pxdist", "-n", str(workers)] if workers else []
    with run_in_ci(tmp_path, "pytest", options, ci=ci) as process:
        said, _ = process.communicate(timeout=120)
    assert f"{len(numbers) + (0 if ci else 1)} passed" in said
    assert (left in said) is not ci
    assert ("to the night" in said) is ci


def test_each_entry_names_tests_that_exist_and_says_what_ci_runs_instead() -> None:
    for left in Left.read(LEFT):
        file, _, name = left.tests.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        function = name.split("[")[0].split("::")[-1]
        names = {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert function == "*" or function in names, left.tests
        assert left.why


@pytest.mark.parametrize(
    "nodeid, is_left", [("a.py::t[x-y]", True), ("a.py::t[y]", False), ("a.py::t", False)]
)
def test_brackets_are_no_set_of_characters(nodeid: str, is_left: bool) -> None:
    assert Left("a.py::t[x*]", "it varies").has(nodeid) is is_left
