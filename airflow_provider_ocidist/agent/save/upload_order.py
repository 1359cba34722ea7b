"""UploadOrder: which of the checkpoints that wait is sent next, and which are held meanwhile. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from airflow_provider_ocidist.agent.save.publishing import Whole
from airflow_provider_ocidist.agent.save.save_series import SaveSeries
from airflow_provider_ocidist.storage.checkpoint_names import Placed

MOST_PASSED = 2
"""Most checkpoints of other series that are sent before one has its turn, if it is the only one to have it."""
MOST_HELD = 4
"""Most checkpoints that are held, and most of those before that the end of a launch has cut off: each may cost its
size on the disk."""
MOST_SINGLE = 2
"""Most series of one save that have their turn: of a program with a new name each time, only the newest counts."""


class UploadOrder:
    """The newest first, as a restart needs it; but where uploads are slow, each series has its turn."""

    def __init__(self) -> None:
        self._series = SaveSeries()
        self._passed: Counter[str] = Counter()
        """Count of what was sent of other series while one of this waited."""
        self._newest_is_next = False
        """Whether what was sent last had its turn before a newer one."""

    def series(self, whole: Whole) -> str:
        return self.series_of(whole.item.placed)

    def series_of(self, placed: Placed) -> str:
        return self._series.of(placed)

    def add(self, whole: Whole) -> None:
        """Take in a save, in the order of saving."""
        self._series.note(whole.item.placed)

    def of(self, waiting: Iterable[Whole], *, in_turn: bool = True) -> list[Whole]:
        """Return what waits, in the order of sending: the newest of each series, then what is older.

        Without `in_turn`, as where little time is left, the newest of all is the first.
        """
        newest_first = sorted(waiting, key=lambda whole: whole.begun, reverse=True)
        first = self._newest_of_each(newest_first)
        known = {whole.item.path for whole in first}
        older = [whole for whole in newest_first if whole.item.path not in known]
        return [*(self._in_turn(first) if in_turn else first), *older]

    def held(self, waiting: Iterable[Whole], *, in_turn: bool = True) -> list[Whole]:
        """Return what is held until it is sent: of the newest of each series those that are sent next."""
        return self.of(self._newest_of_each(waiting), in_turn=in_turn)[:MOST_HELD]

    def behind(self, waiting: Iterable[Whole], whole: Whole, keep: int) -> list[Whole]:
        """Return what waits of a checkpoint's series but for the newest ones, of which there are `keep`."""
        series = self.series(whole)
        alike = [other for other in waiting if self.series(other) == series]
        return sorted(alike, key=lambda other: other.begun)[:-keep]

    def sent(self, whole: Whole, waiting: Iterable[Whole]) -> None:
        """Note what was published; `waiting`: what still waits."""
        still = list(waiting)
        self._newest_is_next = any(other.begun > whole.begun for other in still)
        others = {self.series(other) for other in still} - {self.series(whole)}
        self._passed = Counter({series: self._passed[series] + 1 for series in others})

    def _newest_of_each(self, waiting: Iterable[Whole]) -> list[Whole]:
        """Return the newest of each series, the newest first."""
        found: dict[str, Whole] = {}
        for whole in sorted(waiting, key=lambda whole: whole.begun, reverse=True):
            found.setdefault(self.series(whole), whole)
        return list(found.values())

    def _in_turn(self, newest_first: Sequence[Whole]) -> list[Whole]:
        # Of a program that saves A and then B, B would always be newer by the time that one of them is sent.
        overdue = sorted(self._overdue(newest_first), key=lambda whole: -self._passed[self.series(whole)])
        # With many series, and where a name is misjudged, the newest would wait for all of them.
        first = [*newest_first[:1], *overdue] if self._newest_is_next else [*overdue, *newest_first]
        return list({whole.item.path: whole for whole in [*first, *newest_first]}.values())

    def _overdue(self, newest_first: Sequence[Whole]) -> list[Whole]:
        single = [whole for whole in newest_first if not self._series.goes_on(whole.item.placed)]
        without = {whole.item.path for whole in single[MOST_SINGLE:]}
        return [
            whole
            for whole in newest_first
            if self._passed[self.series(whole)] >= MOST_PASSED and whole.item.path not in without
        ]
