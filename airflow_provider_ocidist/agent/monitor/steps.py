"""Steps: assigns a count or a loss to a step that the program does not print in the same line. Pure."""

from __future__ import annotations

from collections import deque

LATE = 5.0
"""Seconds within which matching lines arrive on a program's two streams."""
MOST_STEPS = 1000
"""Most losses, and most bars, that wait for their partners."""
CURVE_POINTS = 100
"""Most losses that a report carries."""


class EpochCounter:
    """The steps of all epochs, of a program that may restart its count."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._done = 0
        """Number of steps in earlier epochs."""
        self._first = self._last = 0
        """First and last count of this epoch that was seen."""
        self._apart = 0
        """Interval between two counts."""
        self._length: int | None = None
        self.begins_early = False
        """Whether counting began in the first or second epoch: only then are the steps those of all epochs."""

    def step(self, epoch: int, count: int, length: int | None = None) -> int | None:
        """Return the step; None for a line that is behind: another process's, or another loop's.

        `length`: how many counts an epoch has, where the program says it.
        """
        self._length = length or self._length
        if self._epoch is None or epoch < self._epoch - 1:
            self._epoch, self._done, self._apart = epoch, 0, 0
            self.begins_early = epoch <= 1
            self._first = self._last = count
        elif epoch > self._epoch:
            if count <= self._last:
                self._done += (epoch - self._epoch) * self._seen_length()
            self._epoch, self._first, self._last = epoch, count, count
        elif epoch < self._epoch or count <= self._last:
            return None
        else:
            self._apart, self._last = count - self._last, count
        return self._done + count

    def _seen_length(self) -> int:
        """Return an epoch's observed length: the previous one's, up to where its next line would be."""
        if self._length is not None:
            return self._length
        return max(1, self._last + self._apart - self._first if self._apart else self._last)


class OwnSteps:
    """What the program itself says of where a launch began and where the training ends.

    A step of an evaluation may be printed in the same words, and any bar may count something else: a number counts here
    only for what it shows of the training's end, in the order in which it came.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        """First step that was named."""
        self.steps: int | None = None
        """Greatest number of steps in all that was named."""
        self.goes_on = False
        """Whether the progress file has named a further step after its first one."""
        self._first_in_file: int | None = None
        self._bar: tuple[int, bool] | None = None
        """Total of the first bar, and whether it has advanced."""

    def named(self, step: int | None, steps: int | None, *, in_file: bool) -> None:
        """Take numbers from a line in words; `in_file`: of the progress file."""
        if steps is not None:
            self.steps = max(steps, self.steps or steps)
        if step is None:
            return
        self.first = step if self.first is None else self.first
        if in_file:
            self.goes_on |= self._first_in_file is not None and step > self._first_in_file
            self._first_in_file = step if self._first_in_file is None else self._first_in_file

    def showed_bar(self, step: int, total: int | None) -> None:
        """Take a bar's step; `total`: None for the bar of one epoch, which says nothing of the end."""
        if total is None:
            return
        if self._bar is None:
            self._bar = (total, step > 0)
        elif self._bar[0] == total:
            self._bar = (total, self._bar[1] or step > 0)

    @property
    def idle_bar(self) -> int | None:
        """Total of the first bar, if it has never advanced."""
        return self._bar[0] if self._bar and not self._bar[1] else None


class Unplaced:
    """Losses that were printed without a step, until it is known.

    `tqdm.write` clears the bar, prints, and shows the bar again: the printed loss belongs to that bar's step.
    The two arrive on different streams, without a common order, so the n-th is matched to the n-th. A loss without
    a counterpart within some seconds was not printed by `tqdm.write`.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, float | None, int | None]] = deque(maxlen=MOST_STEPS)
        """Numbers that wait for their partner: the time, the loss if it was one, and the step at that time."""
        self._bars: deque[tuple[float, int]] = deque(maxlen=MOST_STEPS)

    def given(self, loss: float | None, step: int | None, now: float) -> list[tuple[int, float]]:
        """Record a loss printed at `now`, in s, at the newest step `step`; return the losses whose step is known."""
        placed = self.late(now)
        if self._bars:
            return [*placed, *_place(self._bars.popleft()[1], loss)]
        self._waiting.append((now, loss, step))
        return placed

    def shown_again(self, step: int, now: float) -> list[tuple[int, float]]:
        """Record the step of a bar shown again; return the losses whose step is known."""
        placed = self.late(now)
        if self._waiting:
            return [*placed, *_place(step, self._waiting.popleft()[1])]
        self._bars.append((now, step))
        return placed

    def late(self, now: float) -> list[tuple[int, float]]:
        """Return the losses left without a bar, each at the step that was newest."""
        while self._bars and self._bars[0][0] < now - LATE:
            self._bars.popleft()
        return self._take(now - LATE)

    def rest(self) -> list[tuple[int, float]]:
        """Return all that wait, each at the step that was newest."""
        return self._take(float("inf"))

    def loss_at(self, step: int) -> float | None:
        """Return a waiting loss that was printed when this step was newest."""
        return next((loss for _, loss, known in self._waiting if known == step and loss is not None), None)

    def _take(self, until: float) -> list[tuple[int, float]]:
        placed: list[tuple[int, float]] = []
        while self._waiting and self._waiting[0][0] < until:
            _, loss, step = self._waiting.popleft()
            placed += _place(step, loss)
        return placed


def _place(step: int | None, loss: float | None) -> list[tuple[int, float]]:
    return [] if step is None or loss is None else [(step, loss)]


class LossCurve:
    """The losses of all steps, thinned evenly when there are too many."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []
        self._stride = 1
        self._seen = 0

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        return tuple(self._points)

    def add(self, step: int, loss: float) -> None:
        if self._points and step <= self._points[-1][0]:
            return
        if self._seen % self._stride == 0:
            self._points.append((step, float(f"{loss:.5g}")))
        self._seen += 1
        if len(self._points) > CURVE_POINTS:
            self._points = self._points[::2]
            self._stride *= 2
