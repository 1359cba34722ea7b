"""Searches in a log that many runs share: few of them, and no line is lost or doubled."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import oci
import pytest

from airflow_provider_ocidist.backends.base import LogLine
from airflow_provider_ocidist.backends.oci_data_science.log_searches import LogSearches
from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.gangs.log_follower import LogFollower


def test_many_runs_are_searched_for_together_and_no_line_is_lost_or_doubled() -> None:
    """On a log that counts its searches: whole where it is theirs, by run where others write much."""
    client = _Searched(foreign=0)
    searches = LogSearches(lambda: client)
    now = time.time()
    found = searches.lines_of("place", {f"ocid.run.{number}": now - 10 for number in range(100)})
    assert client.searches == 1
    assert [len(found.entries[f"ocid.run.{number}"]) for number in range(100)] == [1] * 100

    crowded = _Searched(foreign=20_000)
    searches = LogSearches(lambda: crowded)
    for _ in range(2):
        before = crowded.searches
        found = searches.lines_of("place", {f"ocid.run.{number}": now - 10 for number in range(100)})
        assert [len(found.entries[f"ocid.run.{number}"]) for number in range(100)] == [1] * 100
    assert crowded.searches - before == 3


@pytest.mark.parametrize("behind", [-280.0, 280.0])
def test_the_newest_lines_are_found_whatever_this_machines_clock_says(
    behind: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, at_the_service = _Written({"run": range(60)}), time.time()
    monkeypatch.setattr(time, "time", lambda: at_the_service - behind)
    searches = LogSearches(lambda: client, lambda: at_the_service)
    found = searches.lines_of("place", {"ocid.run.run": client.end - 30})
    assert len(found.entries["ocid.run.run"]) == 30


def test_a_quiet_run_does_not_make_others_be_read_again_from_far_back() -> None:
    client = _Written({"chatty": range(3600), "quiet": [], "as quiet": [5]})
    since = {"chatty": client.end - 10, "quiet": client.end - 3000, "as quiet": client.end - 3100}
    found = LogSearches(lambda: client).lines_of(
        "place", {f"ocid.run.{run}": at for run, at in since.items()}, 20
    )
    assert client.searches == 2
    assert not found.unread_from
    assert [len(entries) for entries in found.entries.values()] == [10, 0, 0]


def test_what_was_written_for_days_is_read_some_at_a_time_and_none_of_it_is_lost() -> None:
    client = _Written({"long": range(0, 30_000, 2), "other": [*range(1, 30_000, 2), 29_999]})
    searches, follower, seen, reads = LogSearches(lambda: client), LogFollower([0.0, 0.0]), [], []
    runs = ["ocid.run.long", "ocid.run.other"]
    for look in range(40):
        now = client.end + look
        since = dict(zip(runs, follower.since(now), strict=True))
        before = client.given
        found = searches.lines_of("place", since, 3)
        reads.append(client.given - before)
        lines = [
            LogLine(
                each["logContent"]["id"], float(each["logContent"]["id"].split()[1]) + client.start, rank, ""
            )
            for rank, run in enumerate(runs)
            for each in found.entries[run]
        ]
        left = {rank: found.unread_from[run] for rank, run in enumerate(runs) if run in found.unread_from}
        seen += [each.id for each in follower.take(lines, now, left)]
        if not follower.is_behind:
            break
    assert Counter(seen) == Counter(each.data["logContent"]["id"] for each in client.entries)
    assert max(reads) <= 4000
    assert len(reads) < 12


def test_runs_that_were_all_read_to_other_times_take_their_turns() -> None:
    client = _Written({str(number): [number * 400] for number in range(60)})
    since = {f"ocid.run.{number}": client.start + number * 400 - 1 for number in range(60)}
    searches, found = LogSearches(lambda: client), 0
    for _ in range(2):
        before = client.searches
        answer = searches.lines_of("place", since, 20)
        assert client.searches - before <= 41
        found += sum(map(len, answer.entries.values()))
        since = {run: answer.unread_from.get(run, time.time()) for run in since}
    assert found == 60


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_search_refuses_as_too_large_no_line_is_lost_or_doubled(seed: int) -> None:
    """A generator draws how much the runs write, how much one search may find, and how much a look reads."""
    dice = random.Random(seed)
    seconds = sorted(dice.choices(range(20_000), k=dice.randrange(500, 6000)))
    runs = {"one": seconds[::2], "two": seconds[1::2]}
    client = _Refusing(runs, most=dice.randrange(30, len(seconds) // 2))
    searches, follower, seen = LogSearches(lambda: client), LogFollower([0.0, 0.0]), []
    names, pages = ["ocid.run.one", "ocid.run.two"], dice.randrange(1, 20)
    for look in range(2000):
        now = client.end + look
        found = searches.lines_of("place", dict(zip(names, follower.since(now), strict=True)), pages)
        lines = [
            LogLine(
                each["logContent"]["id"], float(each["logContent"]["id"].split()[1]) + client.start, rank, ""
            )
            for rank, name in enumerate(names)
            for each in found.entries[name]
        ]
        left = {rank: found.unread_from[name] for rank, name in enumerate(names) if name in found.unread_from}
        seen += [each.id for each in follower.take(lines, now, left)]
        if not follower.is_behind:
            break
    assert Counter(seen) == Counter(each.data["logContent"]["id"] for each in client.entries)
    assert client.refused > 0


class _Written:
    """As the SDK's client: a log in which each run wrote at these seconds, ending now."""

    def __init__(self, runs: dict[str, Sequence[int]]) -> None:
        last = max(second for seconds in runs.values() for second in seconds)
        self.end = float(int(time.time()))
        self.start = self.end - last - 1
        written = sorted(
            (second, run, at) for run, seconds in runs.items() for at, second in enumerate(seconds)
        )
        self.entries = [
            _written(self.start, second, f"{run} {second} {at}", run) for second, run, at in written
        ]
        self.searches = self.given = 0

    def search_logs(self, search: dict[str, Any], limit: int, page: str = "0") -> Any:
        self.searches += page == "0"
        named = [part.split("'")[0] for part in search["searchQuery"].split("'*")[1:]]
        found = [
            each
            for each in self.entries
            if each.data["logContent"]["source"] in named
            and search["timeStart"]
            <= datetime.fromisoformat(each.data["logContent"]["time"])
            <= search["timeEnd"]
        ]
        at = int(page)
        headers = {"opc-next-page": str(at + limit)} if at + limit < len(found) else {}
        self.given += len(found[at : at + limit])
        return _Answer(data=_Answer(results=found[at : at + limit]), headers=headers)


class _Refusing(_Written):
    """One that refuses a search which finds more than so many entries."""

    def __init__(self, runs: dict[str, Sequence[int]], most: int) -> None:
        super().__init__(runs)
        busiest = Counter(each.data["logContent"]["time"] for each in self.entries).most_common(1)[0][1]
        self.most = max(most, busiest)
        self.refused = 0

    def search_logs(self, search: dict[str, Any], limit: int, page: str = "0") -> Any:
        answer = super().search_logs(search, 1_000_000)
        if len(answer.data.results) > self.most:
            self.refused += 1
            raise oci.exceptions.ServiceError(
                status=400, code="InvalidParameter", headers={}, message="search result is too large"
            )
        return super().search_logs(search, limit, page)


def _written(start: float, second: int, id_: str, run: str) -> _Answer:
    when = datetime.fromtimestamp(start + second, UTC).isoformat()
    return _Answer(data={"logContent": {"id": id_, "source": f"ocid.run.{run}", "time": when}})


class _Searched:
    """As the SDK's client: a log with a line of each of 100 runs, and those of others."""

    def __init__(self, foreign: int) -> None:
        self.entries = [_entry(f"ocid.run.{number}") for number in range(100)]
        self.entries[50:50] = [_entry("ocid.run.other")] * foreign
        self.searches = 0

    def search_logs(self, search: dict[str, Any], limit: int, page: str = "0") -> Any:
        self.searches += 1
        named = [part.split("'")[0] for part in search["searchQuery"].split("'*")[1:]]
        found = [each for each in self.entries if not named or each.data["logContent"]["source"] in named]
        start = int(page)
        headers = {"opc-next-page": str(start + limit)} if start + limit < len(found) else {}
        return _Answer(data=_Answer(results=found[start : start + limit]), headers=headers)


class _Answer:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def _entry(source: str) -> _Answer:
    return _Answer(data={"logContent": {"source": source}})
