"""What a pod says of a node whose gang has lost pods made anew one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from airflow_provider_ocidist.backends.kubernetes.gang_state import Gang, GangState
from airflow_provider_ocidist.backends.kubernetes.pod_losses import with_preemption
from airflow_provider_ocidist.backends.kubernetes.states import LEFT_AFTER, OVERDUE_AFTER
from airflow_provider_ocidist.backports import unix_time
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import NodeState
from tests.backends.kubernetes.test_states import (
    DISRUPTED,
    NOW,
    START,
    a_report,
    ended,
    looked_at,
    of_agent,
    pod,
    waiting,
)

UID = "uid-1"
STOPPED = a_report(phase=Phase.DONE, exit_code=0, stopped=True)
REJECTED = [
    "UnexpectedAdmissionError",
    "OutOfnvidia.com/gpu",
    "OutOfcpu",
    "NodeAffinity",
    "Evicted",
    "Terminated",
]


def agents(found: dict[str, Any], last: dict[str, Any] | None = None, restarts: int = 0) -> dict[str, Any]:
    made = of_agent(found, last, restarts)
    made["metadata"]["uid"] = UID
    return made


@pytest.mark.parametrize("reason", REJECTED)
@pytest.mark.parametrize("container", [None, waiting("PodInitializing")])
def test_a_pod_that_its_kubelet_rejects_before_it_begins_is_waited_for_as_another_is_made(
    reason: str, container: Any
) -> None:
    rejected = pod("Failed", state=container, reason=reason, message="no room")
    node = looked_at(rejected, replaces=True)
    assert node.state is NodeState.PENDING
    assert reason in str(node.details)
    # Where no other is made, or after the agent has begun, it is an end.
    assert looked_at(rejected).state is NodeState.FAILED
    assert looked_at(rejected, report=a_report(), replaces=True).state is NodeState.FAILED
    begun = pod("Failed", state=ended(143), reason=reason, message="no room")
    assert looked_at(begun, replaces=True).state is NodeState.FAILED


def test_a_rejected_pod_that_its_operator_leaves_there_is_in_the_way_and_no_loss() -> None:
    later = "2026-11-23T00:03:20Z"
    disrupted = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": later}
    for conditions, since in (([], NOW), ([disrupted], unix_time(later) or 0.0)):
        for reason in REJECTED:
            rejected = pod("Failed", reason=reason, message="no GPU", conditions=conditions)
            for late, is_left in ((0.0, False), (1.0, True)):
                now = since + LEFT_AFTER + late
                for is_new in (False, True):
                    node = looked_at(rejected, replaces=True, is_new=is_new, now=now)
                    assert (node.state, node.is_left) == (NodeState.PENDING, is_left)
                assert not looked_at(rejected, now=now).is_left
    del rejected["status"]["startTime"], rejected["status"]["conditions"]
    assert not looked_at(rejected, replaces=True, now=NOW + 1e6).is_left


def test_where_failed_pods_stay_beside_those_that_take_their_places_none_is_in_the_way() -> None:
    beside = {"replaces": True, "keeps_failed": True, "now": NOW + LEFT_AFTER + 1}
    rejected = pod("Failed", reason="OutOfcpu", message="no room")
    failed = pod("Failed", state=ended(3))
    for is_new in (False, True):
        node = looked_at(rejected, **beside, is_new=is_new)
        assert (node.state, node.is_left) == (NodeState.PENDING, False)
    # One that ends before its turn is made again; the first of its rank had no turn to wait for.
    assert looked_at(failed, **beside, is_new=True).state is NodeState.PENDING
    assert looked_at(failed, **beside).state is NodeState.FAILED
    assert looked_at(failed, report=a_report(), **beside, is_new=True).state is NodeState.FAILED
    init = pod("Failed")
    init["status"]["initContainerStatuses"] = [{"name": "fetch", "state": ended(7)}]
    node = looked_at(init, **beside, is_new=True)
    assert (node.state, node.cause) == (NodeState.FAILED, Cause.USER)
    for over in (GangState.FAILED, GangState.SUCCEEDED):
        for found in (rejected, failed):
            assert looked_at(found, Gang(over), **beside, is_new=True).state is NodeState.FAILED


def test_a_lost_node_whose_idle_agent_ends_with_0_has_not_succeeded() -> None:
    for report in (
        a_report(phase=Phase.DONE, lost=True, message="started again"),
        a_report(phase=Phase.DONE, lost=True, message="error", cause=Cause.USER, exit_code=1),
    ):
        idle = agents(pod("Succeeded", state=ended(0, "Completed")), ended(1), restarts=1)
        for gang in (GangState.ACTIVE, GangState.SUCCEEDED):
            node = looked_at(idle, Gang(gang), report=report, replaces=True)
            assert (node.state, node.details) == (NodeState.FAILED, report.message)
    done = a_report(phase=Phase.DONE, exit_code=0)
    assert looked_at(idle, report=done, replaces=True).state is NodeState.SUCCEEDED


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("idle", [{"running": {}}, ended(0, "Completed"), ended(143)])
def test_what_kubernetes_says_of_the_end_before_a_restart_is_the_cause_however_the_idle_agent_ends(
    idle: dict[str, Any], replaces: bool
) -> None:
    report = a_report(phase=Phase.DONE, lost=True, message="started again")
    found = agents(pod("Running", state=idle), ended(137, "OOMKilled"), restarts=1)
    for gang in (GangState.ACTIVE, GangState.SUCCEEDED):
        node = looked_at(found, Gang(gang), report=report, replaces=replaces)
        assert (node.state, node.cause, node.exited) == (NodeState.FAILED, Cause.OOM, 137)


def test_a_pod_whose_own_deadline_is_over_is_not_waited_for() -> None:
    late = pod("Failed", reason="DeadlineExceeded", message="active longer than specified deadline")
    assert looked_at(late, replaces=True).state is NodeState.FAILED


@pytest.mark.parametrize("why", ["another", "disrupted", "neither"])
def test_an_exit_code_0_after_sigterm_is_no_success_of_a_node_that_was_lost(why: str) -> None:
    more: dict[str, Any] = {"conditions": DISRUPTED} if why == "disrupted" else {}
    last = pod(state={"running": {}}, **more)
    node = looked_at(
        None,
        Gang(GangState.SUCCEEDED),
        STOPPED,
        last=last,
        replaces=True,
        has_another=why == "another",
    )
    # The operator ends what is left of a gang that has succeeded.
    assert node.state is (NodeState.SUCCEEDED if why == "neither" else NodeState.FAILED)
    # A node that had succeeded before has.
    done = a_report(phase=Phase.DONE, exit_code=0)
    node = looked_at(None, Gang(GangState.SUCCEEDED), done, last=last, replaces=True, has_another=True)
    assert node.state is NodeState.SUCCEEDED


RUNNING: dict[str, Any] = {"running": {}}


def test_a_new_pod_whose_container_was_restarted_before_its_turn_is_no_failure() -> None:
    before_its_report = agents(pod(state=RUNNING), ended(3), restarts=1)
    for state in (RUNNING, waiting("CrashLoopBackOff")):
        again = agents(pod(state=state), ended(3), restarts=1)
        node = looked_at(again, replaces=True, is_new=True)
        assert node.state is NodeState.PENDING
        assert "exit code 3" in str(node.details)
    # The first pod of a rank has no turn to wait for.
    assert looked_at(before_its_report, replaces=True).state is NodeState.FAILED
    alive = a_report(instance=UID, incarnation=1)
    assert looked_at(before_its_report, report=alive, replaces=True, is_new=True).state is NodeState.RUNNING
    for report in (
        a_report(instance="uid-0"),
        a_report(instance=UID, phase=Phase.DONE, lost=True, message="started again"),
        a_report(instance=UID, phase=Phase.DONE, exit_code=3),
    ):
        assert looked_at(before_its_report, report=report, replaces=True).state is NodeState.FAILED
    # The report is of the process before, which has ended; or none is there yet that could have reported.
    for heartbeat_at, wanted in ((NOW - 1, NodeState.FAILED), (NOW, NodeState.RUNNING)):
        restarted = agents(pod(state={"running": {"startedAt": START}}), ended(3), restarts=1)
        beats = a_report(instance=UID, heartbeat_at=heartbeat_at)
        assert looked_at(restarted, report=beats, replaces=True).state is wanted
    waits = agents(pod(state=waiting("CrashLoopBackOff")), ended(3), restarts=1)
    assert looked_at(waits, report=alive, replaces=True).state is NodeState.FAILED


@pytest.mark.parametrize(
    "message, cause",
    [
        ("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ", Cause.USER),
        ('Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". ', Cause.USER),
        ('Container pytorch exceeded its local ephemeral storage limit "1Gi". ', Cause.USER),
        ("The node was low on resource: memory. Container pytorch was using 9Gi, request is 0", Cause.PREEMPTED),
        # Of older kubelets: the machine was full, and this pod was chosen.
        (
            "The node was low on resource: ephemeral-storage. Container c was using 9Gi, exceeds its request of 0",
            Cause.PREEMPTED,
        ),
    ],
)  # fmt: skip
def test_a_pod_that_is_evicted_for_what_it_uses_itself_is_no_machine_that_was_taken(
    message: str, cause: Cause
) -> None:
    disrupted = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]
    for conditions in ([], disrupted):
        evicted = pod("Failed", state=ended(137), reason="Evicted", message=message, conditions=conditions)
        assert looked_at(evicted, report=a_report()).cause is cause
        assert looked_at(None, report=a_report(), last=evicted).cause is cause
    vanished = looked_at(None, report=a_report(instance=UID))
    assert with_preemption(vanished, {UID: f"Evicted: {message}"}).cause is cause
    assert with_preemption(vanished, {UID: f"Preempted: {message}"}).cause is Cause.PREEMPTED


def test_a_node_that_had_succeeded_when_its_machine_died_has_succeeded() -> None:
    found = agents(pod(state=RUNNING))
    found["metadata"]["deletionTimestamp"] = START
    late = NOW + OVERDUE_AFTER + 1
    done = a_report(phase=Phase.DONE, exit_code=0, finished_at=7.0)
    node = looked_at(found, report=done, now=late, replaces=True)
    assert (node.state, node.finished_at) == (NodeState.SUCCEEDED, 7.0)
    draw = random.Random(seed := random.randrange(10_000))
    print("seed", seed)
    for _ in range(50):
        report: NodeReport = draw.choice([a_report(), STOPPED, a_report(phase=Phase.DONE, exit_code=1)])
        assert looked_at(found, report=report, now=late, replaces=True).state is NodeState.FAILED
    assert looked_at(found, report=done, now=NOW, replaces=True).state is NodeState.ENDING
