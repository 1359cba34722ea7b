"""What is said of a node on Kubernetes, word for word: state, sentence, cause, exit code, times."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_ocidist.backends.kubernetes import objects, pod_parts, states
from airflow_provider_ocidist.backends.kubernetes.events import (
    PREEMPTED,
    fields_read,
    sentences_by_pod,
    warnings_by_object,
)
from airflow_provider_ocidist.backends.kubernetes.gang_state import Gang, GangState
from airflow_provider_ocidist.backends.kubernetes.pod_losses import has_vanished
from airflow_provider_ocidist.backends.kubernetes.states import IMAGE_PATIENCE
from airflow_provider_ocidist.backports import unix_time
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import NodeState, NodeStatus
from tests.backends.kubernetes.test_states import (
    ACTIVE,
    DISRUPTED,
    NO_GPU,
    NOW,
    START,
    a_report,
    ended,
    looked_at,
    of_agent,
    pod,
    unscheduled,
    waiting,
)

# As Kubernetes' documentation and the kubelet have them.
REASONS = {
    "Evicted": Cause.PREEMPTED,
    "Preempting": Cause.PREEMPTED,
    "NodeLost": Cause.NODE,
    "NodeShutdown": Cause.NODE,
    "NodeAffinity": Cause.CONFIG,
    "Shutdown": Cause.NODE,
    "Terminated": Cause.NODE,
    "UnexpectedAdmissionError": Cause.NODE,
    "DeadlineExceeded": Cause.DEADLINE,
}
DISRUPTIONS = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "EvictionByEvictionAPI": Cause.PREEMPTED,
    "DeletionByTaintManager": Cause.NODE,
    "DeletionByPodGC": Cause.NODE,
    "TerminationByKubelet": Cause.NODE,
    "Anything": Cause.NODE,
}
NEVER_THERE = ["InvalidImageName", "ErrImageNeverPull"]
NOT_PULLED = [*NEVER_THERE, "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"]
NOT_STARTED = ["CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"]

DONE, FAILED = a_report(phase=Phase.DONE, exit_code=0), a_report(phase=Phase.DONE, exit_code=3)


def said(node: NodeStatus) -> tuple[NodeState, str | None, Cause | None]:
    return node.state, node.details, node.cause


def disrupted(reason: str, message: str = "") -> list[dict[str, str]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]


def deleted(found: dict[str, Any]) -> dict[str, Any]:
    found["metadata"]["deletionTimestamp"] = START
    return found


@pytest.mark.parametrize(
    "found, expected",
    [
        (pod(state={"running": {}}), (NodeState.RUNNING, None, None)),
        (pod("Succeeded", state=ended(0, "Completed", "bye")), (NodeState.SUCCEEDED, "exit code 0", None)),
        (pod("Succeeded"), (NodeState.SUCCEEDED, None, None)),
        (pod("Failed", state=ended(3)), (NodeState.FAILED, "exit code 3", None)),
        (pod("Failed", state=ended(3, "")), (NodeState.FAILED, "exit code 3", None)),
        (pod("Failed", state=ended(3, "Completed")), (NodeState.FAILED, "exit code 3", None)),
        (pod("Failed", state=ended(3, "Error", " boom\n")), (NodeState.FAILED, "exit code 3: boom", None)),
        (
            pod("Failed", state=ended(137, "OOMKilled", "boom")),
            (NodeState.FAILED, "exit code 137, OOMKilled: boom", Cause.OOM),
        ),
        (
            pod("Failed", state=ended(137), reason="Evicted", message="low on memory"),
            (NodeState.FAILED, "exit code 137, Evicted: low on memory", Cause.PREEMPTED),
        ),
        (
            pod("Failed", state=ended(137, "OOMKilled"), reason="Evicted"),
            (NodeState.FAILED, "exit code 137, OOMKilled, Evicted", Cause.OOM),
        ),
        (pod("Failed"), (NodeState.FAILED, None, None)),
        (pod("Failed", message="whatever it was"), (NodeState.FAILED, "whatever it was", None)),
        (pod("Failed", reason="Foo", message="bar"), (NodeState.FAILED, "Foo: bar", None)),
        (
            pod("Failed", reason="Foo", conditions=DISRUPTED),
            (NodeState.FAILED, "PreemptionByScheduler: for p2", Cause.PREEMPTED),
        ),
        (
            pod("Failed", reason="NodeShutdown", conditions=DISRUPTED),
            (NodeState.FAILED, "NodeShutdown", Cause.NODE),
        ),
        (
            pod("Unknown"),
            (NodeState.UNKNOWN, "Kubernetes has lost contact with its machine (phase Unknown)", None),
        ),
        (deleted(pod(state={"running": {}})), (NodeState.ENDING, "its pod is being deleted", None)),
        (
            deleted(pod(state={"running": {}}, conditions=DISRUPTED)),
            (NodeState.ENDING, "PreemptionByScheduler: for p2", None),
        ),
        (pod("Pending"), (NodeState.PENDING, None, None)),
        ({"metadata": {"name": "p"}}, (NodeState.PENDING, None, None)),
        (pod("Running"), (NodeState.PENDING, None, None)),
        (
            pod("Running", state=waiting("ContainerCreating", "soon")),
            (NodeState.PENDING, "ContainerCreating: soon", None),
        ),
        (
            pod("Pending", conditions=unscheduled(NO_GPU)),
            (NodeState.PENDING, f"Unschedulable: {NO_GPU}", Cause.CAPACITY),
        ),
        (
            pod("Pending", conditions=[{"type": "PodScheduled", "status": "False"}]),
            (NodeState.PENDING, None, Cause.CAPACITY),
        ),
        (
            pod("Pending", conditions=[{"type": "PodScheduled", "status": "True", "reason": "x"}]),
            (NodeState.PENDING, None, None),
        ),
        (
            pod("Pending", conditions=[{"type": "Ready", "status": "False", "reason": "x"}]),
            (NodeState.PENDING, None, None),
        ),
    ],
)
def test_a_pod_says_this(found: Any, expected: tuple[NodeState, str | None, Cause | None]) -> None:
    assert said(looked_at(found)) == expected


def test_what_has_ended_has_its_time_and_exit_code_and_what_has_begun_its_start() -> None:
    node = looked_at(pod("Failed", state=ended(3)))
    assert (node.started_at, node.finished_at, node.exit_code, node.exited) == (NOW, NOW, 3, 3)
    well = looked_at(pod("Succeeded", state=ended(0)))
    assert (well.finished_at, well.exited) == (NOW, 0)
    running = looked_at(pod(state={"running": {}}))
    assert (running.finished_at, running.exited) == (None, None)
    assert looked_at(None, report=a_report(started_at=7.0)).started_at == 7.0
    assert looked_at(None).started_at is None
    assert looked_at(pod("Pending", startTime=None), report=a_report(started_at=7.0)).started_at == 7.0
    assert looked_at(pod(), report=a_report(started_at=7.0)).started_at == NOW
    assert looked_at(None, report=a_report(phase=Phase.DONE, exit_code=0, finished_at=9.0)).finished_at == 9.0
    assert (node.rank, node.run_id, looked_at(pod(), report=DONE).report) == (0, "p", DONE)


@pytest.mark.parametrize("reason, cause", list(REASONS.items()))
def test_each_reason_of_a_failed_pod_has_its_cause(reason: str, cause: Cause) -> None:
    for state in (None, ended(137)):
        assert looked_at(pod("Failed", state=state, reason=reason)).cause is cause


@pytest.mark.parametrize("reason", ["OutOfcpu", "OutOfnvidia.com/gpu"])
def test_a_machine_that_has_no_room_is_a_lack_of_capacity(reason: str) -> None:
    assert looked_at(pod("Failed", reason=reason)).cause is Cause.CAPACITY


@pytest.mark.parametrize("reason, cause", list(DISRUPTIONS.items()))
def test_each_disruption_has_its_cause(reason: str, cause: Cause) -> None:
    for message, words in (("for p2", f"{reason}: for p2"), ("", reason)):
        node = looked_at(pod("Failed", conditions=disrupted(reason, message)))
        assert said(node) == (NodeState.FAILED, words, cause)
    nameless = looked_at(pod("Failed", conditions=disrupted("", "for p2")))
    assert said(nameless) == (NodeState.FAILED, "for p2", Cause.NODE)
    past = [{**disrupted(reason)[0], "status": "False"}]
    assert looked_at(pod("Failed", conditions=past)).cause is None


@pytest.mark.parametrize("reason", [*NOT_STARTED, "ContainerCannotRun"])
def test_a_container_that_could_not_be_started_is_a_fault_of_its_settings(reason: str) -> None:
    node = looked_at(pod("Failed", state=ended(128, reason)))
    assert said(node) == (NodeState.FAILED, f"exit code 128, {reason}", Cause.CONFIG)


@pytest.mark.parametrize("name, state", [("gang", NodeState.PENDING), ("gang2", NodeState.FAILED)])
def test_only_the_secret_of_its_own_gang_is_waited_for_as_long_as_for_a_machine(
    name: str, state: NodeState
) -> None:
    missing = waiting("CreateContainerConfigError", f'secret "{name}" not found')
    late = looked_at(pod("Pending", state=missing), now=NOW + 10 * IMAGE_PATIENCE, secret="gang")
    assert (late.state, f'secret "{name}" not found' in str(late.details)) == (state, True)


# images


@pytest.mark.parametrize("reason", [*NOT_PULLED, *NOT_STARTED])
def test_a_container_that_cannot_start_is_waited_for_a_while_unless_its_image_can_never_be_there(
    reason: str,
) -> None:
    found = pod("Pending", state=waiting(reason, "the registry does not answer"))
    failed = (
        NodeState.FAILED,
        f"its container cannot start: {reason}: the registry does not answer",
        Cause.CONFIG,
    )
    pending = (NodeState.PENDING, f"{reason}: the registry does not answer", None)
    is_final = reason in NEVER_THERE
    assert said(looked_at(found, now=NOW + IMAGE_PATIENCE)) == (failed if is_final else pending)
    assert said(looked_at(found, now=NOW + IMAGE_PATIENCE + 1)) == failed
    found["status"]["startTime"] = None
    assert said(looked_at(found, now=NOW + 1e6)) == (failed if is_final else pending)


@pytest.mark.parametrize(
    "words",
    ["not found", "Manifest Unknown", "does not exist", "unauthorized", "denied", "forbidden", "invalid reference"],
)  # fmt: skip
def test_a_registry_that_says_that_there_is_no_such_image_is_believed_at_its_second_answer(
    words: str,
) -> None:
    text = f"image x:1: {words}"
    assert looked_at(pod("Pending", state=waiting("ErrImagePull", text))).state is NodeState.PENDING
    assert looked_at(pod("Pending", state=waiting("ImagePullBackOff", text))).state is NodeState.FAILED
    # Which says it in an event, and "Back-off" in the pod.
    back_off = pod("Pending", state=waiting("ImagePullBackOff", "Back-off pulling image"))
    assert looked_at(back_off, events=[f"Failed: {text}"]).state is NodeState.FAILED
    assert looked_at(back_off, events=["Failed: timeout"]).state is NodeState.PENDING


def test_a_container_that_cannot_start_has_two_minutes() -> None:
    assert IMAGE_PATIENCE == 120.0


def test_an_image_of_an_init_container_is_no_other() -> None:
    found = pod("Pending", state=waiting("PodInitializing"))
    found["status"]["initContainerStatuses"] = [{"name": "fetch", "state": waiting("InvalidImageName", "x")}]
    assert said(looked_at(found)) == (
        NodeState.FAILED,
        "its container cannot start: InvalidImageName: x",
        Cause.CONFIG,
    )


def test_the_patience_counts_from_the_last_init_container_that_has_ended() -> None:
    found = pod("Pending", state=waiting("ErrImagePull", "timeout"))
    ends = [f"2026-11-23T00:0{minute}:00Z" for minute in (5, 3)]
    found["status"]["initContainerStatuses"] = [
        {"name": f"i{end}", "state": {"terminated": {"exitCode": 0, "finishedAt": end}}} for end in ends
    ]
    last = unix_time(ends[0]) or 0.0
    assert looked_at(found, now=last + IMAGE_PATIENCE).state is NodeState.PENDING
    assert looked_at(found, now=last + IMAGE_PATIENCE + 1).state is NodeState.FAILED


def test_a_pod_that_waits_says_why_and_else_what_events_say() -> None:
    found, events = pod("Pending"), ["FailedMount: no such volume", "Failed: again"]
    assert looked_at(found, events=events).details == "FailedMount: no such volume; Failed: again"
    found = pod("Pending", state=waiting("ContainerCreating"))
    assert looked_at(found, events=events).details == "ContainerCreating"


# init containers


def with_init(*inits: dict[str, Any], phase: str = "Failed", **status: Any) -> dict[str, Any]:
    return pod(phase, state=waiting("PodInitializing"), initContainerStatuses=list(inits), **status)


def test_the_init_container_that_failed_last_is_named_and_a_cluster_that_ended_the_pod_comes_first() -> None:
    first = {"name": "one", "state": ended(0)}
    second, third = (
        {"name": "two", "state": ended(2)},
        {"name": "three", "lastState": ended(4, "Error", " x ")},
    )
    node = looked_at(with_init(first, second))
    assert said(node) == (NodeState.FAILED, "its init container two has failed: exit code 2", Cause.USER)
    node = looked_at(with_init(first, second, third))
    assert node.details == "its init container three has failed: exit code 4: x"
    assert said(looked_at(with_init(first, message="why"))) == (NodeState.FAILED, "why", None)
    evicted = with_init(second, reason="Evicted", message="low")
    assert said(looked_at(evicted)) == (NodeState.FAILED, "Evicted: low", Cause.PREEMPTED)
    pending = with_init(second, phase="Pending")
    assert said(looked_at(pending)) == (
        NodeState.PENDING,
        "its init container two has failed: exit code 2",
        None,
    )


def test_a_worker_that_waited_in_vain_says_what_its_master_lacked() -> None:
    worker = looked_at(with_init({"name": "init-pytorch", "state": ended(1)}))
    assert said(worker) == (
        NodeState.FAILED,
        "node 0 had not begun when this node gave up waiting for it",
        Cause.CAPACITY,
    )
    master = pod("Pending", conditions=unscheduled(NO_GPU))
    named = states.with_absent_master(worker, master)
    assert said(named) == (NodeState.FAILED, f"{worker.details}: Unschedulable: {NO_GPU}", Cause.CAPACITY)
    pulls = pod("Pending", initContainerStatuses=[{"name": "i", "state": waiting("ErrImagePull", "timeout")}])
    assert states.with_absent_master(worker, pulls).details == f"{worker.details}: ErrImagePull: timeout"
    assert states.with_absent_master(worker, pod("Pending")).details == worker.details
    assert states.with_absent_master(worker, {}).details == worker.details
    assert states.with_absent_master(worker, None) == worker
    # What it waited for has begun and ended meanwhile: the end of that one is to blame, and no lack of machines.
    late = states.with_absent_master(worker, pod("Failed"))
    assert (late.details, late.cause) == ("node 0 had ended when this node began", None)
    other = looked_at(pod("Failed", state=ended(3)))
    assert states.with_absent_master(other, master) == other


# without a pod


@pytest.mark.parametrize(
    "gang, report, expected",
    [
        (Gang(GangState.NEW), None, (NodeState.PENDING, None, None)),
        (Gang(GangState.ACTIVE, "soon"), None, (NodeState.PENDING, "soon", None)),
        (Gang(GangState.SUSPENDED, "s"), None, (NodeState.PENDING, "s", Cause.CANCELED)),
        (Gang(GangState.SUSPENDED, "s", queued=True), None, (NodeState.PENDING, "s", Cause.CAPACITY)),
        (Gang(GangState.NEW), a_report(), (NodeState.FAILED, "its pod was deleted", Cause.NODE)),
        (Gang(GangState.ACTIVE), a_report(), (NodeState.FAILED, "its pod was deleted", Cause.NODE)),
        (Gang(GangState.ACTIVE), DONE, (NodeState.SUCCEEDED, "exit code 0", None)),
        (Gang(GangState.FAILED), FAILED, (NodeState.FAILED, "exit code 3", None)),
        (
            Gang(GangState.GONE),
            a_report(phase=Phase.DONE, exit_code=0, cause=Cause.DATA),
            (NodeState.FAILED, "exit code 0", None),
        ),
        (Gang(GangState.ENDING), None, (NodeState.ENDING, "it is being deleted", None)),
        (Gang(GangState.ENDING), a_report(), (NodeState.ENDING, "it is being deleted", None)),
        (
            Gang(GangState.SUCCEEDED),
            None,
            (NodeState.SUCCEEDED, "the operator has ended it, since the gang had succeeded", None),
        ),
        (
            Gang(GangState.SUCCEEDED),
            a_report(),
            (NodeState.FAILED, "the operator has ended it before it was done", Cause.NODE),
        ),
        (Gang(GangState.FAILED), None, (NodeState.FAILED, "the operator has ended the gang", None)),
        (
            Gang(GangState.FAILED, "backoffLimit", Cause.USER),
            a_report(),
            (NodeState.FAILED, "backoffLimit", Cause.USER),
        ),
        (Gang(GangState.GONE), None, (NodeState.MISSING, "it was deleted", None)),
    ],
)
def test_without_a_pod_this_is_said(
    gang: Gang, report: NodeReport | None, expected: tuple[NodeState, str | None, Cause | None]
) -> None:
    assert said(looked_at(None, gang, report)) == expected


def test_without_a_pod_events_say_what_holds_it_back_after_the_gangs_own_words() -> None:
    events = ["FailedCreate: a", "FailedCreate: b"]
    assert looked_at(None, Gang(GangState.ACTIVE, "soon"), events=events).details == (
        "soon; FailedCreate: a; FailedCreate: b"
    )
    quota = ['FailedCreate: pods "p" is forbidden: exceeded quota: gpus']
    suspended = Gang(GangState.SUSPENDED, "s", queued=True)
    assert looked_at(None, suspended, events=[*events, *quota]).cause is Cause.QUOTA
    assert looked_at(None, suspended, events=events).cause is Cause.CAPACITY


def test_what_a_pod_said_last_explains_its_end_where_the_report_does_not() -> None:
    last = pod(state={"running": {}}, reason="Evicted", message="low")
    words = ("Evicted: low", Cause.PREEMPTED)
    for gang, report in (
        (ACTIVE, a_report()),
        (ACTIVE, FAILED),
        (Gang(GangState.FAILED, "x", Cause.USER), a_report()),
    ):
        assert said(looked_at(None, gang, report, last=last)) == (NodeState.FAILED, *words)
    assert said(looked_at(None, ACTIVE, DONE, last=last)) == (NodeState.SUCCEEDED, "exit code 0", None)
    assert looked_at(None, ACTIVE, last=last).state is NodeState.PENDING
    # An agent says itself how it has ended.
    dead = pod("Failed", state=ended(7))
    assert looked_at(None, Gang(GangState.FAILED, "x"), a_report(), last=dead).details == "x"
    assert looked_at(None, Gang(GangState.FAILED, "x"), last=dead).details == "exit code 7"


def test_a_lost_node_that_has_ended_anyway_ended_as_it_did() -> None:
    lost = a_report(phase=Phase.DONE, lost=True, message="started again")
    assert said(looked_at(pod("Failed", state=ended(9)), report=lost)) == (
        NodeState.FAILED,
        "exit code 9",
        None,
    )
    assert looked_at(pod("Succeeded", state=ended(0)), report=lost).state is NodeState.SUCCEEDED


def test_after_a_success_the_end_of_a_pod_without_an_agent_is_its_operators() -> None:
    gang = Gang(GangState.SUCCEEDED)
    ending = deleted(pod("Failed", state=ended(143)))
    words = "the operator has ended it, since the gang had succeeded"
    assert said(looked_at(ending, gang)) == (NodeState.SUCCEEDED, words, None)
    assert looked_at(ending, gang, FAILED).state is NodeState.FAILED
    assert looked_at(deleted(pod(state={"running": {}})), gang).state is NodeState.ENDING


def test_a_suspension_explains_only_ends_that_nothing_else_does() -> None:
    gang = Gang(GangState.SUSPENDED, "it waits")
    assert said(looked_at(None, gang, a_report())) == (
        NodeState.FAILED,
        "it waits; it had begun",
        Cause.CANCELED,
    )
    killed = pod("Failed", state=ended(137, "OOMKilled"))
    assert looked_at(killed, gang, a_report()).cause is Cause.OOM
    assert looked_at(pod("Failed", state=ended(143)), gang).details == "exit code 143"
    running = pod(state={"running": {}})
    assert said(looked_at(running, gang, a_report())) == (NodeState.RUNNING, None, None)


@pytest.mark.parametrize("state", [GangState.ENDING, GangState.GONE])
def test_while_a_pod_is_left_of_a_gang_that_goes_its_node_is_ending(state: GangState) -> None:
    node = looked_at(pod("Failed", state=ended(3)), Gang(state))
    assert said(node) == (NodeState.ENDING, "exit code 3", None)


def test_a_gang_that_is_not_suspended_awaits_nothing() -> None:
    for state in GangState:
        for queued, cause in ((True, Cause.CAPACITY), (False, Cause.CANCELED)):
            expected = cause if state is GangState.SUSPENDED else None
            assert Gang(state, queued=queued).awaits is expected
    assert Gang(GangState.SUSPENDED, queued=True).ended_by is Cause.PREEMPTED
    assert Gang(GangState.SUSPENDED).ended_by is Cause.CANCELED


# what a pod is


def test_a_container_that_has_ended_in_a_pod_that_goes_on_is_restarted_unless_its_policy_is_never() -> None:
    over = pod(state=ended(3))
    assert looked_at(over).state is NodeState.FAILED
    over["spec"] = {"restartPolicy": "OnFailure"}
    assert looked_at(over).state is NodeState.PENDING
    over["spec"] = {}
    assert looked_at(over).state is NodeState.PENDING, "Kubernetes' default is Always"
    over["status"]["phase"] = "Failed"
    assert looked_at(over).state is NodeState.FAILED
    for phase, code in (("Succeeded", 0), ("Failed", 3)):
        final = pod(phase, state=ended(code))
        final["spec"] = {}
        node = looked_at(final)
        assert (node.details, node.exit_code, node.finished_at) == (f"exit code {code}", code, NOW)
    # The operator restarts it, and the gang does not live on.
    assert looked_at(of_agent(pod(state=ended(3)))).state is NodeState.FAILED


def test_a_program_that_begins_again_says_how_it_had_ended() -> None:
    again = pod(state=waiting("CrashLoopBackOff", "back-off 20s"))
    again["status"]["containerStatuses"][1]["lastState"] = ended(5)
    assert said(looked_at(again)) == (
        NodeState.RUNNING,
        "CrashLoopBackOff: back-off 20s; it had ended with exit code 5",
        None,
    )
    again["status"]["containerStatuses"][1]["state"] = {}
    assert looked_at(again).details == "it had ended with exit code 5"


def test_what_runs_in_a_pod_is_known_by_its_volume_and_its_containers() -> None:
    ours = of_agent(pod(state={"running": {}}), restarts=0)
    assert pod_parts.runs_agent(ours)
    assert not pod_parts.runs_agent(pod())
    assert not pod_parts.runs_agent({})
    assert not pod_parts.runs_agent({"spec": {"volumes": [{"name": "other"}]}})
    assert not pod_parts.was_restarted(ours, "pytorch")
    assert pod_parts.was_restarted(of_agent(pod(state={"running": {}}), restarts=1), "pytorch")
    assert not pod_parts.was_restarted(of_agent(pod(state={"running": {}}), restarts=1), "sidecar")
    assert not pod_parts.was_restarted({}, "pytorch")
    for state, begun in (({"running": {}}, True), (ended(0), True), (waiting("x"), False), ({}, False)):
        assert pod_parts.container_has_begun(pod(state=state), "pytorch") is begun
    assert not pod_parts.container_has_begun(pod(), "pytorch")
    assert not pod_parts.container_has_begun({}, "pytorch")


def test_a_container_has_company_where_another_runs_on_after_its_end() -> None:
    assert pod_parts.has_company(pod(state=ended(0)), "pytorch")
    assert not pod_parts.has_company(pod(state={"running": {}}), "pytorch")
    assert not pod_parts.has_company(pod(), "pytorch")
    assert not pod_parts.has_company({}, "pytorch")
    alone = pod(state=ended(0))
    alone["status"]["containerStatuses"][0]["state"] = ended(0)
    assert not pod_parts.has_company(alone, "pytorch")
    alone["status"]["containerStatuses"] = [{"name": "pytorch", "state": {**ended(0), "running": {}}}]
    assert not pod_parts.has_company(alone, "pytorch")
    alone = pod(state=ended(0))
    alone["status"]["containerStatuses"][0] = {"name": "sidecar"}
    assert not pod_parts.has_company(alone, "pytorch")


def test_the_last_end_of_a_container_is_that_of_now_or_else_of_before() -> None:
    both = pod(state=ended(1))
    both["status"]["containerStatuses"][1]["lastState"] = ended(2)
    assert (pod_parts.exit_of(both, "pytorch") or {})["exitCode"] == 1
    both["status"]["containerStatuses"][1]["state"] = {"running": {}}
    assert (pod_parts.exit_of(both, "pytorch") or {})["exitCode"] == 2
    assert pod_parts.exit_of(pod(state={"running": {}}), "pytorch") is None
    assert pod_parts.exit_of(both, "sidecar") is None
    assert pod_parts.exit_of({}, "pytorch") is None


# conditions and events


def test_only_conditions_that_hold_count_and_each_has_a_sentence() -> None:
    conditions = [
        {"type": "A", "status": "True", "reason": "r", "message": " words "},
        {"type": "B", "status": "False"},
        {"type": "C", "status": True},
    ]
    found = objects.true_conditions({"status": {"conditions": conditions}})
    assert list(found) == ["A", "C"]
    assert objects.sentence(found["A"]) == "words"
    assert objects.sentence({"reason": "r", "message": "  "}) == "r"
    assert objects.sentence({}) == ""
    assert objects.true_conditions({}) == {}
    assert unix_time(None) is None
    assert unix_time("") is None
    assert unix_time("1970-01-01T00:01:00Z") == 60.0


def an_event(
    reason: str, message: str = "", kind: str = "Pod", name: str = "p", **more: Any
) -> dict[str, Any]:
    about = {"kind": kind, "name": name}
    return {"involvedObject": about, "type": "Warning", "reason": reason, "message": message, **more}


def test_a_warning_is_dated_by_the_time_that_it_has() -> None:
    def at(second: int) -> str:
        return f"2026-11-23T00:00:{second:02}Z"

    events = [
        an_event("A", lastTimestamp=at(3), eventTime=at(1), firstTimestamp=at(1)),
        an_event("B", eventTime=at(2), firstTimestamp=at(9)),
        an_event("C", firstTimestamp=at(1)),
        an_event("D"),
    ]
    (found,) = warnings_by_object(events).values()
    assert [each.text for each in found] == ["D", "C", "B", "A"]
    assert [each.at - found[-1].at for each in found[1:]] == [-2.0, -1.0, 0.0]
    assert found[0].at == 0.0
    # Of two in one second the one that is listed later.
    twice = [an_event("A", text, lastTimestamp=at(1)) for text in ("first", "second")]
    assert [each.text for each in warnings_by_object(twice)["Pod", "p"]] == ["A: second"]
    aside = [an_event("A", kind="Job"), an_event("A", name="q")]
    assert set(warnings_by_object(aside)) == {("Job", "p"), ("Pod", "q")}
    assert warnings_by_object([{"type": "Normal"}]) == {}
    assert sentences_by_pod([an_event("Preempted", "for p2")]) == {"p": "Preempted: for p2"}
    assert PREEMPTED == "Preempted", "as the scheduler calls it"


def test_only_a_failure_that_nothing_explains_has_vanished() -> None:
    def failed(report: NodeReport | None = None, **changes: Any) -> NodeStatus:
        return NodeStatus(rank=0, run_id="p", state=NodeState.FAILED, report=report, **changes)

    assert has_vanished(failed(), None)
    assert has_vanished(failed(cause=Cause.NODE), None)
    assert not has_vanished(failed(cause=Cause.OOM), None)
    assert not has_vanished(failed(a_report(cause=Cause.USER)), None)
    assert has_vanished(failed(a_report()), None)
    assert not has_vanished(failed(a_report()), pod())
    assert not has_vanished(failed(), pod())
    assert has_vanished(failed(a_report(lost=True)), pod())
    assert not has_vanished(NodeStatus(rank=0, run_id="p", state=NodeState.MISSING), None)


# what is kept between looks


def test_of_a_pod_what_is_read_is_kept_and_nothing_else() -> None:
    container = {"name": "pytorch", "state": ended(3), "lastState": ended(4), "restartCount": 2}
    conditions = [*unscheduled(NO_GPU), *DISRUPTED]
    kept: dict[str, Any] = {
        "metadata": {"name": "p", "uid": "u", "creationTimestamp": START, "deletionTimestamp": START},
        "spec": {"restartPolicy": "Never", "volumes": [{"name": "ocidist-agent"}]},
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "low",
            "startTime": START,
            "conditions": conditions,
            "initContainerStatuses": [{**container, "name": "fetch"}],
            "containerStatuses": [container],
        },
    }
    whole = {
        "metadata": {**kept["metadata"], "managedFields": ["x"], "labels": {"a": "b"}},
        "spec": {
            **kept["spec"],
            "nodeName": "n",
            "volumes": [{"name": "data"}, {"name": "ocidist-agent", "x": 1}],
        },
        "status": {
            **kept["status"],
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}, *conditions],
            "initContainerStatuses": [{**container, "name": "fetch", "image": "i"}],
            "containerStatuses": [{**container, "imageID": "i"}],
        },
    }
    assert pod_parts.essence(whole) == kept
    assert pod_parts.essence(kept) == kept
    nothing: dict[str, Any] = {"metadata": {}, "spec": {}, "status": {}}
    assert pod_parts.essence({}) == pod_parts.essence(nothing) == nothing
    empty = {"conditions": [], "initContainerStatuses": [], "containerStatuses": None, "reason": ""}
    of_a_stranger = {"spec": {"volumes": [{"name": "data"}]}, "status": empty}
    assert pod_parts.essence(of_a_stranger) == nothing
    assert pod_parts.essence({"status": {"conditions": [{"type": "Ready"}]}}) == nothing


def test_of_an_event_what_is_read_is_kept_and_nothing_else() -> None:
    kept = {
        "type": "Warning",
        "reason": "Failed",
        "message": "m",
        "lastTimestamp": START,
        "eventTime": START,
        "firstTimestamp": START,
        "involvedObject": {"kind": "Pod", "name": "p"},
    }
    whole = {
        **kept,
        "source": {"component": "kubelet"},
        "involvedObject": {"kind": "Pod", "name": "p", "uid": "u"},
    }
    assert fields_read(whole) == kept
    assert fields_read({"reason": "Failed", "count": 3}) == {"reason": "Failed", "involvedObject": {}}
