"""A run of CI that is killed has named the tests that failed before."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    "test_some.py": """
import pytest

@pytest.fixture
def broken():
    raise OSError("no disk")

def test_that_passes():
    pass

def test_that_fails():
    assert {number} == 0, "not nothing"

def test_that_has_no_disk(broken):
    pass
""",
    "test_slow.py": """
import time

def test_that_never_ends():
    time.sleep(600)
""",
}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_is_killed_has_named_what_failed_before(tmp_path: Path, workers: int) -> None:
    number = random.randint(1, 9)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text.format(number=number))
    # Without workers the file that never ends comes last.
    files = ["test_some.py", "test_slow.py"]
    plugins = ("tests.skips", "tests.failures_at_once", "no:cacheprovider", *(("xdist",) if workers else ()))
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, *(f"-p{name}" for name in plugins), *files]
    process = subprocess.Popen(
        [*command, *(("-n", str(workers), "--dist", "loadfile") if workers else ())],
        cwd=tmp_path,
        env={**os.environ, "CI": "1", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        found = []
        while len(found) < 2 and (line := process.stdout.readline()):
            if line.startswith("FAILED "):
                found.append(line)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    failed, broken = sorted(found)
    assert failed.startswith("FAILED test_some.py::test_that_fails (call, after ")
    assert "not nothing" in failed
    assert broken.startswith("FAILED test_some.py::test_that_has_no_disk (setup, after ")
    assert "no disk" in broken
