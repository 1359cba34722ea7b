"""Processes that are killed or stopped from outside, under real torchrun."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import LauncherOptions, Limits
from tests.agent.gangs import Gang, processes_with

TWO_RANKS = """
import os, time
print(f"rank {os.environ['RANK']} is {os.getpid()}\\n", end="")
while True:
    time.sleep(0.2)
"""


def started(gang: Gang) -> dict[str, int]:
    """Return the process of each rank, once all are there."""
    stdout = gang.agents[0].stdout

    def found() -> dict[str, int]:
        lines = [line.split() for line in stdout.read_text().splitlines() if " is " in line]
        return {line[-3]: int(line[-1]) for line in lines}

    gang.agents[0].shows(lambda: len(found()) == 2)
    return found()


@pytest.mark.torch
def test_a_rank_and_a_launcher_that_are_killed_are_reported_and_leave_nothing(tmp_path: Path) -> None:
    launcher = LauncherOptions(kind="torchrun", processes_per_node=2)
    with (
        Gang(tmp_path / "rank", TWO_RANKS, launcher=launcher) as first,
        Gang(tmp_path / "launcher", TWO_RANKS, launcher=launcher) as second,
    ):
        first.start()
        second.start()
        os.kill(started(first)["1"], signal.SIGKILL)
        started(second)
        (torchrun,) = [
            pid
            for pid in processes_with("torch.distributed.run")
            if pid in processes_with(second.name) and _parent_is_guard(pid)
        ]
        os.kill(torchrun, signal.SIGKILL)
        killed_at = time.monotonic()
        assert [gang.agents[0].wait() for gang in (first, second)] == [137, 137]
        assert time.monotonic() - killed_at < 15
        assert processes_with(first.name) == processes_with(second.name) == []
        reports = [gang.agents[0].report for gang in (first, second)]
    messages = [(report.message or "").removesuffix(": out of memory") for report in reports]
    assert messages == ["the program was killed by SIGKILL (rank 1)", "the program was killed by SIGKILL"]
    assert {report.cause for report in reports} <= {Cause.NODE, Cause.OOM}


def _parent_is_guard(pid: int) -> bool:
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    return (
        b"guard.py" in Path(f"/proc/{parent}/cmdline").read_bytes()
        and b"guard.py" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def test_a_rank_that_is_stopped_is_a_hang_and_its_state_is_reported(tmp_path: Path) -> None:
    script = (
        "import os, time\nprint(f'process {os.getpid()} ')\nwhile True:\n    time.sleep(0.2)\n    print('.')"
    )
    limits = Limits(hang_timeout=5.0, stop_grace=1.0)
    with Gang(tmp_path, script, limits=limits) as gang:
        (agent,) = gang.start()
        agent.prints(".")
        os.kill(int(agent.stdout.read_text().split()[1]), signal.SIGSTOP)
        assert agent.wait() == 75
        assert agent.report.cause is Cause.HANG
        said = agent.stderr.read_text()
    assert "T (stopped)" in said
