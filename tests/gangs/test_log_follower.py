"""The lines of a log that are found late, out of order, or by a search that reads some at a time: each comes once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from airflow_provider_ocidist.backends.base import LogLine
from airflow_provider_ocidist.gangs.log_follower import LogFollower
from airflow_provider_ocidist.model.run import RunRef
from tests.gangs.test_poller import Gangs


def line(number: int, rank: int = 0, second: float | None = None) -> LogLine:
    return LogLine(str(number), 1000.0 + (number if second is None else second), rank, f"line {number}")


class Log(Gangs):
    """A log in which each line can be found a while after it was written."""

    def __init__(self, lines: Sequence[tuple[LogLine, float]]) -> None:
        super().__init__()
        self.lines, self.now = lines, 0.0

    def _lines(self, ref: RunRef, since: Sequence[float]) -> list[LogLine]:
        found = [each for each, visible in self.lines if visible <= self.now]
        # A shared search goes back as far as anybody's needs to.
        return sorted((each for each in found if each.time >= min(since)), key=lambda each: each.time)


def test_each_line_comes_once_though_it_is_late_or_its_node_was_silent_for_an_hour() -> None:
    chatty = [(line(number), 1000.0 + number) for number in range(1, 4000, 7)]
    silent = (line(9001, 1, second=3500), 1000 + 3500)
    straggler = (line(9002, 0, second=2000), 1000 + 2080)
    very_late = (line(9003, 1, second=3600), 1000 + 3990)
    log = Log([*chatty, silent, straggler, very_late])
    follower, seen = LogFollower([1000.0, 1000.0]), []
    for now in range(1000, 5400, 10):
        log.now = float(now)
        seen += [each.id for each in follower.take(log.logs(None, follower.since(now)), float(now))]
    assert Counter(seen) == Counter(each.id for each, _ in log.lines)
    assert sum(map(len, follower._seen.values())) < 200


def test_a_silent_node_is_not_read_again_from_further_back_than_a_quarter_of_an_hour() -> None:
    follower, days = LogFollower([0.0]), 2 * 86400.0
    follower.take([], days)
    oldest = min(follower.since(days + second)[0] for second in range(600))
    assert oldest == days - 900
    assert follower.take([LogLine("late", days - 800, 0, "")], days + 300)
