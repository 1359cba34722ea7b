"""What a node that ends its launch does next."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.diagnose.diagnosis import NodeFailure
from airflow_provider_ocidist.agent.diagnose.outcome import Outcome
from airflow_provider_ocidist.agent.join.gathering import LateNodes
from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.join.lease import LeaseWatch
from airflow_provider_ocidist.agent.stages import gang_end
from airflow_provider_ocidist.agent.stages.gang_end import GangEnd
from airflow_provider_ocidist.agent.stages.next_launch import NextLaunch
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.agent.train.supervise import Ended
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.job import Limits, Restarts
from airflow_provider_ocidist.launchers.base import ProcessFailure
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.report import (
    EarlierGangs,
    NodeReport,
    Phase,
    Progress,
    Restart,
    StackPosition,
    StopRequest,
)
from airflow_provider_ocidist.model.work_dir import EARLIER_FILE, STOP_FILE, report_of
from airflow_provider_ocidist.storage.stores.local import LocalStore

SEED = int(os.environ.get("TEST_SEED", "20261127"))
AGREED = (Restart(cause=Cause.NODE, message="node 2: lost", rank=2),)


# Each rule by itself


class Node:
    """One of three nodes that train, and what the others have written; `has`: settings of the job."""

    def __init__(self, folder: Path, rank: int = 0, before: tuple[Restart, ...] = (), **has: Any) -> None:
        self.store = LocalStore(folder)
        self.switch = StopSwitch()
        self.switch.take_part_in(len(before))
        report = a_report(rank, restarts=before, checkpoint=checkpoint_at(20))
        self.heartbeat = Heartbeat(self.store, report, self.switch)
        restarts = Restarts(program=2, hang=2, node=2)
        settings = {"nodes": 3, "min_nodes": None, "restarts": restarts, "replaces": False, **has}
        settings = {"limits": Limits(), **settings}
        members = before[-1].members if before else ()
        self.context: Any = SimpleNamespace(
            config=SimpleNamespace(**settings),
            heartbeat=self.heartbeat,
            switch=self.switch,
            rank=rank,
            others=tuple(each for each in members or range(3) if each != rank),
            is_main=rank == 0,
            is_member=True,
            masked=lambda text: text.replace("hunter22", "***"),
            meter=SimpleNamespace(step_now=lambda: None, steps_apart=1),
            goes_on_from=None,
        )
        self.end = GangEnd(self.context)

    def others(self, *reports: NodeReport) -> Node:
        for each in reports:
            self.store.write(report_of(each.rank), each.to_json())
        return self

    @property
    def asked(self) -> StopRequest | None:
        """What all nodes are asked for."""
        return StopRequest.from_json(self.store.read(STOP_FILE)) if self.store.exists(STOP_FILE) else None


def checkpoint_at(step: int) -> CheckpointRef:
    return CheckpointRef(uri=f"oci://b@n/step-{step}", step=step, digest=f"digest-{step}")


def a_report(rank: int, phase: Phase = Phase.TRAINING, **changes: Any) -> NodeReport:
    return NodeReport(rank=rank, phase=phase, address="", started_at=0.0, heartbeat_at=0.0, **changes)


BEFORE = (Restart(cause=Cause.PREEMPTED, message="one before", step=3, members=(0, 1)),)
HANG = Stop(message="no step for 30 s", cause=Cause.HANG, stacks=True)


def test_after_a_hang_all_are_asked_for_another_launch_from_what_is_known_of_all(tmp_path: Path) -> None:
    node = Node(tmp_path, before=BEFORE).others(
        a_report(1, restarts=BEFORE, progress=Progress(step=7), checkpoint=checkpoint_at(30)),
        a_report(2, progress=Progress(step=99), checkpoint=checkpoint_at(99)),
    )
    node.end.declare(HANG)
    (asked, stop) = node.asked, node.switch.stop
    assert asked
    assert stop
    last = asked.restarts[-1]
    assert (asked.cause, asked.message, asked.rank, asked.hang) == (Cause.HANG, HANG.message, 0, True)
    assert asked.restarts[:-1] == BEFORE
    assert (last.cause, last.message, last.rank, last.step) == (Cause.HANG, HANG.message, 0, 7)
    # Node 2 takes no part; a smaller gang keeps its members.
    assert (last.checkpoint, last.members) == ("digest-30", (0, 1))
    assert (stop.cause, stop.message, stop.stacks, stop.restarts) == (
        Cause.HANG,
        HANG.message,
        True,
        asked.restarts,
    )


def test_a_nodes_own_step_counts_before_that_of_others_and_a_checkpoint_without_digest_by_its_place(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path).others(a_report(1, progress=Progress(step=7)))
    node.context.meter.step_now = lambda: 0
    node.heartbeat.update(checkpoint=CheckpointRef(uri="oci://b@n/step-20", step=20))
    node.end.declare(HANG)
    assert node.asked
    assert (node.asked.restarts[0].step, node.asked.restarts[0].checkpoint) == (0, "oci://b@n/step-20")


@pytest.mark.parametrize(
    "restarts, said",
    [
        (Restarts(program=1), "no step for 30 s; not launched again: restarts.hang is 0"),
        (Restarts(), "no step for 30 s"),
    ],
)
def test_where_no_launch_follows_all_end_and_know_why(tmp_path: Path, restarts: Restarts, said: str) -> None:
    node = Node(tmp_path, restarts=restarts)
    node.end.declare(HANG)
    assert node.asked
    assert (node.asked.message, node.asked.restarts, node.asked.hang) == (said, (), True)
    assert node.switch.stop
    assert (node.switch.stop.message, node.switch.stop.restarts) == (said, ())


@pytest.mark.parametrize(
    "stop, replaces, goes_on",
    [
        (HANG, False, True),
        (Stop(message="m", cause=Cause.NODE, misses_node=True), True, True),
        (Stop(message="m", cause=Cause.NODE, misses_node=True), False, False),
        (Stop(message="m", cause=Cause.NODE), True, False),
        (Stop(message="m", cause=Cause.IDLE), True, False),
    ],
)
def test_only_a_hang_and_a_node_that_another_replaces_end_this_launch_alone(
    tmp_path: Path, stop: Stop, replaces: bool, goes_on: bool
) -> None:
    node = Node(tmp_path, replaces=replaces)
    node.end.declare(stop)
    assert node.asked
    assert bool(node.asked.restarts) is goes_on
    assert (node.asked.cause, node.asked.hang) == (stop.cause, stop.stacks)
    assert node.switch.stop
    assert node.switch.stop.restarts == node.asked.restarts


@pytest.mark.parametrize("nodes, charged", [(0, Cause.HANG), (1, Cause.NODE)])
def test_a_sick_machine_is_charged_to_hangs_where_nothing_is_left_for_machines(
    tmp_path: Path, nodes: int, charged: Cause
) -> None:
    node = Node(tmp_path, restarts=Restarts(hang=1, node=nodes))
    node.end.declare(Stop(message="a sick GPU", cause=Cause.NODE, stacks=True))
    assert node.asked
    assert (node.asked.cause, node.asked.restarts[0].cause) == (Cause.NODE, charged)


def test_the_second_failure_at_one_step_is_a_crash_loop_and_is_reported_as_one(tmp_path: Path) -> None:
    before = (Restart(cause=Cause.HANG, message="m", step=7),)
    for step, is_loop in ((7, True), (8, False)):
        node = Node(tmp_path / str(step), before=before)
        node.context.meter.step_now = lambda step=step: step
        node.end.declare(HANG)
        assert node.asked
        assert bool(node.asked.restarts) is not is_loop
        assert ("crash loop: HANG at step 7 for the second time" in node.asked.message) is is_loop
        assert node.heartbeat.report.crash_loop is is_loop


OVER = {"phase": Phase.DONE, "exit_code": 0}


@pytest.mark.parametrize(
    "other, replaces, ended",
    [
        (a_report(1, Phase.SAVING), False, True),
        (a_report(1, **OVER), False, True),
        (a_report(1, **OVER), True, True),
        (a_report(1, Phase.SAVING), True, True),
        (a_report(1, Phase.DONE, exit_code=143), False, True),
        (a_report(1, Phase.DONE, exit_code=143), True, False),
        (a_report(1, Phase.DONE, exit_code=1, cause=Cause.USER), True, True),
        (a_report(1, Phase.SAVING, stopped=True), False, True),
        (a_report(1, Phase.SAVING, stopped=True), True, False),
        (a_report(1, **OVER, stopped=True), False, True),
        (a_report(1, **OVER, stopped=True), True, False),
        (a_report(1, Phase.DONE, exit_code=0, cause=Cause.DATA, stopped=True), True, True),
        (a_report(1, Phase.SAVING, restarts=BEFORE), False, False),
        (a_report(1), False, False),
    ],
    ids=[
        "saves",
        "done",
        "done, replaced",
        "saves, replaced",
        "stopped",
        "stopped, replaced",
        "failed, replaced",
        "stopped, saves",
        "stopped, saves, replaced",
        "stopped, exits with 0",
        "stopped, exits with 0, replaced",
        "stopped, then failed, replaced",
        "another launch",
        "trains",
    ],
)
def test_nothing_is_launched_again_once_another_node_has_ended(
    tmp_path: Path, other: NodeReport, replaces: bool, ended: bool
) -> None:
    node = Node(tmp_path, replaces=replaces).others(other)
    node.end.declare(HANG)
    assert node.asked
    assert bool(node.asked.restarts) is not ended
    assert ("not launched again: node 1 has ended already" in node.asked.message) is ended


def test_a_request_holds_no_secret(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.end.declare(Stop(message="login with hunter22 failed", cause=Cause.HANG, stacks=True))
    assert node.asked
    assert node.asked.message == node.asked.restarts[0].message == "login with *** failed"


def test_one_node_asks_nobody_and_one_that_takes_no_part_or_is_lost_ends_alone(tmp_path: Path) -> None:
    one = Node(tmp_path, nodes=1)
    assert one.end.ask_others(Cause.USER, "m", AGREED) == AGREED
    assert one.asked is None
    late = Node(tmp_path, rank=2)
    late.context.is_member = False
    assert late.end.ask_others(Cause.USER, "m", AGREED) == ()
    assert late.asked is None
    lost = Node(tmp_path / "lost")
    lost.switch.ask(Stop(message="lost", is_lost=True))
    assert lost.end.ask_others(Cause.USER, "m", AGREED) == ()
    assert lost.asked is None


# A late node


def test_a_late_node_is_admitted_by_a_launch_that_costs_no_budget(tmp_path: Path) -> None:
    late = a_report(2, Phase.JOINING, restarts=BEFORE)
    node = Node(tmp_path, before=BEFORE).others(a_report(1, restarts=BEFORE), late)
    node.context.meter.step_now = lambda: 40
    node.end.admit([2])
    message = "node 2 came late; the training goes on with nodes 0, 1, 2"
    change = Restart(cause=Cause.CAPACITY, message=message, step=40, members=(0, 1, 2))
    assert node.asked
    assert (node.asked.cause, node.asked.message, node.asked.hang) == (Cause.CAPACITY, message, False)
    assert node.asked.restarts == (*BEFORE, change)
    assert node.switch.stop
    assert (node.switch.stop.message, node.switch.stop.restarts) == (message, (*BEFORE, change))
    assert node.switch.stop.cause is None


def test_no_late_node_is_admitted_to_a_training_that_ends(tmp_path: Path) -> None:
    saves, asked, over = (Node(tmp_path / name, before=BEFORE) for name in ("saves", "asked", "over"))
    late = a_report(2, Phase.JOINING, restarts=BEFORE)
    saves.others(a_report(1, Phase.SAVING, restarts=BEFORE), late).end.admit([2])
    for node in (asked, over):
        node.others(a_report(1, restarts=BEFORE), late)
    asked.switch.ask(Stop(message="enough"))
    asked.end.admit([2])
    over.heartbeat.update(phase=Phase.SAVING)
    over.end.admit([2])
    assert [node.asked for node in (saves, asked, over)] == [None] * 3


def test_a_late_node_is_not_admitted_where_all_are_to_end(tmp_path: Path) -> None:
    node = Node(tmp_path, before=BEFORE).others(a_report(1, restarts=BEFORE))
    final = StopRequest(cause=Cause.CANCELED, message="enough")
    node.store.write(STOP_FILE, final.to_json())
    node.end.admit([2])
    assert (node.asked, node.switch.stop) == (final, None)


# A success


SUCCESS = Ended(exit_code=0, output="", stop=None, oom_killed=None)
ANOTHER_LAUNCH = StopRequest(cause=Cause.NODE, message="node 2: lost", rank=1, restarts=AGREED)


def test_a_success_stands_unless_another_node_has_just_asked_for_a_launch(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.end.agreed(SUCCESS, follows=False) == SUCCESS
    assert node.heartbeat.report.phase is Phase.SAVING
    node.store.write(STOP_FILE, ANOTHER_LAUNCH.to_json())
    found = Node(tmp_path).end.agreed(SUCCESS, follows=False)
    assert found.stop
    assert found.stop.restarts == AGREED
    assert found.exit_code == 0


def test_a_success_that_stands_is_saved_whatever_launch_is_asked_for_then(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.end.agreed(SUCCESS, follows=False) == SUCCESS
    for restarts in (AGREED, AGREED * 2):
        node.heartbeat.heed(replace(ANOTHER_LAUNCH, restarts=restarts))
        node.switch.check()
    node.heartbeat.heed(StopRequest(cause=Cause.CANCELED, message="enough"))
    with pytest.raises(Stopped, match="enough"):
        node.switch.check()


def test_a_program_that_has_succeeded_has_written_all_by_the_time_that_others_read_of_its_end(
    tmp_path: Path,
) -> None:
    """Otherwise the main node of a shared folder, which looks for the last time then, publishes nothing of it."""
    node = Node(tmp_path)
    node.heartbeat.update(writing=("step-24",))
    assert node.end.agreed(SUCCESS, follows=False) == SUCCESS
    read = NodeReport.from_json(node.store.read(report_of(0)))
    assert (read.phase, read.writing) == (Phase.SAVING, None)


def test_a_success_of_a_node_that_was_lost_meanwhile_is_none(tmp_path: Path) -> None:
    node = Node(tmp_path)
    restart = Restart(cause=Cause.NODE, message="node 0: lost", rank=0, lost=(0,))
    node.store.write(STOP_FILE, replace(ANOTHER_LAUNCH, restarts=(restart,)).to_json())
    found = node.end.agreed(SUCCESS, follows=False)
    assert found.stop
    assert found.stop.is_lost
    assert not node.store.exists(report_of(0))


@pytest.mark.parametrize("fault", ["unreadable", "damaged", "unwritable"])
def test_while_the_store_is_out_a_success_does_not_stand_against_a_launch_that_was_asked_for(
    tmp_path: Path, fault: str
) -> None:
    node = Node(tmp_path)
    if fault == "unreadable":
        (tmp_path / STOP_FILE).mkdir()
    elif fault == "damaged":
        (tmp_path / STOP_FILE).write_text("{")
    else:
        (tmp_path / report_of(0)).mkdir(parents=True)
    assert node.end.agreed(SUCCESS, follows=False) == SUCCESS
    node.heartbeat.heed(ANOTHER_LAUNCH)
    with pytest.raises(Stopped, match="node 2: lost"):
        node.switch.check()


def test_a_request_to_end_takes_no_success_back(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.store.write(STOP_FILE, StopRequest(cause=Cause.CANCELED, message="enough").to_json())
    assert node.end.agreed(SUCCESS, follows=False) == SUCCESS
    node.switch.ask(Stop(message="enough"))
    assert node.end.agreed(SUCCESS, follows=False) == SUCCESS


@pytest.mark.parametrize("has", [{"restarts": Restarts()}, {"nodes": 1}])
def test_where_no_other_launch_can_follow_nobody_is_asked(tmp_path: Path, has: dict[str, Any]) -> None:
    node = Node(tmp_path, **has)
    assert node.end.agreed(SUCCESS, follows=True) == SUCCESS
    assert node.heartbeat.report.phase is Phase.TRAINING


@pytest.mark.parametrize("phase", [Phase.SAVING, Phase.DONE])
def test_a_node_that_follows_the_first_waits_until_its_part_has_ended(tmp_path: Path, phase: Phase) -> None:
    node = Node(tmp_path, rank=1).others(a_report(0))
    waits: list[float | None] = []

    def first_ends(seconds: float | None = None) -> bool:
        waits.append(seconds)
        node.others(a_report(0, phase, restarts=AGREED if phase is Phase.SAVING and len(waits) == 1 else ()))
        return False

    node.switch.event.wait = first_ends
    assert node.end.agreed(SUCCESS, follows=True) == SUCCESS
    assert None not in waits, "it looks again by itself"
    # That it saves after another launch says nothing of this one.
    assert len(waits) == (2 if phase is Phase.SAVING else 1)


# A failure that follows from another


CONSEQUENCE = NodeFailure(cause=Cause.NODE, message="connection reset", exit_code=1, consequence=True)


def quick(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object] = lambda: None) -> list[float]:
    """Have the wait for an explanation go by at once; do something after its first pause."""
    now, pauses = [1000.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds
        if len(pauses) == 1:
            then()

    monkeypatch.setattr(gang_end, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return pauses


def test_a_failure_that_another_node_explains_is_its_consequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    request = StopRequest(cause=Cause.USER, message="ValueError", rank=1, restarts=AGREED)
    quick(monkeypatch, lambda: node.store.write(STOP_FILE, request.to_json()))
    found = node.end._failed(CONSEQUENCE)
    assert (found.code, found.cause, found.restarts) == (143, None, AGREED)
    assert found.message == "node 1 ended the launch (USER): ValueError"
    assert node.asked == request


@pytest.mark.parametrize("replaces", [True, False])
def test_a_failure_that_nobody_explains_is_of_the_node_that_has_fallen_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    node = Node(tmp_path, replaces=replaces).others(a_report(1), a_report(2))
    beats = replace(a_report(1), heartbeat_at=9.0)
    pauses = quick(monkeypatch, lambda: node.others(beats))
    found = node.end._failed(CONSEQUENCE)
    assert sum(pauses) == 5.0
    assert found.cause is Cause.NODE
    assert "the training ended because node 2 was lost: connection reset" in (found.message or "")
    assert node.asked
    # It does not come to another launch, unless another takes its place.
    assert [each.rank for each in node.asked.restarts] == ([2] if replaces else [])
    assert found.restarts == node.asked.restarts


def test_a_failure_of_its_own_is_asked_about_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = quick(monkeypatch)
    node = Node(tmp_path).others(a_report(1), a_report(2))
    own = NodeFailure(cause=Cause.USER, message="ValueError", exit_code=1)
    found = node.end._failed(own)
    assert node.asked
    assert (pauses, found.cause, found.message) == ([], Cause.USER, "ValueError")
    assert [(each.rank, each.cause) for each in node.asked.restarts] == [(0, Cause.USER)]
    alone = Node(tmp_path / "alone", nodes=1)
    assert alone.end._failed(CONSEQUENCE).cause is Cause.NODE
    assert pauses == []


def test_a_crash_loop_is_seen_where_the_failed_node_counts_no_steps_and_the_last_report_is_old(
    tmp_path: Path,
) -> None:
    own = NodeFailure(cause=Cause.USER, message="ValueError", exit_code=1)
    before: tuple[Restart, ...] = ()
    for launch, step in enumerate((83, 97)):
        node = Node(tmp_path / str(launch), before=before)
        progress = Progress(step=step, step_time=0.15)
        node.others(a_report(1, restarts=before, progress=progress), a_report(2, restarts=before))
        found = node.end._failed(own)
        before = found.restarts
        assert bool(before) is (launch == 0)
    assert "crash loop: USER at step 97 for the second time" in (found.message or "")
    assert node.heartbeat.report.crash_loop


def test_a_step_that_the_failed_node_counts_itself_is_exact(tmp_path: Path) -> None:
    node = Node(tmp_path).others(a_report(1, progress=Progress(step=7, step_time=0.15)))
    node.context.meter.step_now = lambda: 8
    node.end.declare(HANG)
    assert node.asked
    assert (node.asked.restarts[0].step, node.asked.restarts[0].behind) == (8, 0)


def test_all_are_asked_to_end_for_the_cause_of_the_failure(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.end._failed(NodeFailure(cause=Cause.OOM, message="no memory", exit_code=1))
    assert node.asked
    assert node.asked.cause is Cause.OOM


def test_a_failure_for_which_no_budget_is_left_says_so_to_all(tmp_path: Path) -> None:
    node = Node(tmp_path, restarts=Restarts(hang=1))
    found = node.end._failed(NodeFailure(cause=Cause.USER, message="ValueError", exit_code=1))
    said = "ValueError; not launched again: restarts.program is 0"
    assert node.asked
    assert (found.message, node.asked.message, node.asked.restarts, found.restarts) == (said, said, (), ())


@pytest.mark.parametrize(
    "codes, restarts, oom_killed, charged, cause",
    [
        ((-9, 137, -15), Restarts(program=1, node=1), False, Cause.USER, Cause.NODE),
        ((-9, 137, -15), Restarts(program=1), False, Cause.USER, Cause.NODE),
        ((-9, 137, -15), Restarts(node=1), False, Cause.NODE, Cause.NODE),
        ((-9, 137), Restarts(program=1, node=1), True, Cause.OOM, Cause.OOM),
        ((-9, 137), Restarts(node=1), True, None, Cause.OOM),
    ],
)
def test_what_kills_a_process_on_a_machine_that_lives_is_charged_to_the_program_where_it_has_a_budget(
    tmp_path: Path,
    codes: tuple[int, ...],
    restarts: Restarts,
    oom_killed: bool,
    charged: Cause | None,
    cause: Cause,
) -> None:
    for code in codes:
        node = Node(tmp_path / str(code), restarts=restarts).others(a_report(1), a_report(2))
        launch: Any = Launch(ProcessFailure(rank=5, exit_code=code), output="")
        found = node.end.outcome_of(launch, ended_by(1, oom_killed=oom_killed))
        assert node.asked
        assert [each.cause for each in found.restarts] == [charged] * bool(charged)
        # The cause decides on a retry: nothing points at the program itself.
        assert (found.cause, node.asked.cause, node.asked.restarts) == (cause, cause, found.restarts)


def test_a_process_that_is_killed_at_one_step_for_the_third_time_is_a_crash_loop(
    tmp_path: Path,
) -> None:
    before: tuple[Restart, ...] = ()
    for launch in range(3):
        assert len(before) == launch
        node = Node(tmp_path / str(launch), before=before, restarts=Restarts(program=9, node=9))
        node.context.meter.step_now = lambda: 40
        process: Any = Launch(ProcessFailure(rank=5, exit_code=-9))
        found = node.end.outcome_of(process, ended_by(1, oom_killed=False))
        before = found.restarts
    assert (before, found.cause) == ((), Cause.NODE)
    assert "crash loop: a process was killed at step 40 for the third time" in (found.message or "")
    assert node.heartbeat.report.crash_loop


def test_a_hang_beside_a_fault_of_a_machine_is_the_same_as_one_without(tmp_path: Path) -> None:
    sick = replace(HANG, message="no step for 30 s; a machine is unhealthy (GPU 3 is hot)", cause=Cause.NODE)
    for number, (first, second) in enumerate([(HANG, sick), (sick, HANG), (sick, sick)]):
        once = Node(tmp_path / f"{number}.once")
        once.end.declare(first)
        assert once.switch.stop
        assert len(once.switch.stop.restarts) == 1
        again = Node(tmp_path / f"{number}.again", before=once.switch.stop.restarts)
        again.end.declare(second)
        assert again.switch.stop
        assert again.switch.stop.restarts == ()
        assert "crash loop: HANG at step 20 for the second time" in again.switch.stop.message
        assert again.heartbeat.report.crash_loop


def test_a_machine_that_nobody_uses_is_no_hang_for_the_second_time(tmp_path: Path) -> None:
    node = Node(tmp_path, before=(Restart(cause=Cause.HANG, message="m", step=20, hang=True),))
    node.end.declare(Stop(message="idle", cause=Cause.IDLE, stacks=True))
    assert node.asked
    assert "crash loop" not in node.asked.message
    assert not node.heartbeat.report.crash_loop


# Earlier gangs of the same try


AT_20 = Restart(cause=Cause.USER, message="a bad batch", rank=1, step=20, checkpoint="digest-20")
BAD_BATCH = NodeFailure(cause=Cause.USER, message="a bad batch", exit_code=1)


@pytest.mark.parametrize("before", [(), BEFORE])
def test_what_the_program_failed_with_in_an_earlier_gang_ends_this_one_at_the_same_step_at_once(
    tmp_path: Path, before: tuple[Restart, ...]
) -> None:
    node = Node(tmp_path, before=before, restarts=Restarts(program=9))
    node.store.write(EARLIER_FILE, EarlierGangs(restarts=(AT_20,)).to_json())
    found = node.end._failed(BAD_BATCH)
    assert found.restarts == ()
    assert "crash loop: USER at step 20 for the second time" in (found.message or "")
    assert node.heartbeat.report.crash_loop


def test_what_ended_earlier_gangs_costs_no_budget_of_this_one_and_is_none_of_its_launches(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, restarts=Restarts(program=1))
    earlier = tuple(replace(AT_20, step=step) for step in (3, 9, 40))
    node.store.write(EARLIER_FILE, EarlierGangs(restarts=earlier).to_json())
    found = node.end._failed(BAD_BATCH)
    assert [each.step for each in found.restarts] == [20]
    assert node.asked
    assert node.asked.restarts == found.restarts


@pytest.mark.parametrize("damaged", [b"{", b"[]", b"\xff", None])
def test_where_it_cannot_be_read_how_earlier_gangs_failed_this_one_is_judged_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: bytes | None
) -> None:
    node = Node(tmp_path)
    if damaged is None:
        (tmp_path / EARLIER_FILE).mkdir()
    else:
        node.store.write(EARLIER_FILE, damaged)
    assert len(node.end._failed(BAD_BATCH).restarts) == 1
    assert "what has ended launches of the gangs before this one cannot be read" in caplog.text


def test_nodes_that_have_no_file_of_earlier_gangs_say_nothing_of_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(Node(tmp_path).end._failed(BAD_BATCH).restarts) == 1
    assert not caplog.text


def test_nodes_that_did_not_find_one_another_may_try_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    found = node.end.not_together(AgentError("no hunter22 of node 2", cause=Cause.NODE))
    assert (found.code, found.cause, found.message) == (69, Cause.NODE, "no *** of node 2")
    assert [each.rank for each in found.restarts] == [0]


@pytest.mark.parametrize("budget", [0, 1])
def test_nodes_that_come_late_to_a_meeting_are_named_as_lost_where_a_launch_follows(
    tmp_path: Path, budget: int
) -> None:
    node = Node(tmp_path, before=BEFORE, replaces=True, restarts=Restarts(program=1, node=budget))
    found = node.end.without(LateNodes("nodes 1, 2 of 3 not here", [1, 2]))
    assert node.asked
    assert (found.cause, node.asked.cause) == (Cause.NODE, Cause.NODE)
    assert found.restarts == node.asked.restarts
    assert [(each.rank, each.lost) for each in found.restarts[1:]] == [(1, (1, 2))] * budget
    assert ("not launched again: restarts.node is 0" in (found.message or "")) is (budget == 0)


def meeting_without(
    folder: Path, before: tuple[Restart, ...], *ranks: int, saved: int = 20
) -> tuple[Node, Outcome]:
    """Let the first of eight nodes end a launch to whose meeting some others did not come; return how it ended."""
    node = Node(folder, before=before, nodes=8, replaces=True, restarts=Restarts(program=9, node=9))
    node.heartbeat.update(checkpoint=checkpoint_at(saved))
    return node, node.end.without(LateNodes(f"nodes {ranks} not here", ranks))


@pytest.mark.parametrize("number", range(20))
def test_nodes_that_miss_one_meeting_after_another_are_no_crash_loop_until_one_misses_two(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    ranks = draw.sample(range(1, 8), draw.randint(2, 5))
    trained = Restart(cause=Cause.NODE, message="m", rank=ranks[-1], step=40, lost=(ranks[-1],))
    # This node had lost its connection, to whichever machine.
    own = Restart(cause=Cause.NODE, message="m", rank=0, checkpoint="digest-20")
    before = draw.choice([(), (trained,), (own,)])
    print(f"seed {SEED}.{number}: {ranks} after {before}")
    for rank in ranks:
        node, found = meeting_without(tmp_path / f"{rank}", before, rank)
        assert (found.restarts[:-1], node.heartbeat.report.crash_loop) == (before, False)
        assert node.asked
        assert node.asked.restarts == found.restarts
        before = found.restarts
    again = draw.choice(ranks)
    with_it = sorted([again, *({*range(1, 8)} - {*ranks})])
    node, found = meeting_without(tmp_path / "saved since", before, *with_it, saved=30)
    assert (len(found.restarts), node.heartbeat.report.crash_loop) == (len(before) + 1, False)
    node, found = meeting_without(tmp_path / "twice", before, *with_it)
    assert (found.restarts, node.heartbeat.report.crash_loop) == ((), True)
    assert found.message
    assert "crash loop: NODE" in found.message
    assert "for the second time" in found.message


def test_each_launch_without_late_nodes_costs_one_of_the_budget_whichever_they_are(tmp_path: Path) -> None:
    before: tuple[Restart, ...] = ()
    for rank in (1, 2, 3):
        node = Node(tmp_path / f"{rank}", before=before, nodes=4, replaces=True, restarts=Restarts(node=2))
        found = node.end.without(LateNodes("not here", [rank]))
        before = found.restarts
    assert (before, node.heartbeat.report.crash_loop) == ((), False)
    assert "all 2 of restarts.node are used" in (found.message or "")


def test_a_machine_that_is_lost_amid_the_training_is_compared_with_every_loss_before(tmp_path: Path) -> None:
    lost = Restart(cause=Cause.NODE, message="m", rank=1, step=20, checkpoint="digest-20", lost=(1,))
    node = Node(tmp_path, before=(lost,), replaces=True)
    node.end.declare(Stop(message="node 2 is silent", cause=Cause.NODE, misses_node=True))
    assert node.asked
    assert node.asked.restarts == ()
    assert "crash loop: NODE at step 20 for the second time" in node.asked.message


# How a launch ended


class Launch:
    """A launch that has ended, with the launcher's report of the process that failed first."""

    def __init__(self, process: ProcessFailure | None = None, output: str = "ValueError: x\n") -> None:
        self.process = process
        self.output = output
        self.kept: list[int] = []
        self.hang_evidence = SimpleNamespace(keep_records=self.kept.append)

    def first_failure(self, ended: Ended) -> ProcessFailure | None:
        assert isinstance(ended, Ended)
        return self.process

    def last_output(self, ended: Ended) -> str:
        assert isinstance(ended, Ended)
        return self.output


def ended_by(exit_code: int, stop: Stop | None = None, *, oom_killed: bool | None = None) -> Ended:
    return Ended(exit_code=exit_code, output="", stop=stop, oom_killed=oom_killed)


STOP = Stop(message="node 1 ended the launch", restarts=AGREED)


@pytest.mark.parametrize("process, code", [(None, 143), (ProcessFailure(rank=5, exit_code=-9), -9)])
def test_a_launch_that_was_stopped_says_why_and_how_its_program_ended(
    tmp_path: Path, process: ProcessFailure | None, code: int
) -> None:
    launch: Any = Launch(process, "the last line")
    found = Node(tmp_path).end.outcome_of(launch, ended_by(143, STOP))
    assert (found.code, found.exit_code, found.cause, found.message) == (143, code, None, STOP.message)
    assert (found.tail, found.restarts, launch.kept) == ("the last line", AGREED, [])


@pytest.mark.parametrize(
    "process, oom_killed, exit_code, cause",
    [
        (None, None, 3, Cause.USER),
        (ProcessFailure(rank=5, exit_code=-9), True, -9, Cause.OOM),
        (None, True, -9, Cause.OOM),
        (None, False, -9, Cause.NODE),
    ],
)
def test_a_launch_that_failed_is_diagnosed_by_all_that_is_known_and_its_records_are_kept(
    tmp_path: Path, process: ProcessFailure | None, oom_killed: bool | None, exit_code: int, cause: Cause
) -> None:
    node = Node(tmp_path, before=BEFORE)
    launch: Any = Launch(process)
    found = node.end.outcome_of(launch, ended_by(exit_code if process is None else 1, oom_killed=oom_killed))
    assert (found.exit_code, found.cause, found.tail) == (exit_code, cause, "ValueError: x\n")
    assert ("(rank 5)" in (found.message or "")) is (process is not None)
    assert launch.kept == [1]


def standing(rank: int, at: str) -> NodeReport:
    return a_report(rank, stack_positions=(StackPosition(rank=rank, at=(at,)),))


def test_after_a_hang_the_main_node_names_those_that_stand_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = (standing(1, "asleep (train.py:3)"), standing(2, "reduce (train.py:12)"))
    hung = Stop(message="no step for 30 s", cause=Cause.HANG, stacks=True)
    said = []
    for rank, stop in ((0, hung), (0, replace(hung, stacks=False)), (1, hung)):
        node = Node(tmp_path / str(len(said)), rank=rank).others(*others)
        node.heartbeat.update(stack_positions=standing(rank, "reduce (train.py:12)").stack_positions)
        launch: Any = Launch()
        said.append(node.end.outcome_of(launch, ended_by(143, stop)).message or "")
    odd = said[0].removeprefix("no step for 30 s; ")
    assert odd.startswith("rank 1 stands")
    assert "while 2 of 3 ranks stand in reduce (train.py:12)" in odd
    assert said[1:] == ["no step for 30 s"] * 2
    assert caplog.messages == [odd]


def test_where_all_stand_alike_nobody_is_named(tmp_path: Path) -> None:
    node = Node(tmp_path).others(standing(1, "here"), a_report(2))
    node.heartbeat.update(stack_positions=standing(0, "here").stack_positions)
    launch: Any = Launch()
    found = node.end.outcome_of(launch, ended_by(143, Stop(message="m", cause=Cause.HANG, stacks=True)))
    assert (found.message, found.cause) == ("m", Cause.HANG)


WAITS, LOADS = "all_reduce (distributed_c10d.py:3245)", "load (data.py:9)"


@pytest.mark.parametrize(
    "first, second, said",
    [
        (WAITS, WAITS, "both ranks that run wait for others: "),
        (WAITS, LOADS, "rank 0 waits for others, and rank 1 does not: "),
        (LOADS, WAITS, "rank 1 waits for others, and rank 0 does not: "),
        (LOADS, "item (train.py:3)", "no stack shows which of the two ranks that run waits for others: "),
        (LOADS, LOADS, "no stack shows which of the two ranks that run waits for others: "),
    ],
)
def test_of_two_ranks_that_hang_both_are_named_and_the_one_that_waits(
    tmp_path: Path, first: str, second: str, said: str
) -> None:
    node = Node(tmp_path, nodes=2).others(standing(1, second))
    node.context.others = (1,)
    node.heartbeat.update(stack_positions=standing(0, first).stack_positions)
    launch: Any = Launch()
    found = node.end.outcome_of(launch, ended_by(143, HANG)).message or ""
    assert found == f"{HANG.message}; {said}rank 0 stands in {first}; rank 1 stands in {second}"


def test_a_node_in_whose_place_another_comes_is_not_launched_again_by_the_explanation_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, rank=1, nodes=2)
    restart = Restart(cause=Cause.NODE, message="node 1: lost", rank=1, lost=(1,))
    request = StopRequest(cause=Cause.NODE, message="node 1: lost", rank=0, restarts=(restart,))
    pauses = quick(monkeypatch, lambda: node.store.write(STOP_FILE, request.to_json()))
    assert node.end._failed(CONSEQUENCE).restarts == ()
    assert pauses == [0.25]


def test_a_request_that_cannot_be_written_launches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    monkeypatch.setattr(node.heartbeat, "ask_all_to_stop", lambda _: None)
    assert node.end.ask_others(Cause.USER, "m", AGREED) == ()


@pytest.mark.parametrize(
    "phase, newest, reached",
    [
        (Phase.TRAINING, checkpoint_at(20), (20, 4)),
        (Phase.SAVING, checkpoint_at(20), (20, 4)),
        (Phase.STARTING, checkpoint_at(20), (None, 0)),
        (Phase.TRAINING, CheckpointRef(uri="oci://b@n/best", step=None), (None, 0)),
        (Phase.TRAINING, None, (None, 0)),
    ],
)
def test_a_program_that_was_launched_goes_on_from_the_newest_checkpoint_and_fails_before_the_next_step(
    tmp_path: Path, phase: Phase, newest: CheckpointRef | None, reached: tuple[int | None, int]
) -> None:
    node = Node(tmp_path).others(a_report(1))
    node.context.meter.steps_apart = 5
    node.heartbeat.update(phase=phase, checkpoint=newest)
    (failure,), _ = NextLaunch(node.context).restarts_after(Cause.USER, "boom")
    assert (failure.step, failure.behind) == reached


def test_a_failure_has_a_budget_while_the_job_allows_a_launch_after_one_of_its_kind(tmp_path: Path) -> None:
    restarts = Restarts(program=1, hang=0, node=2)
    before = (Restart(cause=Cause.USER, message="boom", step=3),)
    first, second = (
        NextLaunch(Node(tmp_path, before=had, restarts=restarts).context) for had in ((), before)
    )
    assert [first.has_budget(cause) for cause in (Cause.USER, Cause.HANG, Cause.NODE)] == [True, False, True]
    assert [second.has_budget(cause) for cause in (Cause.USER, Cause.HANG, Cause.NODE)] == [
        False,
        False,
        True,
    ]


def test_before_the_first_checkpoint_a_failure_names_none(tmp_path: Path) -> None:
    node = Node(tmp_path).others(a_report(1))
    node.heartbeat.update(checkpoint=None)
    node.end.declare(HANG)
    assert node.asked
    assert node.asked.restarts[0].checkpoint is None


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("cause", [Cause.ABANDONED, Cause.BUDGET])
@pytest.mark.parametrize("number", range(4))
def test_an_end_of_the_run_that_is_declared_between_two_launches_is_heeded_in_the_next_at_the_latest(
    tmp_path: Path, cause: Cause, nodes: int, number: int
) -> None:
    """`number`: of the moments of going back before which it is declared for the first time."""
    node = Node(tmp_path, nodes=nodes)
    watch = lease_that_is_over(lambda message: node.end.declare(Stop(message=message, cause=cause)))
    moments: list[Callable[[], object]] = [
        lambda: node.end.declare(HANG),
        lambda: node.switch.rearm(1),
        lambda: node.heartbeat.update(restarts=restarts),
        lambda: node.switch.rearm(1),
        lambda: None,
    ]
    moments[0]()
    assert node.switch.stop
    restarts = node.switch.stop.restarts
    with contextlib.suppress(Stopped):
        for after, moment in enumerate(moments[1:]):
            if after >= number:
                watch()
            moment()
    watch()
    assert node.switch.stop
    assert (node.switch.stop.cause, node.switch.stop.restarts) == (cause, ())
    if nodes > 1:
        assert node.asked
        assert (node.asked.cause, node.asked.restarts) == (cause, ())


def lease_that_is_over(declare: Callable[[str], object]) -> Callable[[], None]:
    """Return the look of a lease's watch, whose lease is over from now on."""
    now = [0.0]
    watch = LeaseWatch(1.0, lambda: b"first", declare=declare, clock=lambda: now[0])

    def look() -> None:
        now[0] += 10.0
        watch.look()

    watch.look()
    return look
