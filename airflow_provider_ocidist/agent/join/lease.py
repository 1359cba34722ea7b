"""Lease: the nodes end a run for which no process waits any more.

The waiting task renews a small file, for the first time before there is a node. A node measures the time since the
last change on its own clock, so that no other clock matters, and only while it can read the file: an outage of the
store does not count.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from airflow_provider_ocidist.errors import OcidistError

logger = logging.getLogger(__name__)

LOOKS = 12
"""Number of looks per lease; twice as many as renewals."""


class LeaseWatch:
    """Declares at each look that the lease has expired.

    Once is not enough: while this node makes ready for another launch, the end of the one before counts, and what is
    declared then is dropped.
    """

    def __init__(
        self,
        lease: float,
        read: Callable[[], bytes | None],
        *,
        declare: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`lease` is in seconds; `read` returns the last renewal, None where there was none; it raises on failure.

        Without a first renewal there is no lease: the watch declares nothing.
        """
        self.lease = lease
        self.declare = declare
        self._read = read
        self._clock = clock
        self._renewal: bytes | None = None
        self._silent_for = 0.0
        self._read_at: float | None = None
        """Time at which the store last answered; None if it did not at the last look."""

    def look(self) -> None:
        now = self._clock()
        if self._read_at is not None and now - self._read_at < self.lease / LOOKS:
            return
        try:
            renewal = self._read()
        except (OcidistError, OSError) as error:
            if self._read_at is not None:
                logger.warning("this run's lease cannot be read now: %s", error)
            self._read_at = None
            return
        self._take(renewal, now)

    def _take(self, renewal: bytes | None, now: float) -> None:
        if renewal is not None and renewal != self._renewal:
            self._renewal, self._silent_for = renewal, 0.0
        elif self._renewal is not None and self._read_at is not None:
            self._silent_for += now - self._read_at
        self._read_at = now
        if self._silent_for >= self.lease:
            self.declare(f"nobody has waited for this run for {_duration(self.lease)} (limits.lease)")


def _duration(seconds: float) -> str:
    """Return a time as in a job file, `2h`."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"
