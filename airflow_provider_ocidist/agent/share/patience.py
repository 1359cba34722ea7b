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
"""Seconds that all threads together may wait for one node, besides those for the pieces that it has given."""


class Patience:
    """How long reads take here, and how long other nodes were waited for."""

    def __init__(self) -> None:
        self._running: dict[int, float] = {}
        self._number = 0
        self._latest = 0.0
        self._waited: dict[int, float] = {}
        self._given: Counter[int] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def own_read(self) -> Iterator[None]:
        """Measure a read from the store."""
        with self._lock:
            self._number += 1
            number = self._number
            self._running[number] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._latest = time.monotonic() - self._running.pop(number)

    def waited(self, rank: int, seconds: float) -> None:
        with self._lock:
            self._waited[rank] = self._waited.get(rank, 0.0) + seconds

    def was_given(self, rank: int) -> None:
        """Count a piece that was worth the wait for a node."""
        with self._lock:
            self._given[rank] += 1

    def is_over(self, rank: int, waited: float) -> bool:
        """Whether a node is too slow; `waited`: the seconds for one piece of it so far."""
        with self._lock:
            own = self._own()
            worth = ALLOWANCE + SLOWER * own * self._given[rank]
            return waited > max(LEAST, SLOWER * own) or self._waited.get(rank, 0.0) > worth

    def _own(self) -> float:
        """Return the seconds of the latest read, or of the longest that is not over."""
        began = min(self._running.values(), default=None)
        return self._latest if began is None else max(self._latest, time.monotonic() - began)
