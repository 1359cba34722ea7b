"""Exactly once, on a service in memory: what a task does with what others have left, step by step."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import BackendError, Cause, Overtaken
from airflow_provider_ocidist.gangs import attempt_notes
from airflow_provider_ocidist.gangs.attempt_notes import LONGEST_NOTE, NOTE
from airflow_provider_ocidist.gangs.canceller import LONGEST_PAUSE, Canceller
from airflow_provider_ocidist.gangs.submission import LEFT_OVER, GangSubmitter
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.model.attempts import Attempt, End, Place
from airflow_provider_ocidist.model.evidence import ABSENT_FOR
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart
from airflow_provider_ocidist.model.run import (
    Lacking,
    NodeState,
    RunKey,
    RunRecord,
    RunRef,
    RunStatus,
    Tries,
)
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.work_dir.stored import StoredCheckpoints
from tests.service_in_memory import DONE, FAILED, LIVE, Model
from tests.training_jobs import a_job, a_key

LOG = logging.getLogger("test")


class Notes(dict[str, Any]):
    """A task state store; `log` has all that was written into it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log: list[Any] = []

    def set(self, key: str, value: Any) -> None:
        self[key] = value
        self.log.append(value)

    @property
    def attempts(self) -> list[Attempt]:
        return [Attempt.from_json(each) for each in self[NOTE]["attempts"]]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pauses between two looks pass at once."""
    monkeypatch.setattr(Canceller, "_pause", without_waiting(Canceller._pause))


def without_waiting(pause: Callable[..., None]) -> Callable[..., None]:
    class Now:
        def __init__(self, event: threading.Event) -> None:
            self.event = event

        def wait(self, seconds: float) -> bool:
            assert 0 < seconds <= LONGEST_PAUSE
            return self.event.is_set()

    def at_once(self: Any, *waited: float) -> None:
        event, self._stop = self._stop, Now(self._stop)
        try:
            pause(self, *waited)
        finally:
            self._stop = event

    return at_once


def submit(
    model: Model,
    key: RunKey,
    *,
    notes: Notes | None = None,
    number: int = 1,
    job: TrainingJob | None = None,
    stop: threading.Event | None = None,
    retries: int | None = None,
    deadline: float | None = None,
) -> RunRecord:
    gang = GangSubmitter(model, job or a_job(), LOG, notes, stop or threading.Event())
    return gang.adopt_or_submit(key, deadline, number, retries)


def end(succeeded: bool, number: int = 1) -> End:
    return End(succeeded=succeeded, try_number=number)


def recorded(model: Model, made: RunRef, /, **fields: Any) -> Attempt:
    """Record an attempt as its try has left it."""
    place = Place(
        backend="model", run_dir=made.run_dir, compartment_id=made.compartment_id, region=model.region
    )
    found = Attempt(**{"key": made.key, "place": place, "ref": made, **fields})
    model.recorded.append(found)
    return found


# What is there is waited for; what has ended badly is made again


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


class LooksAgain(threading.Event):
    """A stop that never comes; counts the seconds for which it was waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout
        self.waited += timeout
        return False


@pytest.mark.parametrize("found", [True, False], ids=["a stale list", "a report that was lost"])
def test_of_a_gang_that_ended_unseen_a_report_is_looked_for_until_it_is_certain_that_it_is_missing(
    model: Model, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    """Otherwise the try would adopt it, and fail in the place of one that trains."""
    key, stop = a_key(), LooksAgain()
    ref = model.has(key, [DONE, DONE])
    recorded(model, ref)
    (whole,) = model.status([ref])
    lacks = replace(whole, nodes=(whole.nodes[0], replace(whole.nodes[1], report=None)))
    stored = StoredCheckpoints(lambda: stop.waited)

    def status(refs: Sequence[RunRef]) -> list[RunStatus]:
        shown = whole if found and stop.waited else lacks
        return [stored.with_checkpoint(shown, each, OciAccess()) for each in refs]

    monkeypatch.setattr(model, "status", status)
    record = submit(model, key, number=2, stop=stop)
    assert record.ref.key.attempt == (1 if found else 2)
    assert stop.waited <= ABSENT_FOR + 60


def test_a_try_that_is_killed_while_it_looks_for_a_report_ends(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, stop = a_key(), threading.Event()
    ref = model.has(key, [DONE, DONE])
    recorded(model, ref)
    (whole,) = model.status([ref])
    doubtful = replace(whole, reports_readable=False, doubtful=(Lacking.REPORT,))

    def status(refs: Sequence[RunRef]) -> list[RunStatus]:
        stop.set()
        return [doubtful for _ in refs]

    monkeypatch.setattr(model, "status", status)
    with pytest.raises(BackendError, match="stopped while an earlier gang was looked at"):
        submit(model, key, number=2, stop=stop)
    assert model.done("submit") == []


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
def test_a_gang_that_cannot_be_told_is_made_all_the_same(
    model: Model, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    has_failed(model, key := a_key(), 1, CRASHED)
    model.refusals = {verb: [BackendError("the store is down", retryable=True)]}
    assert submit(model, key, job=a_job(restarts={"node": 2})).ref.key.attempt == 2
    assert "so a crash loop is noticed later: the store is down" in caplog.text


# What is there already


@pytest.mark.parametrize("state", [NodeState.PENDING, LIVE, NodeState.UNKNOWN])
def test_a_gang_that_lives_is_adopted(
    model: Model, state: NodeState, caplog: pytest.LogCaptureFixture
) -> None:
    key = a_key()
    ref = model.has(key, [state, LIVE])
    with caplog.at_level(logging.INFO):
        assert submit(model, key).ref.job_id == ref.job_id
    assert model.done("cancel") == []
    assert len(model.existing) == 1
    assert f"found {key.name} of an earlier attempt" in caplog.text
    assert model.calls[-1][3] == [ref], "what was found is handed on, so that nobody looks twice"


def test_a_gang_that_has_succeeded_is_adopted(model: Model) -> None:
    key = a_key()
    ref = model.has(key, [DONE, DONE])
    job = a_job(checkpoints={"required": False})
    assert submit(model, key, job=job).ref.job_id == ref.job_id


@pytest.mark.parametrize("late", [NodeState.ENDING, FAILED, NodeState.CANCELED, LIVE])
def test_a_gang_that_goes_on_with_fewer_nodes_is_adopted_whatever_becomes_of_the_others(
    model: Model, late: NodeState
) -> None:
    key = a_key()
    ref = model.has(key, [LIVE, LIVE, late])
    fewer = Restart(cause=Cause.CAPACITY, message="no machine", members=(0, 1))
    for rank in range(2):
        model.reports[rank] = NodeReport(
            rank=rank, phase=Phase.TRAINING, address="a", started_at=0.0, heartbeat_at=1.0, restarts=(fewer,)
        )
    assert submit(model, key, job=a_job(nodes=3)).ref.job_id == ref.job_id
    assert model.done("cancel") == []


@pytest.mark.parametrize("state", [FAILED, NodeState.CANCELED, NodeState.MISSING])
def test_a_gang_that_has_failed_is_made_again_as_the_next_attempt(model: Model, state: NodeState) -> None:
    key = a_key()
    ref = model.has(key, [DONE, state])
    record = submit(model, key)
    assert record.ref.key == dataclasses.replace(key, attempt=2)
    assert ("close", ref.job_id, End(succeeded=False)) in model.calls
    assert submit(model, key).ref.job_id == record.ref.job_id


def test_an_attempt_is_recorded_before_its_gang_is_created_also_where_the_one_before_was_looked_at(
    model: Model,
) -> None:
    """A try that dies before the answer has no other note of it on Airflow 3.1 and 3.2."""
    model.has(key := a_key(), [DONE, FAILED])
    ref = submit(model, key).ref
    assert ref.key.attempt == 2
    assert model.done("record") == [ref.key.name]
    verbs = [call[0] for call in model.calls]
    assert verbs.index("record") < verbs.index("submit")


@pytest.mark.parametrize("cause", list(Cause))
def test_a_failure_that_nobody_waited_for_is_not_met_again_where_it_is_one_for_good(
    model: Model, cause: Cause
) -> None:
    key = a_key()
    ref = model.has(key, [DONE, FAILED])
    model.reports[1] = NodeReport(
        rank=1,
        phase=Phase.DONE,
        address="a",
        started_at=0.0,
        heartbeat_at=1.0,
        exit_code=1,
        cause=cause,
        message="it failed",
    )
    is_for_good = cause in (Cause.USER, Cause.OOM, Cause.DATA, Cause.CONFIG, Cause.BUDGET)
    assert submit(model, key, number=2).ref.key.attempt == (1 if is_for_good else 2)
    assert (model.done("claim") == [key.name]) == is_for_good
    # Once a try has seen the end, the next try has it made again.
    recorded(model, ref, end=end(succeeded=False))
    assert submit(model, key, number=3).ref.key.attempt == 2


def test_a_gang_that_is_ending_is_waited_for_to_its_end_and_made_again(model: Model) -> None:
    key = a_key()
    ref = model.has(key, [NodeState.ENDING, LIVE])
    assert submit(model, key).ref.key.attempt == 2
    assert model.done("cancel") == [ref.job_id]


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("stop_requested", [False, True])
@pytest.mark.parametrize("others", list(itertools.product([LIVE, NodeState.ENDING], repeat=2)))
def test_a_gang_of_one_run_whose_first_nodes_have_succeeded_is_adopted_while_others_save(
    model: Model, others: tuple[NodeState, NodeState], stop_requested: bool, code: int
) -> None:
    key = a_key()
    states = [NodeState.ENDING, *others]
    ref = model.has(key, states)
    for rank in (rank for rank, state in enumerate(states) if state is NodeState.ENDING):
        model.reports[rank] = NodeReport(
            rank=rank, phase=Phase.DONE, address="a", started_at=0.0, heartbeat_at=1.0, exit_code=code
        )
    if stop_requested:
        model.called_off.add(ref.run_dir)
    # Where the service shows all as ending, either the run is just over, or it was cancelled as the last one succeeded.
    is_going = code == 0 and (LIVE in states or not stop_requested)
    assert submit(model, key, job=a_job(nodes=3)).ref.key.attempt == (1 if is_going else 2)
    assert model.done("cancel") == ([] if is_going else [ref.job_id])


@pytest.mark.parametrize("called_off", [False, True])
@pytest.mark.parametrize("seen", ["nothing", "in part", "complete"])
@pytest.mark.parametrize("state", [NodeState.PENDING, LIVE])
def test_a_gang_that_is_complete_and_was_called_off_before_that_was_seen_is_ended_and_made_again(
    model: Model, state: NodeState, seen: str, called_off: bool
) -> None:
    key = a_key()
    ref = model.has(key, [state, state])
    known = {"nothing": None, "in part": replace(ref, run_ids=(ref.run_ids[0], "")), "complete": ref}[seen]
    recorded(model, ref, ref=known)
    if called_off:
        model.called_off.add(ref.run_dir)
    is_adopted = seen == "complete" or not called_off
    assert submit(model, key, number=2).ref.key.attempt == (1 if is_adopted else 2)
    assert model.done("cancel") == ([] if is_adopted else [ref.job_id])
    if not is_adopted:
        made = [call[0] for call in model.calls].index("submit")
        assert ("close", ref.job_id, End(succeeded=False)) in model.calls[:made], "before another is made"


@pytest.mark.parametrize("first", [LIVE, DONE, NodeState.ENDING])
def test_a_gang_with_a_node_that_was_stopped_is_adopted_only_if_its_first_node_has_succeeded(
    model: Model, first: NodeState
) -> None:
    # The others wait in vain for a node that was preempted, though its program exits with 0 for that.
    key = a_key()
    ref = model.has(key, [first, NodeState.ENDING, LIVE])
    done = NodeReport(
        rank=0, phase=Phase.DONE, address="a", started_at=0.0, heartbeat_at=1.0, exit_code=0, stopped=False
    )
    if first is not LIVE:
        model.reports[0] = done
    model.reports[1] = replace(done, rank=1, stopped=True)
    assert submit(model, key, job=a_job(nodes=3)).ref.key.attempt == (2 if first is LIVE else 1)
    assert model.done("cancel") == ([ref.job_id] if first is LIVE else [])


def test_the_newest_gang_counts_and_the_others_are_ended(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    key = a_key()
    gangs = [model.has(dataclasses.replace(key, attempt=number), [LIVE, LIVE]) for number in (1, 2, 3)]
    assert submit(model, key).ref.job_id == gangs[2].job_id
    assert model.done("cancel") == [gangs[0].job_id, gangs[1].job_id]
    assert f"ending {gangs[0].key.name}, {LEFT_OVER}" in caplog.text


def test_what_others_have_begun_meanwhile_is_not_taken_for_the_next_attempt(model: Model) -> None:
    key = a_key()
    for number in (1, 2, 5):
        model.has(dataclasses.replace(key, attempt=number), [FAILED, FAILED])
    assert submit(model, key).ref.key.attempt == 6


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


# What is recorded leads to what may live


def test_who_comes_after_a_crash_looks_at_the_attempt_that_was_begun(model: Model) -> None:
    key, notes = a_key(), Notes()
    model.refusals["submit"] = [BackendError("the worker dies here")]
    with pytest.raises(BackendError, match="dies here"):
        submit(model, key, notes=notes)
    (noted,) = notes.attempts
    assert (noted.key, noted.ref, noted.end) == (key, None, None)
    record = submit(model, key, notes=notes)
    assert record.ref.key == key
    _, _, known = next(call for call in reversed(model.calls) if call[0] == "begin")
    assert known == [noted]


@pytest.mark.parametrize("has_job", [True, False])
def test_an_attempt_that_was_called_off_before_it_had_a_node_is_not_begun_again(
    model: Model, has_job: bool
) -> None:
    key = a_key()
    ref = model.has(key, [], missing=2)
    recorded(model, ref, ref=None)
    if not has_job:
        del model.existing[ref.job_id]
    model.called_off.add(ref.run_dir)
    assert submit(model, key, number=2).ref.key.attempt == 2
    assert ref.job_id not in model.existing


def test_an_attempt_that_is_known_to_have_failed_is_not_begun_again(model: Model) -> None:
    key = a_key()
    ref = model.has(dataclasses.replace(key, attempt=4), [FAILED, FAILED])
    recorded(model, ref, end=end(succeeded=False))
    del model.existing[ref.job_id]
    assert submit(model, key).ref.key.attempt == 5
    plan = model.calls[[call[0] for call in model.calls].index("begin")][1]
    assert plan.key.attempt == 5


def test_an_attempt_whose_end_nobody_saw_is_looked_at_first(model: Model) -> None:
    key = a_key()
    ref = model.has(dataclasses.replace(key, attempt=4), [LIVE, LIVE])
    recorded(model, ref)
    assert submit(model, key).ref.job_id == ref.job_id


def test_only_what_may_live_and_the_success_of_this_generation_are_looked_at(
    model: Model, tmp_path: Path
) -> None:
    key = dataclasses.replace(a_key(), generation=2)
    tries = Tries(try_number=1, max_tries=2)
    old = dataclasses.replace(key, generation=0)

    def put(which: RunKey, **fields: Any) -> Attempt:
        run_dir = str(tmp_path / which.name)
        ref = RunRef(
            backend="model", key=which, nodes=1, job_id="j", run_ids=("r",), run_dir=run_dir, submitted_at=1.0
        )
        return recorded(model, ref, **fields)

    put(dataclasses.replace(old, attempt=1), end=end(succeeded=True))
    put(dataclasses.replace(old, attempt=2), end=end(succeeded=False))
    lives = put(dataclasses.replace(old, attempt=3))
    put(dataclasses.replace(key, attempt=1), tries=tries, end=end(succeeded=False))
    success = put(dataclasses.replace(key, attempt=2), tries=tries, end=end(succeeded=True))
    notes = Notes()
    submit(model, key, notes=notes, number=2)
    _, plan, known = next(call for call in model.calls if call[0] == "begin")
    assert known == [lives, success]
    assert plan.key == success.key
    first = [Attempt.from_json(each) for each in notes.log[0]["attempts"]]
    assert first[:2] == [lives, success]
    # Of these, what is of an earlier generation is to end in any case.
    assert [place.parent.name for place in tmp_path.glob("*/stop.json")] == [lives.key.name]
    assert first[2].key == plan.key


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


# Changed settings


@pytest.mark.parametrize(
    "change", [{"compartment_id": "elsewhere"}, {"run_dir": "oci://b@n/other"}, {"region": "iad"}]
)
def test_a_gang_that_was_begun_elsewhere_and_never_answered_is_not_waited_for(
    model: Model, change: dict[str, str]
) -> None:
    key = a_key()
    ref = model.has(key, [LIVE, LIVE])
    recorded(model, ref, ref=None)
    for name, value in change.items():
        setattr(model, name, value)
    new = submit(model, key)
    assert model.done("cancel") == [ref.job_id]
    assert new.ref.key.attempt == 2


@pytest.mark.parametrize(
    "change", [{"compartment_id": "elsewhere"}, {"run_dir": "oci://b@n/other"}, {"region": "iad"}]
)
def test_a_gang_that_lives_elsewhere_is_waited_for_where_it_is(model: Model, change: dict[str, str]) -> None:
    key = a_key()
    ref = model.has(key, [LIVE, LIVE])
    recorded(model, ref)
    for name, value in change.items():
        setattr(model, name, value)
    assert submit(model, key).ref.job_id == ref.job_id
    assert model.done("cancel") == []


def test_an_attempt_that_was_begun_elsewhere_is_not_begun_here_under_its_name(model: Model) -> None:
    key = a_key()
    ref = model.has(key, [FAILED, FAILED])
    recorded(model, ref, ref=None)
    del model.existing[ref.job_id]
    model.compartment_id = "elsewhere"
    assert submit(model, key).ref.key.attempt == 2
    again = Model()
    recorded(again, ref, ref=None)
    assert submit(again, key).ref.key.attempt == 1


# Half a gang


@pytest.mark.parametrize("states,missing", [([LIVE], 1), ([NodeState.PENDING], 1), ([], 2)])
def test_half_a_gang_is_completed_while_its_nodes_live(
    model: Model, states: list[NodeState], missing: int
) -> None:
    key = a_key()
    ref = model.has(key, states, missing=missing)
    record = submit(model, key, number=2)
    assert record.ref.job_id == ref.job_id
    assert model.done("cancel") == model.done("delete") == []
    assert model.done("claim") == [ref.key.name]


@pytest.mark.parametrize("state", [FAILED, NodeState.CANCELED, DONE, NodeState.ENDING])
def test_half_a_gang_that_lost_a_node_is_given_up_and_its_job_removed(model: Model, state: NodeState) -> None:
    key = a_key()
    ref = model.has(key, [LIVE, state], missing=1)
    record = submit(model, key, job=a_job(nodes=3))
    assert record.ref.key.attempt == 2
    assert model.done("delete") == [ref.job_id]
    assert ("close", ref.job_id, End(succeeded=False)) in model.calls


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": 3, "run_ids": ("r", "", "")},
        {"run_dir": "oci://x@y/z"},
        {"compartment_id": "x"},
        {"topology": "multi_node"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_half_a_gang_that_this_plan_cannot_complete_is_given_up(model: Model, change: dict[str, Any]) -> None:
    key = a_key()
    ref = model.has(key, [LIVE], missing=1, **change)
    model.states[ref.job_id] = [LIVE, LIVE, LIVE]
    assert submit(model, key).ref.key.attempt == 2
    assert model.done("cancel") == model.done("delete") == [ref.job_id]


def test_a_whole_gang_is_waited_for_also_where_this_plan_would_make_another(model: Model) -> None:
    key = a_key()
    ref = model.has(key, [LIVE, LIVE, LIVE])
    record = submit(model, key, job=a_job(nodes=2))
    assert record.ref.job_id == ref.job_id


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
