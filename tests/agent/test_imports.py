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
import re, sys, time
before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
began = time.process_time()
sum(range(20_000_000))
yardstick = time.process_time() - began
began = time.process_time()
import airflow_provider_ocidist.agent.__main__
for kind in ("torchrun", "python"):
    __import__("airflow_provider_ocidist.launchers." + kind)
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(loaded - set(sys.stdlib_module_names)))
print((time.process_time() - began) / yardstick)
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024)
"""


@pytest.mark.skipif(
    sys.version_info < (3, 10), reason="before Python 3.10 nothing lists the standard library"
)
def test_the_agent_loads_nothing_outside_the_standard_library_and_starts_fast() -> None:
    command = [sys.executable, "-I", "-c", PROBE, str(REPOSITORY)]
    probes = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
        for _ in range(3)
    ]
    assert {lines[0] for lines in probes} == {"['airflow_provider_ocidist']"}
    # Processor time of the best of three, by that of adding twenty million numbers: 0.27 to 0.31.
    assert min(float(lines[1]) for lines in probes) < 0.6
    assert min(float(lines[2]) for lines in probes) < 40
