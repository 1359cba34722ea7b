"""ServiceClock: the time at a service, independent of this machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class ServiceClock:
    """Takes the `Date` of each answer, and counts on from it by a clock that never jumps. Safe to share by threads."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._answered: tuple[float, float] | None = None
        """Unix time at the service, and the time of that answer on the steady clock."""

    def now(self) -> float | None:
        """Return the Unix time at the service, to about a second; None before its first answer."""
        answered = self._answered
        return None if answered is None else answered[0] + self._steady() - answered[1]

    def take(self, response: Any, *_: Any, **__: Any) -> None:
        """Take the time of an answer; a hook for the clients of `requests`, and so of OCI's SDK, and of `httpx`."""
        from email.utils import parsedate_to_datetime

        try:
            self._answered = parsedate_to_datetime(response.headers["Date"]).timestamp(), self._steady()
        except (KeyError, TypeError, ValueError):
            # The answer of a proxy or gateway, without a time.
            return
