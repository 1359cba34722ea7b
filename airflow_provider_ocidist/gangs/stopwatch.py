"""Stopwatch: seconds between two events, by the clock of the process that sees both. No Airflow."""

from __future__ import annotations

from collections.abc import Callable


class Stopwatch:
    """Measures how long ago the last lap was."""

    __slots__ = ("_clock", "_lap_at")

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` never jumps; its zero does not matter."""
        self._clock = clock
        self._lap_at: float | None = None

    def lap(self) -> float:
        """Return the seconds since the last lap, 0 at the first one."""
        before, self._lap_at = self._lap_at, self._clock()
        return 0.0 if before is None else self._lap_at - before

    def go_on_after(self, seconds: float) -> None:
        """Let the last lap have been so many seconds ago, in another process."""
        self._lap_at = self._clock() - seconds

    def reset(self) -> None:
        """Let the next lap be the first one."""
        self._lap_at = None
