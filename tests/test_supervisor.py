"""The supervisor's decisions, on a clock that only the test moves."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from airflow_provider_ocidist.agent.report import NodeReport, Phase, Progress
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.run import (
    Ending,
    Expectations,
    NodeState,
    NodeStatus,
    RunKey,
    RunRecord,
    RunRef,
    RunStatus,
)
from airflow_provider_ocidist.storage.checkpoints import CheckpointRef
from airflow_provider_ocidist.supervisor import Cancel, Fail, Succeed, Wait, decide

START = 1_000_000.0
KEY = RunKey(dag_id="dag", run_id="run", task_id="train")
CHECKPOINT = CheckpointRef(uri="oci://b@n/checkpoints/step-10", step=10)


def record(nodes: int = 2, **changes: object) -> RunRecord:
    ref = RunRef(
        backend="oci_data_science",
        key=KEY,
        nodes=nodes,
        job_id="job",
        run_ids=tuple(f"run{rank}" for rank in range(nodes)),
        run_dir="oci://b@n/work/x",
        submitted_at=START,
    )
    return replace(RunRecord(ref=ref), **changes)  # type: ignore[arg-type]


def report(rank: int, **changes: object) -> NodeReport:
    base = NodeReport(
        rank=rank, phase=Phase.TRAINING, address="127.0.0.1", started_at=START, heartbeat_at=START
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def node(rank: int, state: NodeState, **changes: object) -> NodeStatus:
    return replace(NodeStatus(rank=rank, run_id=f"run{rank}", state=state), **changes)  # type: ignore[arg-type]


def gang(*states: NodeState, **changes: object) -> RunStatus:
    nodes = tuple(node(rank, state) for rank, state in enumerate(states))
    return replace(RunStatus(nodes=nodes), **changes)  # type: ignore[arg-type]


def trained(rank: int, **changes: object) -> NodeStatus:
    return node(rank, NodeState.SUCCEEDED, report=report(rank, exit_code=0, phase=Phase.DONE, **changes))


def test_waits_while_nodes_start_and_run() -> None:
    for states in [(NodeState.PENDING, NodeState.PENDING), (NodeState.RUNNING, NodeState.PENDING)]:
        assert decide(record(), gang(*states), START + 5) == Wait()


def test_succeeds_when_every_node_has_succeeded() -> None:
    assert decide(record(), gang(NodeState.SUCCEEDED, NodeState.SUCCEEDED), START + 5) == Succeed()


def test_waits_for_the_last_node_though_the_main_node_has_succeeded() -> None:
    assert decide(record(), gang(NodeState.SUCCEEDED, NodeState.RUNNING), START + 5) == Wait()


def test_a_program_that_exits_0_without_a_checkpoint_has_failed() -> None:
    promised = record(expects=Expectations(checkpoint=True))
    action = decide(promised, RunStatus(nodes=(trained(0), trained(1))), START + 5)
    assert isinstance(action, Fail)
    assert action.cause is Cause.USER
    assert "no checkpoint" in action.message


def test_a_missing_output_is_a_failure_that_names_it() -> None:
    promised = record(nodes=1, expects=Expectations(outputs=("oci://b@n/out",)))
    action = decide(promised, RunStatus(nodes=(trained(0),)), START + 5)
    assert isinstance(action, Fail)
    assert "oci://b@n/out" in action.message


def test_success_needs_the_checkpoint_and_every_required_output() -> None:
    promised = record(nodes=1, expects=Expectations(checkpoint=True, outputs=("oci://b@n/out",)))
    status = RunStatus(nodes=(trained(0, checkpoint=CHECKPOINT, outputs=("oci://b@n/out",)),))
    assert decide(promised, status, START + 5) == Succeed()


def test_a_corrupt_checkpoint_is_no_success() -> None:
    status = RunStatus(
        nodes=(trained(0, checkpoint=CHECKPOINT),), checkpoint_problem="x.pt has 3 of 10 bytes"
    )
    action = decide(record(nodes=1), status, START + 5)
    assert action == Fail(Cause.USER, "x.pt has 3 of 10 bytes")


def test_unreadable_reports_are_waited_for_and_are_no_failure() -> None:
    promised = record(expects=Expectations(checkpoint=True))
    status = gang(NodeState.SUCCEEDED, NodeState.SUCCEEDED, reports_readable=False)
    assert decide(promised, status, START + 10_000) == Wait()


def test_reports_that_stay_unreadable_are_not_waited_for_without_end() -> None:
    promised = record(expects=Expectations(checkpoint=True))
    nodes = tuple(node(rank, NodeState.SUCCEEDED, finished_at=START) for rank in range(2))
    status = RunStatus(nodes=nodes, reports_readable=False)
    assert decide(promised, status, START + 9999) == Wait()
    waiting = replace(promised, unread_since=START + 9000)
    assert decide(waiting, status, START + 10799) == Wait()
    action = decide(waiting, status, START + 10801)
    assert isinstance(action, Fail)
    assert action.cause is Cause.SERVICE
    assert "what they reported cannot be read, in oci://b@n/work/x" in action.message
    assert decide(replace(record(), unread_since=START), status, START + 10801) == Succeed()


def test_one_failed_node_ends_the_others_with_its_cause() -> None:
    failed = report(1, exit_code=3, cause=Cause.USER, message="ValueError: boom")
    status = RunStatus(nodes=(node(0, NodeState.RUNNING), node(1, NodeState.FAILED, report=failed)))
    action = decide(record(), status, START + 5)
    assert action == Cancel(
        Ending(cause=Cause.USER, message="node 1: ValueError: boom (exit code 3)", since=START + 5)
    )


def test_the_node_that_names_a_cause_is_blamed_and_not_the_one_that_ended_first() -> None:
    told = node(0, NodeState.FAILED, report=report(0, exit_code=143), finished_at=START + 1)
    guilty = node(
        1, NodeState.FAILED, report=report(1, cause=Cause.OOM, message="killed"), finished_at=START + 2
    )
    action = decide(record(), RunStatus(nodes=(told, guilty)), START + 5)
    assert action == Fail(Cause.OOM, "node 1: killed")


def test_an_ended_gang_fails_for_the_reason_it_was_ended() -> None:
    ending = Ending(cause=Cause.HANG, message="stuck", since=START)
    status = gang(NodeState.CANCELED, NodeState.CANCELED)
    assert decide(record(ending=ending), status, START + 5) == Fail(Cause.HANG, "stuck")


def test_a_gang_that_finished_before_the_cancel_took_hold_has_succeeded() -> None:
    ending = Ending(cause=Cause.DEADLINE, message="late", since=START)
    assert (
        decide(record(ending=ending), gang(NodeState.SUCCEEDED, NodeState.SUCCEEDED), START + 5) == Succeed()
    )


def test_a_node_that_does_not_hear_the_cancel_is_told_again_after_a_while() -> None:
    ending = Ending(cause=Cause.USER, message="x", since=START)
    status = gang(NodeState.RUNNING, NodeState.CANCELED)
    assert decide(record(ending=ending), status, START + 14) == Wait()
    again = decide(record(ending=ending), status, START + 15)
    assert again == Cancel(Ending(cause=Cause.USER, message="x", since=START + 15))


def test_the_deadline_ends_a_running_gang() -> None:
    limited = record(deadline=START + 60)
    running = gang(NodeState.RUNNING, NodeState.RUNNING)
    assert decide(limited, running, START + 59.9) == Wait()
    action = decide(limited, running, START + 60)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.DEADLINE
    assert "within 60 s" in action.ending.message


def test_a_node_that_never_starts_ends_the_gang() -> None:
    limited = record(start_deadline=START + 300)
    action = decide(limited, gang(NodeState.RUNNING, NodeState.PENDING), START + 300)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.CAPACITY
    assert action.ending.message.startswith("node 1 did not start within 300 s")


def test_a_silent_node_is_lost_only_when_its_reports_can_be_read() -> None:
    watched = record(nodes=1, lost_timeout=120.0)
    status = RunStatus(nodes=(node(0, NodeState.RUNNING, report=report(0)),))
    assert decide(watched, status, START + 119) == Wait()
    action = decide(watched, status, START + 121)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.NODE
    assert decide(watched, replace(status, reports_readable=False), START + 9999) == Wait()


def test_a_gang_without_progress_hangs_though_its_nodes_live() -> None:
    watched = record(hang_timeout=30.0)
    alive = [report(rank, heartbeat_at=START + 500, progress=Progress(updated_at=START)) for rank in range(2)]
    status = RunStatus(nodes=tuple(node(rank, NodeState.RUNNING, report=alive[rank]) for rank in range(2)))
    assert decide(watched, status, START + 80) == Wait()
    action = decide(watched, status, START + 95)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.HANG


def test_a_node_that_hangs_beside_one_that_is_done_is_noticed() -> None:
    watched = record(hang_timeout=30.0)
    done = report(0, phase=Phase.DONE, heartbeat_at=START + 500, finished_at=START + 10)
    stuck = report(1, heartbeat_at=START + 500, progress=Progress(updated_at=START))
    nodes = (node(0, NodeState.SUCCEEDED, report=done), node(1, NodeState.RUNNING, report=stuck))
    assert decide(watched, RunStatus(nodes=nodes), START + 90) == Wait()
    action = decide(watched, RunStatus(nodes=nodes), START + 110)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.HANG


def test_a_node_that_is_saving_its_checkpoint_is_left_alone_for_a_while() -> None:
    failed = node(
        1, NodeState.FAILED, report=report(1, cause=Cause.USER, message="boom"), finished_at=START + 5
    )
    saving = node(0, NodeState.RUNNING, report=report(0, phase=Phase.SAVING))
    status = RunStatus(nodes=(saving, failed))
    assert decide(record(), status, START + 6) == Wait()
    assert isinstance(decide(record(), status, START + 126), Cancel)


def test_a_node_that_was_told_to_stop_says_by_whom() -> None:
    told = node(
        0, NodeState.FAILED, report=report(0, message="told to stop by SIGTERM"), details="exit code 143"
    )
    action = decide(record(nodes=1), RunStatus(nodes=(told,)), START + 5)
    assert action == Fail(Cause.NODE, "node 0: told to stop by SIGTERM")


def test_fetching_data_for_hours_is_no_hang() -> None:
    watched = record(nodes=1, hang_timeout=30.0)
    fetching = report(0, phase=Phase.FETCHING, progress=Progress(updated_at=START))
    status = RunStatus(nodes=(node(0, NodeState.RUNNING, report=fetching),))
    assert decide(watched, status, START + 9999) == Wait()


def test_an_unknown_state_is_waited_out() -> None:
    assert decide(record(), gang(NodeState.RUNNING, NodeState.UNKNOWN), START + 1e6) == Wait()


@pytest.mark.parametrize("seed", range(200))
def test_any_history_ends_in_one_verdict_and_never_in_a_success_with_a_failed_node(seed: int) -> None:
    random_ = random.Random(seed)
    print("seed", seed)
    known = record(nodes=3, deadline=START + 50, start_deadline=START + 20)
    states = [NodeState.PENDING] * 3
    now = START
    for _ in range(500):
        now += random_.uniform(0.1, 3)
        action = decide(known, gang(*states), now)
        if isinstance(action, Succeed | Fail):
            break
        if isinstance(action, Cancel):
            known = replace(known, ending=action.ending)
        states = [_move(state, known.ending is not None, random_) for state in states]
    assert isinstance(action, Succeed | Fail)
    assert all(state.terminal for state in states)
    assert isinstance(action, Succeed) == all(state is NodeState.SUCCEEDED for state in states)


def _move(state: NodeState, ending: bool, random_: random.Random) -> NodeState:
    if state.terminal or random_.random() < 0.6:
        return state
    if ending and random_.random() < 0.8:
        return NodeState.CANCELED
    return {
        NodeState.PENDING: random_.choice([NodeState.RUNNING, NodeState.FAILED, NodeState.UNKNOWN]),
        NodeState.UNKNOWN: NodeState.RUNNING,
        NodeState.RUNNING: random_.choice([NodeState.RUNNING, NodeState.SUCCEEDED, NodeState.FAILED]),
    }[state]


def test_a_record_survives_json_and_stays_small() -> None:
    big = record(
        nodes=8,
        ending=Ending(cause=Cause.USER, message="m" * 200, since=START),
        deadline=START,
        expects=Expectations(checkpoint=True, outputs=("oci://b@n/out",)),
    )
    assert RunRecord.from_json(big.to_json()) == big
    assert len(str(big.to_json())) < 4096


def test_a_node_without_an_agent_is_not_lost_for_its_silence():
    silent = record(nodes=1, lost_timeout=10.0)
    running = gang(NodeState.RUNNING)
    running = replace(running, nodes=(replace(running.nodes[0], started_at=START),))
    assert isinstance(decide(silent, running, START + 60), Cancel)
    without_agent = replace(silent, expects=Expectations(reports=False))
    assert decide(without_agent, running, START + 60) == Wait()


def test_the_failure_of_a_node_without_an_agent_points_at_its_log():
    failed = gang(NodeState.FAILED)
    assert decide(record(nodes=1, expects=Expectations(reports=False)), failed, START + 60) == Fail(
        Cause.USER, "node 0: the service gives no reason; its log says more"
    )


def test_a_node_whose_report_was_not_read_lately_is_not_taken_for_silent_or_stuck() -> None:
    limits = record(lost_timeout=120.0, hang_timeout=1800.0)
    at_work = report(0, heartbeat_at=START + 10, progress=Progress(step=1, updated_at=START + 10))
    nodes = [node(rank, NodeState.RUNNING, report=replace(at_work, rank=rank)) for rank in range(2)]
    unread = RunStatus(nodes=tuple(replace(each, report_at=START + 12) for each in nodes))
    assert decide(limits, unread, START + 10_000) == Wait()
    read = RunStatus(nodes=(nodes[0], replace(nodes[1], report_at=START + 200)))
    action = decide(limits, read, START + 150)
    assert isinstance(action, Cancel)
    assert "node 0 has shown no sign of life for 140 s" in action.ending.message


def test_of_two_nodes_only_the_one_that_is_known_to_be_silent_is_lost() -> None:
    beating = node(0, NodeState.RUNNING, report=report(0, heartbeat_at=START), report_at=START + 1)
    silent = node(1, NodeState.RUNNING, report=report(1, heartbeat_at=START), report_at=START + 300)
    action = decide(record(lost_timeout=120.0), RunStatus(nodes=(beating, silent)), START + 310)
    assert isinstance(action, Cancel)
    assert "node 1" in action.ending.message
    assert "300 s" in action.ending.message
