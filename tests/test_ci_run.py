"""CI's script, with a `make` that only prints its targets: every step runs, each failure counts, nothing hangs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAKE = """#!/bin/bash
echo "begins $*" | tee -a asked
case " $FAILS " in *" $1 "*) echo "$1 has failed"; exit 2 ;; esac
if [ "$1" = "$HANGS" ]; then
    trap 'echo "it was at line 7"; exit 3' INT
    for _ in $(seq 600); do sleep 0.1; done
fi
[ "$1" != "$WAITS" ] || for _ in $(seq 100); do ! grep -q "begins $FOR" asked || break; sleep 0.1; done
echo "ends $*" | tee -a asked
"""
Run = Callable[..., tuple[str, int]]
STEPS = re.compile(r"^(?:step|beside|side_by_side) (.*)$", re.MULTILINE)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the script; return what it prints, and its exit code."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "bin").mkdir()
    make = tmp_path / "bin" / "make"
    make.write_text(MAKE)
    make.chmod(0o755)

    def run(**changes: str) -> tuple[str, int]:
        path = f"{make.parent}{os.pathsep}{os.environ['PATH']}"
        environ = {**os.environ, "FAILS": "", "HANGS": "", "WAITS": "", "FOR": "", "PATH": path, **changes}
        done = subprocess.run(
            [str(tmp_path / ".ci" / "run")],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.stdout, done.returncode

    return run


def targets() -> list[str]:
    """Return what the script asks of make."""
    return sorted(
        {
            target
            for each in STEPS.findall((ROOT / ".ci" / "run").read_text())
            for target in re.findall(r"make ([\w./-]+)", each)
        }
    )


def side_by_side() -> list[str]:
    """Return the targets of a group."""
    (first, *_) = re.findall(r"^side_by_side (.*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    return re.findall(r"make ([\w-]+)", first)


def test_without_a_failure_every_step_is_named_with_what_it_took(run: Run) -> None:
    said, code = run()
    assert code == 0, said
    for target in targets():
        if target not in ("packages", "environments"):
            assert re.search(
                rf"^\d+ s, .*\d+% busy, exit code 0: make {re.escape(target)}\b", said, re.MULTILINE
            ), target
    assert re.search(r"^\d+ s in all$", said, re.MULTILINE)


def test_whatever_fails_every_other_step_runs_and_the_run_has_failed(run: Run) -> None:
    for target in targets():
        said, code = run(FAILS=target)
        assert code == 1, target
        ended = set(re.findall(r"ends (\S+)", said))
        assert ended == set(targets()) - {target}
        if target not in ("packages", "environments"):
            assert re.search(rf"exit code 2: make {re.escape(target)}\b", said), target


def test_steps_side_by_side_run_at_once_and_each_of_their_lines_says_whose_it_is(run: Run) -> None:
    first, second, *_ = side_by_side()
    said, code = run(WAITS=first, FOR=second)
    assert code == 0
    lines = said.splitlines()
    begun = [number for number, line in enumerate(lines) if line.startswith(f"{second}: begins {second}")]
    ended = [number for number, line in enumerate(lines) if line.startswith(f"{first}: ends {first}")]
    assert len(begun) == len(ended) == 1
    assert begun < ended


def test_a_step_that_hangs_is_ended_and_says_where(run: Run) -> None:
    for target, latest in ((side_by_side()[0], "8"), ("check", "4")):
        said, code = run(HANGS=target, CI_LATEST=latest)
        assert code == 1
        assert re.search(rf"^(?:{target}: )?it was at line 7$", said, re.MULTILINE), said
        assert re.search(rf"exit code [1-9]\d*: make {target}\b", said)
        assert "s in all" in said
