"""When a gang is ended, how long that is tried, and what is waited out before (docs/failures/waits.md)."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.capabilities import KeepsTime, PreparesCancels
from airflow_provider_ocidist.errors import (
    BackendError,
    CancelFailed,
    Cause,
    GaveUp,
    StillAlive,
    StorageError,
    refusal_in,
)
from airflow_provider_ocidist.gangs import backoff as waits
from airflow_provider_ocidist.gangs import kills
from airflow_provider_ocidist.gangs.backoff import AMID_FOR, AMID_REFUSALS, Backoff, may_pass
from airflow_provider_ocidist.gangs.kills import Killer, end_before_giving_up, killer_of
from airflow_provider_ocidist.model.evidence import REFUSALS_NEEDED
from airflow_provider_ocidist.model.homes import cancel_command
from airflow_provider_ocidist.model.run import Ending, RunKey, RunRef

LOG = logging.getLogger("test_kill_rules")
QUARTER, HOUR, DAY = 900.0, 3600.0, 86_400.0
REF = RunRef(
    backend="x",
    key=RunKey(dag_id="d", run_id="r", task_id="t", generation=1, attempt=2),
    nodes=3,
    job_id="ocid1.job",
    run_ids=("ocid1.run0", "", "ocid1.run0"),
    run_dir="dir",
    submitted_at=1.0,
)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 5000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_000_000.0 + self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Stop(threading.Event):
    """What a task waits for between two tries; `at`: when it is killed, on that clock."""

    def __init__(self, clock: Clock, at: float = float("inf")) -> None:
        super().__init__()
        self._clock = clock
        self._at = at

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._clock.sleep(timeout)
        if self._clock.now >= self._at:
            self.set()
        return self.is_set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (waits, kills):
        monkeypatch.setattr(module, "time", found)
    return found


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


class Service(PreparesCancels):
    """Answers to cancels with these errors, one after the other, the last again and again."""

    connections: Any = None

    def __init__(self, *answers: Exception | None, claimed: int = 0) -> None:
        self.answers = list(answers)
        self.claimed = claimed
        self.endings: list[Ending | None] = []
        self.made_ready = 0

    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        assert ref is REF
        self.endings.append(ending)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            raise answer

    directories = property(lambda self: self)

    def claimed_by(self, ref: RunRef) -> int:
        assert ref is REF
        return self.claimed

    def ready_to_cancel(self, ref: RunRef) -> None:
        assert ref is REF
        self.made_ready += 1


# What passes


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize("retryable", [True, False])
def test_a_refusal_may_pass_whatever_it_is_called(status: int, retryable: bool) -> None:
    assert may_pass(BackendError("no", status_code=status, retryable=retryable, cause=Cause.CONFIG))


@pytest.mark.parametrize(
    "error, passes",
    [
        (BackendError("busy", status_code=429, retryable=True, cause=Cause.SERVICE), True),
        (BackendError("no way there", retryable=True, cause=Cause.SERVICE), True),
        (BackendError("bad job", status_code=400, cause=Cause.SERVICE), False),
        (BackendError("no machine", retryable=True, cause=Cause.CAPACITY), False),
        (StillAlive("node 1 lives", retryable=True, cause=Cause.SERVICE), False),
    ],
    ids=["busy", "unreachable", "refused for good", "capacity", "waited for already"],
)
def test_only_what_speaks_of_the_moment_may_pass(error: BackendError, passes: bool) -> None:
    assert may_pass(error) is passes


# Waiting out what is refused


def refusals(
    clock: Clock,
    *errors: Exception,
    reconnect: Callable[[], object] = lambda: None,
    killed_at: float = float("inf"),
    each_takes: float = 0.0,
) -> tuple[int, BackendError]:
    """Be refused in turn until it is given up; return how often, and the error that says so."""
    backoff = Backoff(Stop(clock, killed_at), LOG)
    for number in range(1, 2000):
        try:
            backoff.take(errors[number % len(errors)], reconnect)
        except BackendError as last:
            return number, last
        clock.now += each_takes
    raise AssertionError("waited for ever")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_refuses_is_asked_for_a_quarter_of_an_hour_with_new_credentials(
    clock: Clock, status: int
) -> None:
    connections: list[int] = []
    refusal = BackendError("not you", status_code=status)
    number, last = refusals(clock, refusal, reconnect=lambda: connections.append(1))
    assert isinstance(last, GaveUp)
    assert QUARTER <= sum(clock.slept) <= QUARTER + 120
    assert clock.slept[:4] == [10.0, 20.0, 40.0, 80.0]
    assert len(connections) == len(clock.slept) == number - 1 >= 4
    assert f"refused for {sum(clock.slept):.0f} s; last error: " in str(last)
    assert "not you" in str(last)
    assert last.status_code == status
    assert last.__cause__ is refusal


def outage(status: int | None) -> BackendError:
    return BackendError("nobody is there", status_code=status, retryable=True)


def of_the_store(*, passes: bool) -> BackendError:
    """Return what comes of a work directory that cannot be read; that error says of itself that it may pass."""
    error = BackendError("work_dir cannot be used", retryable=True)
    error.__cause__ = StorageError("nobody is there", retryable=passes)
    return error


@pytest.mark.parametrize("status", [None, 429, 500, 502, 503, 504])
def test_an_outage_is_no_refusal_and_is_waited_out_for_a_day(clock: Clock, status: int | None) -> None:
    _, last = refusals(clock, outage(status), of_the_store(passes=True))
    assert isinstance(last, GaveUp)
    assert DAY <= sum(clock.slept) <= DAY + 120
    assert f"not answered for {sum(clock.slept):.0f} s; last error: " in str(last)


def test_some_refusals_in_an_outage_are_a_part_of_it(clock: Clock) -> None:
    refusal = BackendError("not you", status_code=401)
    backoff = Backoff(Stop(clock), LOG)
    while sum(clock.slept) < DAY / 2:
        backoff.take(refusal if len(clock.slept) in (3, 90, 170) else outage(503), lambda: None)
    assert len(clock.slept) > 170, "not every refusal came"


@pytest.mark.parametrize(
    "refusal",
    [
        of_the_store(passes=False),
        BackendError("busy with another", status_code=409, code="IncorrectState", retryable=True),
        BackendError("begun with another job file", code="InvalidatedRetryToken", retryable=True),
    ],
    ids=["no bucket", "conflict", "spent token"],
)
def test_what_somebody_has_said_is_a_refusal_also_where_it_may_pass(
    clock: Clock, refusal: BackendError
) -> None:
    _, last = refusals(clock, refusal)
    assert isinstance(last, GaveUp)
    assert QUARTER <= sum(clock.slept) <= QUARTER + 120


def test_what_is_no_answer_of_the_service_is_waited_out_the_same(clock: Clock) -> None:
    _, last = refusals(clock, StorageError("no bucket"))
    assert isinstance(last, GaveUp)
    assert "no bucket" in str(last)
    assert QUARTER <= sum(clock.slept) <= QUARTER + 120


def amid_a_first_submission(clock: Clock, errors: Callable[[int], BackendError]) -> BackendError:
    """Meet errors in turn amid the submission of a first try; return the one that it fails with."""
    backoff = Backoff(Stop(clock), LOG)
    for number in range(2000):
        error = errors(number)
        error.after_acceptance = number == 0
        if not backoff.is_worth_another(error, 1):
            return error
        try:
            backoff.take(error, lambda: None)
        except GaveUp as last:
            return last
    raise AssertionError("waited for ever")


@pytest.mark.parametrize("status", [None, 429, 500, 503])
def test_an_outage_amid_a_first_submission_is_waited_out_for_a_day_too(
    clock: Clock, status: int | None
) -> None:
    last = amid_a_first_submission(clock, lambda _: outage(status))
    assert isinstance(last, GaveUp)
    assert DAY <= sum(clock.slept) <= DAY + 120


@pytest.mark.parametrize("outages", [0, 1, 4, 40])
@pytest.mark.parametrize("kinds", [(404,), (401, 404)])
def test_an_outage_before_it_makes_no_refusal_amid_a_first_submission_more_credible(
    clock: Clock, outages: int, kinds: tuple[int, ...]
) -> None:
    refused_at: list[float] = []

    def error_of(number: int) -> BackendError:
        if number < outages:
            return outage(503)
        refused_at.append(clock.now)
        return BackendError("not you", status_code=kinds[number % len(kinds)], cause=Cause.CONFIG)

    last = amid_a_first_submission(clock, error_of)
    assert last.cause is Cause.CONFIG
    assert AMID_REFUSALS < len(refused_at) <= AMID_REFUSALS + 2
    assert AMID_FOR <= refused_at[-1] - refused_at[0] <= 5 * 120


@pytest.mark.parametrize("seconds, is_believed", [(119.0, False), (120.0, True), (121.0, True)])
def test_refusals_amid_a_first_submission_are_believed_after_two_minutes(
    clock: Clock, seconds: float, is_believed: bool
) -> None:
    backoff, refusal = Backoff(Stop(clock), LOG), BackendError("not you", status_code=404)
    refusal.after_acceptance = True
    began = clock.now
    for number in range(AMID_REFUSALS):
        if number == AMID_REFUSALS - 1:
            clock.now = began + seconds
        backoff.take(refusal, lambda: None)
    assert backoff.is_worth_another(refusal, 1) is not is_believed


def refusal_of_a_store(status: int) -> BackendError:
    """Return what comes of a work directory that refuses, as for credentials that are just being renewed."""
    refused = BackendError("work_dir cannot be used", retryable=True)
    refused.__cause__ = StorageError("not you")
    refused.__cause__.__cause__ = BackendError("not you", status_code=status)
    return refused


REFUSALS = [
    *(BackendError("not you", status_code=status) for status in (401, 403, 404)),
    refusal_of_a_store(401),
]


@pytest.mark.parametrize("error", REFUSALS, ids=repr)
def test_the_first_refusal_of_a_first_try_is_believed_once_it_is_repeated_with_new_credentials(
    clock: Clock, error: BackendError
) -> None:
    read: list[float] = []
    backoff = Backoff(Stop(clock), LOG)
    assert backoff.is_worth_another(error, 1)
    backoff.take(error, lambda: read.append(clock.now))
    assert clock.slept == [10.0]
    assert read == [clock.now], "once, just before it asks again"
    for second in (*REFUSALS, outage(503)):
        assert not backoff.is_worth_another(second, 1)


def test_a_refusal_amid_a_first_submission_whose_first_request_was_refused_is_waited_out_as_any(
    clock: Clock,
) -> None:
    refusal, amid = (BackendError("not you", status_code=401) for _ in range(2))
    amid.after_acceptance = True
    backoff = Backoff(Stop(clock), LOG)
    backoff.take(refusal, lambda: None)
    assert backoff.is_worth_another(amid, 1)
    backoff.take(amid, lambda: None)
    assert backoff.is_worth_another(refusal, 1)


@pytest.mark.parametrize("error", [*REFUSALS, outage(503)], ids=repr)
def test_what_may_pass_is_waited_out_unless_it_is_the_first_outage_of_a_first_try(
    clock: Clock, error: BackendError
) -> None:
    is_outage = refusal_in(error) is None
    assert [Backoff(Stop(clock), LOG).is_worth_another(error, number) for number in (1, 2, 3)] == [
        not is_outage,
        True,
        True,
    ]


@pytest.mark.parametrize("number", [1, 2])
def test_what_cannot_pass_is_waited_out_by_no_try(clock: Clock, number: int) -> None:
    backoff, error = Backoff(Stop(clock), LOG), BackendError("no such shape", status_code=400)
    error.after_acceptance = True
    assert not backoff.is_worth_another(error, number)


def test_an_outage_after_refusals_amid_a_first_submission_is_waited_out_too(clock: Clock) -> None:
    refused = AMID_REFUSALS
    last = amid_a_first_submission(
        clock, lambda number: outage(503) if number >= refused else BackendError("not you", status_code=404)
    )
    assert isinstance(last, GaveUp)
    assert sum(clock.slept) >= DAY


OUTAGES: list[Exception] = [
    *(BackendError("not now", status_code=status, retryable=True) for status in (429, 500, 502, 503)),
    BackendError("no way there", retryable=True),
    StorageError("slow down", retryable=True),
    ConnectionResetError("reset"),
    TimeoutError("timed out"),
]


@pytest.mark.parametrize("seed", range(20))
def test_an_outage_is_no_refusal_and_is_waited_out_for_a_day_like_any_other(clock: Clock, seed: int) -> None:
    """As while a gang is watched: fewer than five refusals in it are a part of it."""
    print("seed", seed)
    dice = random.Random(seed)
    errors = dice.choices(OUTAGES, k=1000)
    for place in dice.sample(range(1000), dice.randint(0, REFUSALS_NEEDED - 1)):
        errors[place] = BackendError("not you", status_code=dice.choice([401, 403, 404]))
    connections: list[int] = []
    number, last = refusals(
        clock, *errors, reconnect=lambda: connections.append(1), each_takes=dice.uniform(0, 60)
    )
    assert isinstance(last, GaveUp)
    assert DAY <= clock.now - 5000.0 <= DAY + 400
    assert len(connections) == number - 1, "somebody may have corrected the connection"


@pytest.mark.parametrize("error", OUTAGES, ids=repr)
def test_what_asks_to_wait_or_does_not_answer_is_an_outage_for_every_wait(error: Exception) -> None:
    assert refusal_in(error) is None
    wrapped = StorageError("the bucket")
    wrapped.__cause__ = error
    if isinstance(error, BackendError):
        assert refusal_in(wrapped) is None


@pytest.mark.parametrize(
    "error, kind",
    [
        (BackendError("no", status_code=401), "401"),
        (BackendError("no", cause=Cause.CONFIG), "CONFIG"),
        (StorageError("no"), "StorageError"),
        (ValueError("no"), "ValueError"),
    ],
    ids=repr,
)
def test_every_other_error_is_a_refusal_of_its_kind(error: Exception, kind: str) -> None:
    assert refusal_in(error) == kind


def test_answers_of_changing_kinds_are_waited_out_for_an_hour(clock: Clock) -> None:
    _, last = refusals(
        clock, BackendError("a", status_code=401), BackendError("b", status_code=404), StorageError("c")
    )
    assert isinstance(last, GaveUp)
    assert HOUR <= sum(clock.slept) <= HOUR + 120


def test_while_the_credentials_cannot_be_read_anew_it_is_asked_for_longer(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    _, last = refusals(clock, BackendError("not you", status_code=401), reconnect=lambda: 1 / 0)
    assert isinstance(last, GaveUp)
    assert HOUR <= sum(clock.slept) <= HOUR + 120
    assert "the connection could not be read again: division by zero" in caplog.text


def test_the_time_before_the_first_refusal_does_not_count(clock: Clock) -> None:
    backoff = Backoff(Stop(clock), LOG)
    clock.now += 10 * HOUR
    for _ in range(5):
        backoff.take(BackendError("not you", status_code=401), lambda: None)
    assert len(clock.slept) == 5


def test_the_time_that_the_tries_take_counts(clock: Clock) -> None:
    number, last = refusals(clock, BackendError("not you", status_code=401), each_takes=290)
    assert number == 5
    assert str(last).startswith("refused for 1310 s")


def test_a_task_that_is_killed_waits_no_longer(clock: Clock) -> None:
    refusal = BackendError("not you", status_code=401)
    number, last = refusals(clock, refusal, killed_at=clock.now + 25)
    assert number == 2
    assert last.cause is Cause.CANCELED
    assert not isinstance(last, GaveUp)
    assert "the task was killed while it waited for the service to recover: " in str(last)
    assert "not you" in str(last)
    assert last.__cause__ is refusal


def test_each_wait_is_said(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    Backoff(Stop(clock), LOG).take(BackendError("not you"), lambda: None)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    why = "one answer may be wrong, or a gang of this task may be running"
    assert record.getMessage() == f"not you; {why}: asking again in 10 s"


# The thread that ends a gang


def test_a_killed_task_tries_for_a_minute_every_half_second(clock: Clock) -> None:
    tried: list[float] = []

    def end() -> None:
        tried.append(clock.now)
        raise BackendError("429")

    killer = Killer(end)
    assert not killer.kill(20)
    assert str(killer.error) == "429"
    assert tried == [5000.0 + 0.5 * number for number in range(121)]
    assert not killer.kill(20), "it is over, and was not done"
    assert len(tried) == 121


def test_an_end_that_succeeds_later_is_done(clock: Clock) -> None:
    answers: list[Exception | None] = [ValueError("odd"), OSError("odder"), None]

    def end() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    killer = Killer(end, patience=3.0)
    assert killer.kill(20)
    assert killer.error is None
    assert answers == []
    assert clock.slept == [0.5, 0.5]


def test_the_thread_is_there_before_it_is_needed_and_keeps_no_process_alive() -> None:
    before = set(threading.enumerate())
    killer = Killer(lambda: None)
    (thread,) = [each for each in set(threading.enumerate()) - before if each.name == "ocidist-killer"]
    assert thread.daemon
    killer.close()
    thread.join(20)
    assert not thread.is_alive()
    assert not killer.kill(0.01), "nobody ends anything any more"


def test_what_was_asked_for_before_it_was_closed_is_done() -> None:
    ended: list[int] = []
    killer = Killer(lambda: ended.append(1))
    killer._wanted = True
    killer.close()
    assert killer._over.wait(20)
    assert ended == [1]


def test_a_handler_waits_for_one_and_a_half_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    killer = Killer(lambda: None)
    asked: list[float] = []
    monkeypatch.setattr(killer, "kill", asked.append)
    killer.kill_from_handler()
    assert asked == [1.5]
    killer.close()


@pytest.mark.parametrize("claimed, ends", [(0, True), (3, True), (4, False)])
def test_a_kill_ends_the_gang_unless_a_later_try_waits_for_it(claimed: int, ends: bool) -> None:
    service = Service(None, claimed=claimed)
    killer = killer_of(service, REF, 3, LOG)
    assert service.made_ready == 1, "connections are made before they are needed"
    assert killer.kill(20)
    assert len(service.endings) == int(ends)


@pytest.mark.parametrize("error", [BackendError("no key"), StorageError("no bucket")])
def test_what_cannot_be_made_ready_now_is_said_and_may_do_later(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(None)
    service.ready_to_cancel = lambda _: (_ for _ in ()).throw(error)
    killer = killer_of(service, REF, 1, LOG)
    assert f"a cancel will load them again: {error}" in caplog.text
    assert killer.kill(20)
    assert len(service.endings) == 1


# A task that gives up


class OfAnotherTime(Service, KeepsTime):
    """Has a clock of its own."""

    def now(self) -> float:
        return 77_000.0


def give_up(
    service: Service,
    clock: Clock,
    *,
    number: int = 3,
    why: BaseException | None = None,
    killed_at: float = float("inf"),
    reconnect: Callable[[], object] = lambda: None,
) -> None:
    end_before_giving_up(
        service,
        REF,
        number,
        why or ValueError("boom"),
        LOG,
        Stop(clock, killed_at),
        reconnect,
    )


def test_a_task_that_gives_up_ends_its_gang_first_and_says_why(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    service = OfAnotherTime(None)
    give_up(service, clock)
    (ending,) = service.endings
    assert ending == Ending(
        cause=Cause.SERVICE, message="its task has given up: ValueError: boom", since=service.now()
    )
    assert f"ending {REF.key.name} because its task gives up: boom" in caplog.text
    assert clock.slept == []


def test_the_reason_that_nodes_get_holds_no_secret_and_is_short(clock: Clock) -> None:
    service = Service(None)
    give_up(service, clock, why=ValueError(f"DB_PASS=hunter22 {'x' * 3000}"))
    (ending,) = service.endings
    assert ending
    assert "hunter22" not in ending.message
    assert len(ending.message) == 500
    json.dumps(ending.message)


@pytest.mark.parametrize("claimed", [3, 4])
def test_a_gang_that_a_later_try_waits_for_goes_on(
    clock: Clock, claimed: int, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(None, claimed=claimed)
    give_up(service, clock, number=3)
    assert len(service.endings) == (0 if claimed > 3 else 1)
    said = [record.getMessage() for record in caplog.records]
    assert any(
        each.startswith(f"{REF.key.name} is left running: try 4 of its task owns it") for each in said
    ) == (claimed > 3)


def test_a_stop_request_in_the_run_directory_is_enough(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    refused = CancelFailed(BackendError("not you", status_code=401), stop_requested=True)
    service = Service(refused)
    give_up(service, clock)
    assert len(service.endings) == 1
    (said,) = [text for record in caplog.records if str(refused) in (text := record.getMessage())]
    assert said.startswith(f"{REF.key.name}: "), "which gang"
    assert all(run_id in said for run_id in REF.run_ids), "a node that hangs reads no stop request"
    assert cancel_command(REF) in said
    assert clock.slept == []


@pytest.mark.parametrize(
    "failed",
    [
        CancelFailed(BackendError("not you", status_code=401), stop_requested=False),
        BackendError("unreachable", retryable=True),
        OSError("broken pipe"),
        ZeroDivisionError("odd"),
    ],
    ids=repr,
)
def test_while_neither_side_is_reached_it_is_tried_for_ten_minutes_and_then_named(
    clock: Clock, caplog: pytest.LogCaptureFixture, failed: Exception
) -> None:
    connections: list[int] = []
    service = Service(failed)
    give_up(service, clock, reconnect=lambda: connections.append(1))
    assert clock.slept == [15.0] * 40
    assert len(connections) == 40
    assert len(service.endings) == 41
    said = [record.getMessage() for record in caplog.records]
    assert f"{REF.key.name}: could not be ended yet ({failed}); trying again" in said
    assert said[-1] == (
        f"{REF.key.name}: its nodes may still run, until their lease ends (limits.lease): {failed}; "
        "runs: ocid1.run0; to end them: ocidist cancel --backend x ocid1.job, or at the service"
    )


@pytest.mark.parametrize("stop_requested", [True, False])
def test_the_command_that_ends_it_names_the_connection_of_its_task(
    clock: Clock, caplog: pytest.LogCaptureFixture, stop_requested: bool
) -> None:
    service = Service(CancelFailed(BackendError("not you", status_code=401), stop_requested=stop_requested))
    service.connections = SimpleNamespace(named="oci_fra")
    give_up(service, clock)
    assert caplog.records[-1].getMessage().count(cancel_command(REF, "oci_fra")) == 1


def test_it_is_over_as_soon_as_one_try_succeeds_though_no_connection_can_be_read(clock: Clock) -> None:
    service = Service(BackendError("unreachable"), BackendError("unreachable"), None)
    give_up(service, clock, reconnect=lambda: 1 / 0)
    assert len(service.endings) == 3
    assert clock.slept == [15.0, 15.0]


def test_a_task_that_is_killed_meanwhile_gives_up_at_once(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(BackendError("unreachable"))
    give_up(service, clock, killed_at=clock.now + 20)
    assert clock.slept == [15.0, 15.0]
    assert "ocidist cancel --backend x ocid1.job" in caplog.text


def test_each_run_is_named_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    assert replace(REF, run_ids=()).run_ids == ()
    give_up(Service(BackendError("unreachable")), clock)
    assert caplog.text.count("ocid1.run0") == 1
