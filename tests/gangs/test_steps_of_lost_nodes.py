"""How far a gang had come when it lost a node: the newest report of a step is seconds old."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace

import pytest

from airflow_provider_ocidist.agent.join.peer_reports import REPORTED_WITHIN
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Replace
from airflow_provider_ocidist.gangs.another_gang import lost_gang, why_no_gang
from airflow_provider_ocidist.gangs.lost_nodes import replacement
from airflow_provider_ocidist.job import Restarts
from airflow_provider_ocidist.model.report import Progress, Restart
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunRecord, RunStatus
from tests.gangs.records import CHECKPOINT, node, record, report

SEED = int(os.environ.get("TEST_SEED", "20261126"))


def a_record(*replaced: Restart) -> RunRecord:
    known = record(restarts=Restarts(node=9))
    return replace(known, ref=replace(known.ref, replaces=True, replaced=replaced))


def lost_at(step: int, step_time: float | None, launch: tuple[Restart, ...], saved: str) -> RunStatus:
    """Return a gang whose second node, which counts no steps, was lost after the first one reported this step."""
    progress = Progress(step=step, step_time=step_time)
    checkpoint = replace(CHECKPOINT, digest=saved)
    trains = report(0, progress=progress, restarts=launch, checkpoint=checkpoint)
    nodes: tuple[NodeStatus, ...] = (
        node(0, NodeState.RUNNING, report=trains),
        node(1, NodeState.FAILED, report=report(1, restarts=launch)),
    )
    return RunStatus(nodes=nodes)


@pytest.mark.parametrize("number", range(40))
def test_a_machine_that_is_lost_near_the_same_step_with_nothing_saved_since_is_a_crash_loop(
    number: int,
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    step_time = draw.choice([0.05, 0.15, 1.0, 5.0])
    behind = math.ceil(REPORTED_WITHIN / step_time)
    step = draw.randint(1000, 2000)
    first = replacement(a_record(), lost_at(step, step_time, (), "a"))
    assert isinstance(first, Replace)
    (loss,) = first.failures
    assert (loss.rank, loss.step, loss.behind) == (1, step, behind)
    apart = draw.choice([0, draw.randint(-behind, behind), behind + 1, -behind - 1])
    saved = draw.choice("ab")
    second = replacement(a_record(loss), lost_at(step + apart, step_time, (loss,), saved))
    is_loop = apart == 0 or (abs(apart) <= behind and saved == "a")
    assert (second is None) is is_loop
    # Where the whole gang is made anew, the same holds.
    gangs = [
        lost_gang(Cause.NODE, "m", lost_at(at, step_time, (), how))
        for at, how in ((step, "a"), (step + apart, saved))
    ]
    (earlier, later) = (gang for gang in gangs if gang is not None)
    assert (why_no_gang(Restarts(node=9), [earlier], later) is not None) is is_loop


def test_of_a_gang_that_reports_no_pace_the_same_step_alone_counts_as_the_same() -> None:
    first = replacement(a_record(), lost_at(40, None, (), "a"))
    assert isinstance(first, Replace)
    (loss,) = first.failures
    assert (loss.step, loss.behind) == (40, 0)
    assert replacement(a_record(loss), lost_at(41, None, (loss,), "a"))
    assert replacement(a_record(loss), lost_at(40, None, (loss,), "a")) is None
