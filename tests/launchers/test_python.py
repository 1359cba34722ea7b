"""Plain processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from airflow_provider_ocidist.job import LauncherOptions, Program
from airflow_provider_ocidist.launchers.base import Placement, ProcessFailure
from airflow_provider_ocidist.launchers.python import LAUNCHER

REPOSITORY = Path(__file__).parents[2]


def placement(processes: int) -> Placement:
    return Placement(
        rank=1,
        nodes=2,
        processes_per_node=processes,
        master_address="10.0.0.1",
        address="10.0.0.2",
        rendezvous_id="run",
        join_timeout=60.0,
    )


def run(tmp_path: Path, script: str, processes: int) -> subprocess.CompletedProcess[str]:
    (tmp_path / "x.py").write_text(script)
    command = LAUNCHER.command(
        Program(script=str(tmp_path / "x.py")), LauncherOptions(), placement(processes)
    )
    environ = {**os.environ, **LAUNCHER.environment(placement(processes)), "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_one_process_is_the_program_itself() -> None:
    built = LAUNCHER.command(
        Program(script="x.py", args=("--lr", "1")), LauncherOptions(args=("-W", "ignore")), placement(1)
    )
    assert built == [sys.executable, "-W", "ignore", "x.py", "--lr", "1"]


def test_every_process_has_its_ranks(tmp_path: Path) -> None:
    script = """
import os
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
os.write(1, (" ".join(os.environ[name] for name in names) + "\\n").encode())
"""
    done = run(tmp_path, script, processes=3)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["3 0 6 10.0.0.1", "4 1 6 10.0.0.1", "5 2 6 10.0.0.1"]


def test_one_failure_ends_all_with_its_exit_code(tmp_path: Path) -> None:
    script = "import os, sys, time\nif os.environ['RANK'] == '3': sys.exit(4)\ntime.sleep(60)"
    started = time.monotonic()
    done = run(tmp_path, script, processes=2)
    assert done.returncode == 4
    assert done.stderr == "rank 3 (local rank 1) ended with 4; ending the others\n"
    assert LAUNCHER.first_failure(done.stderr) == ProcessFailure(rank=3, exit_code=4)
    assert LAUNCHER.user_output(f"step 3\n{done.stderr}") == "step 3\n"
    assert time.monotonic() - started < 20


SAVES_LAST = """
import os, pathlib, signal, sys, time
folder, rank = pathlib.Path(__file__).parent, int(os.environ["LOCAL_RANK"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3 if rank else 0))
try:
    os.write(1, b"ready\\n")
    time.sleep(60)
finally:
    # The others end meanwhile, and with a failure.
    time.sleep(0.0 if rank else 1.0)
    (folder / f"saved-{rank}").touch()
"""


def test_each_process_gets_sigterm_once_and_has_the_time_that_the_agent_gives(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(SAVES_LAST)
    place = placement(3)
    command = LAUNCHER.command(Program(script=str(tmp_path / "x.py")), LauncherOptions(), place)
    environ = {**os.environ, **LAUNCHER.environment(place), "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as launcher:
        assert launcher.stdout is not None
        assert [launcher.stdout.readline() for _ in range(3)] == ["ready\n"] * 3
        os.killpg(launcher.pid, signal.SIGTERM)
        _, said = launcher.communicate(timeout=60)
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1", "saved-2"]
    assert (launcher.returncode, said) == (3, "")
