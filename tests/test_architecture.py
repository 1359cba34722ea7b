"""The walls of the house: who imports whom, and what reading a DAG file must not load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib
ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "airflow_provider_ocidist"
FACE = {
    "airflow_errors",
    "decorators",
    "endings",
    "filesystem",
    "hooks",
    "job_tasks",
    "killable_tasks",
    "lineage",
    "links",
    "operators",
    "outcome_tasks",
    "plugin",
    "provider_info",
    "retries",
    "sensors",
    "shared_connections",
    "task_context",
    "task_log_settings",
    "task_logs",
    "transfers",
    "triggers",
    "watchers",
}
"""The modules that may import Airflow."""


def contracts() -> dict[str, dict]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {contract["name"]: contract for contract in settings["tool"]["importlinter"]["contracts"]}


def modules() -> set[str]:
    found = {path.stem for path in (ROOT / PACKAGE).glob("*.py")} | {
        path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")
    }
    return found - {"__init__"}


def in_a_new_interpreter(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_imports_go_one_way_only():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_every_module_is_either_of_the_airflow_face_or_kept_from_airflow():
    kept = contracts()["Only the Airflow face imports Airflow"]["source_modules"]
    assert modules() - FACE == {name.removeprefix(f"{PACKAGE}.") for name in kept}


def test_every_module_is_kept_from_the_emulator():
    kept = contracts()["Nothing but the command line and the pytest plugin imports the emulator"][
        "source_modules"
    ]
    assert modules() - {"emulator", "cli", "testing", "provider_info"} == {
        name.removeprefix(f"{PACKAGE}.") for name in kept
    }


# One interpreter for all, because Airflow itself takes seconds to import; each module is imported in a fork of its own.
IN_A_DAG_FILE = (
    "operators",
    "endings",
    "transfers",
    "sensors",
    "triggers",
    "hooks",
    "links",
    "provider_info",
)
IMPORT_EACH = f"""
import os, sys
import airflow.sdk
for module in {IN_A_DAG_FILE}:
    if os.fork() == 0:
        __import__("{PACKAGE}." + module)
        print(module, *sorted({{name.partition(".")[0] for name in sys.modules}}))
        sys.exit()
    assert os.wait()[1] == 0, module
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The libraries that are there after each module's import."""
    lines = [line.split() for line in in_a_new_interpreter(IMPORT_EACH).splitlines()]
    return {line[0]: set(line[1:]) for line in lines if line}


@pytest.mark.parametrize("module", IN_A_DAG_FILE)
def test_reading_a_dag_file_loads_no_heavy_library(module, loaded):
    assert PACKAGE in loaded[module]
    assert (
        not {"oci", "ocifs", "torch", "kubernetes", "ads", "pandas", "starlette.testclient"} & loaded[module]
    )


def test_the_package_itself_imports_nothing():
    program = f"import sys; before = set(sys.modules); import {PACKAGE}; print(*(set(sys.modules) - before))"
    assert set(in_a_new_interpreter(program).split()) == {PACKAGE}


def test_the_command_line_starts_without_airflow_and_oci():
    program = f"import sys, {PACKAGE}.cli; print(*sys.modules)"
    assert not {"airflow", "oci", "torch", "starlette"} & set(in_a_new_interpreter(program).split())
