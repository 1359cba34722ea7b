"""Whether a gang that has lost a machine is made anew in the same try, and how far it had come: pure rules."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from airflow_provider_ocidist.agent.join.peer_reports import REPORTED_WITHIN
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs import another_gang
from airflow_provider_ocidist.gangs.another_gang import lost_gang
from airflow_provider_ocidist.job import Restarts
from airflow_provider_ocidist.model.attempts import End
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress, Restart
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunStatus

BUDGETS = Restarts(node=2)
LOST = Restart(cause=Cause.NODE, message="m", step=10)
PREEMPTED = replace(LOST, cause=Cause.PREEMPTED)


@pytest.mark.parametrize("cause", sorted(set(Cause) - {Cause.NODE, Cause.PREEMPTED}))
def test_only_the_loss_of_a_machine_is_made_up_for(cause: Cause) -> None:
    assert (
        another_gang.why_no_gang(Restarts(program=9, hang=9, node=9), [], replace(LOST, cause=cause))
        is not None
    )


def test_each_lost_machine_costs_one_of_the_budget() -> None:
    before = [replace(LOST, step=step) for step in (1, 2)]
    assert another_gang.why_no_gang(BUDGETS, before[:1], LOST) is None
    assert another_gang.why_no_gang(BUDGETS, before, LOST) == "all 2 of restarts.node are used"


def test_a_preemption_costs_nothing() -> None:
    before = [replace(PREEMPTED, step=step) for step in range(9)]
    assert another_gang.why_no_gang(BUDGETS, before, PREEMPTED) is None
    assert another_gang.why_no_gang(BUDGETS, [*before, replace(LOST, step=9)], LOST) is None
    assert another_gang.why_no_gang(Restarts(program=1), before, PREEMPTED) is None
    assert another_gang.why_no_gang(Restarts(), [], PREEMPTED) is not None


def test_a_gang_that_came_no_further_than_one_before_is_left_to_airflow() -> None:
    assert "for the second time" in (another_gang.why_no_gang(Restarts(node=9), [LOST], LOST) or "")


@pytest.mark.parametrize("step", [None, 10])
def test_a_gang_that_was_preempted_is_made_again_however_often_that_happens_at_one_step(
    step: int | None,
) -> None:
    # A service that takes a machine back knows nothing of the program, and proves nothing about it.
    preempted = replace(PREEMPTED, step=step, checkpoint="a")
    for times in range(9):
        assert another_gang.why_no_gang(Restarts(node=1), [preempted] * times, preempted) is None


def test_what_the_program_failed_with_in_the_gangs_of_a_try_is_handed_on_and_no_loss_of_a_machine() -> None:
    crashed = Restart(cause=Cause.USER, message="m", step=3)
    hung = replace(LOST, hang=True)
    ends = [
        End(succeeded=False, try_number=1, restarts=(replace(crashed, step=1),)),
        End(succeeded=False, try_number=2, restarts=(LOST, crashed), failure=LOST),
        End(succeeded=False),
        End(succeeded=False, try_number=2, restarts=(PREEMPTED, hung)),
    ]
    assert another_gang.of_program(ends, 2) == (crashed, hung)
    assert another_gang.of_program(ends, 3) == ()


def test_a_gang_that_waits_for_a_further_launch_has_trained() -> None:
    report = NodeReport(rank=0, phase=Phase.FETCHING, address="a", started_at=0.0, heartbeat_at=1.0)
    for restarts, has_trained in (((), False), ((LOST,), True)):
        node = NodeStatus(
            rank=0, run_id="run", state=NodeState.FAILED, report=replace(report, restarts=restarts)
        )
        failure = another_gang.lost_gang(Cause.NODE, "m", RunStatus(nodes=(node,)))
        assert (failure is not None) is has_trained


# How far it had come

REPORT = NodeReport(rank=0, phase=Phase.TRAINING, address="a", started_at=0.0, heartbeat_at=1.0)
SAVED = CheckpointRef(uri="oci://b@n/step-8", step=8, digest="d8")


def gang(*reports: NodeReport | None, stored: CheckpointRef | None = None) -> RunStatus:
    nodes = (
        NodeStatus(
            rank=rank, run_id="run", state=NodeState.FAILED, report=report and replace(report, rank=rank)
        )
        for rank, report in enumerate(reports)
    )
    return RunStatus(nodes=tuple(nodes), stored=stored)


def at(step: int | None, *restarts: Restart, step_time: float | None = None) -> NodeReport:
    return replace(REPORT, restarts=restarts, progress=Progress(step=step, step_time=step_time))


def test_a_gang_without_a_step_a_checkpoint_or_a_further_launch_has_not_trained() -> None:
    for status in (gang(), gang(None), gang(REPORT), gang(REPORT, at(None))):
        assert lost_gang(Cause.NODE, "m", status) is None


def test_what_a_gang_failed_with_is_kept_with_the_step_that_it_had_reported_last() -> None:
    found = lost_gang(Cause.PREEMPTED, "the machine was taken back", gang(None, at(7), at(9), at(None)))
    assert found == Restart(cause=Cause.PREEMPTED, message="the machine was taken back", step=9)
    assert lost_gang(Cause.NODE, "m", gang(at(0))) == Restart(cause=Cause.NODE, message="m", step=0)


@pytest.mark.parametrize(
    "checkpoint, named",
    [
        (SAVED, "d8"),
        (replace(SAVED, digest=None), SAVED.uri),
        (replace(SAVED, step=None), "d8"),
        (None, None),
    ],
)
def test_its_newest_checkpoint_is_named_by_its_content_where_that_is_known(
    checkpoint: CheckpointRef | None, named: str | None
) -> None:
    found = lost_gang(Cause.NODE, "m", gang(at(9), stored=checkpoint))
    assert found == Restart(cause=Cause.NODE, message="m", step=9, checkpoint=named)


@pytest.mark.parametrize(
    "phase, exit_code, begun",
    [
        (Phase.STARTING, None, False),
        (Phase.FETCHING, None, False),
        (Phase.JOINING, None, False),
        (Phase.TRAINING, None, True),
        (Phase.SAVING, None, True),
        (Phase.DONE, None, False),
        (Phase.DONE, 0, True),
        (Phase.DONE, 1, True),
        # That of the launch before.
        (Phase.JOINING, 1, False),
    ],
)
def test_a_launch_that_reports_no_step_was_where_it_went_on_from_once_it_has_begun(
    phase: Phase, exit_code: int | None, *, begun: bool
) -> None:
    report = replace(REPORT, phase=phase, exit_code=exit_code)
    assert report.was_launched is begun
    found = lost_gang(Cause.NODE, "m", gang(report, None, stored=SAVED))
    assert found is not None
    assert found.step == (8 if begun else None)
    # Nobody knows the step of a checkpoint that names none.
    found = lost_gang(Cause.NODE, "m", gang(report, stored=replace(SAVED, step=None)))
    assert found is not None
    assert found.step is None


def test_it_is_the_last_launch_that_must_have_begun_on_any_node() -> None:
    waiting = replace(REPORT, phase=Phase.JOINING, restarts=(LOST,))
    for others, step in (
        ([REPORT], None),
        ([replace(REPORT, restarts=(LOST,))], 8),
        ([waiting, replace(REPORT, restarts=(LOST,))], 8),
        ([None], None),
    ):
        found = lost_gang(Cause.NODE, "m", gang(waiting, *others, stored=SAVED))
        assert found is not None
        assert found.step == step


@pytest.mark.parametrize("seed", range(30))
def test_how_far_it_may_have_been_further_is_judged_by_the_launch_that_had_come_furthest(seed: int) -> None:
    dice = random.Random(seed)
    reports = [
        at(
            dice.choice([None, 0, 1, 2]),
            *[LOST] * dice.randrange(3),
            step_time=dice.choice([None, 0.5, 2.0]),
        )
        for _ in range(dice.randint(1, 6))
    ]
    steps = [
        -1 if each.progress is None or each.progress.step is None else each.progress.step for each in reports
    ]
    furthest = reports[steps.index(max(steps))]
    paces = [
        each.progress.step_time
        for each in reports
        if each.restarts == furthest.restarts and each.progress and each.progress.step_time
    ]
    found = lost_gang(Cause.NODE, "m", gang(*reports, None, REPORT, stored=SAVED))
    assert found is not None
    assert found.behind == (math.ceil(REPORTED_WITHIN / min(paces)) if paces else 0)


def test_of_a_gang_without_progress_nothing_is_further() -> None:
    found = lost_gang(Cause.NODE, "m", gang(REPORT, None, stored=SAVED))
    assert found is not None
    assert found.behind == 0
