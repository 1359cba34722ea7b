"""The lines of a log that are found late, out of order, or by a search that reads some at a time: each comes once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from airflow_provider_ocidist.backends.base import LogLine
from airflow_provider_ocidist.gangs import log_follower
from airflow_provider_ocidist.gangs.log_follower import LogFollower
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.log_cursor import LogCursor
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


def test_a_look_reads_what_is_new_and_twice_a_minute_the_last_two_minutes_again() -> None:
    follower = LogFollower([1000.0, 1000.0])
    assert follower.since(1000.0) == [1000.0, 1000.0], "all, at first"
    follower.take([line(100)], 1201.0)
    # What was written in the last seconds may not be found yet; a silent node is read from the same time.
    assert follower.since(1202.0) == [1186.0, 1186.0]
    assert follower.since(1202.0, again=True) == follower.since(1230.0) == [1081.0, 1081.0]
    assert follower.since(1229.9) == [1186.0, 1186.0]
    # All gangs of a process read the last quarter of an hour at the same moments.
    assert follower.since(1500.0) == [980.0, 880.0]
    follower.take([line(205)], 1202.0)
    assert follower.since(1203.0) == [1205.0, 1187.0], "a clock of a node that is ahead"
    assert follower.since(1230.0) == [1085.0, 1082.0]


def test_what_did_not_fit_into_a_look_is_read_first_at_the_next() -> None:
    follower = LogFollower([1000.0, 1000.0])
    assert not follower.is_behind
    found = follower.take([line(1), line(2), line(1, 1)], 1010.0, {0: 1002.0})
    assert [each.id for each in found] == ["1", "2", "1"]
    assert follower.is_behind
    assert follower.reached == ({0: 1002.0}, (1002.0, 1001.0))
    assert follower.cursor == (1002.0, 1001.0)
    for now in (1011.0, 1030.0, 1500.0):
        assert follower.since(now)[0] == 1002.0
        assert follower.since(now)[1] == LogFollower.since(caught_up(), now)[1]
    follower.take([line(3)], 1011.0, {})
    assert not follower.is_behind
    assert follower.reached == ({}, (1003.0, 1001.0))


def caught_up() -> LogFollower:
    follower = LogFollower([1000.0, 1000.0])
    follower.take([line(2), line(1, 1)], 1010.0)
    return follower


def test_lines_from_before_the_beginning_are_anothers() -> None:
    follower = LogFollower([1000.0])
    found = follower.take([line(-1), line(0), line(1)], 1010.0)
    assert [each.id for each in found] == ["1"]


def test_an_older_line_of_a_shared_search_is_not_logged_again_once_its_id_is_forgotten() -> None:
    follower = LogFollower([1000.0])
    first, last = line(1), line(200)
    assert follower.take([first], 1010.0) == [first]
    assert follower.take([last], 1211.0) == [last]
    follower.take([], 1300.0)
    assert first.id not in follower._seen[0]
    assert follower.take([first, last], 1301.0) == []
    at_the_edge = line(80)
    assert follower.take([at_the_edge, line(79)], 1302.0) == [at_the_edge]


@pytest.mark.parametrize("number", range(20))
def test_processes_that_continue_one_after_the_other_lose_no_line_and_repeat_none(number: int) -> None:
    draw = random.Random(f"20261127.{number}")
    print(f"seed 20261127.{number}")
    written = [
        (rank, 1000.0 + draw.uniform(1, 2000)) for rank in range(3) for _ in range(draw.randrange(200))
    ]
    # Any line may be found late, after others that were written later.
    lines = [
        (LogLine(f"{index}", time, rank, ""), time + draw.choice([0.0, draw.uniform(0, 80)]))
        for index, (rank, time) in enumerate(sorted(written, key=lambda each: each[1]))
    ]
    log, follower, seen = Log(lines), LogFollower([1000.0] * 3), list[str]()
    now = 1000.0
    while now < 4000:
        now += draw.uniform(1, 25)
        log.now = now
        seen += [each.id for each in follower.take(log.logs(None, follower.since(now)), now)]
        if draw.random() < 0.1:
            saved = follower.to_save(7)
            assert saved.try_number == 7
            assert saved.newest == follower.cursor
            assert all(since >= newest - 120 for since, newest in zip(saved.since, saved.newest, strict=True))
            follower = LogFollower.after(codec.decode(LogCursor, codec.encode(saved)))
            assert follower.since(now) == list(saved.since)
            assert follower.to_save(7) == saved, "it may be saved again before it is used"
    assert Counter(seen) == Counter(each.id for each, _ in lines)


@pytest.mark.parametrize("number", range(20))
def test_a_saved_position_has_at_most_so_many_ids_and_still_no_line_is_repeated_or_skipped(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    draw = random.Random(f"20261127.{number}")
    print(f"seed 20261127.{number}")
    most = draw.randint(1, 30)
    monkeypatch.setattr(log_follower, "MOST_IDS", most)
    # One node writes much more than another, which is behind.
    lines = [
        LogLine(f"{rank}.{index}", 1000.0 + index * pace, rank, "")
        for rank, pace in enumerate((draw.uniform(0.5, 3), draw.uniform(5, 60)))
        for index in range(1, 60)
    ]
    log, follower, seen = Log([(each, each.time) for each in lines]), LogFollower([1000.0] * 2), list[str]()
    for now in range(1000, 6000, 20):
        log.now = float(now)
        seen += [each.id for each in follower.take(log.logs(None, follower.since(now)), float(now))]
        if draw.random() < 0.3:
            saved = follower.to_save(1)
            assert sum(map(len, saved.lines)) <= most
            assert all(since <= newest for since, newest in zip(saved.since, saved.newest, strict=True))
            assert all(
                time > saved.since[rank] for rank, ids in enumerate(saved.lines) for time in ids.values()
            )
            follower = LogFollower.after(saved)
    assert Counter(seen) == Counter(each.id for each in lines)


def test_exactly_as_many_ids_as_fit_are_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "MOST_IDS", 3)
    follower = LogFollower([1000.0])
    follower.take([line(1), line(2), line(3)], 1010.0)
    saved = follower.to_save(1)
    assert (saved.since, saved.lines) == ((1000.0,), ({"1": 1001.0, "2": 1002.0, "3": 1003.0},))
    follower.take([line(4)], 1011.0)
    saved = follower.to_save(1)
    assert (saved.since, saved.lines) == ((1001.0,), ({"2": 1002.0, "3": 1003.0, "4": 1004.0},))
    follower.take([line(500)], 1501.0)
    assert follower.to_save(1) == LogCursor(1, (1500.0,), (1380.0,), ({"500": 1500.0},))
