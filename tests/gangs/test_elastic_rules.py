"""Which nodes of a gang go on when some are lost and not replaced, and that all of them agree on it."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.join.node_identity import NodeIdentity
from airflow_provider_ocidist.agent.join.topology import placement_of
from airflow_provider_ocidist.agent.node import patience_of
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import (
    Action,
    Cancel,
    EndSilent,
    Fail,
    GiveUpSilent,
    GoOnWithout,
    Replace,
    Succeed,
    Wait,
)
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.durations import observe
from airflow_provider_ocidist.gangs.replacements import change_nodes
from airflow_provider_ocidist.job import Limits, Program, Restarts
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.members import members_of
from airflow_provider_ocidist.model.report import Phase, Progress, Restart, StopRequest
from airflow_provider_ocidist.model.run import Ending, NodeState, NodeStatus, RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.model.work_dir import STOP_FILE, report_of
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories
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

FEWER = Restart(cause=Cause.CAPACITY, message="on with two", members=(0, 1))
SEED = random.randrange(1_000_000)


def elastic(ref: RunRef | None = None, **changes: Any) -> RunRecord:
    given: dict[str, Any] = {
        "min_nodes": 2,
        "replace_timeout": 100.0,
        "grow_after": 50.0,
        "ref": ref or a_ref(),
        **changes,
    }
    return replace(a_record(), **given)


def waiting(rank: int) -> NodeStatus:
    """Return a survivor that has ended its launch, and waits for the one in the place of the lost node."""
    return a_node(rank, report=a_report(rank, phase=Phase.FETCHING, restarts=(LOST,)))


def fewer(*others: NodeStatus, phase: Phase = Phase.TRAINING, **changes: Any) -> RunStatus:
    """Return a gang of three that goes on with nodes 0 and 1."""
    trains = [
        a_node(rank, report=a_report(rank, phase=phase, restarts=(LOST, FEWER), **changes)) for rank in (0, 1)
    ]
    return RunStatus(nodes=(*trains, *others))


# When it goes on with fewer


def test_a_gang_goes_on_without_the_node_in_whose_place_no_machine_comes_in_time() -> None:
    record, status = elastic(a_ref(replaced=(replace(LOST, rank=2),))), a_gang()
    status = replace(status, nodes=(waiting(0), waiting(1), a_node(2, NodeState.PENDING, report=None)))
    assert decide(looked(record, status, 99.0), status, NOW) == Wait()
    action = decide(looked(record, status, 100.0), status, NOW)
    assert isinstance(action, GoOnWithout)
    assert (action.change.members, action.change.cause) == ((0, 1), Cause.CAPACITY)
    assert (
        action.change.message
        == "no machine came in the place of node 2; the training goes on with nodes 0, 1"
    )


@pytest.mark.parametrize(
    "record, node, after",
    [
        (elastic(), gone(2), 100.0),
        (elastic(irreplaceable="the limit of the service"), gone(2), 0.0),
        (
            elastic(a_ref(replaced=(replace(LOST, rank=2),))),
            gone(2, cause=Cause.CAPACITY, details="Out of host capacity.", report=None),
            0.0,
        ),
    ],
    ids=["asked for in vain", "refused for good", "no capacity"],
)
def test_a_refused_replacement_ends_the_wait_for_it(
    record: RunRecord, node: NodeStatus, after: float
) -> None:
    status = RunStatus(nodes=(waiting(0), waiting(1), node))
    action = decide(looked(record, status, after), status, NOW)
    assert isinstance(action, GoOnWithout)
    assert action.change.members == (0, 1)
    assert isinstance(decide(looked(replace(record, min_nodes=None), status, after), status, NOW), Cancel)
    assert isinstance(decide(looked(replace(record, min_nodes=3), status, after), status, NOW), Cancel)


def test_a_gang_may_lose_its_first_node() -> None:
    status = RunStatus(nodes=(gone(0), waiting(1), waiting(2)))
    action = decide(looked(elastic(), status, 100.0), status, NOW)
    assert isinstance(action, GoOnWithout)
    assert action.change.members == (1, 2)


def test_what_a_budget_does_not_allow_to_replace_ends_the_gang() -> None:
    spent = elastic(a_ref(replaced=(LOST, replace(LOST, step=4))), irreplaceable="refused")
    status = RunStatus(nodes=(a_node(0), a_node(1), gone(2)))
    assert isinstance(decide(spent, status, NOW), Cancel)


def test_nodes_that_do_not_go_on_with_fewer_end_the_gang() -> None:
    record = elastic(irreplaceable="the limit of the service", ending_limit=200.0)
    status = RunStatus(nodes=(waiting(0), waiting(1), gone(2)))
    assert isinstance(decide(looked(record, status, 299.0), status, NOW), GoOnWithout)
    action = decide(looked(record, status, 300.0), status, NOW)
    assert isinstance(action, Cancel)
    assert action.ending.message.startswith("node 2 was lost")
    late = elastic(a_ref(replaced=(replace(LOST, rank=2),)), ending_limit=200.0)
    pending = RunStatus(nodes=(waiting(0), waiting(1), a_node(2, NodeState.PENDING, report=None)))
    assert isinstance(decide(looked(late, pending, 299.0), pending, NOW), GoOnWithout)
    assert isinstance(decide(looked(late, pending, 300.0), pending, NOW), Cancel)


def test_nodes_that_are_to_go_on_and_freeze_are_lost() -> None:
    record = elastic(irreplaceable="the limit of the service", lost_timeout=60.0)
    status = RunStatus(nodes=(waiting(0), waiting(1), gone(2)))
    assert isinstance(decide(looked(record, status, 60.0), status, NOW), GoOnWithout)
    action = decide(looked(record, status, 61.0), status, NOW)
    assert isinstance(action, Cancel)
    assert action.ending.message == "node 0 has sent no heartbeat for 61 s (limits.lost_timeout)"


def test_what_is_lost_after_the_others_went_on_has_its_own_time_to_be_replaced() -> None:
    before = RunStatus(nodes=(waiting(0), waiting(1), gone(2)))
    trains = a_node(0, report=a_report(0, restarts=(LOST, FEWER)))
    lost = gone(1, report=a_report(1, restarts=(LOST, FEWER), progress=Progress(step=9)))
    status = RunStatus(nodes=(trains, lost, gone(2)))
    record = observe(looked(elastic(min_nodes=1), before, 100.0), status, 1.0)
    action = decide(record, status, NOW)
    assert isinstance(action, Replace)
    assert [each.rank for each in action.failures] == [1]


# While it has fewer


def test_the_lost_node_counts_no_more_and_is_asked_for_again_after_a_while() -> None:
    status = fewer(gone(2))
    record = elastic()
    assert decide(looked(record, status, 49.0), status, NOW + 10_000) == Wait()
    action = decide(looked(record, status, 50.0), status, NOW + 10_000)
    assert isinstance(action, Replace)
    assert [(each.rank, each.cause) for each in action.failures] == [(2, Cause.CAPACITY)]


def test_the_next_request_comes_a_while_after_the_last() -> None:
    asked = elastic(a_ref(replaced=(replace(LOST, rank=2, cause=Cause.CAPACITY),)))
    status = fewer(gone(2, cause=Cause.CAPACITY, details="Out of host capacity.", report=None))
    before = looked(elastic(), status, 60.0)
    record = observe(replace(before, ref=asked.ref), status, 30.0)
    assert decide(record, status, NOW) == Wait()
    assert isinstance(decide(observe(record, status, 50.0), status, NOW), Replace)


def test_a_machine_that_is_awaited_is_not_asked_for_again_and_may_take_any_time() -> None:
    status = fewer(a_node(2, NodeState.PENDING, report=None))
    record = looked(elastic(a_ref(replaced=(replace(LOST, rank=2),))), status, 100_000.0)
    assert decide(record, status, NOW + 100_000) == Wait()


def test_a_node_that_waits_to_take_part_may_be_silent_and_shows_no_progress() -> None:
    late = a_report(2, phase=Phase.JOINING, restarts=(LOST, FEWER), progress=None)
    status = fewer(a_node(2, report=late))
    record = looked(elastic(lost_timeout=10.0, hang_timeout=None), status, 0.0)
    moved = fewer(a_node(2, report=late), heartbeat_at=NOW + 30)
    assert decide(observe(record, moved, 30.0), moved, NOW) == Wait()


def test_a_late_node_that_freezes_is_ended_and_asked_for_again() -> None:
    late = a_report(2, phase=Phase.JOINING, restarts=(LOST, FEWER), progress=None)
    status = fewer(a_node(2, report=late))

    def moved(seconds: float) -> RunStatus:
        """Return the gang as it is after these seconds: the late node's report stays as it was."""
        return fewer(a_node(2, report=late), heartbeat_at=NOW + seconds)

    record = looked(elastic(lost_timeout=60.0, grow_after=50.0), status, 0.0)
    record = observe(record, moved(60.0), 60.0)
    assert decide(record, moved(60.0), NOW) == Wait()
    record = observe(record, moved(61.0), 1.0)
    action = decide(record, moved(61.0), NOW)
    assert isinstance(action, EndSilent)
    assert [(each.rank, each.message) for each in action.failures] == [(2, "node 2 came late, and is silent")]
    ended = fewer(a_node(2, NodeState.CANCELED, report=late), heartbeat_at=NOW + 62.0)
    action = decide(observe(record, ended, 1.0), ended, NOW)
    assert isinstance(action, Replace)


def left(rank: int = 2, **changes: Any) -> NodeStatus:
    """Return a late node that has waited in vain to take part."""
    report = a_report(rank, phase=Phase.DONE, restarts=(LOST, FEWER), leaves=True, message="in vain")
    return gone(rank, **{"details": "exit code 143", "report": report, **changes})


@pytest.mark.parametrize("number", range(20))
def test_a_node_that_has_waited_in_vain_is_no_failure_and_asked_for_again_after_the_usual_pause(
    number: int,
) -> None:
    draw = random.Random(SEED + number)
    print("seed", SEED + number)
    late = a_report(2, phase=Phase.JOINING, restarts=(LOST, FEWER), progress=None)
    asked = (replace(LOST, rank=2), replace(LOST, rank=2, cause=Cause.CAPACITY))
    record, beat = elastic(a_ref(replaced=asked), lost_timeout=None), NOW
    for _ in range(draw.randrange(1, 9)):
        beat += draw.uniform(1.0, 200.0)
        status = fewer(a_node(2, report=replace(late, heartbeat_at=beat)), heartbeat_at=beat)
        record = observe(record, status, draw.uniform(1.0, 200.0))
        assert decide(record, status, NOW) == Wait()
    record, waited = observe(record, fewer(left()), draw.uniform(0.0, 200.0)), 0.0
    while waited < record.grow_after:
        assert decide(record, fewer(left()), NOW) == Wait()
        seconds = draw.uniform(0.1, 20.0)
        unread = fewer(left(report=None)) if draw.random() < 0.3 else None
        if unread is not None:
            # What cannot be read is no news.
            record = observe(record, replace(unread, reports_readable=False), seconds)
            continue
        waited += seconds
        record = observe(record, fewer(left()), seconds)
    action = decide(record, fewer(left()), NOW)
    assert isinstance(action, Replace)
    assert [(each.rank, each.cause) for each in action.failures] == [(2, Cause.CAPACITY)]
    assert isinstance(decide(record, ended(NodeState.SUCCEEDED, left()), NOW), Succeed)


def test_a_late_node_is_not_called_frozen_while_reports_cannot_be_read_or_no_silence_counts() -> None:
    late = a_report(2, phase=Phase.JOINING, restarts=(LOST, FEWER), progress=None)
    status = fewer(a_node(2, report=late))
    silent = looked(elastic(lost_timeout=60.0), status, 61.0)
    assert decide(silent, replace(status, reports_readable=False), NOW) == Wait()
    assert decide(replace(silent, lost_timeout=None), status, NOW) == Wait()


def test_a_further_loss_is_replaced_as_ever_and_the_lost_one_before_stays_out() -> None:
    trains = a_node(0, report=a_report(0, restarts=(LOST, FEWER)))
    lost = gone(1, report=a_report(1, restarts=(LOST, FEWER), progress=Progress(step=9)))
    action = decide(elastic(), RunStatus(nodes=(trains, lost, gone(2))), NOW)
    assert isinstance(action, Replace)
    assert [each.rank for each in action.failures] == [1]


# How it ends


DONE: dict[str, Any] = {"phase": Phase.DONE, "exit_code": 0}


def ended(state: NodeState, *others: NodeStatus) -> RunStatus:
    status = fewer(*others, **DONE) if state is NodeState.SUCCEEDED else fewer(*others)
    return replace(
        status, nodes=tuple(replace(each, state=state) if each.rank < 2 else each for each in status.nodes)
    )


def test_those_who_took_part_decide_over_success() -> None:
    status = ended(NodeState.SUCCEEDED, gone(2))
    assert isinstance(decide(elastic(), status, NOW), Succeed)
    assert isinstance(decide(elastic(), ended(NodeState.FAILED, gone(2)), NOW), Fail)


def test_what_waited_to_take_part_is_ended_with_the_training_and_does_not_count() -> None:
    late = a_node(2, report=a_report(2, phase=Phase.JOINING, restarts=(LOST, FEWER)))
    status = ended(NodeState.SUCCEEDED, late)
    action = decide(elastic(), status, NOW)
    assert isinstance(action, Cancel)
    assert action.of_the_rest
    record = elastic(ending=action.ending)
    over = ended(NodeState.SUCCEEDED, replace(late, state=NodeState.CANCELED))
    assert isinstance(decide(record, over, NOW + 1), Succeed)


def test_a_success_stands_though_what_waited_to_take_part_cannot_be_ended() -> None:
    late = a_node(2, report=a_report(2, phase=Phase.JOINING, restarts=(LOST, FEWER)))
    status = ended(NodeState.SUCCEEDED, late)
    record = elastic(a_ref(lease=600.0), ending_limit=100.0)
    action = decide(record, status, NOW)
    assert isinstance(action, Cancel)
    record = replace(record, ending=action.ending)
    assert not isinstance(decide(record, status, NOW + 99), Succeed)
    over = decide(record, status, NOW + 100)
    assert isinstance(over, Succeed)
    assert over.warning is not None
    assert "NOT ENDED 100 s after the first cancel" in over.warning
    assert "node 2 (RUNNING, run2)" in over.warning
    assert over.warning.endswith("; its lease ends it in 600 s")
    without = decide(replace(record, ref=replace(record.ref, lease=None)), status, NOW + 100)
    assert isinstance(without, Succeed)
    assert without.warning is not None
    assert "lease" not in without.warning


def test_a_success_that_cannot_be_read_does_not_stand_beside_what_cannot_be_ended() -> None:
    done = (a_node(rank, NodeState.SUCCEEDED, report=None) for rank in (0, 1))
    status = RunStatus(nodes=(*done, a_node(2, report=None)), reports_readable=False)
    ending = Ending(cause=Cause.CANCELED, message="enough", since=NOW)
    action = decide(elastic(members=(0, 1), ending=ending, ending_limit=100.0), status, NOW + 100)
    assert isinstance(action, Fail)
    assert (action.cause, action.message.partition("; ")[0]) == (Cause.CANCELED, "enough")


@pytest.mark.parametrize("state", [NodeState.FAILED, NodeState.RUNNING])
def test_without_the_members_success_what_cannot_be_ended_is_a_failure(state: NodeState) -> None:
    late = a_node(2, report=a_report(2, phase=Phase.JOINING, restarts=(LOST, FEWER)))
    ending = Ending(cause=Cause.CANCELED, message="enough", since=NOW)
    action = decide(elastic(ending=ending, ending_limit=100.0), ended(state, late), NOW + 100)
    assert isinstance(action, Fail)
    assert "NOT ENDED" in action.message


def test_the_failure_of_those_who_took_part_is_the_reason_to_end_the_rest() -> None:
    late = a_node(2, report=a_report(2, phase=Phase.JOINING, restarts=(LOST, FEWER)))
    failed = [
        a_node(
            rank,
            NodeState.FAILED,
            report=a_report(rank, cause=Cause.USER, message="m", restarts=(LOST, FEWER)),
        )
        for rank in (0, 1)
    ]
    action = decide(elastic(), RunStatus(nodes=(*failed, late)), NOW)
    assert isinstance(action, Cancel)
    assert (action.ending.cause, action.of_the_rest) == (Cause.USER, False)


def test_without_reports_the_members_are_those_last_seen() -> None:
    status = fewer(gone(2))
    record = observe(elastic(), status, 0.0)
    blind = RunStatus(
        nodes=tuple(replace(each, report=None) for each in status.nodes), reports_readable=False
    )
    later = observe(observe(record, blind, 0.0), blind, 1000.0)
    assert later.members == (0, 1)
    assert decide(later, blind, NOW) == Wait()
    assert RunRecord.from_json(later.to_json()).members == (0, 1)


# After any sequence of losses and returns


class World:
    """A gang, its platform and its nodes, which lose machines and get them back by chance."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.nodes = dice.randrange(2, 6)
        self.least = dice.randrange(1, self.nodes + 1)
        self.step = 7
        self.agreed: tuple[Restart, ...] = ()
        self.record = elastic(
            a_ref(self.nodes), min_nodes=self.least, restarts=Restarts(node=10_000), deadline=None
        )
        self.states = {rank: a_node(rank) for rank in range(self.nodes)}

    @property
    def members(self) -> tuple[int, ...]:
        return members_of(self.agreed, self.nodes)

    @property
    def status(self) -> RunStatus:
        return RunStatus(nodes=tuple(self.states[rank] for rank in range(self.nodes)))

    def happens(self) -> None:
        """Let a node be lost, or a machine come, or nothing happen."""
        self.step += 1
        node = self.states[self.dice.randrange(self.nodes)]
        if node.state is NodeState.RUNNING and self.dice.random() < 0.4:
            self.states[node.rank] = replace(node, state=NodeState.FAILED, details="exit code 137")
        elif node.state is NodeState.PENDING and self.dice.random() < 0.5:
            self.states[node.rank] = replace(node, state=NodeState.RUNNING, report=a_report(node.rank))
        late = [each.rank for each in self.states.values() if self._waits(each)]
        if late and self.dice.random() < 0.5 and self._trains():
            members = tuple(sorted({*self.members, *late}))
            self.agreed = (*self.agreed, Restart(cause=Cause.CAPACITY, message="late", members=members))
        self._report()

    def _waits(self, node: NodeStatus) -> bool:
        return node.state is NodeState.RUNNING and node.rank not in self.members

    def _trains(self) -> bool:
        return all(self.states[rank].state is NodeState.RUNNING for rank in self.members)

    def _report(self) -> None:
        for rank, node in self.states.items():
            if node.state is NodeState.RUNNING:
                phase = Phase.TRAINING if rank in self.members else Phase.JOINING
                report = a_report(
                    rank,
                    phase=phase,
                    restarts=self.agreed,
                    progress=Progress(step=self.step),
                    heartbeat_at=NOW + self.step,
                )
                self.states[rank] = replace(node, report=report)

    def decided(self) -> Action:
        self.record = observe(self.record, self.status, self.dice.choice((1.0, 40.0, 120.0)))
        return decide(self.record, self.status, NOW)

    def replaces(self, failures: tuple[Restart, ...]) -> None:
        ranks = [each.rank for each in failures if each.rank is not None]
        assert all(self.states[rank].state is NodeState.FAILED for rank in ranks)
        if all(rank in self.members for rank in ranks):
            launch = max(
                len(report.restarts) if (report := self.states[rank].report) else 0 for rank in ranks
            )
            if len(self.agreed) <= launch:
                before = self.agreed[-1].members if self.agreed else ()
                self.agreed = (*self.agreed, replace(failures[0], members=before))
        if self.dice.random() < 0.5:
            return
        ref = self.record.ref
        self.record = replace(self.record, ref=replace(ref, replaced=(*ref.replaced, *failures)))
        for rank in ranks:
            there: dict[str, Any] = {"state": NodeState.PENDING, "cause": None, "details": None}
            refused: dict[str, Any] = {
                "state": NodeState.FAILED,
                "cause": Cause.CAPACITY,
                "details": "Out of host capacity.",
            }
            how = there if self.dice.random() < 0.6 else refused
            self.states[rank] = replace(self.states[rank], report=None, **how)

    def check(self) -> None:
        """The members are a part of the gang, not too small, and each has a place of its own among them."""
        members = self.members
        assert self.least <= len(members)
        assert list(members) == sorted(set(members))
        assert set(members) <= set(range(self.nodes))
        config = AgentConfig(run_name="r", nodes=self.nodes, run_dir="/r", program=Program(script="x.py"))
        reports = [
            a_report(rank, address=f"10.0.0.{rank + 1}", restarts=self.agreed) for rank in self.members
        ]
        places = [placement_of(config, reports, NodeIdentity(rank=rank), {}) for rank in members]
        assert [place.rank for place in places] == list(range(len(members)))
        assert {place.nodes for place in places} == {len(members)}
        assert len({(place.master_address, place.master_port, place.addresses) for place in places}) == 1
        assert [place.address for place in places] == list(places[0].addresses)


@pytest.mark.parametrize("number", range(60))
def test_after_any_losses_and_returns_enough_nodes_go_on_each_with_a_place_of_its_own(number: int) -> None:
    seed = SEED + number
    print("seed", seed)
    world = World(random.Random(seed))
    for _ in range(60):
        world.happens()
        match world.decided():
            case GoOnWithout(change):
                assert set(change.members) < set(world.members)
                world.agreed = (*world.agreed, change)
            case GiveUpSilent(failures) | EndSilent(failures) | Replace(failures):
                world.replaces(failures)
            case Cancel() | Fail():
                running = [rank for rank in world.members if world.states[rank].state is NodeState.RUNNING]
                assert len(running) < world.least or not running
                return
            case _:
                pass
        world._report()
        world.check()


# How long the others wait


BEGINS = 15.0
"""Seconds after a node was lost in which no other node begins to wait for the one in its place."""
LOOKS = 10.0
"""Seconds between two looks of the waiting side, at most."""


class Loss:
    """A node is lost at the time 0; its service takes its time for each answer, mostly until the end of each limit."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        limits = Limits(
            replace_timeout=dice.uniform(200.0, 2000.0), lost_timeout=dice.uniform(30.0, 300.0), lease=7200.0
        )
        self.config = AgentConfig(
            run_name="r",
            nodes=3,
            run_dir="/r",
            program=Program(script="x.py"),
            limits=limits,
            replaces=True,
            min_nodes=dice.choice([None, 2]),
        )
        self.record = replace(
            elastic(a_ref(lease=7200.0), replace_timeout=limits.replaced_within),
            lost_timeout=limits.lost_timeout,
            min_nodes=self.config.min_nodes,
            start_deadline=NOW + 60,
        )
        self.time = 0.0
        self.is_silent = dice.random() < 0.6
        self.node = a_node(2) if self.is_silent else gone(2)
        self.next_at = 0.0
        """Time from which the service grants what is asked of it next."""

    @property
    def status(self) -> RunStatus:
        waits = {"phase": Phase.FETCHING, "restarts": (LOST,), "heartbeat_at": NOW + self.time}
        return RunStatus(
            nodes=(*(a_node(rank, report=a_report(rank, **waits)) for rank in (0, 1)), self.node)
        )

    def after(self, limit: float) -> float:
        return self.time + limit * self.dice.choice([self.dice.random(), self.dice.uniform(0.95, 1.0)])

    def passes(self) -> None:
        """Let time pass until the next look, and the service do what was asked for by then."""
        self.time += self.dice.uniform(1.0, LOOKS)
        limits = self.config.limits
        if self.node.state is NodeState.ENDING and self.time >= self.next_at:
            self.node, self.next_at = replace(self.node, state=NodeState.CANCELED), 0.0
        elif self.node.state is NodeState.PENDING and self.time >= self.next_at:
            self.node = replace(self.node, state=NodeState.RUNNING)
            self.next_at = self.after(limits.lost_timeout)

    def is_asked(self, change: EndSilent | Replace) -> None:
        limit = self.config.limits.replaced_within
        if isinstance(change, EndSilent):
            self.node, self.next_at = replace(self.node, state=NodeState.ENDING), self.after(limit)
            return
        self.next_at = self.next_at or self.after(limit)
        if self.time >= self.next_at:
            ref = self.record.ref
            self.record = replace(self.record, ref=replace(ref, replaced=(*ref.replaced, *change.failures)))
            self.node = a_node(2, NodeState.PENDING, report=None)
            self.next_at = self.after(limit)

    @property
    def has_come(self) -> bool:
        """Whether the node in place of the lost one has begun, and is to report now."""
        return self.node.state is NodeState.RUNNING and self.node.report is None and self.time >= self.next_at


@pytest.mark.parametrize("number", range(40))
def test_the_others_wait_for_as_long_as_the_waiting_side_may_bring_another_node(number: int) -> None:
    seed = SEED + number
    print("seed", seed)
    loss = Loss(random.Random(seed))
    until, before = BEGINS + patience_of(loss.config), 0.0
    while True:
        loss.record = observe(loss.record, loss.status, loss.time - before)
        before = loss.time
        match decide(loss.record, loss.status, NOW):
            case (EndSilent() | Replace()) as change:
                loss.is_asked(change)
            case Cancel() | Fail():
                return
            case GoOnWithout():
                assert loss.time <= until, "the others have given up before they are asked to go on"
                return
        loss.passes()
        if loss.has_come:
            assert loss.next_at <= until, "the others have given up before it came"
            return


# What they agree on


@pytest.mark.parametrize("number", range(20))
def test_whatever_node_asks_for_the_next_launch_all_nodes_agree_on_who_takes_part(
    tmp_path: Path, number: int
) -> None:
    seed = SEED + number
    print("seed", seed)
    dice, nodes = random.Random(seed), 4
    store, run_dirs = open_store(str(tmp_path)), RunDirStores(open_store)
    directories, ref = RunDirectories(run_dirs, run_dirs), a_ref(nodes, run_dir=str(tmp_path))
    beats = [Heartbeat(store, a_report(rank), StopSwitch()) for rank in range(nodes)]
    known: dict[int, tuple[int, ...]] = {}

    def fails(beat: Heartbeat) -> None:
        before = beat.report.restarts
        failure = Restart(
            cause=Cause.USER,
            message=f"of {beat.report.rank}",
            rank=beat.report.rank,
            members=before[-1].members if before else (),
        )
        request = StopRequest(cause=Cause.USER, message="m", restarts=(*before, failure))
        beat.ask_all_to_stop(request)

    def hears(beat: Heartbeat) -> None:
        if request := beat.read_stop_request():
            beat.update(restarts=request.restarts)

    for _ in range(60):
        beat = dice.choice(beats)
        store.write(report_of(beat.report.rank), beat.report.to_json())
        members = tuple(sorted(dice.sample(range(nodes), dice.randrange(2, nodes + 1))))
        match dice.randrange(4):
            case 0:
                fails(beat)
            case 1:
                assert directories.go_on_without(ref, replace(FEWER, members=members))
            case 2:
                assert directories.launch_again(ref, [replace(LOST, rank=beat.report.rank)])
            case _:
                hears(beat)
        written = [StopRequest.from_json(store.read(STOP_FILE)).restarts] if store.exists(STOP_FILE) else []
        for restarts in [*written, *(each.report.restarts for each in beats)]:
            for launch, restart in enumerate(restarts, start=1):
                assert known.setdefault(launch, restart.members) == restart.members


@pytest.mark.parametrize("launch, takes_part", [(0, False), (1, True), (2, True)])
def test_a_lost_node_takes_part_in_no_later_launch_and_the_one_in_its_place_does(
    launch: int, *, takes_part: bool
) -> None:
    # What was asked for since says no more who was lost.
    restarts = (replace(LOST, lost=(1,)), replace(FEWER, members=(0, 2)), replace(FEWER, members=()))
    request = StopRequest(cause=Cause.CAPACITY, message="m", restarts=restarts)
    assert request.restarts_of(1, launch) == (restarts if takes_part else ())


def test_a_request_to_go_on_without_a_node_says_who_is_lost() -> None:
    for node, lost in ((gone(2), (2,)), (a_node(2, NodeState.PENDING, report=None), ())):
        record = elastic(a_ref(replaced=(replace(LOST, rank=2),)))
        status = RunStatus(nodes=(waiting(0), waiting(1), node))
        action = decide(looked(record, status, 100.0), status, NOW)
        assert isinstance(action, GoOnWithout)
        assert action.change.lost == lost


def test_a_request_that_is_late_for_its_launch_does_not_take_the_place_of_the_one_that_counted(
    tmp_path: Path,
) -> None:
    store = open_store(str(tmp_path))
    beat = Heartbeat(store, a_report(0), StopSwitch())
    counted = StopRequest(cause=Cause.USER, message="it failed", restarts=(LOST,))
    assert beat.ask_all_to_stop(counted) == counted
    beat.update(restarts=counted.restarts)
    beat.ask_all_to_stop(StopRequest(cause=Cause.CAPACITY, message="late", restarts=(FEWER,)))
    # Nodes that have not begun the next launch yet still read it.
    assert StopRequest.from_json(store.read(STOP_FILE)) == counted


def test_a_gang_that_is_to_end_is_not_launched_with_fewer(tmp_path: Path) -> None:
    store, run_dirs = open_store(str(tmp_path)), RunDirStores(open_store)
    directories, ref = RunDirectories(run_dirs, run_dirs), a_ref(run_dir=str(tmp_path))
    final = StopRequest(cause=Cause.CANCELED, message="enough").to_json()
    store.write(STOP_FILE, final)
    assert not directories.go_on_without(ref, FEWER)
    assert store.read(STOP_FILE) == final


def test_who_asks_for_a_launch_with_fewer_pauses_before_the_next_look(tmp_path: Path) -> None:
    run_dirs, ref = RunDirStores(open_store), a_ref(run_dir=str(tmp_path))
    backend = SimpleNamespace(directories=RunDirectories(run_dirs, run_dirs), conn_id=None)
    watch: Any = SimpleNamespace(backend=backend, record=elastic(ref))
    for _ in range(2):
        # The nodes have not reported it yet: each look decides the same.
        assert not change_nodes(watch, GoOnWithout(FEWER), logging.getLogger("elastic"))
    assert StopRequest.from_json(open_store(str(tmp_path)).read(STOP_FILE)).restarts == (FEWER,)
