"""The agent runs in a bare interpreter, and starts fast."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.gangs import REPOSITORY

PACKAGE = REPOSITORY / "airflow_provider_ocidist"
IMPORT_EACH = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f"{name}: {error!r}")
"""


def modules_that_are_sent() -> list[str]:
    # Read, not imported: the module that says so needs a newer Python.
    source = (PACKAGE / "backends/bundle.py").read_text()
    parts = re.search(r"^AGENT_PARTS = (\(.*?^\))", source, re.MULTILINE | re.DOTALL)[1]
    paths = [PACKAGE / part for part in ast.literal_eval(parts)]
    files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
    return sorted(_name_of(file) for file in files)


def _name_of(file: Path) -> str:
    return ".".join(file.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")


def test_every_module_that_is_sent_to_a_node_needs_its_python_alone() -> None:
    names = modules_that_are_sent()
    assert {"airflow_provider_ocidist", "airflow_provider_ocidist.model.run"} < set(names)
    command = [sys.executable, "-I", "-S", "-c", IMPORT_EACH, str(REPOSITORY), *names]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""


PROBE = """
import re, sys
before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
calls = 0
def count(frame, event, argument):
    global calls
    calls += event == "call"
sys.setprofile(count)
import airflow_provider_ocidist.agent.__main__
import airflow_provider_ocidist.agent.start
for kind in ("torchrun", "python"):
    __import__("airflow_provider_ocidist.launchers." + kind)
sys.setprofile(None)
loaded = set(sys.modules) - before
print(*sorted({name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)))
print(*sorted(loaded))
print(calls)
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024)
"""
LARGE = {"asyncio", "email", "http.client", "multiprocessing", "sqlite3", "ssl", "unittest", "xml"}
"""Parts of the standard library that take long to load; what needs one imports it then."""


@pytest.mark.skipif(
    sys.version_info < (3, 10), reason="before Python 3.10 nothing lists the standard library"
)
def test_the_agent_loads_nothing_outside_the_standard_library_and_does_little_to_start() -> None:
    command = [sys.executable, "-I", "-c", PROBE, str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    foreign, loaded, calls, megabytes = done.stdout.splitlines()
    assert foreign == "airflow_provider_ocidist"
    assert not LARGE.intersection(loaded.split())
    # Counted, as a time says more of the machine: 98,000 calls of functions on Python 3.11, 0.2 s.
    assert int(calls) < 130_000
    assert float(megabytes) < 40
