"""Activity: whether a node makes progress with the stages before the training."""

from __future__ import annotations

import os
import time
from pathlib import Path

from airflow_provider_ocidist.agent import guard

OWN_STEP = 1 << 24
"""Bytes that this process has to write, or to compare, for one step of progress: its heartbeat and log write a little
too."""
CHILDREN_STEP = 1 << 16
"""Bytes that git, pip and the like have to read and write for one step of progress."""
TICKS = 100
"""Ticks of processor time that these have to use for one step of progress: pip compiles without output."""


class Activity:
    """Counts the steps; the number changes while code, packages or data still arrive."""

    def __init__(self) -> None:
        self._stages = 0
        self._furthest = (0, 0, 0)
        self._known = (0, time.monotonic())
        self._read = 0
        """Bytes of local files that were compared with what is stored."""

    def enter(self) -> None:
        """Record the start of a stage."""
        self._stages += 1

    def has_read(self, size: int) -> None:
        """Record that so many bytes of a local file were compared: that takes long, and writes nothing."""
        self._read += size

    def still_for(self) -> float:
        """Return for how many seconds the number has not changed."""
        stages, since = self._known
        now = time.monotonic()
        if stages != self._stages:
            since = now
            self._known = (self._stages, now)
        return now - since

    def look(self) -> int:
        """Return this node's progress, in steps of no particular size."""
        children = guard.descendants(os.getpid())
        found = (
            (_bytes_of(os.getpid(), "wchar:") + self._read) // OWN_STEP,
            sum(_bytes_of(pid, "rchar:", "wchar:") for pid in children) // CHILDREN_STEP,
            sum(map(_ticks_of, children)) // TICKS,
        )
        # An ended child's counters are gone; the next one starts from 0.
        if found != self._furthest:
            self._furthest = found
            self._stages += 1
        return self._stages


def _bytes_of(pid: int, *names: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(names))


def _ticks_of(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
