"""The supervisor's decisions, on a clock that only the test moves."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Action, Cancel, Fail, Succeed, Wait
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.model.report import Phase
from airflow_provider_ocidist.model.run import Ending, Expectations, Lacking, NodeState, RunRecord, RunStatus
from tests.gangs.records import CHECKPOINT, START, gang, node, record, report, trained, watched


def test_waits_while_nodes_start_and_run() -> None:
    for states in [(NodeState.PENDING, NodeState.PENDING), (NodeState.RUNNING, NodeState.PENDING)]:
        assert decide(record(), gang(*states), START + 5) == Wait()


def test_succeeds_when_every_node_has_succeeded() -> None:
    assert (
        decide(record(), RunStatus(nodes=(trained(0, checkpoint=CHECKPOINT), trained(1))), START + 5)
        == Succeed()
    )


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
    assert "their reports cannot be read, in oci://b@n/work/x" in action.message
    assert isinstance(decide(replace(record(), unread_since=START), status, START + 10801), Fail)
    # One look in an hour, as of a sensor: four of them find what is missing.
    assert decide(waiting, replace(status, doubtful=(Lacking.REPORT,)), START + 99_999) == Wait()
    nobody_reports = record(expects=Expectations(reports=False))
    assert decide(nobody_reports, status, START) == Succeed()


def test_one_failed_node_ends_the_others_with_its_cause() -> None:
    failed = report(1, exit_code=3, cause=Cause.USER, message="ValueError: boom")
    status = RunStatus(nodes=(node(0, NodeState.RUNNING), node(1, NodeState.FAILED, report=failed)))
    action = decide(record(), status, START + 5)
    assert action == Cancel(
        Ending(cause=Cause.USER, message="node 1: ValueError: boom (exit code 3)", since=START + 5)
    )


def test_an_ended_gang_fails_for_the_reason_it_was_ended() -> None:
    ending = Ending(cause=Cause.HANG, message="stuck", since=START)
    status = gang(NodeState.CANCELED, NodeState.CANCELED)
    assert decide(record(ending=ending), status, START + 5) == Fail(Cause.HANG, "stuck")


def test_a_gang_that_finished_before_the_cancel_took_hold_has_succeeded() -> None:
    ending = Ending(cause=Cause.DEADLINE, message="late", since=START)
    status = RunStatus(nodes=(trained(0, checkpoint=CHECKPOINT), trained(1)))
    assert decide(record(ending=ending), status, START + 5) == Succeed()


def test_a_node_that_does_not_hear_the_cancel_is_cancelled_again_after_a_while() -> None:
    ending = Ending(cause=Cause.USER, message="x", since=START)
    status = gang(NodeState.RUNNING, NodeState.CANCELED)
    assert decide(record(ending=ending), status, START + 14) == Wait()
    again = decide(record(ending=ending), status, START + 15)
    assert again == Cancel(Ending(cause=Cause.USER, message="x", since=START + 15, began=START))


def test_a_node_that_is_saving_its_checkpoint_is_left_alone_for_a_while() -> None:
    failed = node(
        1, NodeState.FAILED, report=report(1, cause=Cause.USER, message="boom"), finished_at=START + 5
    )
    saving = node(0, NodeState.RUNNING, report=report(0, phase=Phase.SAVING))
    status = RunStatus(nodes=(saving, failed))
    assert watched(record(), (START + 6, status), (START + 125, status)) == Wait()
    assert isinstance(watched(record(), (START + 6, status), (START + 127, status)), Cancel)


def test_a_failure_that_only_the_node_reported_leaves_those_that_save_no_longer_than_any_other() -> None:
    failed = node(1, NodeState.SUCCEEDED, report=report(1, phase=Phase.DONE, exit_code=1))
    saving = node(0, NodeState.RUNNING, report=report(0, phase=Phase.SAVING))
    status = RunStatus(nodes=(saving, failed))
    assert watched(record(), (START + 6, status), (START + 125, status)) == Wait()
    assert isinstance(watched(record(), (START + 6, status), (START + 127, status)), Cancel)


@pytest.mark.parametrize("other", [NodeState.RUNNING, NodeState.SUCCEEDED, NodeState.CANCELED])
def test_a_failure_is_not_judged_before_its_report_could_be_read(other: NodeState) -> None:
    """What a node says of its own failure decides about retries; one bad moment of the store hides it."""
    failed = node(1, NodeState.FAILED, report=report(1, phase=Phase.DONE, exit_code=1, cause=Cause.USER))
    beside = node(0, other, report=report(0, phase=Phase.DONE, exit_code=0))
    readable = RunStatus(nodes=(beside, failed))
    hidden = RunStatus(
        nodes=tuple(replace(each, report=None) for each in readable.nodes), reports_readable=False
    )
    known = record(unread_since=START + 6) if hidden.ended else record()
    at_last = Cause.CANCELED if other is NodeState.CANCELED else Cause.NODE
    looks = [(START + 6, hidden), (START + 66, hidden)]
    assert watched(known, *looks) == Wait()
    assert cause_of(watched(known, *looks, (START + 67, readable))) is Cause.USER
    assert cause_of(watched(known, *looks, (START + 127, hidden))) is at_last
    assert cause_of(watched(known, (START + 6, _for_want_of_machines(hidden)))) is Cause.CAPACITY


def _for_want_of_machines(status: RunStatus) -> RunStatus:
    nodes = (
        replace(each, cause=Cause.CAPACITY) if each.state is NodeState.FAILED else each
        for each in status.nodes
    )
    return replace(status, nodes=tuple(nodes))


def cause_of(action: Action) -> Cause:
    assert isinstance(action, Cancel | Fail)
    return action.cause if isinstance(action, Fail) else action.ending.cause


def test_an_ending_that_an_older_version_has_begun_is_limited_too() -> None:
    ending = Ending(cause=Cause.USER, message="x", since=START)
    assert isinstance(decide(record(ending=ending), gang(NodeState.RUNNING), START + 1800), Fail)
    again = decide(record(ending=ending), gang(NodeState.RUNNING), START + 1799)
    assert isinstance(again, Cancel)
    assert (again.ending.first, again.ending.since) == (START, START + 1799)


def test_an_unknown_state_is_waited_out() -> None:
    assert decide(record(), gang(NodeState.RUNNING, NodeState.UNKNOWN), START + 1e6) == Wait()


@pytest.mark.parametrize("seed", range(200))
def test_any_history_ends_in_one_verdict_and_never_in_a_success_with_a_failed_node(seed: int) -> None:
    random_ = random.Random(seed)
    print("seed", seed)
    known = record(
        nodes=3, deadline=START + 50, start_deadline=START + 20, expects=Expectations(reports=False)
    )
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
