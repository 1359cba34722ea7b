"""Many gangs that wait: one poller looks at all of them, in few calls, and none suffers from another."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from airflow_provider_ocidist.backends.base import Backend, LogLine, LogPart
from airflow_provider_ocidist.errors import BackendError, Cause, GaveUp
from airflow_provider_ocidist.gangs import poller as poller_module
from airflow_provider_ocidist.gangs import reconnection
from airflow_provider_ocidist.gangs.actions import Fail
from airflow_provider_ocidist.gangs.poller import Poller, Schedule, Turn
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model import evidence
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunKey, RunRecord, RunRef, RunStatus

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
    monkeypatch.setattr(reconnection, "RENEW_EVERY", 0.0)
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
