"""What CI asks beyond pytest: tests that fail are looked at again, and the checkout stays as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.run_tests import MOST_AGAIN
from tests.inner_runs import run_in_ci
from tests.skips import REFUSED

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = ("-c", os.devnull, "-p", "tests.skips", "-p", "xdist", "-n", "1")
FAILS_ONCE = """
from pathlib import Path

def test_flaky_{number}():
    seen = Path("seen-{number}")
    before = seen.exists()
    seen.touch()
    assert before
"""
FAILS = "\ndef test_broken():\n    assert False\n"
NEVER_ENDS = "\nimport time\n\ndef test_that_never_ends():\n    time.sleep(600)\n"
PASSES = "\ndef test_fine():\n    pass\n"
LITTERS = """
from pathlib import Path

def test_litters():
    Path("checkpoints").mkdir()
    Path("checkpoints/step-3").touch()
"""
SKIPS = "\nimport pytest\n\ndef test_skipped():\n    pytest.skip('sextant is not installed')\n"


def run(folder: Path, text: str, *, ci: str = "1") -> subprocess.CompletedProcess[str]:
    (folder / "test_some.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "scripts.run_tests", *OPTIONS, "--rootdir", str(folder), str(folder)],
        cwd=folder,
        env={**os.environ, "CI": ci, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def flaky(count: int) -> str:
    return "".join(FAILS_ONCE.format(number=number) for number in range(count))


@pytest.mark.parametrize("count", [1, MOST_AGAIN])
def test_what_passes_alone_is_named_and_passes(tmp_path: Path, count: int) -> None:
    done = run(tmp_path, flaky(count) + PASSES)
    assert done.returncode == 0, done.stdout
    (named,) = [line for line in done.stdout.splitlines() if line.startswith("FLAKY")]
    assert all(f"test_flaky_{number}" in named for number in range(count))
    assert "test_fine" not in named


def test_more_failures_than_a_few_are_not_looked_at_again(tmp_path: Path) -> None:
    done = run(tmp_path, flaky(MOST_AGAIN + 1))
    assert done.returncode == 1
    assert "FLAKY" not in done.stdout


@pytest.mark.parametrize("text", [FAILS, FAILS + flaky(1)])
def test_what_fails_twice_fails_the_run(tmp_path: Path, text: str) -> None:
    done = run(tmp_path, text)
    assert done.returncode == 1
    assert "FLAKY" not in done.stdout


def test_elsewhere_than_in_ci_a_failure_is_a_failure(tmp_path: Path) -> None:
    assert run(tmp_path, flaky(1), ci="").returncode == 1


def test_a_second_look_hides_no_skip_that_was_refused(tmp_path: Path) -> None:
    assert run(tmp_path, flaky(1) + SKIPS).returncode == REFUSED


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_is_interrupted_prints_what_has_failed(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_first.py").write_text(FAILS)
    (tmp_path / "test_second.py").write_text(NEVER_ENDS)
    options = (
        "-ptests.skips",
        "-ptests.failures_at_once",
        "-pxdist",
        "-n",
        str(workers),
        "--dist",
        "loadfile",
    )
    with run_in_ci(tmp_path, "scripts.run_tests", [*options, "--rootdir", ".", "."]) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("FAILED test_first.py"):
                break
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "1 failed" in output


def test_tests_that_change_the_checkout_fail_the_run(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    done = run(tmp_path, LITTERS)
    assert done.returncode == 1, done.stdout
    assert "tests have changed the checkout: ?? checkpoints/step-3\n" in done.stdout


IN_THE_BACKGROUND = """
import signal, subprocess
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
import tests.conftest
signal.raise_signal(signal.SIGHUP)
for number in (signal.SIGINT, signal.SIGHUP):
    print(subprocess.run(["sh", "-c", f"kill -s {number.name[3:]} $$"]).returncode)
"""


def test_a_run_in_the_background_outlives_its_terminal_and_starts_programs_that_do_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_BACKGROUND], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["-2", "-1"], done.stderr
