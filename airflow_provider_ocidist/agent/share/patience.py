"""Patience: whether another node is worth waiting for, by what the store takes here."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

LEAST = 3.0
"""Seconds for which one piece of another node is waited for, at least."""
SLOWER = 3.0
"""Factor of this node's own time for a piece from the store that a piece of another node may take."""
ALLOWANCE = 30.0
"""Seconds for which this node may wait for another, besides those for the pieces that it was given."""


class Patience:
    """How long reads take here, and how long other nodes were waited for."""

    def __init__(self) -> None:
        self._running: dict[int, float] = {}
        """Start of each read of this node that runs."""
        self._number = 0
        self._latest: dict[int, float] = {}
        """Seconds of the latest read, by the number of bits of its length in bytes."""
        self._waits: Counter[int] = Counter()
        """Count of threads that wait for each node now."""
        self._since: dict[int, float] = {}
        self._waited: dict[int, float] = {}
        self._worth: dict[int, float] = {}
        """Seconds that the pieces which a node has given were worth."""
        self._lock = threading.Lock()

    @contextmanager
    def own_read(self, length: int) -> Iterator[None]:
        """Measure a read of so many bytes from the store."""
        with self._lock:
            self._number += 1
            number = self._number
            self._running[number] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._latest[length.bit_length()] = time.monotonic() - self._running.pop(number)

    @contextmanager
    def waiting(self, rank: int) -> Iterator[None]:
        """Measure a wait for a node; threads that wait at the same time wait once."""
        with self._lock:
            self._waits[rank] += 1
            if self._waits[rank] == 1:
                self._since[rank] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._waits[rank] -= 1
                if not self._waits[rank]:
                    waited = time.monotonic() - self._since.pop(rank)
                    self._waited[rank] = self._waited.get(rank, 0.0) + waited

    def was_given(self, rank: int, length: int) -> None:
        """Count a piece that was worth the wait for a node."""
        with self._lock:
            self._worth[rank] = self._worth.get(rank, 0.0) + SLOWER * self._own(length)

    def is_over(self, rank: int, waited: float, length: int) -> bool:
        """Whether a node is too slow; `waited`: the seconds for one piece of it, of `length` bytes, so far."""
        with self._lock:
            allowed = SLOWER * self._own(length)
            worth = ALLOWANCE + allowed + self._worth.get(rank, 0.0)
            return waited > max(LEAST, allowed) or self._all_waits(rank) > worth

    def _all_waits(self, rank: int) -> float:
        since = self._since.get(rank)
        running = 0.0 if since is None else time.monotonic() - since
        return self._waited.get(rank, 0.0) + running

    def _own(self, length: int) -> float:
        """Return the seconds that this node may take for such a piece.

        A piece waits where larger ones are read, here as on the other node: the longest of the reads that run and of
        the latest ones counts, whatever their size.
        """
        now = time.monotonic()
        running = [now - began for began in self._running.values()] or [self._in_proportion(length)]
        return max([*running, *self._latest.values()])

    def _in_proportion(self, length: int) -> float:
        """Return the seconds for a piece that is larger than all that were read so far, by the largest of them."""
        size = max(self._latest, default=0)
        return self._latest[size] * length / (1 << size) if length.bit_length() > size > 0 else 0.0
