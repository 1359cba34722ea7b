"""Exactly once, on a service in memory: how a task creates its gang, step by step."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import random
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_ocidist.errors import BackendError, Cause, Overtaken
from airflow_provider_ocidist.gangs import attempt_notes, submission
from airflow_provider_ocidist.gangs.attempt_notes import LONGEST_NOTE, NOTE
from airflow_provider_ocidist.gangs.canceller import Canceller
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.attempts import Attempt, End, Place
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import (
    NodeState,
    RunKey,
    RunRef,
    Tries,
)
from tests.gangs.tries import Notes, end, recorded, submit, without_waiting
from tests.service_in_memory import DONE, FAILED, LIVE, Model
from tests.training_jobs import a_job, a_key

LOG = logging.getLogger("test")


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pauses between two looks pass at once."""
    monkeypatch.setattr(Canceller, "_pause", without_waiting(Canceller._pause))


def test_where_nothing_is_there_a_gang_is_made_and_noted_before_and_after(model: Model) -> None:
    key, notes = a_key(), Notes()
    record = submit(model, key, notes=notes)
    assert record.ref.key == key
    assert list(model.existing) == [record.ref.job_id]
    assert model.done("cancel") == model.done("claim") == model.done("claimed_by") == []
    before, again, after = ([Attempt.from_json(each) for each in noted["attempts"]] for noted in notes.log)
    assert [(each.key, each.ref) for each in before] == [(key, None)]
    assert again == before
    assert [(each.key, each.ref) for each in after] == [(key, record.ref)]


# What a gang gets to know of those before it


CRASHED = Restart(cause=Cause.USER, message="a bad batch", step=10)
HUNG = Restart(cause=Cause.NODE, message="no step; GPU 3 is hot", step=12, hang=True)
KILLED = Restart(cause=Cause.NODE, message="killed by SIGKILL", step=14, killed=True)
OF_MACHINES = (
    Restart(cause=Cause.NODE, message="node 1 was lost", step=20, lost=(1,)),
    Restart(cause=Cause.PREEMPTED, message="node 1 was preempted", step=30, lost=(1,)),
    Restart(cause=Cause.CAPACITY, message="goes on with fewer", step=31),
)


def has_failed(model: Model, key: RunKey, number: int, *restarts: Restart) -> None:
    """Record a gang that a try has seen fail for the loss of a machine, after it was launched again."""
    lost = Restart(cause=Cause.NODE, message="node 0 was lost", step=50)
    ended = End(succeeded=False, try_number=number, failure=lost, restarts=restarts)
    recorded(model, model.has(key, [FAILED, FAILED]), end=ended)


def test_a_gang_gets_what_the_program_failed_with_in_the_gangs_of_its_try_before_it(model: Model) -> None:
    key = a_key()
    has_failed(model, key, 1, replace(CRASHED, step=1))
    has_failed(model, replace(key, attempt=2), 2, CRASHED, *OF_MACHINES)
    has_failed(model, replace(key, attempt=3), 2, HUNG, KILLED)
    ref = submit(model, key, number=2, job=a_job(restarts={"program": 2, "node": 2})).ref
    assert ref.key.attempt == 4
    (handed,) = [each for each in model.calls if each[0] == "hand_on"]
    assert handed[1:] == (ref.key.name, (CRASHED, HUNG, KILLED))
    verbs = [each[0] for each in model.calls]
    assert verbs.index("hand_on") < verbs.index("submit"), "a node may fail in its first second"


@pytest.mark.parametrize(
    "number, failures",
    [(2, [CRASHED]), (1, OF_MACHINES), (1, [])],
    ids=["a later try", "machines only", "nothing"],
)
def test_a_gang_has_nothing_to_compare_also_where_a_try_that_died_had_written_what_it_knew(
    model: Model, number: int, failures: Any
) -> None:
    has_failed(model, key := a_key(), 1, *failures)
    ref = submit(model, key, number=number, job=a_job(restarts={"node": 2})).ref
    assert ref.key.attempt == 2
    assert [each for each in model.calls if each[0] == "hand_on"] == [("hand_on", ref.key.name, ())]


def test_a_gang_without_restarts_compares_nothing(model: Model) -> None:
    has_failed(model, key := a_key(), 1, CRASHED)
    assert submit(model, key, job=a_job()).ref.key.attempt == 2
    assert model.done("ends") == model.done("hand_on") == []


def test_the_first_gang_of_a_task_asks_for_none_before_it(model: Model) -> None:
    submit(model, a_key(), job=a_job(restarts={"node": 2}))
    assert model.done("ends") == model.done("hand_on") == []


class TimeIsOver(BaseException):
    """As Airflow's timeout."""


def test_what_a_try_has_begun_ends_where_its_time_is_over_in_the_pause_before_it_asks_again(
    model: Model,
) -> None:
    gang, key = GangSubmitter(model, a_job(nodes=2), LOG, None, threading.Event()), a_key()

    def is_incomplete() -> None:
        recorded(model, model.has(key, [LIVE], missing=1))
        raise BackendError("busy", retryable=True)

    model.on_submit = is_incomplete
    with pytest.raises(BackendError, match="busy"):
        gang.adopt_or_submit(key, None)
    assert model.done("cancel") == []
    with pytest.raises(TimeIsOver), gang.ended_if_interrupted(key, 1):
        raise TimeIsOver
    assert model.done("cancel") == [f"job-{key.name}"]


@pytest.mark.parametrize("is_left", [True, False], ids=["ocidist run", "a task"])
def test_a_gang_that_a_further_command_completes_outlives_ctrl_c(model: Model, *, is_left: bool) -> None:
    gang, key = GangSubmitter(model, a_job(nodes=2), LOG, None, threading.Event()), a_key()

    def is_interrupted() -> None:
        recorded(model, model.has(key, [LIVE], missing=1))
        raise KeyboardInterrupt

    model.on_submit = is_interrupted
    with pytest.raises(KeyboardInterrupt):
        _ = gang.submit_and_leave(key) if is_left else gang.adopt_or_submit(key, None)
    assert model.done("cancel") == ([] if is_left else [f"job-{key.name}"])


@pytest.mark.parametrize("kind", ["interrupted", "killed"])
@pytest.mark.parametrize("is_answered", [True, False])
def test_what_a_try_has_asked_for_is_ended_though_no_list_of_attempts_can_be_read(
    model: Model, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_answered: bool
) -> None:
    """On Airflow 3.1 and 3.2, which keep no note, at a service that lists nothing that lives."""
    gang, key = GangSubmitter(model, a_job(nodes=2), LOG, None, threading.Event()), a_key()
    stops: list[str] = []

    def throttled(*_: Any) -> list[Attempt]:
        raise BackendError("429", retryable=True)

    def request_stop(_: RunKey, run_dir: str, __: Any) -> bool:
        stops.append(run_dir)
        return True

    def is_lost() -> None:
        raise BackendError("no answer", retryable=True)

    monkeypatch.setattr(model.gangs, "recorded", throttled)
    monkeypatch.setattr(model.directories, "request_stop", request_stop)
    kill = gang.earlier_canceller(key, 1, TimeIsOver("killed"))
    if not is_answered:
        model.on_submit = is_lost
    with contextlib.suppress(TimeIsOver), gang.ended_if_interrupted(key, 1):
        with contextlib.suppress(BackendError):
            gang.adopt_or_submit(key, None)
        if kind == "interrupted":
            raise TimeIsOver
        kill()
    # What a request that was not answered has created finds the stop request as soon as it begins.
    asked = stops if not is_answered else model.done("cancel")
    assert asked == [f"{model.run_dir}/{key.name}" if not is_answered else f"job-{key.name}"]


def test_an_attempt_whose_record_was_removed_since_nothing_of_it_exists_gets_no_stop_request(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try begins the attempt of this number, whose nodes would find it."""
    gang, key = GangSubmitter(model, a_job(nodes=2), LOG, None, threading.Event()), a_key()
    stops: list[str] = []
    monkeypatch.setattr(model.directories, "request_stop", lambda *given: stops.append(given[1]))

    def refused() -> None:
        raise BackendError("403", status_code=403)

    model.on_submit = refused
    with contextlib.suppress(TimeIsOver), gang.ended_if_interrupted(key, 1):
        with contextlib.suppress(BackendError):
            gang.adopt_or_submit(key, None)
        raise TimeIsOver
    assert stops == model.done("cancel") == []


@pytest.mark.parametrize("verb", ["ends", "hand_on"])
def test_a_gang_that_cannot_be_handed_earlier_failures_is_made_all_the_same(
    model: Model, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    has_failed(model, key := a_key(), 1, CRASHED)
    model.refusals = {verb: [BackendError("the store is down", retryable=True)]}
    assert submit(model, key, job=a_job(restarts={"node": 2})).ref.key.attempt == 2
    assert "so a crash loop is noticed later: the store is down" in caplog.text


# A clear


def test_after_a_clear_the_old_gang_has_ended_before_the_new_one_is_made(model: Model) -> None:
    key = a_key()
    old = model.has(key, [LIVE, LIVE])
    recorded(model, old, tries=Tries(try_number=1, max_tries=0))
    seen: list[bool] = []
    model.on_submit = lambda: seen.append(
        all(state.terminal for state in model.states[old.job_id])
        and ("close", old.job_id, End(succeeded=False)) in model.calls
    )
    new = submit(model, dataclasses.replace(key, generation=3), number=2)
    assert seen == [True]
    assert new.ref.key == dataclasses.replace(key, generation=3)
    assert model.claims == {new.ref.key.name: 2}


def test_a_node_that_a_success_could_not_end_is_ended_before_the_training_begins_anew(model: Model) -> None:
    key = a_key()
    old = model.has(key, [DONE, LIVE])
    success = End(succeeded=True, try_number=1, alive=True)
    before = recorded(model, old, tries=Tries(try_number=1, max_tries=0), end=success)
    new = submit(model, dataclasses.replace(key, generation=3), number=2)
    ((_, _, looked_at),) = [call for call in model.calls if call[0] == "begin"]
    assert before in looked_at
    assert ("close", old.job_id, End(succeeded=True, try_number=1)) in model.calls
    assert model.states[old.job_id] == [DONE, NodeState.CANCELED]
    assert new.ref.key.generation == 3


def test_attempts_are_counted_anew_after_a_clear(model: Model) -> None:
    key = a_key()
    for number in (1, 2, 3):
        ref = model.has(dataclasses.replace(key, attempt=number), [FAILED, FAILED])
        recorded(model, ref, tries=Tries(try_number=number, max_tries=0), end=end(succeeded=False))
    assert submit(model, dataclasses.replace(key, generation=5)).ref.key.attempt == 1


def test_a_success_of_before_a_clear_is_no_success_of_now(model: Model) -> None:
    key = a_key()
    ref = model.has(key, [DONE, DONE])
    recorded(model, ref, tries=Tries(try_number=1, max_tries=0, retries=0), end=end(succeeded=True))
    job = a_job(checkpoints={"required": False})
    new = submit(model, dataclasses.replace(key, generation=1), number=2, retries=0, job=job)
    assert new.ref.key.generation == 1
    assert new.ref.job_id != ref.job_id


def test_a_note_of_the_version_before_is_understood(model: Model) -> None:
    key = dataclasses.replace(a_key(), generation=2)
    notes = Notes({NOTE: {"generation": 2, "attempt": 3}})
    assert submit(model, key, notes=notes).ref.key.attempt == 3
    (noted,) = model.calls[0][2]
    expected = dataclasses.replace(key, attempt=3)
    assert (noted.key, noted.place.run_dir, noted.tries) == (
        expected,
        f"{model.run_dir}/{expected.name}",
        None,
    )


@pytest.mark.parametrize("noted", [None, "what is this", ["x"]])
def test_a_note_that_cannot_be_read_is_none(model: Model, noted: Any) -> None:
    key = a_key()
    assert submit(model, key, notes=Notes({NOTE: noted})).ref.key == key


def test_without_a_store_for_notes_the_records_suffice(model: Model) -> None:
    key = a_key()
    ref = model.has(key, [LIVE, LIVE])
    recorded(model, ref)
    assert submit(model, key).ref.job_id == ref.job_id


# What was created is not lost with its note


@pytest.mark.parametrize("number", [1, 2])
def test_a_note_that_airflow_does_not_take_costs_no_gang_that_was_created(
    model: Model, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(Notes):
        def set(self, key: str, value: Any) -> None:
            if model.existing:
                raise RuntimeError("the API server does not answer")
            super().set(key, value)

    record = submit(model, a_key(), notes=Full(), number=number)
    assert list(model.existing) == [record.ref.job_id]
    assert model.done("cancel") == []
    assert "the API server does not answer" in caplog.text


def test_a_task_whose_time_is_over_while_it_notes_its_gang_ends_it(model: Model) -> None:
    class Late(Notes):
        def set(self, key: str, value: Any) -> None:
            if model.existing:
                raise TimeIsOver
            super().set(key, value)

    class TimeIsOver(BaseException):
        """As Airflow's AirflowTaskTimeout: no Exception."""

    with pytest.raises(TimeIsOver):
        submit(model, a_key(), notes=Late())
    assert model.done("cancel") == list(model.existing)


@pytest.mark.parametrize("fails", [True, False])
def test_what_has_ended_a_submission_is_raised_and_what_it_has_begun_is_ended(
    model: Model, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    key, asked = a_key(), []

    def late() -> None:
        model.has(key, [LIVE, LIVE])
        raise KeyboardInterrupt

    def known(*_: Any) -> list[Attempt]:
        asked.append(True)
        if fails:
            raise KeyError("odd")
        return [recorded(model, ref) for ref in model.existing.values()]

    model.on_submit = late
    monkeypatch.setattr(model.gangs, "recorded", known)
    with pytest.raises(KeyboardInterrupt):
        submit(model, key)
    assert asked
    assert model.done("cancel") == ([] if fails else [*model.existing])


# A task that is killed


def test_a_task_that_is_killed_just_when_its_gang_is_complete_ends_it(model: Model) -> None:
    stop = threading.Event()
    model.on_submit = stop.set
    with pytest.raises(BackendError, match=r"^stopped just when the gang was complete$") as caught:
        submit(model, a_key(), stop=stop)
    assert caught.value.cause is Cause.CANCELED
    (job_id,) = model.existing
    assert model.done("cancel") == [job_id]
    assert all(state.terminal for state in model.states[job_id])


def test_a_task_that_is_killed_then_leaves_a_gang_that_a_later_try_waits_for(model: Model) -> None:
    key, stop = a_key(), threading.Event()
    ref = model.has(key, [LIVE, LIVE])
    model.on_submit = lambda: model.claims.update({key.name: 3})
    stop.set()
    with pytest.raises(BackendError, match="stopped just when"):
        submit(model, key, stop=stop, number=1)
    assert model.done("cancel") == []
    with pytest.raises(BackendError, match="stopped just when"):
        submit(model, key, stop=stop, number=3)
    assert model.done("cancel") == [ref.job_id]


def test_a_later_try_that_adopts_a_gang_claims_it_before_it_goes_on(model: Model) -> None:
    key = a_key()
    ref = model.has(key, [LIVE, LIVE])
    submit(model, key, number=1)
    assert model.done("claim") == []
    submit(model, key, number=2)
    assert ("claim", ref.key.name, 2) in model.calls
    verbs = [call[0] for call in model.calls]
    assert verbs.index("claim") < len(verbs) - 1 - verbs[::-1].index("submit")


@pytest.mark.parametrize("seed", range(40))
def test_a_try_that_is_late_touches_nothing_of_a_later_one(model: Model, seed: int) -> None:
    """Retried or cleared meanwhile, with whichever settings: the later try's gang lives on, and is the only one."""
    print("seed", seed)
    dice = random.Random(seed)
    key, late = a_key(), dice.randint(1, 3)
    number = late + dice.randint(1, 3)
    asked = replace(key, generation=dice.randint(0, 3))
    theirs = replace(
        key, generation=dice.choice([asked.generation, dice.randint(0, 5)]), attempt=dice.randint(1, 3)
    )
    tries = Tries(try_number=number, max_tries=theirs.generation, retries=dice.choice([None, 0, 2]))
    states = dice.choice(
        [[LIVE, LIVE], [LIVE, DONE], [NodeState.PENDING, LIVE], [NodeState.ENDING, LIVE], None]
    )
    if states is None:
        # It is just creating its gang.
        place = recorded(model, model.has(theirs, [LIVE])).place
        model.recorded[:] = [Attempt(key=theirs, place=place, tries=tries)]
        model.existing.clear()
    else:
        recorded(model, model.has(theirs, states), tries=tries)
    gangs, claims = dict(model.existing), dict(model.claims)
    with pytest.raises(
        Overtaken, match=rf"try {number} of this task has begun .* this is try {late}"
    ) as caught:
        submit(model, asked, number=late)
    assert caught.value.try_number == number
    assert model.existing == gangs
    assert model.claims == claims
    assert not any(model.done(verb) for verb in ("begin", "submit", "cancel", "delete", "close", "claim"))


@pytest.mark.parametrize("later_has_ended", ["recorded", "seen"])
def test_the_tries_of_a_dag_run_that_was_made_again_count_anew(model: Model, later_has_ended: str) -> None:
    key = a_key()
    ended = end(succeeded=False, number=4) if later_has_ended == "recorded" else None
    recorded(model, model.has(key, [FAILED, FAILED]), tries=Tries(try_number=4, max_tries=0), end=ended)
    assert submit(model, key, number=1).ref.key.attempt == 2


# Where there is no gang to adopt, a first try looks for no claim.
@pytest.mark.parametrize("number, adopts", [(1, True), (2, True), (2, False)])
def test_a_try_that_is_overtaken_while_it_looks_gives_up_before_it_creates_or_ends(
    model: Model, number: int, adopts: bool
) -> None:
    key = a_key()
    if adopts:
        model.has(key, [LIVE, LIVE])
        # One more, which would be ended.
        model.has(replace(key, generation=1), [LIVE])
    model.claims[key.name] = 3
    with pytest.raises(Overtaken, match="try 3 of this task waits for"):
        submit(model, key, number=number)
    assert not any(model.done(verb) for verb in ("submit", "cancel", "delete", "close"))
    assert model.claims[key.name] == 3


def test_a_try_that_creates_a_gang_claims_it_before_its_nodes_exist(model: Model) -> None:
    key = a_key()
    submit(model, key, number=2)
    verbs = [call[0] for call in model.calls]
    assert verbs.index("claim") < verbs.index("submit")
    assert model.claims == {key.name: 2}


def test_what_an_earlier_try_begins_meanwhile_is_looked_at_again(model: Model) -> None:
    key, earlier = a_key(), [Overtaken("try 1 has begun something", 1)]
    model.refusals["begin"] = list(earlier)
    assert submit(model, key, number=2).ref.complete
    assert len(model.done("begin")) == 2


def test_what_a_later_try_begins_meanwhile_is_left_alone(model: Model) -> None:
    model.refusals["begin"] = [Overtaken("try 3 has begun something", 3)]
    with pytest.raises(Overtaken):
        submit(model, a_key(), number=2)
    assert not model.done("submit")


# The record


def test_deadlines_are_the_services_time(model: Model) -> None:
    model.clock = 500.0
    job = a_job(limits={"start_timeout": 100})
    here = time.time() + 60
    record = submit(model, a_key(), job=job, deadline=here)
    assert record.deadline == pytest.approx(here + 500, abs=20)
    assert record.start_deadline == record.ref.submitted_at + 100
    assert submit(model, a_key(), job=a_job()).deadline is None


def test_what_is_submitted_knows_its_try_and_may_be_stopped(model: Model) -> None:
    key, stop, job = a_key(), threading.Event(), a_job()
    record = submit(model, key, job=job, number=3, retries=2, stop=stop)
    tries = Tries(try_number=3, max_tries=0, retries=2)
    (call,) = [call for call in model.calls if call[0] == "submit"]
    assert call[1].tries == tries
    assert call[2] is stop
    assert call[3] == [], "it was looked, and nothing was found"
    assert record.expects == model.plan(job, key).expects
    assert next(call for call in model.calls if call[0] == "begin")[1].tries == tries


def test_the_deadline_of_the_task_holds_for_a_gang_that_was_adopted(model: Model) -> None:
    key = a_key()
    model.has(key, [LIVE, LIVE])
    here = time.time() + 60
    assert submit(model, key, deadline=here).deadline == pytest.approx(here, abs=20)


def test_a_note_that_is_too_long_for_airflow_leaves_out_what_is_recorded_elsewhere(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, notes = a_key(), Notes()
    submit(model, key, notes=notes)
    length = len(json.dumps(notes[NOTE]))
    assert notes.attempts[0].ref is not None
    # Far shorter: the note of the next submission is shorter by a digit of its time now and then.
    monkeypatch.setattr(attempt_notes, "LONGEST_NOTE", length // 2)
    submit(model, key, notes=notes)
    (noted,) = notes.attempts
    assert (noted.key, noted.ref) == (key, None)
    assert NOTE == "ocidist_run"
    assert LONGEST_NOTE < 65_536


def test_a_note_that_cannot_be_decoded_is_left_out_and_said(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    key = a_key()
    assert submit(model, key, notes=Notes({NOTE: {"attempts": [{"x": 1}]}})).ref.key == key
    assert "the saved state of this task cannot be read from Airflow, and is ignored: " in caplog.text
    assert "is ignored: None" not in caplog.text


def at_connection(model: Model, ref: RunRef, conn_id: str) -> Place:
    return Place(
        backend="model",
        run_dir=ref.run_dir,
        compartment_id=ref.compartment_id,
        conn_id=conn_id,
        region=model.region,
    )


def test_a_connection_that_cannot_be_had_is_missed_only_where_a_gang_may_live_at_it(model: Model) -> None:
    key = a_key()
    failed = model.has(key, [FAILED, FAILED])
    recorded(model, failed, place=at_connection(model, failed, "old"), end=end(False))
    assert submit(model, key, number=2).ref.key.attempt == 2
    live = model.has(replace(key, attempt=3), [LIVE, LIVE])
    recorded(model, live, place=at_connection(model, live, "older"))
    with pytest.raises(BackendError, match="older"):
        submit(model, key, number=2)


def test_who_has_no_later_try_leaves_no_node_behind_also_where_it_cannot_see_what_is_there(
    model: Model,
) -> None:
    key = a_key()
    ref = model.has(key, [LIVE, LIVE])
    recorded(model, ref)
    model.refusals["status"] = [BackendError("503", status_code=503)]
    gang = GangSubmitter(model, a_job(), LOG, None, threading.Event())
    with pytest.raises(BackendError, match="503"):
        gang.submit_or_end(key)
    assert model.done("submit") == []
    assert model.done("cancel") == [ref.job_id]


def test_a_try_that_gives_up_says_which_note_it_cannot_read_and_ends_what_is_recorded(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    key = a_key()
    ref = model.has(key, [LIVE, LIVE])
    recorded(model, ref)
    notes = Notes({NOTE: {"attempts": [{"x": 1}]}})
    gang = GangSubmitter(model, a_job(), LOG, notes, threading.Event())
    gang.cancel_earlier(key, 2, BackendError("it cannot go on"))
    assert "the saved state of this task cannot be read from Airflow, and is ignored: " in caplog.text
    assert model.done("cancel") == [ref.job_id]


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_try_that_gives_up_waits_for_no_claim_that_is_never_answered(
    model: Model, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    key, stop, answers = a_key(), threading.Event(), threading.Event()
    ref = model.has(key, [LIVE, LIVE])
    recorded(model, ref)
    short = "CLAIM_PATIENCE" if is_killed else "GIVE_UP_CLAIM_PATIENCE"
    monkeypatch.setattr(submission, short, 0.05)
    monkeypatch.setattr(model.directories, "claimed_by", lambda _: answers.wait(60) and 0)
    if is_killed:
        stop.set()
    gang = GangSubmitter(model, a_job(), LOG, None, stop)
    gang.cancel_earlier(key, 2, BackendError("it cannot go on"))
    assert not answers.is_set()
    answers.set()
    assert model.done("cancel") == [ref.job_id]
