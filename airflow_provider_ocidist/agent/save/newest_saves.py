"""NewestSaves: the newest complete save of each series, so that an older one is never published after it."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_ocidist.agent.save.entries import Candidate
from airflow_provider_ocidist.agent.save.file_clocks import WallClock


class NewestSaves:
    """Knows the newest complete saves by their numbers, and by the modification times of their files."""

    def __init__(self) -> None:
        self.clock = WallClock()
        self.written_ns = 0
        """Modification time of the newest of all, in ns; 0: there is none."""
        self._of_series: dict[str, tuple[int, int, Path]] = {}
        """Number, modification time and place of the newest of each series."""

    def begin_look(self) -> None:
        """Forget the saves where the clock was set back: later files get earlier stamps, and are newer all the same."""
        if self.clock.went_back():
            self.written_ns, self._of_series = 0, {}

    def is_behind(self, item: Candidate, number: int) -> bool:
        """Whether a newer save of the series was complete before this one, whose number is `number`."""
        newest, written_ns, place = self._of_series.get(item.placed.series, (0, 0, item.path))
        # What has taken the place of another is newer: a copy may keep the time of its origin.
        was_written_earlier = item.path != place and item.signature.modified_ns < written_ns
        return number < newest or was_written_earlier

    def add(self, item: Candidate, number: int) -> None:
        """Take a complete save that is not behind."""
        # What was written just before the clock was set back must not be newer than all that follows.
        stamp_ns = self.clock.not_ahead(item.signature.modified_ns)
        self._of_series[item.placed.series] = number, stamp_ns, item.path
        self.written_ns = max(self.written_ns, stamp_ns)
