"""Hang: detects that no node makes progress any more, and logs its processes' stacks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from airflow_provider_ocidist.agent import guard
from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter

DUMP_TIME = 1.0
"""Seconds that processes have to print their stacks."""


class HangWatch:
    """Judges for all nodes: a single idle node is no hang while others progress."""

    def __init__(
        self,
        meter: ProgressMeter,
        timeout: float,
        *,
        others: Callable[[], Iterable[float | None]],
        declare: Callable[[str], object],
    ) -> None:
        """`others` returns for how many seconds each other node has shown no progress, by its own clock; None where its
        report is unreadable.
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
        # An unreadable report may hold progress: then no hang is declared.
        return all(idle is not None and idle >= self.timeout for idle in self.others())

    def _message(self) -> str:
        step = self.meter.progress.step
        last = "no step was ever seen" if step is None else f"the last step was {step}"
        return f"no output, progress or checkpoint on any node for {self.timeout:.0f} s; {last}"


def dump_stacks(guard_pid: int) -> list[str]:
    """Make all Python processes of the training print their stacks, and return a line about each process.

    PYTHONFAULTHANDLER, which we set, makes them do that on SIGABRT; it also ends them, as is intended.
    """
    processes = guard.descendants(guard_pid)
    lines = [line for pid in processes if (line := describe_process(pid))]
    for pid in processes:
        if _catches(pid, signal.SIGABRT):
            os.kill(pid, signal.SIGABRT)
    time.sleep(DUMP_TIME)
    return lines


def describe_process(pid: int) -> str | None:
    """Return a process's command, state and kernel wait; None when it is gone."""
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
