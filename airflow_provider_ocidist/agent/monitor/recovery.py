"""Recovery: how long it takes from the end of one launch of the training to the first step of the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from airflow_provider_ocidist.model.report import Recovery


class RecoveryClock:
    """Measures one recovery after the other, on this node's clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ended_at: float | None = None
        self._launch: int | None = None
        """Number of the launch whose first step is awaited; None: none is."""

    def ended(self) -> None:
        """Note that a launch has ended."""
        self._ended_at, self._launch = self._clock(), None

    def launched(self, launch: int) -> None:
        """Note that the program is launched again, for the time of this number."""
        self._launch = launch

    def look(self, stepped_at: float | None) -> Recovery | None:
        """Return the recovery once, when the launch has reported its first step; `stepped_at`: when that was."""
        with self._lock:
            if stepped_at is None or self._ended_at is None or self._launch is None:
                return None
            found = Recovery(launch=self._launch, seconds=round(stepped_at - self._ended_at, 1))
            self._ended_at = self._launch = None
        return found
