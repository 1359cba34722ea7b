"""StepClock: when a training has moved on, by its steps where it counts them."""

from __future__ import annotations

import time
from collections import deque

STEPS_TIMED = 20
"""Number of steps over which a pace is taken."""
FEWEST_TIMED = 6
"""Least number of reported steps for a pace: the first steps are slower."""


class StepClock:
    """The time of the last progress. Where a program counts steps, its other output is no progress."""

    def __init__(self) -> None:
        now = time.monotonic()
        self._output_at = self._further_at = now
        self._longest = 0.0
        """Seconds between two steps, the most so far."""
        self.first_at: float | None = None
        """Time of the first step, on the clock `time.monotonic`."""
        self._last: tuple[int | None, int | None] = (None, None)
        """Step before the newest, and the newest."""
        self._steps: deque[tuple[float, int]] = deque(maxlen=STEPS_TIMED + 1)

    @property
    def by_steps(self) -> bool:
        """Whether two steps were seen: one alone says nothing of when the next is due."""
        return self._last[0] is not None

    @property
    def idle(self) -> float:
        """Seconds since the last progress; since the last output while the training counts no steps."""
        return time.monotonic() - (self._further_at if self.by_steps else self._output_at)

    @property
    def longest(self) -> float:
        """Seconds between two steps, at most so far: an evaluation may lie between them."""
        return self._longest

    @property
    def pace(self) -> float | None:
        """Seconds for a step, over the last ones; None before there are some."""
        if len(self._steps) < FEWEST_TIMED:
            return None
        (began, first), (ended, last) = self._steps[0], self._steps[-1]
        return (ended - began) / (last - first)

    def output(self) -> None:
        """Record output, which is no progress where the program counts steps."""
        self._output_at = time.monotonic()

    def further(self) -> None:
        """Record progress without a step, such as a checkpoint."""
        self._output_at = self._further_at = time.monotonic()

    def step(self, step: int) -> None:
        """Record a step that was named, perhaps again."""
        self.output()
        # Two stuck processes may repeat a step each, in turn.
        if step in self._last:
            return
        now = time.monotonic()
        if self.first_at is None:
            self.first_at = now
        if self._last[1] is not None:
            self._longest = max(self._longest, now - self._further_at)
        if self._steps and step <= self._steps[-1][1]:
            self._steps.clear()
        self._steps.append((now, step))
        self._last, self._further_at = (self._last[1], step), now
