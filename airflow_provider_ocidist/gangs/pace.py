"""Pace: the speed of a training, and its remaining time."""

from __future__ import annotations

from airflow_provider_ocidist.model.run import RunStatus


class Pace:
    """Training steps per second over the last minute."""

    __slots__ = ("_seen",)

    WINDOW = 60.0

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def add(self, status: RunStatus, now: float) -> None:
        """Add the status of one look; `now` is a Unix time, in seconds."""
        progress = status.progress
        if progress is None or progress.step is None:
            return
        when = progress.updated_at or now
        if self._seen and progress.step < self._seen[-1][1]:
            # It restarted from a checkpoint.
            self._seen = []
        if not self._seen or progress.step > self._seen[-1][1]:
            self._seen.append((when, progress.step))
        self._seen = [each for each in self._seen if when - each[0] <= self.WINDOW] or self._seen[-1:]

    @property
    def steps_per_second(self) -> float | None:
        """The pace; None until two steps were seen at different times."""
        if len(self._seen) < 2:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended > began else None

    def remaining(self, status: RunStatus) -> float | None:
        """Return the seconds until the last step at this pace; None if that is not known."""
        progress, speed = status.progress, self.steps_per_second
        if progress is None or progress.step is None or progress.steps is None or not speed:
            return None
        return max(0.0, (progress.steps - progress.step) / speed)
