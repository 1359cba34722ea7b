"""How long a launch has taken until its first step: once for each, whatever the order of what is seen."""

from __future__ import annotations

import os
import random

import pytest

from airflow_provider_ocidist.agent.monitor.recovery import RecoveryClock
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import NodeReport, Phase, Recovery, Restart
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunStatus

SEED = int(os.environ.get("RECOVERY_SEED", "20261124"))


@pytest.mark.parametrize("number", range(30))
def test_each_launch_is_measured_once_from_the_end_before_it_to_its_first_step(number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    now = 0.0

    def later() -> float:
        nonlocal now
        now += draw.choice([0.0, 0.5, 7.25])
        return now

    clock = RecoveryClock(lambda: now)
    expected: list[Recovery] = []
    found: list[Recovery | None] = []
    ended_at = 0.0
    for launch in range(5):
        if launch:
            clock.launched(launch)
        has_stepped = draw.random() < 0.7
        stepped_at = later() if has_stepped else None
        # A beat may look at any time, also before the first step, and again after it.
        later()
        found += [clock.look(None)] * draw.randint(0, 2)
        found += [clock.look(stepped_at) for _ in range(draw.randint(1, 3))]
        if launch and stepped_at is not None:
            expected.append(Recovery(launch=launch, seconds=round(stepped_at - ended_at, 1)))
        later()
        ended_at = now
        clock.ended()
        # The meter still holds the steps of the launch that has ended, and may read one late.
        found += [clock.look(now if stepped_at is None else stepped_at) for _ in range(draw.randint(0, 2))]
    assert [each for each in found if each] == expected


def test_a_first_launch_recovers_from_nothing() -> None:
    """The agent itself may be new: what ran before it has ended at no time that it knows."""
    clock = RecoveryClock(lambda: 5.0)
    clock.launched(1)
    assert clock.look(7.0) is None
    clock.ended()
    clock.launched(2)
    assert clock.look(7.0) == Recovery(launch=2, seconds=2.0)


def report(rank: int, restarts: int, *seconds: float) -> NodeReport:
    why = tuple(Restart(cause=Cause.NODE, message=f"{number}", rank=1) for number in range(restarts))
    took = tuple(Recovery(launch=launch, seconds=each) for launch, each in enumerate(seconds, start=1))
    return NodeReport(
        rank=rank,
        phase=Phase.TRAINING,
        address="",
        started_at=1.0,
        heartbeat_at=2.0,
        restarts=why,
        recoveries=took,
    )


def test_a_restart_has_taken_as_long_as_its_slowest_node() -> None:
    reports = [report(0, 2, 4.0, 9.5), report(1, 2, 6.5), report(2, 1, 5.0), None]
    nodes = (
        NodeStatus(rank=rank, run_id="r", state=NodeState.RUNNING, report=each)
        for rank, each in enumerate(reports)
    )
    restarts = RunStatus(nodes=tuple(nodes)).restarts
    assert [(each.message, each.seconds) for each in restarts] == [("0", 6.5), ("1", 9.5)]


def test_what_nobody_has_measured_is_not_known() -> None:
    nodes = (NodeStatus(rank=0, run_id="r", state=NodeState.RUNNING, report=report(0, 1)),)
    (restart,) = RunStatus(nodes=nodes).restarts
    assert restart.seconds is None
