"""When a lost node is replaced, what the others are asked for, and whose report counts."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.monitor.node_hours import seconds_in
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.backends.oci_data_science.refs import with_listed
from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.gangs.actions import Cancel, EndSilent, GiveUpSilent, GoOnWithout, Replace, Wait
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.durations import observe
from airflow_provider_ocidist.gangs.spending import spent_of
from airflow_provider_ocidist.job import Restarts
from airflow_provider_ocidist.model.pauses import SAVED_WITHIN
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress, Restart, StopRequest
from airflow_provider_ocidist.model.run import Ending, NodeState, NodeStatus, RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.model.work_dir import STOP_FILE, report_of
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.reports import Reported, of_now
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories
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


def deleted(lost: tuple[int, ...] = (1,), ranks: tuple[int, ...] = (1,), **changes: Any) -> RunStatus:
    """Return a gang whose others wait for nodes in the places of `lost`, and of which somebody has deleted `ranks`."""
    agreed = (replace(LOST, lost=lost),)
    waiting = [a_node(rank, report=a_report(rank, restarts=agreed)) for rank in range(4) if rank not in ranks]
    gone = [a_node(rank, NodeState.MISSING, report=a_report(rank, **changes)) for rank in ranks]
    return a_gang(*waiting, *gone, nodes=4)


@pytest.mark.parametrize("lost", [(1,), (1, 3), (0, 1, 3)], ids=str)
def test_lost_nodes_that_somebody_deletes_while_others_are_asked_for_are_replaced_all_the_same(
    lost: tuple[int, ...],
) -> None:
    record = a_record(a_ref(nodes=4), restarts=Restarts(node=3))
    action = decide(record, deleted(lost, lost), NOW)
    assert isinstance(action, Replace)
    assert [(each.rank, each.cause, each.message) for each in action.failures] == [
        (rank, Cause.NODE, LOST.message) for rank in lost
    ]
    late = replace(record, irreplaceable="no machine")
    assert decide(late, deleted(lost, lost), NOW) == Cancel(
        Ending(cause=Cause.NODE, message=LOST.message, since=NOW)
    )


@pytest.mark.parametrize(
    "record, status",
    [
        (a_record(a_ref(nodes=4)), deleted(lost=(2,))),
        (a_record(a_ref(nodes=4)), deleted(lost=())),
        (a_record(a_ref(nodes=4)), deleted(restarts=(replace(LOST, lost=(1,)),))),
        (a_record(a_ref(nodes=4, replaces=False)), deleted()),
    ],
    ids=["another was lost", "its program has failed", "it has taken part since", "nobody replaces"],
)
def test_a_live_node_that_somebody_deletes_ends_the_gang(record: RunRecord, status: RunStatus) -> None:
    action = decide(record, status, NOW)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.CANCELED
    assert "was deleted outside this task" in action.ending.message


@pytest.mark.parametrize(
    "record, status",
    [
        (a_record(a_ref(replaces=False)), a_gang(gone())),
        (a_record(restarts=Restarts(program=9)), a_gang(gone())),
        (a_record(irreplaceable="its nodes are to end"), a_gang(gone())),
        (a_record(a_ref(replaced=(replace(LOST, step=7),))), a_gang(gone())),
        (a_record(), a_gang(gone(), a_node(0, NodeState.ENDING))),
        (a_record(), a_gang(gone(), a_node(0, report=a_report(0, phase=Phase.DONE, exit_code=0)))),
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


ENDS = [
    {"phase": Phase.DONE, "stopped": True, "exit_code": 143},
    {"phase": Phase.DONE, "stopped": True, "exit_code": 0},
    {"phase": Phase.DONE, "exit_code": 143},
    {"phase": Phase.DONE, "restarts": (LOST,)},
    {"phase": Phase.SAVING, "stopped": True},
]
"""Reports of nodes that were stopped from outside."""


@pytest.mark.parametrize(
    "said", ENDS, ids=["done", "exits with 0", "of an earlier agent", "before its program began", "saves"]
)
def test_of_two_that_are_stopped_at_once_the_first_is_replaced_while_the_service_calls_the_other_alive(
    said: dict[str, Any],
) -> None:
    agreed = said.get("restarts", ())
    first, second = (a_report(rank, message="stopped by SIGTERM", **said) for rank in (1, 2))
    third = a_node(0, report=a_report(0, restarts=agreed))
    one = a_gang(third, gone(1, report=first), a_node(2, report=second))
    action = decide(a_record(), one, NOW)
    assert isinstance(action, Replace)
    assert [each.rank for each in action.failures] == [1]
    both = a_gang(third, gone(1, report=first), gone(2, report=second))
    action = decide(a_record(), both, NOW)
    assert isinstance(action, Replace)
    assert [each.rank for each in action.failures] == [1, 2]
    # Without a third there is nobody who goes on.
    alone = a_gang(gone(0, report=replace(first, rank=0)), a_node(1, report=replace(second, rank=1)), nodes=2)
    assert not isinstance(decide(a_record(), alone, NOW), Replace)


@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize("launch", range(3))
def test_a_replacement_names_the_last_launch_of_the_lost_node_as_it_was_judged(
    launch: int, *, newest: bool
) -> None:
    agreed = (LOST,) * launch
    lost = gone(report=a_report(1, restarts=agreed), report_is_newest=newest)
    others = [a_node(rank, report=a_report(rank, restarts=(*agreed, LOST))) for rank in (0, 2)]
    action = decide(a_record(restarts=Restarts(node=9)), a_gang(lost, *others), NOW)
    assert isinstance(action, Replace)
    assert action.launch == (launch if newest else None)
    assert action.over is None
    unheard = gone(report=None, cause=Cause.NODE)
    action = decide(a_record(restarts=Restarts(node=9)), a_gang(unheard, *others), NOW)
    assert isinstance(action, Replace)
    assert action.launch is None


@pytest.mark.parametrize("phase", [Phase.TRAINING, Phase.SAVING])
@pytest.mark.parametrize("saving", [(0,), (0, 2)])
@pytest.mark.parametrize("launch", range(2))
def test_beside_nodes_that_save_what_a_launch_has_left_one_is_replaced_only_if_another_launch_is_agreed(
    launch: int, saving: tuple[int, ...], phase: Phase
) -> None:
    agreed = (LOST,) * launch
    others = [
        a_node(
            rank,
            report=a_report(rank, restarts=agreed, phase=Phase.SAVING if rank in saving else Phase.TRAINING),
        )
        for rank in (0, 2)
    ]
    status = a_gang(gone(report=a_report(1, restarts=agreed, phase=phase)), *others)
    record = a_record(restarts=Restarts(node=9))
    action = decide(looked(record, status, SAVED_WITHIN - 1), status, NOW)
    assert isinstance(action, Replace)
    assert (action.launch, action.over) == (launch, launch)
    # By then they would have begun it: what they save is no reason to wait longer.
    assert isinstance(decide(looked(record, status, SAVED_WITHIN), status, NOW), Cancel)
    # One that was stopped decides nothing.
    preempted = [replace(each, report=replace(each.report, stopped=True)) for each in others if each.report]
    action = decide(record, a_gang(status.nodes[1], preempted[0], a_node(2), a_node(3), nodes=4), NOW)
    assert isinstance(action, Replace)
    assert action.over is None


def test_nothing_is_replaced_while_it_cannot_be_read_why_a_node_has_ended() -> None:
    assert decide(a_record(), a_gang(gone(), reports_readable=False), NOW) == Wait()


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


# A node that is silent, and that the service calls alive

LIVE = (NodeState.RUNNING, NodeState.UNKNOWN, NodeState.ENDING)


def silent_for(
    record: RunRecord, seconds: float, silent: NodeStatus, *agreed: Restart, **changes: Any
) -> tuple[RunRecord, RunStatus]:
    """Return a gang in which the others have beaten on for so many seconds, and the record after that.

    `agreed`: the launches that the others have reported.
    """

    def at(moment: float) -> RunStatus:
        nodes = (
            a_node(rank, report=a_report(rank, heartbeat_at=NOW + moment, restarts=agreed, **changes))
            for rank in range(record.ref.nodes)
        )
        return a_gang(silent, *(node for node in nodes if node.rank != silent.rank), nodes=record.ref.nodes)

    return observe(observe(record, at(0.0), 0.0), at(seconds), seconds), at(seconds)


def decided(record: RunRecord, seconds: float, silent: NodeStatus, *agreed: Restart, **changes: Any) -> Any:
    return decide(*silent_for(record, seconds, silent, *agreed, **changes), NOW)


@pytest.mark.parametrize("rank", range(3))
def test_a_silent_node_is_given_up_by_the_others_then_ended_then_replaced(rank: int) -> None:
    record = a_record(lost_timeout=100.0)
    failure = replace(LOST, rank=rank)
    for agreed in ((), (failure,)):
        assert decided(record, 100.0, a_node(rank), *agreed) == Wait()
        action = decided(record, 101.0, a_node(rank), *agreed)
        assert isinstance(action, EndSilent if agreed else GiveUpSilent)
        (found,) = action.failures
        assert (found.rank, found.cause, found.step) == (rank, Cause.NODE, 7)
        assert found.message == (
            f"node {rank} was lost in phase TRAINING: it sent no heartbeat for 100 s (limits.lost_timeout)"
        )
    assert decided(record, 101.0, a_node(rank, NodeState.ENDING), failure) == Wait()
    # Also for a process that has not seen it silent.
    action = decided(record, 0.0, a_node(rank, NodeState.CANCELED, details="cancelled"), failure)
    assert action == Replace((found,), launch=0)
    ended_itself = decided(record, 0.0, gone(rank), failure)
    assert isinstance(ended_itself, Replace)


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("agreed", [(), (LOST,)], ids=["not agreed", "agreed"])
def test_a_silent_node_that_does_not_end_ends_the_gang_in_time(
    state: NodeState, agreed: tuple[Restart, ...]
) -> None:
    record = a_record(lost_timeout=100.0, replace_timeout=50.0)
    assert not isinstance(decided(record, 150.0, a_node(1, state), *agreed), Cancel)
    action = decided(record, 150.5, a_node(1, state), *agreed)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.NODE
    assert action.ending.message.startswith("node 1 has sent no heartbeat for 15")


@pytest.mark.parametrize(
    "record",
    [
        a_record(a_ref(replaces=False)),
        a_record(restarts=Restarts(program=9)),
        a_record(restarts=Restarts()),
        a_record(a_ref(replaced=(LOST, replace(LOST, step=4)))),
        a_record(a_ref(replaced=(replace(LOST, step=7),))),
        a_record(irreplaceable="its nodes are to end"),
    ],
    ids=[
        "nobody replaces",
        "no budget",
        "no restarts",
        "budget spent",
        "the same step as before",
        "given up",
    ],
)
@pytest.mark.parametrize("agreed", [(), (LOST,)], ids=["not agreed", "agreed"])
def test_where_no_replacement_helps_a_silent_node_ends_the_gang_as_ever(
    record: RunRecord, agreed: tuple[Restart, ...]
) -> None:
    action = decided(replace(record, lost_timeout=100.0), 101.0, a_node(1), *agreed)
    assert isinstance(action, Cancel)
    assert action.ending.message == "node 1 has sent no heartbeat for 101 s (limits.lost_timeout)"


@pytest.mark.parametrize("reports", [{"progress": None}, {"phase": Phase.DONE, "exit_code": 0}])
def test_a_silent_node_beside_those_that_have_not_trained_or_have_ended_is_not_replaced(
    reports: dict[str, Any],
) -> None:
    silent = a_node(1, report=a_report(1, progress=None))
    assert isinstance(decided(a_record(lost_timeout=100.0), 101.0, silent, **reports), Cancel)


def test_where_all_nodes_are_silent_the_gang_is_ended() -> None:
    record = a_record(lost_timeout=100.0)
    assert decide(looked(record, a_gang(), 99.0), a_gang(), NOW) == Wait()
    assert isinstance(decide(looked(record, a_gang(), 101.0), a_gang(), NOW), Cancel)


def test_a_node_whose_program_has_ended_is_not_replaced_for_its_silence() -> None:
    record = a_record(lost_timeout=100.0, save_timeout=600.0)
    saving = a_node(1, report=a_report(1, phase=Phase.SAVING))
    for agreed in ((), (LOST,)):
        assert decided(record, 700.0, saving, *agreed) == Wait()
        assert isinstance(decided(record, 701.0, saving, *agreed), Cancel)


@pytest.mark.parametrize("state", LIVE)
def test_a_node_that_is_not_heard_of_because_reports_cannot_be_read_is_not_silent(state: NodeState) -> None:
    record, status = silent_for(a_record(lost_timeout=100.0), 101.0, a_node(1, state), LOST)
    assert decide(record, replace(status, reports_readable=False), NOW) == Wait()
    assert decide(replace(record, lost_timeout=None), status, NOW) == Wait()


def test_what_is_lost_beside_a_silent_node_is_replaced_first() -> None:
    record, status = silent_for(a_record(a_ref(nodes=4), lost_timeout=100.0), 101.0, a_node(1))
    status = replace(status, nodes=(*status.nodes[:3], gone(3)))
    action = decide(record, status, NOW)
    assert isinstance(action, Replace)
    assert [each.rank for each in action.failures] == [3]
    # The end of the silent one is no reason to wait with the other.
    nodes = list(status.nodes)
    nodes[1] = a_node(1, NodeState.ENDING)
    assert decide(record, replace(status, nodes=tuple(nodes)), NOW) == action


@pytest.mark.parametrize(
    "report, agreed",
    [
        (a_report(1), ()),
        (a_report(1, restarts=(LOST,)), (LOST,)),
        (a_report(1, phase=Phase.DONE, exit_code=-15), (LOST,)),
        (a_report(1, phase=Phase.SAVING), (LOST,)),
        (None, (LOST,)),
    ],
    ids=["before any launch", "of this launch", "it has said so", "it saves", "it has never begun"],
)
def test_a_node_that_somebody_cancels_is_not_replaced(
    report: NodeReport | None, agreed: tuple[Restart, ...]
) -> None:
    canceled = a_node(1, NodeState.CANCELED, report=report, details="by a user")
    action = decided(a_record(lost_timeout=100.0), 0.0, canceled, *agreed)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.CANCELED


def test_a_node_that_was_ended_for_its_silence_and_is_replaced_by_none_is_a_lost_machine() -> None:
    record = a_record(lost_timeout=100.0, replace_timeout=50.0)
    canceled = a_node(1, NodeState.CANCELED, details="cancelled")
    action = decided(record, 50.0, canceled, LOST)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.NODE
    elastic = replace(record, min_nodes=2)
    assert isinstance(decided(elastic, 50.0, canceled, LOST), GoOnWithout)
    # Nobody cancels one node of a gang that replaces none.
    unreplaced = decided(replace(record, ref=a_ref(replaces=False)), 0.0, canceled, LOST)
    assert isinstance(unreplaced, Cancel)
    assert unreplaced.ending.cause is Cause.CANCELED


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_silent_node_and_its_service_do_no_second_run_is_made_while_the_first_may_live(
    seed: int,
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    record = a_record(lost_timeout=dice.uniform(30, 200), replace_timeout=dice.uniform(50, 400))
    limit = (record.lost_timeout or 0.0) + record.replace_timeout
    agrees_after, begins_after, ends_after = (dice.choice([0.0, 20.0, 90.0, 1e6]) for _ in range(3))
    silent, asked, ended, now, before = a_node(1), 1e9, 1e9, 0.0, 0.0
    agreed: tuple[Restart, ...] = ()
    while True:
        others = [
            a_node(rank, report=a_report(rank, heartbeat_at=NOW + now, restarts=agreed)) for rank in (0, 2)
        ]
        status = a_gang(silent, *others)
        record, before = observe(record, status, now - before), now
        action = decide(record, status, NOW)
        assert now < limit + 100.0
        if isinstance(action, Cancel):
            assert (action.ending.cause, silent.state.terminal) == (Cause.NODE, False)
            # After each of four steps it is looked at within 40 s.
            assert agrees_after + begins_after + ends_after + 160.0 > record.replace_timeout
            return
        if isinstance(action, Replace):
            assert silent.state is NodeState.CANCELED
            return
        if isinstance(action, GiveUpSilent | EndSilent):
            asks = isinstance(action, GiveUpSilent)
            assert asks is not bool(agreed)
            asked, ended = min(asked, now), ended if asks else min(ended, now)
        now += dice.uniform(1.0, 40.0)
        agreed = (LOST,) if now - asked > agrees_after else agreed
        if now - ended > begins_after + ends_after:
            silent = replace(silent, state=NodeState.CANCELED)
        elif now - ended > begins_after:
            silent = replace(silent, state=NodeState.ENDING)


# What the nodes agree on


@pytest.fixture
def directory(tmp_path: Path) -> tuple[RunDirectories, RunRef, Any]:
    run_dirs = RunDirStores(open_store)
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
            assert directories.launch_again(
                ref, [LOST], draw.choice([None, lost_in]), alive=draw.random() < 0.5
            )
            request = StopRequest.from_json(store.read(STOP_FILE))
            last = agreed[-1] if len(agreed) > lost_in else LOST
            others = agreed[:-1] if len(agreed) > lost_in else agreed
            assert request.restarts == (*others, replace(last, lost=(1,)))


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("before", range(3))
def test_a_node_that_begins_the_next_launch_as_it_is_judged_to_be_lost_costs_no_further_launch(
    directory: Any, before: int, *, alive: bool
) -> None:
    directories, ref, store = directory
    earlier = tuple(replace(LOST, step=step) for step in range(before))
    agreed = (*earlier, LOST)
    store.write(STOP_FILE, StopRequest(cause=Cause.NODE, message="m", restarts=agreed).to_json())
    lost = gone(report=a_report(1, restarts=earlier))
    others = [a_node(rank, report=a_report(rank, restarts=earlier)) for rank in (0, 2)]
    action = decide(a_record(restarts=Restarts(node=9)), a_gang(lost, *others), NOW)
    assert isinstance(action, Replace)
    # In this second it begins the launch that the others have agreed on.
    back = Heartbeat(store, a_report(1, phase=Phase.FETCHING, restarts=agreed), StopSwitch())
    assert back.write()
    for _ in range(2):
        assert directories.launch_again(ref, action.failures, action.launch, alive=alive)
    assert len(StopRequest.from_json(store.read(STOP_FILE)).restarts) == len(agreed)
    # What the service calls ended reads that it is lost; what it calls alive takes part.
    back.read_stop_request()
    assert back.switch.is_lost is not alive
    for rank in (0, 2):
        other = Heartbeat(store, a_report(rank, restarts=agreed), StopSwitch())
        assert other.read_stop_request() is None, "no launch follows the one that was agreed on"


def test_the_nodes_go_on_after_a_launch_where_they_have_agreed_on_another(directory: Any) -> None:
    directories, ref, store = directory
    assert not directories.goes_on_after(ref, 0)
    for launches in range(3):
        agreed = (LOST,) * launches
        store.write(STOP_FILE, StopRequest(cause=Cause.NODE, message="m", restarts=agreed).to_json())
        assert [directories.goes_on_after(ref, launch) for launch in range(4)] == [
            launch < launches for launch in range(4)
        ]
    store.write(STOP_FILE, b"{")
    with pytest.raises(BackendError) as caught:
        directories.goes_on_after(ref, 0)
    assert caught.value.retryable


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


def test_what_stays_in_the_way_of_a_new_node_is_ended_and_charged_to_nothing() -> None:
    left = a_node(1, NodeState.PENDING, report=None, is_left=True, details="OutOfcpu", cause=Cause.CAPACITY)
    action = decide(a_record(), a_gang(left), NOW)
    assert isinstance(action, EndSilent)
    (failure,) = action.failures
    assert (failure.rank, failure.message) == (1, "node 1: OutOfcpu")
    # Also as the gang begins, and where nothing is left of the budget.
    waiting = [a_node(rank, NodeState.PENDING, report=None) for rank in (0, 2)]
    spent = replace(a_ref(), replaced=(LOST,) * 9)
    assert isinstance(decide(a_record(spent), a_gang(left, *waiting), NOW), EndSilent)
    assert isinstance(decide(a_record(a_ref(replaces=False)), a_gang(left), NOW), Wait)
    assert isinstance(decide(a_record(), a_gang(replace(left, is_left=False)), NOW), Wait)
