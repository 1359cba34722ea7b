"""When a lost node is replaced, what the others are asked for, and whose report counts."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.monitor.node_hours import seconds_in
from airflow_provider_ocidist.backends.oci_data_science.refs import with_listed
from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Cancel, Replace, Wait
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.durations import observe
from airflow_provider_ocidist.gangs.spending import spent_of
from airflow_provider_ocidist.job import Restarts
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress, Restart, StopRequest
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.model.work_dir import STOP_FILE, report_of
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.reports import Reported, of_now
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories
from airflow_provider_ocidist.work_dir.run_dirs import RunDirs
from tests.training_jobs import a_key

NOW = 1_000_000.0
BUDGET = Restarts(node=2)
LOST = Restart(cause=Cause.NODE, message="node 1: gone", rank=1, step=3)


def a_ref(nodes: int = 3, **changes: Any) -> RunRef:
    ref = RunRef(
        backend="oci_data_science",
        key=a_key(),
        nodes=nodes,
        job_id="job",
        run_ids=tuple(f"run{rank}" for rank in range(nodes)),
        run_dir="oci://b@n/work/x",
        submitted_at=NOW,
        replaces=True,
    )
    return replace(ref, **changes)


def a_record(ref: RunRef | None = None, **changes: Any) -> RunRecord:
    return replace(RunRecord(ref=ref or a_ref(), restarts=BUDGET, start_deadline=NOW + 60), **changes)


def a_report(rank: int, **changes: Any) -> NodeReport:
    base = NodeReport(
        rank=rank,
        phase=Phase.TRAINING,
        address="127.0.0.1",
        started_at=NOW,
        heartbeat_at=NOW,
        progress=Progress(step=7),
    )
    return replace(base, **changes)


def a_node(rank: int, state: NodeState = NodeState.RUNNING, **changes: Any) -> NodeStatus:
    node = NodeStatus(rank=rank, run_id=f"run{rank}", state=state, report=a_report(rank))
    return replace(node, **changes)


def a_gang(*dead: NodeStatus, nodes: int = 3, **changes: Any) -> RunStatus:
    gone = {node.rank: node for node in dead}
    return RunStatus(nodes=tuple(gone.get(rank) or a_node(rank) for rank in range(nodes)), **changes)


def gone(rank: int = 1, **changes: Any) -> NodeStatus:
    return a_node(rank, NodeState.FAILED, **{"details": "exit code 137", **changes})


# The decision


def test_a_node_that_is_lost_amid_the_training_is_replaced() -> None:
    action = decide(a_record(), a_gang(gone()), NOW)
    assert isinstance(action, Replace)
    (failure,) = action.failures
    assert (failure.rank, failure.cause, failure.step) == (1, Cause.NODE, 7)
    assert failure.message == "node 1 was lost in phase TRAINING: exit code 137"


@pytest.mark.parametrize("cause", [None, Cause.PREEMPTED])
@pytest.mark.parametrize(
    "said",
    [
        {"phase": Phase.SAVING, "stopped": True},
        {"phase": Phase.DONE, "stopped": True, "exit_code": 0},
        {"phase": Phase.DONE, "stopped": True, "exit_code": 143},
        {"phase": Phase.DONE, "exit_code": 143},
    ],
    ids=["killed while it saves", "exits with 0", "exits with 143", "of an earlier agent"],
)
def test_a_node_that_was_stopped_is_replaced_however_its_program_has_ended(
    said: dict[str, Any], cause: Cause | None
) -> None:
    report = a_report(1, message="this node was stopped by SIGTERM", **said)
    action = decide(a_record(), a_gang(gone(report=report, cause=cause)), NOW)
    assert isinstance(action, Replace)
    assert [(each.rank, each.cause) for each in action.failures] == [(1, cause or Cause.NODE)]


def test_nodes_that_are_lost_together_are_replaced_together_and_each_costs_one_of_the_budget() -> None:
    both = a_gang(gone(0), gone(2))
    action = decide(a_record(), both, NOW)
    assert isinstance(action, Replace)
    assert [each.rank for each in action.failures] == [0, 2]
    assert isinstance(decide(a_record(restarts=Restarts(node=1)), both, NOW), Cancel)


def test_a_preempted_node_is_replaced_whatever_has_been_spent() -> None:
    ref = a_ref(replaced=(LOST, LOST))
    preempted = a_gang(gone(cause=Cause.PREEMPTED, details="Preempted."))
    action = decide(a_record(ref), preempted, NOW)
    assert isinstance(action, Replace)
    assert action.failures[0].cause is Cause.PREEMPTED
    assert isinstance(decide(a_record(ref), a_gang(gone()), NOW), Cancel)


@pytest.mark.parametrize(
    "node",
    [
        gone(report=a_report(1, cause=Cause.USER, message="ValueError", exit_code=1)),
        gone(report=a_report(1, phase=Phase.DONE, exit_code=0)),
        a_node(1, NodeState.CANCELED),
        a_node(1, NodeState.MISSING),
        a_node(1, NodeState.SUCCEEDED, report=a_report(1, phase=Phase.DONE, exit_code=0)),
        gone(cause=Cause.CONFIG, details="no container image"),
        gone(cause=Cause.DEADLINE, details="maximum runtime"),
    ],
    ids=lambda node: f"{node.state}-{node.cause or (node.report and node.report.cause)}",
)
def test_what_has_ended_for_a_reason_of_its_own_is_not_replaced(node: NodeStatus) -> None:
    assert not isinstance(decide(a_record(), a_gang(node), NOW), Replace)


@pytest.mark.parametrize(
    "record, status",
    [
        (a_record(a_ref(replaces=False)), a_gang(gone())),
        (a_record(restarts=Restarts(program=9)), a_gang(gone())),
        (a_record(irreplaceable="its nodes are to end"), a_gang(gone())),
        (a_record(a_ref(replaced=(replace(LOST, step=7),))), a_gang(gone())),
        (a_record(), a_gang(gone(), a_node(0, NodeState.ENDING))),
        (a_record(), a_gang(gone(), a_node(0, report=a_report(0, phase=Phase.DONE, exit_code=1)))),
        (a_record(deadline=NOW - 1), a_gang(gone())),
    ],
    ids=[
        "nobody replaces",
        "no budget",
        "given up",
        "the same step as before",
        "the others end",
        "another is done",
        "too late",
    ],
)
def test_where_no_replacement_helps_the_gang_is_ended_as_ever(record: RunRecord, status: RunStatus) -> None:
    assert isinstance(decide(record, status, NOW), Cancel)


def test_nothing_is_replaced_while_it_cannot_be_read_why_a_node_has_ended() -> None:
    assert decide(a_record(), a_gang(gone(), reports_readable=False), NOW) == Wait()


def test_a_silent_node_that_the_service_calls_alive_is_never_replaced() -> None:
    record = a_record(lost_timeout=100.0)
    for seconds, action in ((99.0, Wait), (101.0, Cancel)):
        assert isinstance(decide(looked(record, a_gang(), seconds), a_gang(), NOW), action)


def test_before_any_node_has_trained_nothing_is_replaced() -> None:
    new = [a_node(rank, report=a_report(rank, progress=None)) for rank in (0, 2)]
    status = a_gang(gone(report=a_report(1, progress=None)), *new)
    assert isinstance(decide(a_record(), status, NOW), Cancel)
    waiting = [replace(node, report=replace(node.report, restarts=(LOST,))) for node in new if node.report]
    assert isinstance(decide(a_record(), a_gang(gone(), *waiting), NOW), Replace)


def looked(record: RunRecord, status: RunStatus, seconds: float) -> RunRecord:
    """Return the record after two looks at the same, so many seconds apart."""
    return observe(observe(record, status, 0.0), status, seconds)


def test_a_replacement_that_is_refused_for_too_long_is_given_up() -> None:
    record = a_record(replace_timeout=100.0)
    assert isinstance(decide(looked(record, a_gang(gone()), 99.0), a_gang(gone()), NOW), Replace)
    assert isinstance(decide(looked(record, a_gang(gone()), 100.0), a_gang(gone()), NOW), Cancel)


def test_a_new_node_has_its_own_time_to_start_and_the_gang_is_ended_for_the_reason_of_the_loss() -> None:
    record = a_record(a_ref(replaced=(LOST,)), replace_timeout=100.0)
    status = a_gang(a_node(1, NodeState.PENDING, report=None))
    assert decide(looked(record, status, 99.0), status, NOW + 10_000) == Wait()
    action = decide(looked(record, status, 101.0), status, NOW + 10_000)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.NODE
    assert action.ending.message.startswith(
        "node 1: gone; no machine has taken its place within 100 s (limits.replace_timeout)"
    )


def test_where_there_is_no_capacity_for_a_new_node_the_loss_is_the_cause() -> None:
    record = a_record(a_ref(replaced=(replace(LOST, cause=Cause.PREEMPTED),)))
    refused = gone(cause=Cause.CAPACITY, details="Out of host capacity.", report=None)
    action = decide(record, a_gang(refused), NOW)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.PREEMPTED
    assert "no machine has taken its place: node 1: Out of host capacity." in action.ending.message


# What the nodes agree on


@pytest.fixture
def directory(tmp_path: Path) -> tuple[RunDirectories, RunRef, Any]:
    run_dirs = RunDirs(open_store)
    ref = a_ref(run_dir=str(tmp_path))
    return RunDirectories(run_dirs, run_dirs), ref, open_store(str(tmp_path))


def test_the_others_are_asked_for_the_launch_after_the_lost_nodes_last_and_once(directory: Any) -> None:
    directories, ref, store = directory
    draw = random.Random()
    for _ in range(50):
        before = tuple(replace(LOST, step=step) for step in range(draw.randrange(4)))
        agreed = before[: draw.randrange(len(before) + 1)] if draw.random() < 0.5 else before
        lost_in = draw.randrange(len(agreed) + 1)
        store.write(report_of(1), a_report(1, restarts=agreed[:lost_in]).to_json())
        if agreed:
            store.write(STOP_FILE, StopRequest(cause=Cause.NODE, message="m", restarts=agreed).to_json())
        else:
            store.delete(STOP_FILE)
        for _ in range(2):
            assert directories.launch_again(ref, [LOST])
            request = StopRequest.from_json(store.read(STOP_FILE))
            last = agreed[-1] if len(agreed) > lost_in else LOST
            others = agreed[:-1] if len(agreed) > lost_in else agreed
            assert request.restarts == (*others, replace(last, lost=(1,)))


def test_a_request_to_end_the_run_stays(directory: Any) -> None:
    directories, ref, store = directory
    final = StopRequest(cause=Cause.CANCELED, message="enough").to_json()
    store.write(STOP_FILE, final)
    assert not directories.launch_again(ref, [LOST])
    assert store.read(STOP_FILE) == final


def test_what_a_node_took_for_a_lost_machine_is_a_preemption_where_the_service_says_so(
    directory: Any,
) -> None:
    directories, ref, store = directory
    store.write(report_of(1), a_report(1).to_json())
    store.write(STOP_FILE, StopRequest(cause=Cause.NODE, message="m", restarts=(LOST,)).to_json())
    preempted = replace(LOST, cause=Cause.PREEMPTED, message="Preempted.")
    for _ in range(2):
        assert directories.launch_again(ref, [preempted])
        (restart,) = StopRequest.from_json(store.read(STOP_FILE)).restarts
        assert (restart.cause, restart.message) == (Cause.PREEMPTED, "Preempted.")


# Whose report it is


def test_a_lost_nodes_report_is_never_that_of_the_one_in_its_place() -> None:
    ref = a_ref(replaced=(LOST, LOST))
    for incarnation in range(4):
        report = a_report(1, incarnation=incarnation)
        found = of_now({1: Reported(report, "etag", NOW, sign="etag")}, ref)[1]
        assert found.report == (report if incarnation >= 2 else None)
        # That it was written again shows all the same that a node lives.
        assert found.sign == "etag"


def test_the_time_of_lost_nodes_counts_for_those_who_wait_and_for_the_nodes() -> None:
    status = a_gang(lost_seconds=50.0)
    assert spent_of(replace(status, nodes=()), NOW, None).node_seconds == 50.0
    old = a_report(1, heartbeat_at=NOW + 30)
    new = a_report(1, incarnation=1, predecessors=seconds_in([old]), heartbeat_at=NOW + 12)
    assert seconds_in([new]) == 42.0


# Which run it is


def a_run(rank: int, incarnation: int, seconds: float = 10.0, **more: str) -> Any:
    tags = {
        "ocidist-rank": str(rank),
        **({"ocidist-incarnation": str(incarnation)} if incarnation else {}),
        **more,
    }
    return SimpleNamespace(
        id=f"run{rank}.{incarnation}",
        freeform_tags=tags,
        time_accepted=datetime.fromtimestamp(NOW, UTC),
        time_started=datetime.fromtimestamp(NOW, UTC),
        time_finished=datetime.fromtimestamp(NOW + seconds, UTC),
    )


def shuffled(*runs: Any) -> list[Any]:
    return random.sample(runs, len(runs))


def test_of_each_rank_the_run_counts_that_has_replaced_the_others() -> None:
    runs = shuffled(a_run(0, 0), a_run(1, 0), a_run(1, 1), a_run(1, 2), a_run(2, 0))
    found = with_listed(a_ref(run_ids=("", "", "")), runs)
    assert found.run_ids == ("run0.0", "run1.2", "run2.0")
    assert [each.rank for each in found.replaced] == [1, 1]
    assert found.lost_seconds == 20.0


def test_what_was_asked_for_again_by_a_killed_process_is_charged_to_no_budget() -> None:
    growth = {"ocidist-growth": "true"}
    runs = shuffled(a_run(0, 0), a_run(1, 0), a_run(1, 1), a_run(1, 2, **growth), a_run(2, 0))
    found = with_listed(a_ref(run_ids=("", "", "")), runs)
    assert [(each.rank, each.cause) for each in found.replaced] == [(1, Cause.NODE), (1, Cause.CAPACITY)]
    known = a_ref(run_ids=("run0.0", "run1.1", "run2.0"), replaced=(LOST,))
    assert [each.cause for each in with_listed(known, runs, known).replaced] == [Cause.NODE, Cause.CAPACITY]


def test_a_list_that_lags_takes_nothing_back() -> None:
    known = a_ref(run_ids=("run0.0", "run1.1", "run2.0"), replaced=(LOST,), lost_seconds=7.0)
    found = with_listed(a_ref(run_ids=("", "", "")), shuffled(a_run(0, 0), a_run(1, 0)), known)
    assert (found.run_ids, found.replaced, found.lost_seconds) == (
        known.run_ids,
        known.replaced,
        known.lost_seconds,
    )
