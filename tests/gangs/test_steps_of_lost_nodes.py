"""How far a gang had come when it lost a node: the newest report of a step is seconds old."""

from __future__ import annotations

import math
import os
import random
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from airflow_provider_ocidist.agent.join.peer_reports import REPORTED_WITHIN
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Replace
from airflow_provider_ocidist.gangs.another_gang import lost_gang, why_no_gang
from airflow_provider_ocidist.gangs.lost_nodes import replacement
from airflow_provider_ocidist.job import Restarts
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress, Restart
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


# Lost together


@dataclass(frozen=True)
class Outage:
    """An outage that ends several machines of a gang in one moment, each shown by the service at a look of its own."""

    nodes: int
    looks: tuple[tuple[int, ...], ...]
    """Ranks that each look shows as lost, for the first time."""
    cause: Cause
    step: int
    step_time: float

    @property
    def lost(self) -> list[int]:
        return [rank for look in self.looks for rank in look]

    @classmethod
    def drawn(cls, draw: random.Random) -> Outage:
        nodes, step_time = draw.randint(3, 7), draw.choice([0.05, 0.15, 1.0, 5.0])
        lost = draw.sample(range(nodes), draw.randint(2, nodes - 1))
        cuts = sorted(draw.sample(range(1, len(lost)), draw.randint(0, len(lost) - 1)))
        looks = [tuple(sorted(lost[begin:end])) for begin, end in pairwise([0, *cuts, len(lost)])]
        early = draw.randint(0, math.ceil(REPORTED_WITHIN / step_time))
        step = draw.choice([early, draw.randint(1000, 2000)])
        return cls(nodes, tuple(looks), draw.choice([Cause.NODE, Cause.PREEMPTED]), step, step_time)

    def last_report(self, rank: int, draw: random.Random) -> NodeReport:
        """Return the report of launch 0 that a node has written last, a beat earlier or later than the others."""
        progress = Progress(step=self.step + draw.randint(0, 1), step_time=self.step_time)
        return report(rank, progress=progress, checkpoint=replace(CHECKPOINT, digest="a"))

    def failed(self, rank: int, last: NodeReport) -> NodeStatus:
        preempted = (
            {"cause": Cause.PREEMPTED, "details": "Preempted."} if self.cause is not Cause.NODE else {}
        )
        return node(rank, NodeState.FAILED, report=last, **preempted)


def waits(rank: int, agreed: tuple[Restart, ...], incarnation: int = 0) -> NodeStatus:
    """Return a node that waits for the others, to begin the launch that was agreed on."""
    return node(
        rank,
        NodeState.RUNNING,
        report=report(rank, phase=Phase.FETCHING, restarts=agreed, incarnation=incarnation),
    )


def shown(outage: Outage, number: int, known: RunRecord, draw: random.Random) -> RunStatus:
    """Return the gang at a look: what is lost is shown then or later, and the others may have gone back by then."""
    reports = [outage.last_report(rank, draw) for rank in range(outage.nodes)]
    agreed = tuple(replace(each, lost=(each.rank or 0,)) for each in known.ref.replaced[:1])
    replaced = {each.rank for each in known.ref.replaced}
    have_gone_back = bool(agreed) and draw.random() < 0.5

    def seen(rank: int) -> NodeStatus:
        if rank in outage.looks[number]:
            return outage.failed(rank, reports[rank])
        if rank in replaced:
            new = node(rank, NodeState.PENDING)
            return draw.choice([new, waits(rank, agreed, incarnation=1)])
        is_lost = rank in outage.lost
        if have_gone_back and not is_lost:
            return waits(rank, agreed)
        return node(rank, NodeState.RUNNING, report=reports[rank])

    return RunStatus(nodes=tuple(map(seen, range(outage.nodes))))


def after(known: RunRecord, failures: tuple[Restart, ...]) -> RunRecord:
    return replace(known, ref=replace(known.ref, replaced=(*known.ref.replaced, *failures)))


@pytest.mark.parametrize("number", range(60))
def test_machines_that_are_lost_together_are_each_replaced_whenever_the_service_shows_each(
    number: int,
) -> None:
    draw = random.Random(f"{SEED}.together.{number}")
    outage = Outage.drawn(draw)
    print(f"seed {SEED}.together.{number}: {outage}")
    # A preemption is charged to no budget.
    budget = len(outage.lost) if outage.cause is Cause.NODE else 1
    known = replace(a_record(), restarts=Restarts(node=budget))
    for look, ranks in enumerate(outage.looks):
        change = replacement(known, shown(outage, look, known, draw))
        assert isinstance(change, Replace), f"look {look}"
        assert [(each.rank, each.cause) for each in change.failures] == [
            (rank, outage.cause) for rank in ranks
        ]
        known = after(known, change.failures)
    # They all count: in the launch that follows, far from that step, nothing is left of the budget.
    agreed = tuple(replace(each, lost=tuple(outage.lost)) for each in known.ref.replaced[:1])
    far, same = (
        further_loss(outage, agreed, known, draw.randrange(outage.nodes), step, saved)
        for step, saved in ((outage.step + 10_000, "b"), (known.ref.replaced[0].step or 0, "a"))
    )
    assert isinstance(replacement(known, far), Replace) is (outage.cause is not Cause.NODE)
    richer = replace(known, restarts=Restarts(node=99))
    assert isinstance(replacement(richer, far), Replace)
    # At the same step again, it is a crash loop, whichever machine is lost; preemptions are none.
    assert (replacement(richer, same) is None) is (outage.cause is Cause.NODE)


def further_loss(
    outage: Outage, agreed: tuple[Restart, ...], known: RunRecord, lost: int, step: int, saved: str
) -> RunStatus:
    """Return the gang in its next launch, which loses one more machine at a step."""

    def seen(rank: int) -> NodeStatus:
        trains = report(
            rank,
            restarts=agreed,
            incarnation=known.ref.incarnation(rank),
            progress=Progress(step=step, step_time=outage.step_time),
            checkpoint=replace(CHECKPOINT, digest=saved),
        )
        return outage.failed(rank, trains) if rank == lost else node(rank, NodeState.RUNNING, report=trains)

    return RunStatus(nodes=tuple(map(seen, range(outage.nodes))))


@pytest.mark.parametrize("number", range(30))
def test_machines_that_are_lost_while_the_others_wait_for_another_are_each_replaced(number: int) -> None:
    draw = random.Random(f"{SEED}.waiting.{number}")
    print(f"seed {SEED}.waiting.{number}")
    nodes = draw.randint(3, 7)
    known = a_record()
    agreed: tuple[Restart, ...] = ()
    for launch, lost in enumerate(draw.sample(range(nodes), nodes - 1)):
        # All but the first are lost in the wait, with no step of a launch and no newer checkpoint.
        others = [waits(rank, agreed, known.ref.incarnation(rank)) for rank in range(nodes)]
        saved = replace(CHECKPOINT, digest="a")
        reports = [replace(each.report, checkpoint=saved) for each in others if each.report]
        if launch == 0:
            reports = [replace(each, phase=Phase.TRAINING, progress=Progress(step=40)) for each in reports]
        gang = [node(each.rank, NodeState.RUNNING, report=each) for each in reports]
        gang[lost] = replace(gang[lost], state=NodeState.FAILED)
        last = gang[lost].report
        if launch and last and draw.random() < 0.5:
            # Its machine was given back with a notice: it has said that it ends.
            gang[lost] = replace(
                gang[lost], report=replace(last, phase=Phase.DONE, message="stopped by SIGTERM")
            )
        change = replacement(known, RunStatus(nodes=tuple(gang)))
        assert isinstance(change, Replace), f"loss {launch}"
        known = after(known, change.failures)
        agreed = (*agreed, replace(change.failures[0], lost=(lost,)))


def test_a_machine_in_the_place_of_a_lost_one_that_is_lost_before_it_trains_is_a_crash_loop() -> None:
    lost = Restart(cause=Cause.NODE, message="m", rank=1, checkpoint="a", lost=(1,))
    known = a_record(lost)
    saved = replace(CHECKPOINT, digest="a")
    first, second = waits(0, (lost,)), waits(1, (lost,), incarnation=1)
    again = RunStatus(nodes=(first, replace(second, state=NodeState.FAILED)), stored=saved)
    assert replacement(known, again) is None


@pytest.mark.parametrize(
    "phase, exit_code", [*((phase, None) for phase in Phase), (Phase.DONE, 143), (Phase.DONE, -15)]
)
@pytest.mark.parametrize("saved_at", [40, 39])
def test_a_machine_that_is_lost_again_before_the_launch_has_reported_a_step_is_one_at_its_checkpoint(
    phase: Phase, exit_code: int | None, saved_at: int
) -> None:
    lost = Restart(cause=Cause.NODE, message="m", rank=1, step=40, checkpoint="a", lost=(1,))
    saved = replace(CHECKPOINT, step=saved_at, digest="a")
    again = report(
        1,
        phase=phase,
        exit_code=exit_code,
        restarts=(lost,),
        progress=Progress(),
        checkpoint=saved,
        incarnation=1,
    )
    status = RunStatus(
        nodes=(
            node(0, NodeState.RUNNING, report=replace(again, rank=0, incarnation=0)),
            node(1, NodeState.FAILED, report=again),
        )
    )
    # One that was stopped while it waited for the others is done too.
    was_launched = phase in (Phase.TRAINING, Phase.SAVING) or exit_code is not None
    failure = lost_gang(Cause.NODE, "m", status)
    assert failure
    assert failure.step == (saved_at if was_launched else None)
    is_loop = was_launched and saved_at == 40
    assert (why_no_gang(Restarts(node=9), [lost], failure) is not None) is is_loop
