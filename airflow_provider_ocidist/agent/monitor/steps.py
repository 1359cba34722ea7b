"""Steps: which step a count or a loss belongs to, where a program does not say it in the same line. Pure."""

from __future__ import annotations

from collections import deque

LATE = 5.0
"""Seconds within which the two streams of a program bring what belongs together."""

MOST = 1000


class EpochCounter:
    """The steps of all epochs, of a program that may count anew in each."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._done = 0
        """Steps of the epochs before."""
        self._first = self._last = 0
        """Counts of this epoch that were seen."""
        self._apart = 0
        """What lies between two counts."""
        self._length: int | None = None
        self.begins_early = False
        """Whether the first or second epoch was the first that was seen, so that the steps are those of all."""

    def step(self, epoch: int, count: int, length: int | None = None) -> int | None:
        """Return the step; None for a line that is behind: another process's, or of what begins anew beside.

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
        """Return how long an epoch is, as far as it is seen: the one before, to where its next line would have been."""
        if self._length is not None:
            return self._length
        return max(1, self._last + self._apart - self._first if self._apart else self._last)


class Unplaced:
    """Losses that were told without a step, until it is known.

    `tqdm.write` takes the bar away, prints, and shows the bar again: what it prints belongs to the step of that bar.
    The two come on different streams, whose order among each other is lost, so the n-th belongs to the n-th. What has
    no counterpart within some seconds was another program's way to print.
    """

    def __init__(self) -> None:
        self._told: deque[tuple[float, float | None, int | None]] = deque(maxlen=MOST)
        """When, the loss if it was one, and the step at that time."""
        self._bars: deque[tuple[float, int]] = deque(maxlen=MOST)

    def told(self, loss: float | None, step: int | None, now: float) -> list[tuple[int, float]]:
        """Note what was told at a time, in s, when the newest step was this; return the losses that have a place."""
        placed = self.late(now)
        if self._bars:
            return [*placed, *_place(self._bars.popleft()[1], loss)]
        self._told.append((now, loss, step))
        return placed

    def shown_again(self, step: int, now: float) -> list[tuple[int, float]]:
        """Note the step of a bar that was shown again; return the losses that have a place."""
        placed = self.late(now)
        if self._told:
            return [*placed, *_place(step, self._told.popleft()[1])]
        self._bars.append((now, step))
        return placed

    def late(self, now: float) -> list[tuple[int, float]]:
        """Return the losses that nothing has come for, each at the step that was the newest."""
        while self._bars and self._bars[0][0] < now - LATE:
            self._bars.popleft()
        return self._take(now - LATE)

    def rest(self) -> list[tuple[int, float]]:
        """Return all that wait, each at the step that was the newest."""
        return self._take(float("inf"))

    def loss_at(self, step: int) -> float | None:
        """Return a loss that waits, told when this step was the newest."""
        return next((loss for _, loss, known in self._told if known == step and loss is not None), None)

    def _take(self, until: float) -> list[tuple[int, float]]:
        placed: list[tuple[int, float]] = []
        while self._told and self._told[0][0] < until:
            _, loss, step = self._told.popleft()
            placed += _place(step, loss)
        return placed


def _place(step: int | None, loss: float | None) -> list[tuple[int, float]]:
    return [] if step is None or loss is None else [(step, loss)]
