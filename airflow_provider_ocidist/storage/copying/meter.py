"""A copy's progress, counted by all its threads, and reported periodically."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.storage.stores.base import Entry

_REPORTED_EVERY_S = 0.25
_FILE_COUNTS_AS = 64 << 10
"""Bytes that a small file counts as, since it takes its request's time, whatever is in it."""


@dataclass(frozen=True, kw_only=True)
class TransferProgress:
    """A copy's progress."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    """Bytes of the files whose size is known beforehand."""
    seconds: float
    """Seconds since the copy began."""
    bytes_there: int = 0
    """Bytes of the files that are not copied, since they are at the target: they count in no other number here."""

    @property
    def bytes_at_target(self) -> int:
        """Bytes that are at the target now, moved by this attempt or an earlier one."""
        return self.bytes_done + self.bytes_there

    @property
    def rate(self) -> float:
        """Bytes per second, on average since the start."""
        return self.bytes_done / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta(self) -> float | None:
        """Seconds until the end at this rate; None while unknown."""
        return max(self.bytes_total - self.bytes_done, 0) / self.rate if self.rate else None


class Meter:
    """Counts what was moved and reports it, at most four times a second."""

    def __init__(self, on_progress: Callable[[TransferProgress], None] | None) -> None:
        self.on_progress = on_progress
        self.started = time.monotonic()
        self.reported = 0.0
        self.files_done = self.files_total = self.bytes_done = self.bytes_total = 0
        self.resumed_bytes = 0
        """Bytes of `bytes_done` that an interrupted attempt had left."""
        self.bytes_there = 0
        """Bytes of the files that are not copied, since they are at the target."""
        self._lock = threading.Lock()

    def begin(self, entries: Sequence[Entry]) -> None:
        self.files_total = len(entries)
        self.bytes_total = sum(entry.size or 0 for entry in entries)

    def add(self, size: int) -> None:
        with self._lock:
            self.bytes_done += size

    def add_resumed(self, size: int) -> None:
        with self._lock:
            self.bytes_done += size
            self.resumed_bytes += size

    def add_file(self) -> None:
        with self._lock:
            self.files_done += 1

    @property
    def moved(self) -> int:
        """Work done, in bytes."""
        return self.bytes_done - self.resumed_bytes + self.files_done * _FILE_COUNTS_AS

    def report(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if not self.on_progress or (now - self.reported < _REPORTED_EVERY_S and not force):
            return
        self.reported = now
        self.on_progress(
            TransferProgress(
                files_done=self.files_done,
                files_total=self.files_total,
                bytes_done=self.bytes_done,
                bytes_total=self.bytes_total,
                seconds=now - self.started,
                bytes_there=self.bytes_there,
            )
        )
