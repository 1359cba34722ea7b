"""Each limit of the supervisor to its very moment, and each condition of a rule by itself (docs/failures/waits.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.decisions import (
    NOT_NEEDED,
    Action,
    Cancel,
    Fail,
    GoOnWithout,
    Replace,
    Succeed,
    Wait,
    decide,
    unread,
)
from airflow_provider_ocidist.job import Restarts
from airflow_provider_ocidist.model.budget import Budget
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.report import Phase, Progress
from airflow_provider_ocidist.model.run import Ending, Expectations, NodeState, NodeStatus, RunStatus
from tests.gangs.test_decisions import START, gang, node, record, report, trained, watched
from tests.gangs.test_elastic_rules import DONE, FEWER, elastic, fewer, waiting
from tests.gangs.test_replacement_rules import (
    LOST,
    NOW,
    a_gang,
    a_node,
    a_record,
    a_ref,
    a_report,
    gone,
    looked,
)

RUNNING, PENDING, FAILED, SUCCEEDED = (
    NodeState.RUNNING,
    NodeState.PENDING,
    NodeState.FAILED,
    NodeState.SUCCEEDED,
)


def ending_of(action: Action) -> Ending:
    assert isinstance(action, Cancel)
    return action.ending


def failure_of(action: Action) -> tuple[Cause, str]:
    assert isinstance(action, Fail)
    return action.cause, action.message


# To the moment


def hidden(*states: NodeState) -> RunStatus:
    """Return a gang whose reports cannot be read."""
    return gang(*states, reports_readable=False)


def test_unread_reports_of_a_gang_that_has_ended_are_waited_for_to_the_end_of_the_limit() -> None:
    known = record(unread_since=START)
    for status, limit in ((hidden(FAILED, SUCCEEDED), 120.0), (hidden(SUCCEEDED, SUCCEEDED), 1800.0)):
        assert decide(known, status, START + limit - 0.5) == Wait()
        assert isinstance(decide(known, status, START + limit), Fail)
        assert decide(record(), status, START + 10_000) == Wait(), (
            "the time counts from the first look that failed"
        )


def test_unread_reports_of_a_gang_that_is_being_ended_are_not_waited_for_where_a_node_has_failed() -> None:
    known = record(unread_since=START, ending=Ending(cause=Cause.DEADLINE, message="late", since=START))
    assert failure_of(decide(known, hidden(FAILED, SUCCEEDED), START)) == (Cause.DEADLINE, "late")


def test_without_agents_no_reports_are_waited_for() -> None:
    known = record(expects=Expectations(reports=False))
    assert isinstance(decide(known, hidden(FAILED, SUCCEEDED), START), Fail)
    assert isinstance(decide(known, hidden(FAILED, RUNNING), START), Cancel)


def test_what_cannot_be_read_is_named() -> None:
    ended = gang(SUCCEEDED, SUCCEEDED)
    assert unread(record(), ended) == "their reports cannot be read, in oci://b@n/work/x"
    assert (
        unread(record(), replace(ended, checkpoint_problem="no route to the bucket"))
        == "no route to the bucket"
    )
    known = record(unread_since=START)
    lost = replace(ended, checkpoint_problem="no route to the bucket", checkpoint_readable=False)
    nodes = tuple(
        replace(each, report=report(each.rank, phase=Phase.DONE, exit_code=0)) for each in lost.nodes
    )
    cause, message = failure_of(decide(known, replace(lost, nodes=nodes), START + 1800))
    assert cause is Cause.SERVICE
    assert "but no route to the bucket; once it can be read, a retry adopts this run" in message


SAVING = RunStatus(
    nodes=(
        node(0, RUNNING, report=report(0, phase=Phase.SAVING)),
        node(1, FAILED, report=report(1, cause=Cause.USER, message="boom")),
    )
)


@pytest.mark.parametrize("status", [SAVING, hidden(RUNNING, FAILED)], ids=["saving", "unread"])
def test_a_failure_is_left_for_two_minutes_to_those_that_save_and_to_reports_that_cannot_be_read(
    status: RunStatus,
) -> None:
    assert decide(looked(record(), status, 119.5), status, START) == Wait()
    assert isinstance(decide(looked(record(), status, 120.0), status, START), Cancel)


@pytest.mark.parametrize("state", [NodeState.PENDING, NodeState.ENDING, NodeState.CANCELED])
def test_only_a_node_that_runs_can_save(state: NodeState) -> None:
    status = replace(SAVING, nodes=(replace(SAVING.nodes[0], state=state), SAVING.nodes[1]))
    if status.ended:
        assert isinstance(decide(record(), status, START), Fail)
    else:
        assert isinstance(decide(record(), status, START), Cancel)


def test_a_node_may_be_silent_for_exactly_as_long_as_the_limit_says() -> None:
    known = record(nodes=1, lost_timeout=120.0, save_timeout=600.0)
    for phase, limit in ((Phase.TRAINING, 120.0), (Phase.SAVING, 720.0)):
        status = RunStatus(nodes=(node(0, RUNNING, report=report(0, phase=phase)),))
        assert decide(looked(known, status, limit), status, START) == Wait()
        assert ending_of(decide(looked(known, status, limit + 0.5), status, START)).cause is Cause.NODE
    without = replace(known, lost_timeout=None)
    assert decide(looked(without, status, 9999.0), status, START) == Wait()


def test_a_silent_node_is_named_also_beside_one_that_saves_or_runs_no_more() -> None:
    silent = report(2)
    for first in (
        node(0, RUNNING, report=report(0, phase=Phase.SAVING)),
        node(0, NodeState.ENDING, report=report(0)),
    ):
        status = RunStatus(nodes=(first, node(2, RUNNING, report=silent)))
        known = looked(record(lost_timeout=120.0), status, 121.0)
        assert ending_of(decide(known, status, START)).message == (
            "node 2 has sent no heartbeat for 121 s (limits.lost_timeout)"
        )


def test_a_gang_has_to_start_before_the_limit_of_its_job() -> None:
    known = record(start_deadline=START + 300)
    never, again = (
        gang(RUNNING, PENDING),
        ((START, gang(RUNNING, RUNNING)), (START + 10, gang(RUNNING, PENDING))),
    )
    assert decide(known, never, START + 299.5) == Wait()
    assert isinstance(decide(known, never, START + 300), Cancel)
    assert watched(known, *again, (START + 309.5, never)) == Wait()
    assert isinstance(watched(known, *again, (START + 310, never)), Cancel)
    assert decide(replace(known, start_deadline=None), never, START + 9999) == Wait()
    # In the place of a lost node, from when it was asked for.
    waits = a_gang(a_node(1, PENDING, report=None))
    lost = a_record(a_ref(replaced=(LOST,)), replace_timeout=100.0)
    assert decide(looked(lost, waits, 99.5), waits, NOW) == Wait()
    assert isinstance(decide(looked(lost, waits, 100.0), waits, NOW), Cancel)


def test_why_nodes_have_not_started_is_what_the_service_says_of_the_first() -> None:
    waits = [
        node(0, PENDING, details="queued"),
        node(1, PENDING, cause=Cause.CAPACITY),
        node(2, PENDING, cause=Cause.QUOTA, details="the limit is 2"),
        node(3, PENDING, cause=Cause.CONFIG, details="no such image"),
        node(4, RUNNING, cause=Cause.OOM, details="not asked"),
    ]
    known = record(nodes=5, start_deadline=START + 300)

    def said(*nodes: NodeStatus) -> tuple[Cause, str]:
        found = ending_of(decide(known, RunStatus(nodes=nodes), START + 300))
        return found.cause, found.message

    assert said(*waits) == (
        Cause.QUOTA,
        "nodes 0, 1, 2, 3 did not start within 300 s (limits.start_timeout): the limit is 2",
    )
    for each in (waits[0], waits[1]):
        cause, message = said(each, waits[4])
        assert cause is Cause.CAPACITY
        assert message.startswith(
            f"node {each.rank} did not start within 300 s (limits.start_timeout): no machine was free, or it cannot"
        )


def test_the_last_loss_is_the_reason_where_no_machine_comes_for_several() -> None:
    lost = (LOST, replace(LOST, rank=2, cause=Cause.PREEMPTED, message="node 2: preempted"))
    waits = a_gang(a_node(1, PENDING, report=None), a_node(2, PENDING, report=None))
    known = looked(a_record(a_ref(replaced=lost), replace_timeout=100.0), waits, 100.0)
    found = ending_of(decide(known, waits, NOW))
    assert found.cause is Cause.PREEMPTED
    assert found.message.startswith("node 2: preempted; no machine has taken its place within 100 s")


def test_the_last_loss_of_a_rank_is_the_reason_where_the_service_refuses_another_machine() -> None:
    lost = (
        LOST,
        replace(LOST, step=5, cause=Cause.PREEMPTED, message="node 1: preempted"),
        replace(LOST, rank=2),
    )
    refused = gone(cause=Cause.CAPACITY, details="Out of host capacity.", report=None)
    found = ending_of(decide(a_record(a_ref(replaced=lost)), a_gang(refused), NOW))
    assert (found.cause, found.message) == (
        Cause.PREEMPTED,
        "node 1: preempted; no machine has taken its place: node 1: Out of host capacity.",
    )


@pytest.mark.parametrize(
    "refused, cause",
    [
        (gone(cause=Cause.CAPACITY, details="none", report=a_report(1, progress=None)), Cause.CAPACITY),
        (gone(2, cause=Cause.CAPACITY, details="none", report=None), Cause.CAPACITY),
        (gone(cause=Cause.CONFIG, details="none", report=None), Cause.CONFIG),
    ],
    ids=["it had started", "not one that was replaced", "not for want of a machine"],
)
def test_a_node_that_ends_for_a_reason_of_its_own_has_that_reason(refused: NodeStatus, cause: Cause) -> None:
    known = a_record(a_ref(replaced=(LOST,)))
    assert ending_of(decide(known, a_gang(refused), NOW)).cause is cause


# A stop


@pytest.mark.parametrize("state", NodeState)
def test_only_nodes_that_have_not_begun_to_end_are_cancelled_again(state: NodeState) -> None:
    began = Ending(cause=Cause.USER, message="x", since=START + 20, began=START)
    status = gang(NodeState.ENDING, state)
    action = decide(record(ending=began), status, START + 35)
    if state in (NodeState.PENDING, NodeState.RUNNING):
        assert action == Cancel(Ending(cause=Cause.USER, message="x", since=START + 35, began=START))
        assert decide(record(ending=began), status, START + 34.5) == Wait()
    else:
        assert action == Wait()


def test_a_gang_that_ends_is_looked_at_for_nothing_else() -> None:
    began = Ending(cause=Cause.USER, message="x", since=START)
    status = RunStatus(nodes=(node(0, FAILED, report=report(0, cause=Cause.OOM)), node(1, NodeState.ENDING)))
    assert decide(record(ending=began, deadline=START), status, START + 60) == Wait()
    known = record(ending=began, ending_limit=100.0)
    assert decide(known, status, START + 99.5) == Wait()
    assert failure_of(decide(known, status, START + 100))[0] is Cause.USER


@pytest.mark.parametrize("cause", [Cause.NODE, Cause.HANG, Cause.USER, Cause.CANCELED])
def test_a_preemption_explains_only_what_may_follow_from_it(cause: Cause) -> None:
    preempted = node(1, FAILED, cause=Cause.PREEMPTED, details="taken back")
    status = RunStatus(nodes=(node(0, NodeState.CANCELED), preempted))
    known = record(ending=Ending(cause=cause, message="as asked", since=START))
    follows = cause in (Cause.NODE, Cause.HANG)
    assert failure_of(decide(known, status, START + 5)) == (
        (Cause.PREEMPTED, "node 1: taken back") if follows else (cause, "as asked")
    )


def test_what_waits_to_take_part_is_cancelled_for_a_reason_that_is_no_failure() -> None:
    late = a_node(2, report=a_report(2, phase=Phase.JOINING, restarts=(LOST, FEWER)))
    done = [replace(each, state=SUCCEEDED) for each in fewer(**DONE).nodes]
    action = decide(elastic(), RunStatus(nodes=(*done, late)), NOW)
    assert action == Cancel(Ending(cause=Cause.CANCELED, message=NOT_NEEDED, since=NOW), of_the_rest=True)
    assert Cancel(Ending(cause=Cause.USER, message="m", since=NOW)).of_the_rest is False
    assert Succeed().warning is None


def test_a_success_is_returned_with_its_doubt() -> None:
    nothing = tuple(trained(rank, trained_for=5.0) for rank in range(2))
    action = decide(record(), RunStatus(nodes=nothing), START)
    assert isinstance(action, Succeed)
    assert "it probably trained nothing" in (action.warning or "")


def test_of_nodes_that_have_lost_others_the_one_that_says_so_is_blamed_and_not_one_that_was_stopped() -> None:
    stopped = node(0, FAILED, report=report(0, message="stopped by node 1"), finished_at=START)
    for cause in (Cause.NODE, Cause.HANG):
        says = node(1, FAILED, report=report(1, cause=cause, message="no answer"), finished_at=START + 9)
        found = decide(record(), RunStatus(nodes=(stopped, says)), START + 10)
        assert failure_of(found) == (cause, "node 1: no answer")


# Who waited for whom


VAIN = report(0, phase=Phase.DONE, cause=Cause.NODE, message="node 1 did not come", exit_code=69)


def who_waited(*absent: NodeStatus, **changes: Any) -> tuple[Cause, str]:
    waited = node(0, FAILED, report=replace(VAIN, **changes))
    found = ending_of(decide(record(nodes=1 + len(absent)), RunStatus(nodes=(waited, *absent)), START))
    return found.cause, found.message


def test_a_node_that_waited_in_vain_for_one_without_a_machine_is_not_at_fault() -> None:
    queued = node(1, PENDING, cause=Cause.QUOTA, details="the limit is 2")
    assert who_waited(queued) == (
        Cause.QUOTA,
        "node 1 had no machine while others waited for it: the limit is 2; node 1 did not come",
    )
    assert who_waited(node(1, PENDING), node(2, PENDING)) == (
        Cause.CAPACITY,
        "nodes 1, 2 had no machine while others waited for it: no machine was free; node 1 did not come",
    )
    # What is no want of a machine is no cause, but may say why.
    paused = node(1, PENDING, cause=Cause.CANCELED, details="paused")
    assert who_waited(paused, node(2, PENDING))[0] is Cause.CAPACITY
    assert "for it: paused; " in who_waited(node(1, PENDING), replace(paused, rank=2))[1]
    assert who_waited(paused, replace(queued, rank=2, run_id="run2"))[0] is Cause.QUOTA


@pytest.mark.parametrize(
    "absent, changes",
    [
        (node(1, PENDING), {"trained_for": 5.0}),
        (node(1, PENDING), {"cause": Cause.HANG}),
        (node(1, RUNNING), {}),
        (node(1, PENDING, report=report(1)), {}),
        (node(1, PENDING, run_id="run0"), {}),
    ],
    ids=["it has trained", "another cause", "a machine is there", "it has reported", "the same run"],
)
def test_a_node_that_failed_for_another_reason_has_that_reason(absent: NodeStatus, changes: Any) -> None:
    cause, message = who_waited(absent, **changes)
    assert cause is changes.get("cause", Cause.NODE)
    assert message == "node 0: node 1 did not come (exit code 69)"


# Which nodes are replaced


@pytest.mark.parametrize("code", [143, -9, 1, None])
def test_a_node_that_was_stopped_with_its_machine_is_lost_whatever_its_exit_code(code: int | None) -> None:
    stopped = gone(report=a_report(1, phase=Phase.DONE, exit_code=code))
    assert isinstance(decide(a_record(), a_gang(stopped), NOW), Replace)


def test_while_no_other_node_runs_nothing_is_replaced() -> None:
    paused = [a_node(rank, PENDING) for rank in (0, 2)]
    assert isinstance(decide(a_record(), a_gang(gone(), *paused), NOW), Cancel)
    assert isinstance(decide(a_record(), a_gang(gone(), paused[0]), NOW), Replace)


@pytest.mark.parametrize(
    "alone", [gone(), gone(2, report=a_report(2, cause=Cause.USER, message="ValueError"))]
)
def test_one_node_that_failed_by_itself_is_enough_to_end_the_gang(alone: NodeStatus) -> None:
    by_itself = gone(0, report=a_report(0, cause=Cause.USER, message="ValueError"))
    assert ending_of(decide(a_record(), a_gang(by_itself, alone), NOW)).cause is Cause.USER


TWICE = (LOST, replace(LOST, step=5))


def in_launch(*launches: Any, lost: Any) -> RunStatus:
    """Return a gang whose other nodes have agreed on these launches, and whose lost node knew of those."""
    others = [a_node(rank, report=a_report(rank, restarts=launches)) for rank in (0, 2)]
    report = None if lost is None else a_report(1, restarts=lost)
    return a_gang(gone(report=report), *others)


def test_a_loss_costs_a_launch_of_the_budget_unless_the_others_have_agreed_on_it_already() -> None:
    assert isinstance(decide(a_record(), in_launch(*TWICE, lost=TWICE), NOW), Cancel), "both are used"
    assert isinstance(decide(a_record(), in_launch(*TWICE, lost=TWICE[:1]), NOW), Replace)
    assert isinstance(
        decide(a_record(restarts=Restarts(node=3)), in_launch(*TWICE, lost=TWICE), NOW), Replace
    )
    one = a_record(restarts=Restarts(node=1))
    assert isinstance(decide(one, in_launch(LOST, lost=(LOST,)), NOW), Cancel)
    assert isinstance(decide(one, in_launch(LOST, lost=()), NOW), Replace)
    assert isinstance(decide(one, in_launch(LOST, lost=None), NOW), Replace), "it took part in none"


def test_a_node_is_replaced_also_before_a_further_launch_has_come_to_a_step() -> None:
    lost = gone(report=a_report(1, progress=None, restarts=(LOST,)))
    others = [a_node(rank, report=a_report(rank, progress=None, restarts=(LOST,))) for rank in (0, 2)]
    assert isinstance(decide(a_record(), a_gang(lost, *others), NOW), Replace)
    first = [replace(each, report=a_report(each.rank, progress=None)) for each in (lost, *others)]
    assert isinstance(decide(a_record(), a_gang(*first), NOW), Cancel)


def test_a_preempted_node_costs_no_launch() -> None:
    status = in_launch(*TWICE, lost=TWICE)
    preempted = replace(
        status,
        nodes=tuple(
            replace(each, cause=Cause.PREEMPTED) if each.rank == 1 else each for each in status.nodes
        ),
    )
    assert isinstance(decide(a_record(), preempted, NOW), Replace)


def test_a_replacement_does_not_keep_a_gang_beyond_its_deadline_or_its_budget() -> None:
    began = tuple(replace(each, started_at=NOW - 1000) for each in a_gang(gone()).nodes)
    status = RunStatus(nodes=began)
    known = a_record(expects=Expectations(reports=False), start_deadline=NOW - 1, hang_timeout=1.0)
    longer = looked(known, status, 500.0)
    assert isinstance(decide(longer, status, NOW), Replace), "other limits wait for the replacement"
    assert ending_of(decide(replace(known, deadline=NOW), status, NOW)).cause is Cause.DEADLINE
    assert isinstance(decide(replace(known, deadline=NOW + 0.5), status, NOW), Replace)
    spent = replace(known, budget=Budget(node_seconds=3000.0))
    assert ending_of(decide(spent, status, NOW)).cause is Cause.BUDGET
    assert isinstance(decide(replace(known, budget=Budget(node_seconds=3000.5)), status, NOW), Replace)


def test_a_gang_does_not_go_on_with_fewer_beyond_its_deadline_or_its_budget() -> None:
    nodes = (waiting(0), waiting(1), gone(2))
    status = RunStatus(nodes=tuple(replace(each, started_at=NOW - 1000) for each in nodes))
    known = elastic(irreplaceable="the limit of the service", expects=Expectations(reports=False))
    cases: list[tuple[dict[str, Any], Cause | None]] = [
        ({}, None),
        ({"deadline": NOW + 0.5}, None),
        ({"deadline": NOW}, Cause.DEADLINE),
        ({"budget": Budget(node_seconds=3000.5)}, None),
        ({"budget": Budget(node_seconds=3000.0)}, Cause.BUDGET),
    ]
    for changes, cause in cases:
        action = decide(replace(known, **changes), status, NOW)
        assert isinstance(action, GoOnWithout) if cause is None else ending_of(action).cause is cause


# With fewer nodes


def test_a_node_that_waits_to_take_part_costs_too_and_its_silence_does_not_count() -> None:
    late = a_node(2, report=a_report(2, phase=Phase.JOINING, restarts=(LOST, FEWER)))
    status = fewer(late)
    began = replace(status, nodes=tuple(replace(each, started_at=NOW - 1000) for each in status.nodes))
    known = elastic(expects=Expectations(reports=False))
    assert decide(replace(known, budget=Budget(node_seconds=3000.5)), began, NOW) == Wait()
    assert (
        ending_of(decide(replace(known, budget=Budget(node_seconds=3000.0)), began, NOW)).cause
        is Cause.BUDGET
    )


def test_agents_have_five_minutes_each_to_end_by_themselves_when_the_budget_is_used() -> None:
    known = record(budget=Budget(node_seconds=1000.0))
    for each, expected in ((799.5, Wait), (800.0, Cancel)):
        nodes = (node(rank, RUNNING, started_at=START - each) for rank in range(2))
        assert isinstance(decide(known, RunStatus(nodes=tuple(nodes)), START), expected)


def test_a_node_that_pauses_is_not_taken_for_one_that_was_not_replaced() -> None:
    known = elastic(start_deadline=None)
    running = a_gang()
    paused = a_gang(a_node(2, PENDING, report=None))
    begun = looked(known, running, 10.0)
    waited = looked(begun, paused, 1000.0)
    assert decide(waited, paused, NOW) == Wait()
    elsewhere = replace(waited, ref=a_ref(replaced=(LOST,)))
    assert decide(elsewhere, paused, NOW) == Wait(), "another was replaced"
    its_own = replace(waited, ref=a_ref(replaced=(replace(LOST, rank=2),)))
    assert isinstance(decide(its_own, paused, NOW), GoOnWithout)


def test_a_gang_does_not_go_on_without_a_node_while_another_has_failed_by_itself() -> None:
    known = elastic(a_ref(replaced=(replace(LOST, rank=2),)))
    failed = gone(0, report=a_report(0, cause=Cause.USER, message="ValueError", restarts=(LOST,)))
    status = RunStatus(nodes=(failed, waiting(1), a_node(2, PENDING, report=None)))
    assert ending_of(decide(looked(known, status, 100.0), status, NOW)).cause is Cause.USER


@pytest.mark.parametrize(
    "changes",
    [{"reports_readable": False}, {"replaces": False}, {"others": Phase.DONE}],
    ids=["unread", "nobody replaces", "the others are done"],
)
def test_a_gang_goes_on_without_a_node_only_where_it_can(changes: dict[str, Any]) -> None:
    ref = a_ref(replaced=(replace(LOST, rank=2),), replaces=changes.get("replaces", True))
    known = elastic(ref, start_deadline=None)
    first = a_node(0, report=a_report(0, phase=changes.get("others", Phase.FETCHING), restarts=(LOST,)))
    status = RunStatus(nodes=(first, waiting(1), a_node(2, PENDING, report=None)))
    measured = looked(known, status, 100.0)
    seen = replace(status, reports_readable=changes.get("reports_readable", True))
    assert decide(measured, seen, NOW) == Wait()


@pytest.mark.parametrize(
    "status, grows",
    [
        (fewer(gone(2)), True),
        (fewer(gone(2), phase=Phase.SAVING), True),
        (fewer(gone(2), phase=Phase.DONE), False),
        (fewer(a_node(2, PENDING, report=None)), False),
        (fewer(a_node(2, NodeState.MISSING)), True),
    ],
    ids=["trains", "saves", "is done", "asked for already", "gone"],
)
def test_a_gang_that_is_fewer_asks_for_machines_while_it_trains(status: RunStatus, grows: bool) -> None:
    action = decide(looked(elastic(start_deadline=None), status, 50.0), status, NOW)
    assert isinstance(action, Replace) == grows
    if isinstance(action, Replace):
        assert [(each.rank, each.message) for each in action.failures] == [(2, "node 2 is asked for again")]


def test_the_longest_step_of_any_node_says_how_long_a_step_may_take() -> None:
    def alive(*longest: float | None) -> RunStatus:
        reports = [
            report(rank, progress=None if each is None else Progress(updated_at=START, longest_step=each))
            for rank, each in enumerate(longest)
        ]
        nodes = (node(rank, RUNNING, report=each) for rank, each in enumerate(reports))
        return RunStatus(nodes=tuple(nodes))

    known = record(hang_timeout=30.0)
    for status, limit in ((alive(0.0, 100.0), 260.0), (alive(100.0, 0.0), 260.0), (alive(None, None), 90.0)):
        assert decide(looked(known, status, limit), status, START) == Wait()
        assert ending_of(decide(looked(known, status, limit + 0.5), status, START)).cause is Cause.HANG
    short = replace(known, hang_timeout=1.0)
    assert decide(looked(short, status, 61.0), status, START) == Wait()
    assert isinstance(decide(looked(short, status, 61.5), status, START), Cancel)
    unmeasured = replace(known, hang_timeout=None)
    assert decide(looked(unmeasured, status, 9999.0), status, START) == Wait()


def test_nodes_that_end_have_exactly_as_long_as_the_limit_says() -> None:
    status = gang(NodeState.ENDING, SUCCEEDED)
    assert decide(looked(record(ending_limit=60.0), status, 60.0), status, START) == Wait()
    found = ending_of(decide(looked(record(ending_limit=60.0), status, 60.5), status, START))
    assert (found.cause, found.since) == (Cause.SERVICE, START)


@pytest.mark.parametrize("progress", [Progress(step=1), None])
def test_nodes_that_are_lost_at_once_are_no_crash_loop_wherever_they_stood(progress: Progress | None) -> None:
    saved = CheckpointRef(uri="oci://b@n/step-1", step=None, digest="d")
    reports = [a_report(rank, progress=progress, checkpoint=saved) for rank in range(3)]
    status = a_gang(gone(0, report=reports[0]), gone(2, report=reports[2]), a_node(1, report=reports[1]))
    assert isinstance(decide(a_record(), status, NOW), Replace)


def test_a_missing_machine_is_asked_for_whatever_another_that_takes_no_part_does() -> None:
    late = a_node(3, NodeState.ENDING, report=a_report(3, phase=Phase.DONE, restarts=(LOST, FEWER)))
    status = fewer(gone(2), late)
    known = elastic(a_ref(4), start_deadline=None)
    assert isinstance(decide(looked(known, status, 50.0), status, NOW), Replace)


def test_a_budget_of_money_is_used_at_the_price_of_a_node() -> None:
    known = record(expects=Expectations(reports=False), budget=Budget(cost=3.0))
    known = replace(known, ref=replace(known.ref, price=3.6))
    for seconds, expected in ((1499.0, Wait), (1501.0, Cancel)):
        nodes = (node(rank, RUNNING, started_at=START - seconds) for rank in range(2))
        assert isinstance(decide(known, RunStatus(nodes=tuple(nodes)), START), expected)


def test_why_a_node_that_waits_is_ended_is_said() -> None:
    said = "the training has ended; what waited to take part is ended too"
    assert said == NOT_NEEDED
