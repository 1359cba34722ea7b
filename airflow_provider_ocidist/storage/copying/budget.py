"""Budget: the resources that concurrent copies share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_ocidist.storage.copying.memory import Memory

_PARTS_IN_MEMORY = 8


class CopyBudget:
    """Streams and memory for one copy, or for several at a time."""

    def __init__(self, streams: int, part_size: int) -> None:
        """`streams`: at most, of all copies together; `part_size` in bytes, eight of which may be in memory."""
        self.memory = Memory(part_size * _PARTS_IN_MEMORY)
        self.interrupted = threading.Event()
        """Event that ends all copies, which keep their results for a later attempt."""
        self._streams = streams
        self._copies = 0
        self._lock = threading.Lock()

    @contextmanager
    def member(self) -> Iterator[None]:
        """Take part for as long as a copy goes on."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    @property
    def share(self) -> int:
        """How many streams one copy may have now."""
        return max(1, self._streams // max(1, self._copies))

    def _count(self, change: int) -> None:
        with self._lock:
            self._copies += change
