"""Exactly once, on a service in memory: which gang of an earlier try a task adopts, step by step."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.gangs.adoption import at_the_place_of
from airflow_provider_ocidist.gangs.canceller import Canceller
from airflow_provider_ocidist.gangs.submission import LEFT_OVER
from airflow_provider_ocidist.model.attempts import Attempt, End
from airflow_provider_ocidist.model.evidence import ABSENT_FOR
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart
from airflow_provider_ocidist.model.run import (
    Lacking,
    NodeState,
    RunKey,
    RunRef,
    RunStatus,
    Tries,
)
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.work_dir.stored import StoredCheckpoints
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


@pytest.mark.parametrize("moved", ["run_dir", "compartment_id", "conn_id"])
def test_the_plan_of_an_adopted_gang_is_of_the_place_where_it_was_created(model: Model, moved: str) -> None:
    key = a_key()
    changes: dict[str, Any] = {moved: "oci://b@n/elsewhere"}
    ref = replace(model.has(key, [LIVE, LIVE]), **changes)
    begun = recorded(model, ref, candidate=0)
    plan = at_the_place_of(ref, model.plan(a_job(), key), [begun])
    assert (plan.run_dir, plan.compartment_id, plan.conn_id, plan.region) == (
        ref.run_dir,
        ref.compartment_id,
        ref.conn_id,
        "fra",
    )
