"""Hang: notices that no node makes progress any more, and says where its processes stand."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from airflow_provider_ocidist.agent import guard
from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter

DUMP_TIME = 1.0
"""Seconds that processes are given to print where they are."""


class HangWatch:
    """Judges for all nodes: that one node is silent means nothing while others speak."""

    def __init__(
        self,
        meter: ProgressMeter,
        timeout: float,
        *,
        others: Callable[[], Iterable[float | None]],
        declare: Callable[[str], object],
    ) -> None:
        """`others` returns for how long each other node has shown no progress, in seconds and as it has measured by
        itself; None where its report is unreadable.
        """
        self.meter = meter
        self.timeout = timeout
        self.others = others
        self.declare = declare
        self.declared = False

    def look(self) -> None:
        if not self.declared and self._is_hung():
            self.declared = True
            self.declare(self._message())

    def _is_hung(self) -> bool:
        if self.meter.idle < self.timeout:
            return False
        # A report that cannot be read may hold progress: what is not known is not judged.
        return all(idle is not None and idle >= self.timeout for idle in self.others())

    def _message(self) -> str:
        step = self.meter.progress.step
        last = "no step was ever seen" if step is None else f"the last step was {step}"
        return f"no output, progress or checkpoint on any node for {self.timeout:.0f} s; {last}"


def dump_stacks(guard_pid: int) -> list[str]:
    """Make all Python processes of the training print their stacks, and return a line about each process.

    PYTHONFAULTHANDLER, which we set, makes them do that on SIGABRT; it ends them too, as comes next anyway.
    """
    processes = guard.descendants(guard_pid)
    lines = [line for pid in processes if (line := describe_process(pid))]
    for pid in processes:
        if _catches(pid, signal.SIGABRT):
            os.kill(pid, signal.SIGABRT)
    time.sleep(DUMP_TIME)
    return lines


def describe_process(pid: int) -> str | None:
    """Return what a process is and where in the kernel it waits; None when it is gone."""
    place = Path(f"/proc/{pid}")
    try:
        command = place.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        status = _status(place)
        waits = place.joinpath("wchan").read_text() or "0"
    except OSError:
        return None
    where = f" in {waits}" if waits != "0" else ""
    state, threads = status.get("State", "?"), status.get("Threads", "?")
    return f"process {pid} ({command[:80]}): {state}{where}, {threads} threads"


def _status(place: Path) -> dict[str, str]:
    lines = place.joinpath("status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _catches(pid: int, number: int) -> bool:
    try:
        return bool(int(_status(Path(f"/proc/{pid}"))["SigCgt"], 16) >> (number - 1) & 1)
    except (OSError, KeyError, ValueError):
        return False
