"""Clocks that differ and jump: a healthy gang goes on, and one that is not ends in time.

Every machine of these histories has a clock of its own, up to 130 s off (OCI accepts as much), and those of the
observers jump while they watch. The histories are drawn from seeds; a failure prints its own.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.base import LogPart
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.gangs.actions import Action, Cancel, Fail, Wait
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunKey, RunRecord, RunRef, RunStatus
from tests.gangs.test_watch import Late

START = 1_000_000.0
POLL = 10.0
SKEW = 130.0
SEEDS = range(30)


class Machine:
    """A clock that is off, and steps to and fro while somebody watches by it."""

    def __init__(self, random_: random.Random, *, jumps: bool = False) -> None:
        self.offset = random_.uniform(-SKEW, SKEW)
        self._random = random_ if jumps else None

    def wall(self, true: float) -> float:
        if self._random and self._random.random() < 0.05:
            self.offset = self._random.uniform(-SKEW, SKEW)
        return true + self.offset


class World(Late):
    """A gang in true time, which is the service's; the nodes write their own clocks' time into their reports."""

    def __init__(self, seed: int, *, tells_time: bool = True) -> None:
        super().__init__(LogPart([]))
        self.random = random.Random(seed)
        self.tells_time = tells_time
        self.true = START
        self.clocks = [Machine(self.random) for _ in range(self.random.randint(1, 4))]
        self.begin_at = [START + self.random.uniform(0, 550) for _ in self.clocks]
        self.silent_from: dict[int, float] = {}
        self.stuck_from = float("inf")
        self.readable = True
        self.step_every = self.random.uniform(1, 200)

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        nodes = tuple(self._node(rank) for rank in range(len(self.clocks)))
        at = float(int(self.true)) if self.tells_time else None
        return [RunStatus(nodes=nodes, reports_readable=self.readable, at=at) for _ in refs]

    def _node(self, rank: int) -> NodeStatus:
        began, clock = self.begin_at[rank], self.clocks[rank]
        if self.true < began:
            return NodeStatus(rank=rank, run_id=f"run{rank}", state=NodeState.PENDING)
        beat = min(self.true, self.silent_from.get(rank, self.true)) // 2 * 2
        moved = min(beat, self.stuck_from) // self.step_every * self.step_every
        everybody_is_here = self.true >= max(self.begin_at)
        report = NodeReport(
            rank=rank,
            phase=Phase.TRAINING if everybody_is_here else Phase.JOINING,
            address="10.0.0.1",
            started_at=clock.wall(began),
            heartbeat_at=clock.wall(beat),
            progress=Progress(step=int(moved), updated_at=clock.wall(moved)),
        )
        return NodeStatus(
            rank=rank,
            run_id=f"run{rank}",
            state=NodeState.RUNNING,
            started_at=began,
            report=report if self.readable and beat >= began else None,
        )

    def record(self, **changes: object) -> RunRecord:
        ref = RunRef(
            backend="x",
            key=RunKey(dag_id="d", run_id="r", task_id="t"),
            nodes=len(self.clocks),
            job_id="job",
            run_ids=tuple(f"run{rank}" for rank in range(len(self.clocks))),
            run_dir="dir",
            submitted_at=START,
        )
        limits = {"deadline": START + 7200, "start_deadline": START + 600, "lost_timeout": 60.0}
        return replace(RunRecord(ref=ref, hang_timeout=900.0), **{**limits, **changes})

    def watched(self, record: RunRecord, until: float, poll: float = POLL) -> tuple[Action, float]:
        """Watch until there is something to do, or until a true time; observers follow one another."""
        action: Action = Wait()
        while self.true < until and isinstance(action, Wait):
            observer = Machine(self.random, jumps=True)
            began = self.random.uniform(0, 1e6)
            origin = self.true
            watch = Watch(
                self,
                RunRecord.from_json(record.to_json()),
                logging.getLogger("test"),
                clock=lambda origin=origin, began=began: began + self.true - origin,
            )
            shift_ends = self.true + self.random.choice([35.0, 600.0, 1e9])
            while self.true < min(until, shift_ends) and isinstance(action, Wait):
                action = watch.look(observer.wall(self.true))
                self.true += poll * self.random.uniform(0.8, 1.2)
            record = watch.record
            # The next one takes a while to begin.
            self.true += self.random.uniform(0, 5)
        return action, self.true


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_gang_is_left_alone_whatever_the_clocks_say(seed: int) -> None:
    print("seed", seed)
    world = World(seed)
    assert world.watched(world.record(), START + 7150) == (Wait(), pytest.approx(START + 7150, abs=20))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_gang_outlives_an_outage_of_the_store(seed: int) -> None:
    print("seed", seed)
    world = World(seed)
    record = world.record(hang_timeout=400.0)
    for until in (1200.0, 1200.0 + world.random.uniform(20, 1500), 5000.0):
        watch_until = START + until
        action, _ = world.watched(record, watch_until)
        assert action == Wait()
        world.readable = not world.readable if until < 5000 else True


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_falls_silent_is_lost_after_the_limit_as_the_observers_measured_it(seed: int) -> None:
    print("seed", seed)
    world = World(seed)
    rank = world.random.randrange(len(world.clocks))
    silent_from = START + world.random.uniform(600, 3000)
    world.silent_from[rank] = silent_from
    action, at = world.watched(world.record(), START + 7000)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.NODE
    assert action.ending.message.startswith(f"node {rank} has sent no heartbeat")
    # A look late at either side, and as much again at each of three hand-overs.
    assert 60 - 2 <= at - silent_from <= 60 + 6 * POLL + 15


@pytest.mark.parametrize("seed", SEEDS)
def test_a_training_that_stands_still_hangs_after_the_limit_as_the_observers_measured_it(seed: int) -> None:
    print("seed", seed)
    world = World(seed)
    world.stuck_from = START + world.random.uniform(600, 2000)
    action, at = world.watched(world.record(), START + 7000)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.HANG
    assert at - world.stuck_from >= 900 - world.step_every
    # The last movement is up to `step_every` older; some seconds are lost at each hand-over.
    assert at - world.stuck_from <= 900 + 60 + 50 * POLL


@pytest.mark.parametrize("tells_time", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_deadline_is_the_services_time_and_else_off_by_no_more_than_the_skew(
    seed: int, tells_time: bool
) -> None:
    print("seed", seed)
    world = World(seed, tells_time=tells_time)
    off = 0.0 if tells_time else SKEW
    deadline = START + world.random.uniform(800, 3000)
    action, at = world.watched(world.record(deadline=deadline, start_deadline=None), deadline + 1000)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.DEADLINE
    assert deadline - off <= at <= deadline + off + 2 * POLL * 1.2 + 6


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_never_starts_is_given_up_at_the_services_time(seed: int) -> None:
    print("seed", seed)
    world = World(seed)
    world.begin_at[world.random.randrange(len(world.clocks))] = START + 1e6
    action, at = world.watched(world.record(), START + 2000)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.CAPACITY
    assert START + 600 <= at <= START + 600 + 2 * POLL * 1.2 + 6


class CutOff(World):
    """For a while the service does not answer, and the nodes cannot write; they can a little later than it answers."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.away_at = START + self.random.uniform(650, 3000)
        self.back_at = self.away_at + self.random.uniform(130, 3000)
        self.written_at = self.back_at + self.random.uniform(0, 30)

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        if self.away_at <= self.true < self.back_at:
            raise BackendError("no answer", retryable=True)
        return super().status(refs)

    def _node(self, rank: int) -> NodeStatus:
        now = self.true
        try:
            if self.away_at <= now < self.written_at:
                self.true = self.away_at
            return super()._node(rank)
        finally:
            self.true = now


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_gang_outlives_an_outage_of_the_service_in_which_its_nodes_cannot_write_either(
    seed: int,
) -> None:
    print("seed", seed)
    world = CutOff(seed)
    action, _ = world.watched(world.record(hang_timeout=400.0, deadline=None), START + 7000)
    assert action == Wait()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_dies_in_an_outage_of_the_service_is_lost_soon_after_it(seed: int) -> None:
    print("seed", seed)
    world = CutOff(seed)
    rank = world.random.randrange(len(world.clocks))
    world.silent_from[rank] = world.away_at + 1
    action, at = world.watched(world.record(deadline=None), START + 7000)
    assert isinstance(action, Cancel)
    assert action.ending.message.startswith(f"node {rank} has sent no heartbeat")
    assert at - world.back_at <= 60 + 6 * POLL + 15


class Faulty(World):
    """Its service fails at every second look."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.looks = 0

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        self.looks += 1
        if self.looks % 2:
            raise BackendError("no answer", retryable=True)
        return super().status(refs)


@pytest.mark.parametrize("seed", range(10))
def test_a_silent_node_is_lost_also_where_every_second_look_fails(seed: int) -> None:
    print("seed", seed)
    world = Faulty(seed)
    silent_from = START + world.random.uniform(600, 3000)
    world.silent_from[0] = silent_from
    action, at = world.watched(world.record(deadline=None), START + 7000)
    assert isinstance(action, Cancel)
    assert at - silent_from <= 3 * (60 + 6 * POLL)


class Held(World):
    """Holds up who watches, now and then for minutes: by lines that come late, or as a process that is stopped does."""

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        self._hold_up()
        found = super().status(refs)
        self._hold_up()
        return found

    def logs_of(self, wanted: Any, most: int = 0) -> list[LogPart]:
        self._hold_up()
        return super().logs_of(wanted, most)

    def _hold_up(self) -> None:
        if self.random.random() < 0.02:
            self.true += self.random.uniform(70, 500)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_held_up_amid_a_look_takes_no_node_for_silent_meanwhile(seed: int) -> None:
    print("seed", seed)
    world = Held(seed)
    # More often than nodes write.
    action, _ = world.watched(
        world.record(deadline=None, start_deadline=None, hang_timeout=400.0), START + 7000, poll=1.0
    )
    assert action == Wait()


class Deaf(World):
    """Its nodes get a request to end, and never do."""

    state = NodeState.ENDING

    def _node(self, rank: int) -> NodeStatus:
        return replace(
            super()._node(rank), state=self.state if self.true > START + 700 else NodeState.RUNNING
        )

    def cancel(self, ref: RunRef) -> None:
        self.cancelled = self.true


@pytest.mark.parametrize("state", [NodeState.ENDING, NodeState.RUNNING, NodeState.UNKNOWN, NodeState.PENDING])
@pytest.mark.parametrize("seed", range(10))
def test_an_end_that_never_comes_is_not_waited_for_without_end(seed: int, state: NodeState) -> None:
    print("seed", seed)
    world = Deaf(seed)
    world.state = state
    world.begin_at = [START for _ in world.clocks]
    record = world.record(deadline=START + 800, start_deadline=None, lost_timeout=None)
    action, first = world.watched(record, START + 2000)
    assert isinstance(action, Cancel)
    record = replace(record, ending=action.ending)
    while isinstance(action, Cancel | Wait):
        action, at = world.watched(record, world.true + 60)
        if isinstance(action, Cancel):
            record = replace(record, ending=action.ending)
        assert at < START + 4000
    assert isinstance(action, Fail)
    assert action.cause is Cause.DEADLINE
    assert 1800 - 2 * POLL <= at - first <= 1800 + 120
    assert "run0" in action.message, "what still lives is named"
    assert "ocidist cancel" in action.message
