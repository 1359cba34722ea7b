"""The agent runs in a bare interpreter, and starts fast."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.agent.gangs import REPOSITORY

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
