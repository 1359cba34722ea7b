"""UploadOrder: which of the checkpoints that wait is sent next. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from airflow_provider_ocidist.agent.save.publishing import Whole

MOST_PASSED = 2
"""Most checkpoints of other series that are sent before the newest of a series."""


class UploadOrder:
    """The newest first, as a restart needs it; but where uploads are slow, each series has its turn."""

    def __init__(self) -> None:
        self._passed: Counter[str] = Counter()
        """Count of what was sent of other series while one of this waited."""

    def of(self, waiting: Iterable[Whole]) -> list[Whole]:
        """Return what waits, in the order of sending: the newest of each series, then what is older."""
        newest_first = sorted(waiting, key=lambda whole: whole.begun, reverse=True)
        first = newest_of_each(newest_first)
        older = [whole for whole in newest_first if whole not in first]
        # Of a program that saves A and then B, B would always be newer by the time that one of them is sent.
        return sorted(first, key=self._turn) + older

    def _turn(self, whole: Whole) -> int:
        passed = self._passed[whole.series]
        return -passed if passed >= MOST_PASSED else 0

    def sent(self, whole: Whole, waiting: Iterable[Whole]) -> None:
        """Note what was published; `waiting`: what still waits."""
        others = {other.series for other in waiting} - {whole.series}
        self._passed = Counter({series: self._passed[series] + 1 for series in others})


def newest_of_each(waiting: Iterable[Whole]) -> list[Whole]:
    """Return the newest of each series, the newest first."""
    found: dict[str, Whole] = {}
    for whole in sorted(waiting, key=lambda whole: whole.begun, reverse=True):
        found.setdefault(whole.series, whole)
    return list(found.values())
