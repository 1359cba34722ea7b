"""Ending gangs: cancelled again until every node has ended, and left alone where a later try waits."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_provider_ocidist.backends import claims
from airflow_provider_ocidist.errors import BackendError, CancelFailed, Cause, StillAlive
from airflow_provider_ocidist.gangs import canceller as module
from airflow_provider_ocidist.gangs.canceller import Canceller, end_unless_claimed, given_up
from airflow_provider_ocidist.model.attempts import End
from airflow_provider_ocidist.model.run import NodeState, RunRef, RunStatus
from tests.gangs.records import START
from tests.gangs.tries import without_waiting
from tests.service_in_memory import DONE, LIVE, Model
from tests.training_jobs import a_key

LOG = logging.getLogger("test")
REAL_PAUSE = Canceller._pause


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Canceller, "_pause", without_waiting(Canceller._pause))


class Clock:
    """A clock that goes a second further with every look at it."""

    def __init__(self, step: float = 1.0) -> None:
        self.now = 1000.0
        self.step = step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now

    def time(self) -> float:
        return time.time()


def canceller(model: Model, stop: threading.Event | None = None) -> Canceller:
    return Canceller(model, LOG, stop or threading.Event())


def after_looks(model: Model, ref: RunRef, looks: int) -> None:
    """Let a gang end only after it was looked at so many times."""
    model.ends_at_once = False
    status = model.status

    def counted(refs: Sequence[RunRef]) -> list[RunStatus]:
        if len(model.done("status")) >= looks:
            model.end(ref)
        return status(refs)

    model.status = counted


def test_a_gang_that_takes_its_time_to_end_is_cancelled_again_every_15_s(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = model.has(a_key(), [LIVE])
    clock = Clock(1.5)
    monkeypatch.setattr(module, "time", clock)
    after_looks(model, ref, 40)
    canceller(model).end([ref], "it is old")
    # A look takes a second and a half of this clock.
    assert 3 <= len(model.done("cancel")) <= 5
    assert model.done("close") == [ref.job_id]


@pytest.mark.parametrize("step, cancels", [(15.0, 4), (14.5, 2)])
def test_after_15_s_and_no_sooner_it_is_cancelled_again_and_each_time_that_is_logged(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: float, cancels: int
) -> None:
    monkeypatch.setattr(module, "time", Clock(step))
    ref = model.has(a_key(), [LIVE])
    after_looks(model, ref, 4)
    canceller(model).end([ref], "it is old")
    assert model.done("cancel") == [ref.job_id] * cancels
    assert caplog.messages == [f"ending {ref.key.name}, it is old"] * cancels


def test_a_gang_has_its_whole_time_to_end(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", Clock(1.0))
    ref = model.has(a_key(), [LIVE])
    model.ends_at_once = False
    with pytest.raises(StillAlive):
        canceller(model).end([ref], "it is old", within=7.0)
    # A look at each second; the one after the seventh is too late.
    assert len(model.done("status")) == 8


def test_each_gang_has_its_own_time_to_end(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1.0)
    monkeypatch.setattr(module, "time", clock)
    first, second = (model.has(replace(a_key(), attempt=attempt), [LIVE]) for attempt in (1, 2))
    cancels = canceller(model)
    cancels.end([first], "it is old")
    clock.now += 2 * module.END_WITHIN
    after_looks(model, second, 5)
    cancels.end([second], "it is old")
    assert model.done("close") == [first.job_id, second.job_id]


class Pauses(threading.Event):
    """Has a pause go by at once on a clock, and notes it; nobody sets it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        self.clock.now += timeout
        return False


def test_the_longer_a_gang_takes_to_end_the_longer_are_the_pauses_up_to_ten_seconds(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(Canceller, "_pause", REAL_PAUSE)
    ref, pauses = model.has(a_key(), [LIVE]), Pauses(clock)
    after_looks(model, ref, 80)
    canceller(model, pauses).end([ref], "it is old")
    waited = 0.0
    for seconds in pauses.seconds:
        assert seconds == pytest.approx(min(10.0, max(1.0, waited / 20)))
        waited += seconds
    assert (pauses.seconds[0], pauses.seconds[-1]) == (1.0, 10.0)


def test_a_cancel_that_was_not_taken_is_sent_again_at_the_next_look(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    ref = model.has(a_key(), [LIVE])
    model.refusals["cancel"] = [CancelFailed(refused(409), stop_requested=True) for _ in range(3)]
    canceller(model).end([ref], "it is old")
    assert len(model.done("cancel")) == 4
    assert caplog.text.count("reaches the nodes all the same; will cancel again") == 3


def test_nodes_that_do_not_end_are_named_with_the_way_to_end_them(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "time", Clock(60))
    ref, ended = model.has(a_key(), [LIVE, DONE, NodeState.PENDING]), model.has(a_key(), [DONE])
    model.ends_at_once = False
    with pytest.raises(BackendError) as caught:
        canceller(model).end([ended, ref], "it is old")
    runs = f"{ref.run_ids[0]} (RUNNING), {ref.run_ids[2]} (PENDING)"
    said = str(caught.value)
    assert f"cancelled nodes have not ended within 1800 s: {runs}; end them" in said
    assert f"ocidist cancel --backend {ref.backend} {ref.job_id}, or at the service; the next try" in said
    assert ended.job_id not in said
    assert caught.value.retryable
    assert len(model.done("status")) > 20
    with pytest.raises(BackendError, match="within 7 s"):
        canceller(model).end([ref], "it is old", within=7)


@pytest.mark.parametrize("seed", range(8))
def test_an_error_amid_the_end_of_an_earlier_gang_lets_its_time_not_begin_anew(
    model: Model, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    clock = Clock(20)
    monkeypatch.setattr(module, "time", clock)
    ref = model.has(a_key(), [LIVE])
    model.ends_at_once = False
    status = model.status

    def now_and_then(refs: Sequence[RunRef]) -> list[RunStatus]:
        if dice.random() < 0.2:
            raise BackendError("503", status_code=503, retryable=True)
        return status(refs)

    model.status = now_and_then
    ends, began = canceller(model), clock.now
    while True:
        assert clock.now - began < 4000, "without end"
        try:
            ends.end([ref], "it is old")
        except StillAlive:
            return
        except BackendError:
            # As `TrainingTry._created_or_adopted` does.
            continue


def test_a_gang_that_could_not_be_ended_for_an_outage_is_cancelled_after_it(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr(module, "time", clock)
    ref = model.has(a_key(), [LIVE])
    answers = model.status
    model.status = lambda _: unanswered()
    ends = canceller(model)
    with pytest.raises(BackendError, match="503"):
        ends.end([ref], "it is old", within=600.0)
    clock.now += 2 * 600.0
    model.status = answers
    ends.end([ref], "it is old", within=600.0)
    assert model.done("cancel") == [ref.job_id]
    assert model.done("close") == [ref.job_id]


def unanswered() -> list[RunStatus]:
    raise BackendError("503", status_code=503, retryable=True)


@pytest.mark.parametrize("seed", range(20))
def test_the_time_in_which_the_service_does_not_answer_is_none_that_a_gang_has_had_to_end(
    model: Model, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    clock = Clock(0.0)
    monkeypatch.setattr(module, "time", clock)
    ref = model.has(a_key(), [LIVE])
    model.ends_at_once = False
    status, away_until, last_answer, answered = model.status, 0.0, clock.now, 0.0

    def with_outages(refs: Sequence[RunRef]) -> list[RunStatus]:
        nonlocal away_until, last_answer, answered
        if clock.now < away_until:
            unanswered()
        if dice.random() < 0.1:
            away_until = clock.now + dice.choice([30.0, 300.0, 3000.0, 30_000.0])
            unanswered()
        was_away = last_answer < away_until
        answered += 0.0 if was_away else clock.now - last_answer
        last_answer = clock.now
        return status(refs)

    model.status = with_outages
    ends = canceller(model, Pauses(clock))
    monkeypatch.setattr(Canceller, "_pause", REAL_PAUSE)
    while True:
        try:
            ends.end([ref], "it is old")
        except StillAlive:
            break
        except BackendError:
            clock.now += 60.0
    # A look comes at most ten seconds after the one before.
    assert 1800.0 < answered <= 1810.0, f"seed {seed}"


def test_a_stopped_submitter_waits_no_longer(model: Model) -> None:
    stop = threading.Event()
    stop.set()
    ref = model.has(a_key(), [LIVE])
    model.ends_at_once = False
    with pytest.raises(BackendError, match=r"^stopped while an earlier gang was ending$") as caught:
        canceller(model, stop).end([ref], "it is old")
    assert caught.value.cause is Cause.CANCELED
    assert model.done("cancel") == [ref.job_id], "it is cancelled all the same"


def test_nothing_left_over_costs_nothing(model: Model) -> None:
    canceller(model).end([], "it is old")
    assert model.calls == []


def refused(status: int) -> BackendError:
    return BackendError(f"refused with {status}", status_code=status)


def test_a_job_that_was_never_complete_is_removed_however_often_it_is_refused(model: Model) -> None:
    ref = model.has(a_key(), [DONE], missing=1)
    model.refusals["delete"] = [refused(409), refused(409)]
    canceller(model).end([ref], "it is old")
    assert model.done("delete") == [ref.job_id] * 3
    assert model.done("cancel") == [ref.job_id] * 2, "it has got a node since it was looked at"
    assert ref.job_id not in model.existing


def test_a_stopped_submitter_removes_no_longer(model: Model) -> None:
    stop = threading.Event()
    stop.set()
    ref = model.has(a_key(), [DONE], missing=1)
    model.refusals["delete"] = [refused(409)]
    with pytest.raises(BackendError, match=r"^stopped while an earlier gang was ending$"):
        canceller(model, stop).end([ref], "it is old")
    assert model.done("delete") == [ref.job_id]


@pytest.mark.parametrize(
    "answers, deletions",
    [([404], 2), ([404, 404], 3), ([404, 404, 404], 3), ([404, 404, 409, 404, 404, 404, 404], 6)],
    ids=str,
)
def test_a_job_counts_as_gone_after_three_answers_in_a_row_of_which_one_may_be_wrong(
    model: Model, answers: list[int], deletions: int
) -> None:
    ref = model.has(a_key(), [DONE], missing=1)
    model.refusals["delete"] = [refused(status) for status in answers]
    canceller(model).end([ref], "it is old")
    assert model.done("delete") == [ref.job_id] * deletions
    assert model.done("cancel") == [ref.job_id] * answers.count(409)
    assert model.done("close") == [ref.job_id]


def test_another_refusal_is_an_error(model: Model) -> None:
    ref = model.has(a_key(), [DONE], missing=1)
    model.refusals["delete"] = [refused(500)]
    with pytest.raises(BackendError, match="refused with 500"):
        canceller(model).end([ref], "it is old")


def test_a_job_that_cannot_be_removed_is_named_at_the_end(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "time", Clock(1))
    ref = model.has(a_key(), [DONE], missing=1)
    model.refusals["delete"] = [refused(409) for _ in range(200)]
    with pytest.raises(BackendError) as caught:
        canceller(model).end([ref], "it is old", within=60)
    said = str(caught.value)
    assert (
        f"{ref.key.name} was never complete, and its run {ref.job_id} could not be deleted within 60 s"
        in said
    )
    assert caught.value.retryable
    # One a second, at the beginning too, after the look at its nodes.
    assert len(model.done("delete")) == 60


def test_a_whole_job_stays_in_the_books(model: Model) -> None:
    ref = model.has(a_key(), [LIVE, LIVE])
    canceller(model).end([ref], "it is old")
    assert model.done("delete") == []
    assert ("close", ref.job_id, End(succeeded=False)) in model.calls


@pytest.mark.parametrize(
    "claimed,number,ends", [(0, 1, True), (1, 1, True), (2, 2, True), (2, 1, False), (3, 2, False)]
)
def test_a_killed_try_ends_its_gang_unless_a_later_one_waits_for_it(
    model: Model, claimed: int, number: int, ends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ref = model.has(a_key(), [LIVE])
    if claimed:
        model.claims[ref.key.name] = claimed
    with caplog.at_level(logging.INFO):
        end_unless_claimed(model, ref, number, LOG)
    assert model.done("cancel") == ([ref.job_id] if ends else [])
    expected = (
        "cancelled because its task was killed"
        if ends
        else f"is left running: try {claimed} of its task owns it"
    )
    assert expected in caplog.text
    assert caplog.messages[-1].startswith(ref.key.name)


@pytest.mark.parametrize("how", ["slow", "error"])
def test_a_claim_that_cannot_be_read_in_time_lets_no_gang_live_on(
    model: Model, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(claims, "CLAIM_PATIENCE", 0.1)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    ref, answer = model.has(a_key(), [LIVE]), threading.Event()

    def unreadable(_: RunRef) -> int:
        if how == "error":
            raise BackendError("the store is down")
        answer.wait(60)
        return 9

    model.claimed_by = unreadable
    began = time.monotonic()
    end_unless_claimed(model, ref, 1, LOG)
    assert time.monotonic() - began < 30
    assert model.done("cancel") == [ref.job_id]
    answer.set()


def test_an_answer_that_takes_too_long_is_no_claim_of_any_try(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CLAIM_PATIENCE", 0.05)
    ref, answer = model.has(a_key(), [LIVE]), threading.Event()
    asking: list[threading.Thread] = []

    def slow(_: RunRef) -> int:
        asking.append(threading.current_thread())
        answer.wait(60)
        return 9

    model.claimed_by = slow
    end_unless_claimed(model, ref, 0, LOG)
    assert model.done("cancel") == [ref.job_id]
    assert [thread.daemon for thread in asking] == [True], "a process that is killed does not wait for it"
    answer.set()


def test_why_a_task_gives_up_its_gang_is_recorded_in_500_characters_and_without_secrets() -> None:
    found = given_up(ValueError("no login with --password=hunter2hunter2"), START)
    assert (found.cause, found.since) == (Cause.SERVICE, START)
    assert found.message.startswith("its task has given up: ValueError: no login with --password=")
    assert "hunter2" not in found.message
    assert len(given_up(ValueError("in vain " * 100), START).message) == 500


def test_these_times_are_documented() -> None:
    assert (module.END_WITHIN, module.LONGEST_PAUSE, claims.CLAIM_PATIENCE) == (1800.0, 10.0, 1.5)
    assert module.GONE_AFTER == 3
