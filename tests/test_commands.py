"""What the Makefile and CI's scripts name is there: modules, files, and what their programs import."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import longest

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
TESTS = ROOT / "tests"
TESTS = ROOT / "tests"
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^([a-z0-9-]+):.*## ", MAKEFILE, re.MULTILINE)
SCRIPTS = sorted((ROOT / ".ci").iterdir())
OURS = "airflow_provider_ocidist|scripts|tests|benchmarks"

_FILE = re.compile(rf"(?<![\w./$-])((?:{OURS}|requirements|container|docs|dags_examples|\.ci)/[\w./-]*\w)")
_MODULE = re.compile(rf"-m ((?:{OURS})(?:\.\w+)*)")
_PROGRAM = re.compile(r"-c '([^']*)'")


def recipe(*words: str) -> str:
    """Return all that a target, with variables, would run; what it needs is included."""
    command = ["make", "--always-make", "--just-print", *words]
    # What the make that runs these tests was given is none of this one's.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_that_are_missing(text: str) -> list[str]:
    return [file for file in _FILE.findall(text) if not (ROOT / file).exists()]


def modules_that_do_not_run(text: str) -> list[str]:
    return [module for module in _MODULE.findall(text) if not _runs(module)]


def _runs(module: str) -> bool:
    try:
        found = importlib.util.find_spec(module)
        if found and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{module}.__main__")
    except ImportError:
        return False
    return found is not None


def programs_that_fail(text: str) -> dict[str, str]:
    """Return the errors of the programs in a text that import something of ours."""
    programs = {program for program in _PROGRAM.findall(text) if re.search(rf"\b({OURS})\b", program)}
    return {program: error for program in programs if (error := _error_of(program))}


def _error_of(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stderr


def missing(text: str) -> list[str]:
    return [*files_that_are_missing(text), *modules_that_do_not_run(text), *programs_that_fail(text)]


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_target_of_the_makefile_names_is_there(target: str) -> None:
    assert missing(recipe(target)) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_what_a_script_of_ci_names_is_there(script: Path) -> None:
    text = script.read_text()
    called = re.findall(r"\bmake ([a-z0-9-]+(?: [A-Z]+=\w+)*)", text)
    assert {each.split()[0] for each in called} <= set(TARGETS)
    # A variable chooses other tests: `make test-python39 NODES=short`.
    recipes = [recipe(*each.split()) for each in called if "=" in each]
    assert missing("\n".join([text, *recipes])) == []


@pytest.mark.parametrize("file", sorted((ROOT / "tests" / "gpu").glob("*.py")), ids=lambda file: file.stem)
def test_what_only_a_machine_with_a_gpu_runs_can_be_imported_here(file: Path) -> None:
    importlib.import_module(f"tests.gpu.{file.stem}")


def test_the_files_that_a_run_begins_with_are_there() -> None:
    assert [file for file in longest.FILES if not (longest.TESTS / file).is_file()] == []


@pytest.mark.parametrize(
    "text, gone",
    [
        ("pytest tests/model/test_moved.py tests/agent", ["tests/model/test_moved.py"]),
        (
            "python -m scripts.moved; python -m scripts.mutants; python -m tests.model",
            ["scripts.moved", "tests.model"],
        ),
        (
            "python -c 'from airflow_provider_ocidist import bundle'",
            ["from airflow_provider_ocidist import bundle"],
        ),
        ("python -c 'from airflow_provider_ocidist.backends import bundle'", []),
    ],
    ids=["file", "module", "import", "none"],
)
def test_what_has_moved_away_is_noticed(text: str, gone: list[str]) -> None:
    assert missing(text) == gone
