"""Many gangs that wait: one poller looks at all of them, in few calls, and none suffers from another."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import httpx
import pytest

from airflow_provider_ocidist.backends.base import Backend, LogLine, LogPart
from airflow_provider_ocidist.backends.oci_data_science.log_searches import LogSearches
from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.errors import BackendError, Cause, GaveUp
from airflow_provider_ocidist.gangs import poller as poller_module
from airflow_provider_ocidist.gangs.decisions import Fail, Wait
from airflow_provider_ocidist.gangs.log_follower import LogFollower
from airflow_provider_ocidist.gangs.poller import Poller, Schedule, Turn
from airflow_provider_ocidist.gangs.watch import Watch, look_together
from airflow_provider_ocidist.model import evidence
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunKey, RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.triggers import DistributedTrainingTrigger, training
from airflow_provider_ocidist.triggers.connections import LogOf
from airflow_provider_ocidist.work_dir.reports import READS_PER_S, SAVED_READS, Reports
from airflow_provider_ocidist.work_dir.run_dirs import RunDirs
from scripts.emulator_process import Access
from scripts.idle_gangs import IdleGangs, idle_gangs

GANGS = 30
NODES = 2


# when gangs are looked at (virtual clock)


def looks(turns: Sequence[Turn], seconds: float) -> list[tuple[float, int]]:
    """Return when there was a look in so many seconds, and at how many."""
    schedule, seen = Schedule(), []
    while (now := schedule.next_at(turns)) <= seconds:
        due = schedule.due(turns, now)
        for turn in due:
            schedule.looked(turn, turn.interval, now)
        seen.append((now, len(due)))
    return seen


def test_gangs_that_came_at_different_times_are_soon_looked_at_together():
    turns = [Turn(10.0, due=number * 10 / 97) for number in range(97)]
    late = [count for now, count in looks(turns, 100) if now > 20]
    assert set(late) == {97}
    assert len(late) <= 9


def test_no_gang_is_looked_at_less_often_than_it_asks_for():
    turns = [Turn(10.0, due=0.0), Turn(25.0, due=3.0), Turn(60.0, due=7.0)]
    schedule, last = Schedule(), dict.fromkeys(map(id, turns), 0.0)
    while (now := schedule.next_at(turns)) < 600:
        for turn in schedule.due(turns, now):
            assert now - last[id(turn)] <= turn.interval
            last[id(turn)] = now
            schedule.looked(turn, turn.interval, now)


def test_a_gang_near_its_end_does_not_hurry_the_others():
    near, far = Turn(10.0, due=0.0), Turn(10.0, due=4.0)
    schedule = Schedule()
    schedule.looked(near, 1.0, 0.0)
    assert schedule.due([near, far], 1.0) == [near]


def test_a_service_that_cannot_answer_is_left_alone_longer_each_time_and_not_for_ever():
    schedule, turns, holds = Schedule(), [Turn(10.0, due=0.0)], []
    for _ in range(6):
        now = schedule.next_at(turns)
        schedule.failed(10.0, now)
        holds.append(schedule.next_at(turns) - now)
    assert holds == [20.0, 40.0, 80.0, 120.0, 120.0, 120.0]
    now = schedule.next_at(turns)
    schedule.took(0.5, now)
    assert schedule.next_at(turns) == now + 0.5


def test_a_service_that_cannot_answer_for_a_week_is_still_asked_again():
    schedule, turns = Schedule(), [Turn(10.0, due=0.0)]
    for _ in range(5000):
        schedule.failed(10.0, schedule.next_at(turns))
    before = schedule.next_at(turns)
    schedule.failed(10.0, before)
    assert schedule.next_at(turns) - before == 120.0


# the thread, on a backend without I/O


class Gangs(Backend):
    """A backend whose answers the test sets."""

    directories = property(lambda self: self)

    def __init__(self) -> None:
        self.looks: list[list[str]] = []
        self.ended: set[str] = set()
        self.broken: set[str] = set()
        self.error: BackendError | None = None
        self.reconnected: list[bool] = []
        self.forgotten: list[str] = []
        self.renewed: list[str] = []

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        self.looks.append([ref.job_id for ref in refs])
        if self.error is not None:
            raise self.error
        return [self._status(ref) for ref in refs]

    def _status(self, ref: RunRef) -> RunStatus:
        state = NodeState.FAILED if ref.job_id in self.ended else NodeState.RUNNING
        return RunStatus(nodes=(NodeStatus(rank=0, run_id=ref.main_run_id, state=state, details="died"),))

    def logs_of(self, wanted: Sequence[tuple[RunRef, Sequence[float]]], most: int = 0) -> list[LogPart]:
        del most
        return [LogPart(self._lines(ref, since)) for ref, since in wanted]

    def _lines(self, ref: RunRef, since: Sequence[float]) -> list[LogLine]:
        return [LogLine("bad", 0.0, 7, "")] if ref.job_id in self.broken else []

    def forget(self, ref: RunRef) -> None:
        self.forgotten.append(ref.job_id)

    def renew(self, ref: RunRef) -> None:
        self.renewed.append(ref.job_id)

    # as a source
    backend = property(lambda self: self)

    def refresh(self, *, anew: bool) -> None:
        self.reconnected.append(anew)

    connect = plan = submit = cancel = delete = None


Gangs.__abstractmethods__ = frozenset()


@pytest.fixture
def gangs(monkeypatch: pytest.MonkeyPatch) -> Gangs:
    monkeypatch.setattr(poller_module, "GATHERING", 0.05)
    return Gangs()


class Task:
    """A process that waits for a gang."""

    def __init__(
        self,
        poller: Poller,
        backend: Backend,
        name: str,
        interval: float = 0.05,
        *,
        clock: Callable[[], float] = time.monotonic,
        **changes: Any,
    ) -> None:
        key = RunKey(dag_id="dag", run_id="run", task_id=name)
        ref = RunRef(
            backend="x", key=key, nodes=1, job_id=name, run_ids=(name,), run_dir=name, submitted_at=1.0
        )
        self.outcomes: list[Any] = []
        self.told = threading.Event()
        watch = Watch(
            backend, RunRecord(ref=ref, logs_since=(1.0,), **changes), logging.getLogger("test"), clock=clock
        )
        self.followed = poller.follow(watch, interval, self._take)

    def _take(self, outcome: Any) -> None:
        self.outcomes.append(outcome)
        self.told.set()


def until(true: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def test_only_the_gang_that_needs_something_is_reported_and_once(gangs: Gangs) -> None:
    poller = Poller(gangs)
    tasks = [Task(poller, gangs, f"gang-{number}") for number in range(5)]
    until(lambda: len(gangs.looks) >= 3)
    gangs.ended.add("gang-3")
    assert tasks[3].told.wait(20)
    before = len(gangs.looks)
    until(lambda: len(gangs.looks) >= before + 3)
    assert [len(task.outcomes) for task in tasks] == [0, 0, 0, 1, 0]
    assert isinstance(tasks[3].outcomes[0], Fail)
    assert "gang-3" not in gangs.looks[-1]
    assert len(gangs.looks[-1]) == 4


def test_a_gang_whose_look_fails_does_not_harm_the_others(gangs: Gangs) -> None:
    poller = Poller(gangs)
    gangs.broken.add("gang-1")
    tasks = [Task(poller, gangs, f"gang-{number}") for number in range(3)]
    assert tasks[1].told.wait(20)
    assert isinstance(tasks[1].outcomes[0], IndexError)
    gangs.ended.add("gang-2")
    assert tasks[2].told.wait(20)
    assert tasks[0].outcomes == []


def test_while_the_service_cannot_answer_all_wait_and_none_fails(gangs: Gangs) -> None:
    gangs.error = BackendError("the service asks for fewer requests", status_code=429, retryable=True)
    poller = Poller(gangs)
    tasks = [Task(poller, gangs, f"gang-{number}") for number in range(3)]
    until(lambda: len(gangs.looks) >= 4)
    # The longest of four pauses is 16 intervals; without any there would be a look each interval.
    gangs.error, gangs.ended = None, {"gang-0", "gang-1", "gang-2"}
    assert all(task.told.wait(20) for task in tasks)
    assert all(isinstance(task.outcomes[0], Fail) for task in tasks)
    assert {len(look) for look in gangs.looks[1:]} == {3}


class Hours:
    """The clock of the watches, on which an hour passes in a moment: each look is a minute after the one before."""

    def __init__(self, gangs: Gangs) -> None:
        self._gangs = gangs

    def __call__(self) -> float:
        return time.monotonic() + 60 * len(self._gangs.looks)


@pytest.fixture
def hours(gangs: Gangs, monkeypatch: pytest.MonkeyPatch) -> Hours:
    monkeypatch.setattr(evidence, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(poller_module, "LONGEST_HOLD", 0.05)
    monkeypatch.setattr(poller_module, "RENEW_EVERY", 0.0)
    return Hours(gangs)


def refusal(status: int = 401) -> BackendError:
    return BackendError("the service does not accept these credentials", status_code=status)


def test_one_refusal_ends_the_wait_of_nobody(gangs: Gangs, hours: Hours) -> None:
    gangs.error = refusal()
    poller = Poller(gangs)
    tasks = [Task(poller, gangs, f"gang-{number}", clock=hours) for number in range(3)]
    until(lambda: len(gangs.looks) >= 4)
    gangs.error = None
    until(lambda: len(gangs.looks) >= 6)
    assert [task.outcomes for task in tasks] == [[]] * 3
    assert gangs.reconnected
    assert set(gangs.reconnected) == {True}
    assert {task.followed.watch.record.unanswered for task in tasks} == {evidence.ANSWERED}
    gangs.ended = {"gang-0", "gang-1", "gang-2"}
    assert all(task.told.wait(20) for task in tasks)
    assert all(isinstance(task.outcomes[0], Fail) for task in tasks)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_gang_is_given_up_only_after_long_and_with_new_credentials(
    gangs: Gangs, hours: Hours, status: int
) -> None:
    gangs.error = refusal(status)
    poller = Poller(gangs)
    tasks = [Task(poller, gangs, f"gang-{number}", clock=hours) for number in range(3)]
    assert all(task.told.wait(60) for task in tasks)
    for task in tasks:
        (outcome,) = task.outcomes
        assert isinstance(outcome, GaveUp)
        assert (outcome.status_code, outcome.retryable, outcome.cause) == (status, True, Cause.SERVICE)
        asked = task.followed.watch.record.unanswered
        assert asked.refusals >= evidence.REFUSALS_NEEDED
        assert asked.refused_for >= evidence.REFUSED_FOR
        assert asked.renewed
    assert gangs.reconnected.count(True) >= 1


@pytest.mark.parametrize("seed", range(5))
def test_refusals_among_answers_never_add_up(gangs: Gangs, hours: Hours, seed: int) -> None:
    """More refusals in all than would do, over hours, and no row of them as long as it takes."""
    dice = random.Random(seed)
    longest = int(evidence.REFUSED_FOR / 60) - 2
    answers: list[BackendError | None] = []
    while len(answers) < 150:
        row: list[BackendError | None] = [refusal(dice.choice([401, 404]))] * dice.randint(1, longest)
        answers += [*row, None]
    status = gangs.status

    def answer(refs: Sequence[RunRef]) -> list[RunStatus]:
        gangs.error = answers[len(gangs.looks)] if len(gangs.looks) < len(answers) else None
        return status(refs)

    gangs.status = answer
    poller = Poller(gangs)
    tasks = [Task(poller, gangs, f"gang-{number}", 0.001, clock=hours) for number in range(2)]
    until(lambda: len(gangs.looks) > len(answers), 60)
    assert [task.outcomes for task in tasks] == [[], []], f"seed {seed}"


def test_a_look_that_fails_for_a_reason_nobody_thought_of_is_reported_in_the_end(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gangs, "status", lambda _: 1 / 0)
    poller = Poller(gangs)
    tasks = [Task(poller, gangs, f"gang-{number}") for number in range(2)]
    assert all(task.told.wait(20) for task in tasks)
    assert all(isinstance(task.outcomes[0], ZeroDivisionError) for task in tasks)


def test_leases_are_renewed_while_a_look_hangs_and_while_the_service_is_left_alone(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, looked = threading.Event(), threading.Event()

    def status(_: Sequence[RunRef]) -> list[RunStatus]:
        looked.set()
        hangs.wait(60)
        raise BackendError("the service asks for fewer requests", status_code=429, retryable=True)

    monkeypatch.setattr(gangs, "status", status)
    poller = Poller(gangs)
    tasks = [Task(poller, gangs, f"gang-{number}", 10.0, lease=0.6) for number in range(10)]
    assert looked.wait(20)
    until(lambda: min(Counter(gangs.renewed)[f"gang-{number}"] for number in range(10)) >= 4)
    hangs.set()
    until(lambda: poller._schedule._failures)
    gangs.renewed.clear()
    until(lambda: min(Counter(gangs.renewed)[f"gang-{number}"] for number in range(10)) >= 4)
    for task in tasks:
        poller.leave(task.followed)
    until(lambda: poller._keeper._thread is None)
    assert [task.outcomes for task in tasks] == [[]] * 10


def test_a_thread_that_dies_is_followed_by_another(gangs: Gangs, monkeypatch: pytest.MonkeyPatch) -> None:
    poller = Poller(gangs)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with monkeypatch.context() as broken:
        broken.setattr(poller._schedule, "next_at", lambda _: 1 / 0)
        first = Task(poller, gangs, "gang-0")
        until(lambda: poller._thread is None)
    gangs.ended |= {"gang-0", "gang-1"}
    second = Task(poller, gangs, "gang-1")
    assert first.told.wait(20)
    assert second.told.wait(20)


def test_a_state_that_cannot_be_made_out_harms_only_its_own_compartment(gangs: Gangs) -> None:
    class Odd(Gangs):
        def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
            if refs[0].compartment_id == "odd":
                raise KeyError("logContent")
            return super().status(refs)

        def logs_of(self, wanted: Any, most: int = 0) -> Any:
            raise KeyError("logContent")

    backend = Odd()
    key = RunKey(dag_id="dag", run_id="run", task_id="x")
    watches = []
    for place in ("odd", "sound"):
        ref = RunRef(
            backend="x",
            key=key,
            nodes=1,
            job_id=place,
            run_ids=(place,),
            run_dir=place,
            submitted_at=1.0,
            compartment_id=place,
        )
        watches.append(Watch(backend, RunRecord(ref=ref, logs_since=(1.0,)), logging.getLogger("test")))
    found = [look_together(backend, watches, time.time()).outcomes for _ in range(3)]
    assert found[:2] == [(Wait(), Wait())] * 2
    assert isinstance(found[2][0], KeyError)
    assert found[2][1] == Wait()


def test_a_gang_that_leaves_is_looked_at_no_more_and_the_thread_ends_when_all_have_left(
    gangs: Gangs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller_module, "IDLE", 0.2)
    poller = Poller(gangs)
    tasks = [Task(poller, gangs, f"gang-{number}") for number in range(2)]
    until(lambda: gangs.looks)
    poller.leave(tasks[0].followed)
    before = len(gangs.looks)
    until(lambda: len(gangs.looks) > before + 2)
    assert gangs.looks[-1] == ["gang-1"]
    assert gangs.forgotten == ["gang-0"]
    poller.leave(tasks[1].followed)
    until(lambda: poller._thread is None)
    again = Task(poller, gangs, "gang-2")
    gangs.ended.add("gang-2")
    assert again.told.wait(20)


# log lines


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
    assert sum(map(len, follower._seen)) < 200


def test_a_silent_node_is_not_read_again_from_further_back_than_a_quarter_of_an_hour() -> None:
    follower, days = LogFollower([0.0]), 2 * 86400.0
    follower.take([], days)
    oldest = min(follower.since(days + second)[0] for second in range(600))
    assert oldest == days - 900
    assert follower.take([LogLine("late", days - 800, 0, "")], days + 300)


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


def test_lines_reach_the_log_of_their_task_from_any_thread() -> None:
    task = contextvars.ContextVar("task")
    written: list[tuple[str, str]] = []

    class Logger:
        def info(self, msg: Any, /, *args: Any) -> None:
            written.append((task.get(), msg % args))

        warning = info

    loggers = []
    for name in ("a", "b"):
        context = contextvars.copy_context()
        context.run(task.set, name)
        loggers.append(context.run(LogOf, Logger()))
    thread = threading.Thread(target=lambda: [each.info("[node %d] %s", 1, "x") for each in loggers])
    thread.start()
    thread.join()
    assert written == [("a", "[node 1] x"), ("b", "[node 1] x")]


# reports


class Shelf:
    """Run directories of one node each, on a virtual clock."""

    def __init__(self, folder: Any, count: int) -> None:
        self.now = 1000.0
        self.folder = folder
        self.run_dirs = [str(folder / f"gang-{number}") for number in range(count)]
        self.reads: list[str] = []
        self.reports = Reports(RunDirs(self._open), clock=lambda: self.now)
        for run_dir in self.run_dirs:
            self.beat(run_dir)

    def _open(self, uri: str) -> Store:
        shelf = self

        class Counted(LocalStore):
            def read(self, name: str) -> bytes:
                shelf.reads.append(uri)
                return super().read(name)

            def list(self, prefix: str = "") -> Any:
                return [replace(each, modified=shelf.spoke[uri]) for each in super().list(prefix)]

        return Counted(uri)

    spoke: dict[str, float] = {}  # noqa: RUF012 - of the one shelf in a test

    def beat(self, run_dir: str, **changes: Any) -> None:
        self.spoke[run_dir] = self.now
        report = NodeReport(
            rank=0, phase=Phase.TRAINING, address="", started_at=1000.0, heartbeat_at=self.now
        )
        text = replace(report, **changes).to_json() + b" " * int(self.now - 1000)
        LocalStore(run_dir).write("nodes/0.json", text)

    def read(self, *urgent: str) -> dict[str, Any]:
        self.reads.clear()
        return self.reports.read({run_dir: run_dir in urgent for run_dir in self.run_dirs})


def test_of_many_gangs_each_report_is_read_in_turn_and_says_when_it_was_the_newest(tmp_path: Any) -> None:
    shelf = Shelf(tmp_path, 20)
    assert len(shelf.read()) == 20
    times, read = 6, Counter()
    for _ in range(times):
        shelf.now += 1
        for run_dir in shelf.run_dirs:
            shelf.beat(run_dir)
        told = shelf.read()
        read.update(shelf.reads)
        assert len(told) == 20
        for run_dir in shelf.run_dirs:
            assert (told[run_dir][0].at == shelf.now) == (run_dir in shelf.reads)
    budget = SAVED_READS + READS_PER_S * (times - 1)
    assert budget - 1 <= read.total() <= budget + 1
    assert max(read.values()) - min(read[each] for each in shelf.run_dirs) <= 1


def test_a_node_that_falls_silent_is_read_at_once_and_then_known_to_be_silent(tmp_path: Any) -> None:
    shelf = Shelf(tmp_path, 12)
    shelf.read()
    shelf.reports._saved = 0.0
    quiet, *others = shelf.run_dirs
    shelf.now += 1
    shelf.beat(quiet, phase=Phase.DONE, exit_code=1)
    shelf.now += 7
    for run_dir in others:
        shelf.beat(run_dir)
    told = shelf.read()
    assert quiet in shelf.reads
    assert told[quiet][0].report.phase is Phase.DONE
    shelf.now += 30
    assert shelf.read()[quiet][0].at == shelf.now
    assert quiet not in shelf.reads


def test_what_the_caller_needs_is_read_whatever_was_read_before(tmp_path: Any) -> None:
    shelf = Shelf(tmp_path, 12)
    shelf.read()
    shelf.reports._saved = 0.0
    shelf.now += 0.1
    for run_dir in shelf.run_dirs:
        shelf.beat(run_dir, message="news")
    assert shelf.read(shelf.run_dirs[5])[shelf.run_dirs[5]][0].report.message == "news"
    assert shelf.reads == [shelf.run_dirs[5]]


# against the emulator


@pytest.fixture(scope="module")
def idle(emulator: Access) -> Iterator[IdleGangs]:
    with idle_gangs(emulator, GANGS, NODES) as gangs:
        gangs.report(gangs.records)
        yield gangs


def _connection(idle: IdleGangs, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a connection for one test: what triggers share lives as long as their process."""
    conn_id = f"oci_{uuid.uuid4().hex[:8]}"
    fields = idle.emulator.connection_fields(work_dir=idle.emulator.work_dir)
    extra = json.dumps({"conn_type": "oci", "extra": fields})
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", extra)
    return conn_id


def test_thirty_gangs_are_looked_at_in_three_calls_and_one_client(
    idle: IdleGangs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn_id = _connection(idle, monkeypatch)
    monkeypatch.setattr(training, "FIRST_EVENT_AFTER", 0.0)
    caplog.set_level(logging.INFO)
    victim = idle.records[-1]

    async def wait_for(number: int, record: RunRecord) -> dict[str, Any]:
        trigger = DistributedTrainingTrigger(conn_id, record.to_json(), {}, 1.0)
        trigger._log = logging.getLogger(f"task.{number}")
        async for event in trigger.run():
            return dict(event.payload)
        raise AssertionError("a trigger ended without an event")

    async def scenario() -> tuple[list[dict[str, Any]], list[Any]]:
        tasks = [asyncio.create_task(wait_for(*each)) for each in enumerate(idle.records)]
        names = {f"task.{number}" for number in range(GANGS)}
        await asyncio.to_thread(until, lambda: names <= {record.name for record in caplog.records}, 60)
        await asyncio.to_thread(idle.say, idle.records[7], 1, ["one", "two"])
        await asyncio.to_thread(idle.forget_calls)
        await asyncio.to_thread(until, lambda: len(idle.calls("/20190101/jobRuns.*")) > 4, 60)
        calls = await asyncio.to_thread(idle.calls)
        await asyncio.to_thread(idle.backend.cancel, victim.ref)
        done, waiting = await asyncio.wait(tasks, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return calls, [task.result() for task in done]

    calls, events = asyncio.run(scenario())
    kinds = Counter(_kind(call) for call in calls)
    assert set(kinds) == {"runs", "reports", "log"}
    # One of each kind for a look at all; the first of these calls may be the end of a look, the last the begin of one.
    assert max(kinds.values()) - min(kinds.values()) <= 1
    assert [event["ref"]["run_ids"] for event in events] == [list(victim.ref.run_ids)]
    told = [(record.name, record.getMessage()) for record in caplog.records if "[node" in record.getMessage()]
    assert told == [("task.7", "[node 1] one"), ("task.7", "[node 1] two")]


@pytest.mark.since_airflow("3.3", "the runner of triggers is another before")
def test_airflow_knows_from_the_pollers_thread_whose_line_it_is(
    idle: IdleGangs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow's own runner binds a trigger's id to its context; its supervisor sorts the lines by that."""
    from airflow.executors.workloads.trigger import RunTrigger
    from airflow.jobs.triggerer_job_runner import TriggerRunner
    from airflow.models.trigger import Trigger

    conn_id = _connection(idle, monkeypatch)
    printed = ""

    def both_are_there() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return all(f"[node 0] of {number}" in printed for number in (3, 4))

    async def scenario() -> None:
        runner = TriggerRunner()
        for number in (3, 4):
            record = idle.records[number].to_json()
            arguments = {"conn_id": conn_id, "record": record, "owner": {}, "poll_interval": 0.5}
            runner.to_create.append(
                RunTrigger(
                    id=number,
                    classpath="airflow_provider_ocidist.triggers.DistributedTrainingTrigger",
                    encrypted_kwargs=Trigger.encrypt_kwargs(arguments),
                    ti=None,
                )
            )
        await runner.create_triggers()
        for number in (3, 4):
            await asyncio.to_thread(idle.say, idle.records[number], 0, [f"of {number}"])
        await asyncio.to_thread(until, both_are_there, 60)
        tasks = [each["task"] for each in runner.triggers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())
    for number in (3, 4):
        (line,) = [line for line in printed.splitlines() if f"[node 0] of {number}" in line]
        assert f"trigger_id={number} " in line


def _kind(call: dict[str, Any]) -> str:
    path = call["path"].split("?")[0]
    if path == "/20190101/jobRuns":
        return "runs"
    return (
        "log"
        if path.endswith("/search")
        else "reports"
        if path.endswith("/o")
        else f"{call['method']} {path}"
    )


def test_runs_that_have_ended_are_asked_for_once(idle: IdleGangs) -> None:
    refs = [record.ref for record in idle.records[:5]]
    idle.backend.status(refs)
    idle.backend.cancel(refs[0])
    until(lambda: idle.backend.status(refs)[0].ended)
    idle.forget_calls()
    for _ in range(3):
        assert idle.backend.status(refs)[0].ended
    assert {_kind(call) for call in idle.calls()} == {"runs", "reports"}
    gone = [replace(refs[1], run_ids=("ocid1.datasciencejobrun.oc1.iad.absent", refs[1].run_ids[1])), refs[2]]
    states = [node.state for node in idle.backend.status(gone)[0].nodes]
    assert states == [NodeState.UNKNOWN, NodeState.RUNNING]


def test_under_429_no_gang_fails_and_all_are_looked_at_again(idle: IdleGangs) -> None:
    logger = logging.getLogger("test")
    poller = Poller(_Source(idle.backend))
    told: list[Any] = []
    fault = {"path": "/20190101/jobRuns", "method": "GET", "status": 429, "retry_after_s": 1, "times": 4}
    httpx.post(f"{idle.emulator.url}/_emulator/faults", json=fault).raise_for_status()
    watches = [Watch(idle.backend, record, logger) for record in idle.records[5:25]]
    began = time.monotonic()
    followed = [poller.follow(watch, 0.5, told.append) for watch in watches]
    try:
        until(lambda: all(watch.status is not None for watch in watches), seconds=40)
    finally:
        httpx.delete(f"{idle.emulator.url}/_emulator/faults").raise_for_status()
        for each in followed:
            poller.leave(each)
    assert told == []
    # Each of the first four requests was told to come again in a second.
    assert time.monotonic() - began >= 3.0


class _Source:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def refresh(self, *, anew: bool) -> None:
        raise BackendError(f"nobody refuses, so nobody asks for new credentials ({anew})", cause=Cause.CONFIG)
