"""The end of a run: how many tests were skipped and why; and in CI, that one for no known reason fails it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.skips import EXPECTED, REFUSED, Expected, summary, unexpected

ROOT = Path(__file__).resolve().parent.parent
FILE = """
import pytest

def test_that_runs():
    pass

@pytest.mark.skipif(True, reason="{expected}")
def test_that_is_expected():
    pass

@pytest.mark.parametrize("number", range({times}))
def test_that_lacks_a_program(number):
    pytest.skip("sextant is not installed")
"""
WHOLE_FILE = "import pytest\npytest.importorskip('no_such_library', reason='it is optional')\n"


def run(folder: Path, *options: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    """Run pytest on a folder with the report alone: the plugins of all that is installed take seconds to load."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        os.devnull,
        "-p",
        "tests.skips",
        "-p",
        "no:cacheprovider",
    ]
    return subprocess.run(
        [*command, *options, str(folder)],
        cwd=folder,
        env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_the_end_of_a_run_counts_skips_by_reason_and_only_ci_fails_for_an_unknown_one(
    tmp_path: Path, workers: int
) -> None:
    times = random.randint(1, 5)
    known = "from Airflow 3.3 on it defers"
    (tmp_path / "test_some.py").write_text(FILE.format(expected=known, times=times))
    (tmp_path / "test_file.py").write_text(WHOLE_FILE)
    options = ("-p", "xdist", "-n", str(workers)) if workers else ()
    elsewhere, in_ci = run(tmp_path, *options), run(tmp_path, *options, ci="1")
    assert (elsewhere.returncode, in_ci.returncode) == (0, REFUSED), elsewhere.stdout + in_ci.stdout
    for done in (elsewhere, in_ci):
        lines = [line.strip() for line in done.stdout.splitlines()]
        assert f"skipped: {times + 2}" in lines
        assert f"{times}  sextant is not installed" in lines
        assert f"1  {known}" in lines
        assert "1  it is optional" in lines
    (refusal,) = [line for line in in_ci.stdout.splitlines() if line.startswith("not expected in CI")]
    assert "sextant is not installed" in refusal
    assert "it is optional" in refusal
    assert known not in refusal
    assert "not expected in CI" not in elsewhere.stdout


def test_a_run_without_skips_says_so_and_passes_in_ci(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("def test_that_runs():\n    pass\n")
    done = run(tmp_path, ci="true")
    assert done.returncode == 0, done.stdout
    assert "no test was skipped" in done.stdout.splitlines()


def test_each_expected_reason_is_explained_and_accepts_no_missing_program() -> None:
    expected = Expected.read(EXPECTED)
    assert all(each.why.strip() for each in expected)
    missing = [
        "chromium is not installed",
        "Open MPI and openssh-server are not installed",
        "PostgreSQL is not installed: apt-get install postgresql, as root",
        "podman missing: apt-get install podman",
        "no network namespace can be made here: there is no `ip`",
        "no reason is given",
    ]
    assert unexpected(missing, expected) == missing


def test_the_most_frequent_reason_comes_first() -> None:
    numbers = random.sample(range(1, 50), 4)
    reasons = Counter({f"reason {number}": number for number in numbers})
    _, *lines = summary(reasons, [])
    assert [int(line.split()[0]) for line in lines] == sorted(numbers, reverse=True)
