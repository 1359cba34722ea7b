"""StepClock: when a training has moved on, by its steps where it counts them."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable

from airflow_provider_ocidist.backports import dataclass

STEPS_TIMED = 20
"""Number of steps over which a pace is taken."""
FEWEST_TIMED = 6
"""Least number of reported steps for a pace: the first steps are slower."""
OUTPUT_COUNTS_FOR = 2.0
"""Multiple of `limits.hang_timeout` for which, at least, output is progress after the first step, and in a launch of a
program that has counted steps in an earlier one."""


@dataclass(frozen=True, kw_only=True)
class StepHabits:
    """How a program has reported its steps, in all launches so far."""

    longest: float = 0.0
    """Seconds between two steps, the most so far."""
    counts_after: float | None = None
    """Seconds from the launch of the program to its second step, the most so far; None: no launch had two."""
    apart: int | None = None
    """Steps from one report to the next, in most cases; None: not known."""


class StepClock:
    """The time of the last progress in one launch. Where a program counts steps, its other output is no progress.

    Output is progress until the second step. After the first one, or if the program has counted steps in an earlier
    launch, it is for a limited time only: a training that deadlocks before its second step may talk for ever.
    """

    def __init__(
        self,
        before: StepHabits | None = None,
        hang_timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`before`: what the earlier launches have shown."""
        self._before = before or StepHabits()
        self.hang_timeout = hang_timeout
        """`limits.hang_timeout`; None: hangs are not looked for."""
        self._clock = clock
        counts_after = self._before.counts_after
        self._output_counts_for = (
            math.inf if counts_after is None else max(counts_after, OUTPUT_COUNTS_FOR * (hang_timeout or 0.0))
        )
        self._longest = self._before.longest
        self._counts_after = counts_after
        self.first_at: float | None = None
        """Time of the first step, on the clock `time.monotonic`."""
        self._last: tuple[int | None, int | None] = (None, None)
        """Step before the newest, and the newest."""
        self._steps: deque[tuple[float, int]] = deque(maxlen=STEPS_TIMED + 1)
        self._began_at = self._output_at = self._further_at = clock()
        self._output_counts_until = math.inf
        """Time from which on output is no progress, though the program has not counted steps in this launch."""

    def launched(self) -> None:
        """Note that the program is launched now: until then the node waits for others, for as long as they need."""
        self.further()
        self._began_at = self._further_at
        self._output_counts_until = self._began_at + self._output_counts_for

    @property
    def by_steps(self) -> bool:
        """Whether output is no progress: two steps were seen, as one alone says nothing of when the next is due."""
        return self._has_two or self._clock() > self._output_counts_until

    @property
    def idle(self) -> float:
        """Seconds since the last progress."""
        output_at = self._further_at if self._has_two else min(self._output_at, self._output_counts_until)
        return self._clock() - max(self._further_at, output_at)

    @property
    def still(self) -> float:
        """Seconds since the last progress that is no mere line of output."""
        return self._clock() - self._further_at

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

    @property
    def habits(self) -> StepHabits:
        """How the program has reported its steps, in this launch and before."""
        steps = [step for _, step in self._steps]
        found = [later - step for step, later in zip(steps, steps[1:])]
        apart = statistics.median_low(found) if found else self._before.apart
        return StepHabits(longest=self._longest, counts_after=self._counts_after, apart=apart)

    def output(self) -> None:
        """Record output, which is no progress where the program counts steps."""
        self._output_at = self._clock()

    def further(self) -> None:
        """Record progress without a step, such as a checkpoint."""
        self._output_at = self._further_at = self._clock()

    def step(self, step: int) -> None:
        """Record a step that was named, perhaps again."""
        self.output()
        # Two stuck processes may repeat a step each, in turn.
        if step in self._last:
            return
        now = self._clock()
        if self.first_at is None:
            self.first_at = now
            self._expect_the_second(now)
        if self._last[1] is not None:
            self._longest = max(self._longest, now - self._further_at)
            if not self._has_two:
                self._counts_after = max(self._counts_after or 0.0, now - self._began_at)
        if self._steps and step <= self._steps[-1][1]:
            self._steps.clear()
        self._steps.append((now, step))
        self._last, self._further_at = (self._last[1], step), now

    def _expect_the_second(self, now: float) -> None:
        """Limit the time for which output is progress after the first step, in the program's first launch."""
        if self.hang_timeout is None or self._before.counts_after is not None:
            return
        # Where the first took long, as with a compilation, the second may take as long.
        allowed = max(now - self._began_at, OUTPUT_COUNTS_FOR * self.hang_timeout)
        self._output_counts_until = now + allowed

    @property
    def _has_two(self) -> bool:
        return self._last[0] is not None
