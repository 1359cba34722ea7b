"""A run of CI that is killed has named the tests that failed before."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.inner_runs import run_in_ci

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
    parallel = ("-n", str(workers), "--dist", "loadfile") if workers else ()
    found: list[str] = []
    with run_in_ci(tmp_path, "pytest", [*(f"-p{name}" for name in plugins), *files, *parallel]) as process:
        assert process.stdout is not None
        while len(found) < 2 and (line := process.stdout.readline()):
            if line.startswith("FAILED "):
                found.append(line)
    failed, broken = sorted(found)
    assert failed.startswith("FAILED test_some.py::test_that_fails (call, after ")
    assert "not nothing" in failed
    assert broken.startswith("FAILED test_some.py::test_that_has_no_disk (setup, after ")
    assert "no disk" in broken
