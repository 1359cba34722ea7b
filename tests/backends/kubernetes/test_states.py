"""What a pod, its events and the operator's object say of a node: state, sentence, cause."""

from __future__ import annotations

import random
from typing import Any

import pytest

from airflow_provider_ocidist.backends.kubernetes.events import Warned, fields_read, warnings_by_object
from airflow_provider_ocidist.backends.kubernetes.gang_state import Gang, GangState
from airflow_provider_ocidist.backends.kubernetes.pod_losses import has_vanished, with_preemption
from airflow_provider_ocidist.backends.kubernetes.pod_parts import essence
from airflow_provider_ocidist.backends.kubernetes.states import (
    IMAGE_PATIENCE,
    OVERDUE_AFTER,
    REFUSED_AGAIN_WITHIN,
    NodeFacts,
    node_status,
    present,
)
from airflow_provider_ocidist.backports import unix_time
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import NodeState, NodeStatus
from tests.backends.kubernetes.test_names import drawn

START = "2026-11-23T00:00:00Z"
NOW = unix_time(START) or 0.0
ACTIVE = Gang(GangState.ACTIVE)


def pod(phase: str = "Running", *, state: Any = None, **status: Any) -> dict[str, Any]:
    found = {"name": "pytorch", "state": state} if state is not None else None
    more = {"containerStatuses": [{"name": "sidecar", "state": {"running": {}}}, *([found] if found else [])]}
    return {
        "metadata": {"name": "p"},
        "spec": {"restartPolicy": "Never"},
        "status": {"phase": phase, "startTime": START, **more, **status},
    }


def looked_at(
    found: Any, gang: Gang = ACTIVE, report: NodeReport | None = None, now: float = NOW, **more: Any
) -> NodeStatus:
    def status(its_pod: Any, **others: Any) -> NodeStatus:
        facts = NodeFacts(rank=0, name="p", pod=its_pod, report=report, **{**more, **others})
        return node_status(facts, gang, container="pytorch", now=now)

    seen, last = status(found), more.get("last")
    # What is kept of a pod says all that the pod does.
    assert seen == status(found and essence(found), last=last and essence(last))
    return seen


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": START}}


def a_report(**fields: Any) -> NodeReport:
    given = {
        "rank": 0,
        "phase": Phase.TRAINING,
        "address": "10.0.0.1",
        "started_at": 1.0,
        "heartbeat_at": 2.0,
    }
    return NodeReport(**{**given, **fields})


def unscheduled(message: str) -> list[dict[str, str]]:
    return [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
DISRUPTED = [
    {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for p2"}
]


@pytest.mark.parametrize(
    "found, state, cause, words",
    [
        (pod(state={"running": {}}), NodeState.RUNNING, None, None),
        (pod("Succeeded", state=ended(0, "Completed")), NodeState.SUCCEEDED, None, "exit code 0"),
        (pod("Failed", state=ended(3)), NodeState.FAILED, None, "exit code 3"),
        (pod("Failed", state=ended(137, "OOMKilled")), NodeState.FAILED, Cause.OOM, "exit code 137, OOMKilled"),
        (pod("Failed", reason="Evicted", message="low on memory"), NodeState.FAILED, Cause.PREEMPTED, "low on memory"),
        (pod("Failed", reason="OutOfcpu"), NodeState.FAILED, Cause.CAPACITY, "OutOfcpu"),
        (
            pod("Failed", state=ended(137), conditions=DISRUPTED),
            NodeState.FAILED,
            Cause.PREEMPTED,
            "PreemptionByScheduler: for p2",
        ),
        (pod("Pending", conditions=unscheduled(NO_GPU)), NodeState.PENDING, Cause.CAPACITY, NO_GPU),
        (pod("Pending", state=waiting("ContainerCreating")), NodeState.PENDING, None, "ContainerCreating"),
        (pod("Pending", state=waiting("ErrImagePull", "timeout")), NodeState.PENDING, None, "timeout"),
        (
            pod("Pending", state=waiting("ImagePullBackOff", "image x:1 not found")),
            NodeState.FAILED,
            Cause.CONFIG,
            "image x:1 not found",
        ),
        (pod("Pending", state=waiting("InvalidImageName")), NodeState.FAILED, Cause.CONFIG, "InvalidImageName"),
        (
            pod("Pending", state=waiting("CreateContainerConfigError", 'secret "hf" not found')),
            NodeState.PENDING,
            None,
            'secret "hf" not found',
        ),
        (pod("Unknown"), NodeState.UNKNOWN, None, "lost contact"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_pod_shows_state_cause_and_sentence(found: Any, state: NodeState, cause: Cause, words: str) -> None:
    node = looked_at(found)
    assert (node.state, node.cause) == (state, cause)
    assert words is None or words in str(node.details)


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError"])
def test_what_may_pass_is_waited_for_and_then_is_no_more(reason: str) -> None:
    found = pod("Pending", state=waiting(reason, "the registry does not answer"))
    assert looked_at(found, now=NOW + IMAGE_PATIENCE - 1).state is NodeState.PENDING
    late = looked_at(found, now=NOW + IMAGE_PATIENCE + 1)
    assert (late.state, late.cause) == (NodeState.FAILED, Cause.CONFIG)


def with_init(state: Any, name: str = "fetch", phase: str = "Failed") -> dict[str, Any]:
    return pod(
        phase, state=waiting("PodInitializing"), initContainerStatuses=[{"name": name, "state": state}]
    )


def test_an_init_container_that_fails_says_which_and_with_which_exit_code() -> None:
    node = looked_at(with_init(ended(7, message="no such bucket")))
    assert (node.state, node.cause) == (NodeState.FAILED, Cause.USER)
    assert node.details == "its init container fetch has failed: exit code 7: no such bucket"
    again = with_init(waiting("CrashLoopBackOff", "back-off 10s"), phase="Pending")
    again["status"]["initContainerStatuses"][0]["lastState"] = ended(7)
    node = looked_at(again)
    assert node.state is NodeState.PENDING
    assert node.details == "its init container fetch has failed: exit code 7; CrashLoopBackOff: back-off 10s"


def test_a_worker_that_looked_in_vain_for_its_master_has_found_no_capacity() -> None:
    node = looked_at(with_init(ended(1), name="init-pytorch"))
    assert (node.state, node.cause) == (NodeState.FAILED, Cause.CAPACITY)
    assert "node 0 had not begun" in str(node.details)


def test_the_patience_with_a_registry_begins_when_the_init_containers_have_ended() -> None:
    late = "2026-11-23T00:03:20Z"
    found = pod("Pending", state=waiting("ErrImagePull", "i/o timeout"))
    done = {"terminated": {"exitCode": 0, "finishedAt": late}}
    found["status"]["initContainerStatuses"] = [{"name": "init-pytorch", "state": done}]
    began = unix_time(late) or 0.0
    assert looked_at(found, now=began + IMAGE_PATIENCE - 1).state is NodeState.PENDING
    assert looked_at(found, now=began + IMAGE_PATIENCE + 1).state is NodeState.FAILED


def test_a_pod_that_is_being_deleted_is_ending_until_its_container_has_ended() -> None:
    dying = pod(state={"running": {}})
    dying["metadata"]["deletionTimestamp"] = START
    assert looked_at(dying).state is NodeState.ENDING
    dead = pod(state=ended(143))
    dead["metadata"]["deletionTimestamp"] = START
    assert looked_at(dead).state is NodeState.FAILED


def test_a_gang_that_is_being_deleted_has_ended_when_no_pod_of_it_is_left() -> None:
    gang, done = Gang(GangState.ENDING), a_report(phase=Phase.DONE, exit_code=0)
    for found in (
        pod(state={"running": {}}),
        pod("Succeeded", state=ended(0)),
        pod("Failed", state=ended(9)),
    ):
        assert looked_at(found, gang, done).state is NodeState.ENDING
    assert looked_at(None, gang, done).state is NodeState.SUCCEEDED
    assert looked_at(None, gang).state is NodeState.ENDING


def test_a_pod_that_is_gone_is_remembered_for_what_it_said_last() -> None:
    last = pod(state={"running": {}}, conditions=DISRUPTED)
    for report in (a_report(), a_report(phase=Phase.DONE, exit_code=143)):
        node = looked_at(None, ACTIVE, report, last=last)
        assert (node.state, node.cause) == (NodeState.FAILED, Cause.PREEMPTED)
    assert (
        looked_at(None, ACTIVE, a_report(phase=Phase.DONE, exit_code=0), last=last).state
        is NodeState.SUCCEEDED
    )


def test_a_suspended_gang_waits_with_the_sentence_of_its_suspension() -> None:
    gang = Gang(GangState.SUSPENDED, "waits in the queue gpu of Kueue")
    node = looked_at(None, gang)
    assert (node.state, node.details) == (NodeState.PENDING, "waits in the queue gpu of Kueue")


def test_a_quota_is_named_while_there_is_no_pod() -> None:
    node = looked_at(None, events=['FailedCreatePod: pods "p" is forbidden: exceeded quota: gpus'])
    assert (node.state, node.cause) == (NodeState.PENDING, Cause.QUOTA)
    assert "exceeded quota" in str(node.details)


SECURITY = (
    'FailedCreatePod: Error creating: pods "p" is forbidden: violates PodSecurity "restricted:latest": '
    'allowPrivilegeEscalation != false (container "pytorch" must set securityContext...)'
)
RANGE = (
    'FailedCreatePod: Error creating: pods "p" is forbidden: [maximum cpu usage per Pod is 2, but limit is 8, '
    "maximum memory usage per Pod is 4Gi, but limit is 64Gi]"
)
RATIO = (
    'FailedCreatePod: Error creating: pods "p" is forbidden: cpu max limit to request ratio per Container is 2, '
    "but provided ratio is 4.000000"
)
ABOVE_A_DEFAULT = (
    'FailedCreatePod: Error creating: Pod "p" is invalid: spec.containers[0].resources.requests: Invalid value: '
    '"8": must be less than or equal to cpu limit of 1'
)
ACCOUNT = (
    'FailedCreatePod: Error creating: pods "p" is forbidden: error looking up service account ns/x: not found'
)
WEBHOOK = (
    'FailedCreatePod: admission webhook "images.example" denied the request: the image is not signed yet'
)


@pytest.mark.parametrize("text", [SECURITY, RANGE, RATIO, ABOVE_A_DEFAULT])
def test_a_pod_that_its_namespace_refuses_each_time_fails_at_once_with_the_sentence(text: str) -> None:
    node = looked_at(None, events=[text])
    assert (node.state, node.cause) == (NodeState.FAILED, Cause.CONFIG)
    assert node.details == f"its pod cannot be created: {text}"
    # Another has been made since.
    assert looked_at(pod(state={"running": {}}), events=[text]).state is NodeState.RUNNING
    assert looked_at(None, events=[text], report=a_report()).cause is Cause.NODE


@pytest.mark.parametrize("text", [SECURITY, RANGE])
def test_a_refusal_that_its_controller_has_not_repeated_in_time_is_of_the_past(text: str) -> None:
    waits = Warned(10.0, "FailedScheduling: no node is free")
    refused = Warned(100.0, text)
    assert present([waits, refused], 100.0 + REFUSED_AGAIN_WITHIN) == [waits.text, text]
    assert present([waits, refused], 101.0 + REFUSED_AGAIN_WITHIN) == [waits.text]
    assert present([Warned(0.0, text)], 1e9) == [text], "nobody knows when that was"


@pytest.mark.parametrize("text", [ACCOUNT, WEBHOOK])
def test_what_is_forbidden_now_and_may_be_allowed_later_is_waited_for(text: str) -> None:
    node = looked_at(None, events=[text])
    assert (node.state, node.cause, node.details) == (NodeState.PENDING, Cause.CONFIG, text)


@pytest.mark.parametrize("text", [ACCOUNT, WEBHOOK])
def test_what_was_forbidden_before_a_suspension_is_not_why_a_gang_waits(text: str) -> None:
    assert looked_at(None, Gang(GangState.SUSPENDED), events=[text]).cause is Cause.CANCELED
    assert looked_at(None, Gang(GangState.SUSPENDED, queued=True), events=[text]).cause is Cause.CAPACITY


def test_a_pod_of_which_nothing_is_said_yet_waits() -> None:
    bare = {"metadata": {"name": "p"}}
    for found in (bare, {**bare, "status": None}, {**bare, "spec": {}, "status": {}}):
        assert looked_at(found).state is NodeState.PENDING


@pytest.mark.parametrize(
    "state, report, expected",
    [
        (GangState.NEW, None, NodeState.PENDING),
        (GangState.ACTIVE, None, NodeState.PENDING),
        (GangState.ACTIVE, a_report(), NodeState.FAILED),
        (GangState.SUCCEEDED, None, NodeState.SUCCEEDED),
        (GangState.SUCCEEDED, a_report(), NodeState.FAILED),
        (GangState.SUCCEEDED, a_report(phase=Phase.DONE, exit_code=0), NodeState.SUCCEEDED),
        (GangState.FAILED, None, NodeState.FAILED),
        (GangState.FAILED, a_report(phase=Phase.DONE, exit_code=0), NodeState.SUCCEEDED),
        (GangState.GONE, a_report(phase=Phase.DONE, exit_code=0), NodeState.SUCCEEDED),
        (GangState.GONE, a_report(phase=Phase.DONE, exit_code=1, cause=Cause.USER), NodeState.FAILED),
        # Its program exits with 0 at SIGTERM, as that of an evicted pod.
        (GangState.ACTIVE, a_report(phase=Phase.DONE, exit_code=0, stopped=True), NodeState.FAILED),
        (GangState.FAILED, a_report(phase=Phase.DONE, exit_code=0, stopped=True), NodeState.FAILED),
        (GangState.GONE, a_report(phase=Phase.DONE, exit_code=0, stopped=True), NodeState.FAILED),
        # The operator ends what is left when node 0 has succeeded.
        (GangState.SUCCEEDED, a_report(phase=Phase.DONE, exit_code=0, stopped=True), NodeState.SUCCEEDED),
        (GangState.GONE, a_report(), NodeState.MISSING),
        (GangState.GONE, None, NodeState.MISSING),
    ],
)
def test_without_a_pod_the_report_says_how_a_node_has_ended(
    state: GangState, report: NodeReport | None, expected: NodeState
) -> None:
    assert looked_at(None, Gang(state), report).state is expected


def any_pod(draw: random.Random) -> Any:
    states = [
        None,
        {"running": {}},
        ended(draw.choice([0, 1, 3, 137, 255])),
        waiting(draw.choice(["", "X", "ErrImagePull"])),
    ]
    found = pod(
        draw.choice(["Pending", "Running", "Succeeded", "Failed", "Unknown"]), state=draw.choice(states)
    )
    if draw.random() < 0.3:
        found["metadata"]["deletionTimestamp"] = START
    if draw.random() < 0.3:
        found["status"]["conditions"] = draw.choice([DISRUPTED, unscheduled(NO_GPU), []])
    if draw.random() < 0.2:
        del found["status"]["containerStatuses"]
    return found


def test_whatever_is_seen_a_failure_has_words_and_exit_code_0_is_no_failure() -> None:
    draw = drawn()
    for _ in range(2000):
        found = draw.choice([None, any_pod(draw)])
        report = draw.choice([None, a_report(), a_report(phase=Phase.DONE, exit_code=0)])
        gang = Gang(draw.choice(list(GangState)), draw.choice(["", "words"]))
        node = looked_at(found, gang, report, now=NOW + draw.choice([0, 1000]))
        codes = [
            item["state"]["terminated"]["exitCode"]
            for item in ((found or {}).get("status") or {}).get("containerStatuses") or ()
            if item["name"] == "pytorch" and "terminated" in item["state"]
        ]
        after_success = gang.state is GangState.SUCCEEDED and report is None
        if after_success and "deletionTimestamp" in (found or {}).get("metadata", {}):
            continue
        if codes and gang.state not in (GangState.ENDING, GangState.GONE):
            assert node.state is (NodeState.SUCCEEDED if codes == [0] else NodeState.FAILED)
        elif found is not None and found["status"]["phase"] in ("Pending", "Running"):
            assert node.state is not NodeState.SUCCEEDED
        if found is None and node.state is NodeState.FAILED:
            assert node.details


def test_a_warning_of_the_new_form_that_is_repeated_counts_from_its_last_time() -> None:
    about = {"involvedObject": {"kind": "Pod", "name": "a"}, "type": "Warning", "reason": "FailedScheduling"}
    new = {"eventTime": "2026-11-23T00:00:01.000000Z", "firstTimestamp": None, "lastTimestamp": None}
    once = {**about, **new, "message": "once"}
    again = {"count": 7, "lastObservedTime": "2026-11-23T00:10:00.000000Z"}
    repeated = {**about, **new, "message": "again", "series": again}
    for event, at in ((once, NOW + 1), (repeated, NOW + 600), ({**once, "series": None}, NOW + 1)):
        (warned,) = warnings_by_object([fields_read(event)])["Pod", "a"]
        assert warned.at == at
    later = {**once, "eventTime": "2026-11-23T00:05:00.000000Z", "message": "of another series"}
    ((warned,),) = warnings_by_object([fields_read(repeated), fields_read(later)]).values()
    assert "again" in warned.text


def test_of_many_warnings_about_one_object_the_last_of_each_reason_counts() -> None:
    def event(name: str, reason: str, text: str, second: int, kind: str = "Warning") -> dict[str, Any]:
        return {
            "involvedObject": {"kind": "Pod", "name": name},
            "type": kind,
            "reason": reason,
            "message": text,
            "lastTimestamp": f"2026-11-23T00:00:{second:02}Z",
        }

    events = [
        event("a", "Failed", "old", 1),
        event("a", "Failed", "new", 5),
        event("a", "BackOff", "between", 3),
        event("a", "Pulled", "fine", 9, "Normal"),
        event("b", "Failed", "other", 2),
    ]
    drawn().shuffle(events)
    found = {name: [each.text for each in warned] for name, warned in warnings_by_object(events).items()}
    assert found == {
        ("Pod", "a"): ["BackOff: between", "Failed: new"],
        ("Pod", "b"): ["Failed: other"],
    }


def of_agent(found: dict[str, Any], last: dict[str, Any] | None = None, restarts: int = 0) -> dict[str, Any]:
    """Return a pod as one that runs a node of ours, whose operator restarts containers."""
    found["spec"] = {"restartPolicy": "OnFailure", "volumes": [{"name": "ocidist-agent"}]}
    own = found["status"]["containerStatuses"][1]
    own.update({"lastState": last or {}, "restartCount": restarts})
    return found


@pytest.mark.parametrize(
    "code, reason, cause", [(3, "Error", None), (137, "OOMKilled", Cause.OOM), (1, "Error", None)]
)
@pytest.mark.parametrize("state", [{"running": {}}, waiting("CrashLoopBackOff")])
def test_a_node_that_is_started_again_in_its_pod_has_ended_as_it_did_first(
    code: int, reason: str, cause: Cause | None, state: Any
) -> None:
    status = looked_at(of_agent(pod(state=state), ended(code, reason), restarts=1))
    assert (status.state, status.cause) == (NodeState.FAILED, cause)
    assert f"exit code {code}" in str(status.details)
    # A program that starts itself may be restarted.
    own_start = of_agent(pod(state=state), ended(code, reason), restarts=1)
    own_start["spec"]["volumes"] = []
    assert not looked_at(own_start).state.terminal


def test_a_node_whose_report_says_that_it_was_lost_has_failed_whatever_runs_in_its_place() -> None:
    for state in ({"running": {}}, waiting("ContainerCreating")):
        lost = a_report(phase=Phase.DONE, lost=True, message="started again")
        status = looked_at(of_agent(pod(state=state)), report=lost)
        assert (status.state, status.cause, status.details) == (NodeState.FAILED, Cause.NODE, "started again")
        # Until its pod is gone.
        assert looked_at(of_agent(pod(state=state)), Gang(GangState.ENDING), lost).state is NodeState.ENDING


@pytest.mark.parametrize("queued, cause", [(True, Cause.PREEMPTED), (False, Cause.CANCELED)])
def test_nodes_that_a_suspension_has_ended_have_failed_and_it_is_the_cause(
    queued: bool, cause: Cause
) -> None:
    gang = Gang(GangState.SUSPENDED, "it waits", queued=queued)
    terminating = pod("Running", state=ended(143))
    terminating["metadata"]["deletionTimestamp"] = START
    for found, report in (
        (None, a_report()),
        (None, a_report(phase=Phase.DONE, exit_code=143)),
        (terminating, a_report(phase=Phase.DONE, exit_code=143)),
        # Without an agent.
        (terminating, None),
    ):
        node = looked_at(found, gang, report)
        assert (node.state, node.cause) == (NodeState.FAILED, cause), found
        assert "it waits; it had begun" in str(node.details)
    # What the program did itself stays what it was.
    assert looked_at(None, gang, a_report(phase=Phase.DONE, exit_code=0)).state is NodeState.SUCCEEDED


@pytest.mark.parametrize("queued, cause", [(True, Cause.CAPACITY), (False, Cause.CANCELED)])
def test_a_suspended_gang_names_what_it_waits_for(queued: bool, cause: Cause) -> None:
    gang = Gang(GangState.SUSPENDED, "it waits", queued=queued)
    assert (looked_at(None, gang).state, looked_at(None, gang).cause) == (NodeState.PENDING, cause)


def test_a_program_without_an_agent_is_remembered_by_the_exit_code_that_was_seen_last() -> None:
    gang = Gang(GangState.FAILED, "the gang has failed")
    restarted = pod("Running", state=waiting("CrashLoopBackOff"))
    restarted["status"]["containerStatuses"][1]["lastState"] = ended(7)
    for last in (pod("Failed", state=ended(7)), restarted):
        node = looked_at(None, gang, last=last)
        assert (node.state, node.exit_code) == (NodeState.FAILED, 7)
        assert "exit code 7" in str(node.details)
    assert looked_at(None, gang, last=pod("Succeeded", state=ended(0))).state is NodeState.SUCCEEDED


@pytest.mark.parametrize("phase", ["Running", "Pending"])
def test_a_program_without_an_agent_that_is_started_again_has_begun(phase: str) -> None:
    restarted = pod(phase, state=waiting("CrashLoopBackOff", "back-off 20s"))
    restarted["spec"]["restartPolicy"] = "OnFailure"
    restarted["status"]["containerStatuses"][1] |= {"lastState": ended(1), "restartCount": 2}
    node = looked_at(restarted)
    assert node.state is NodeState.RUNNING
    assert "CrashLoopBackOff" in str(node.details)
    assert "exit code 1" in str(node.details)


def test_what_is_deleted_with_its_gang_is_missing_whatever_was_seen_of_it() -> None:
    gone = Gang(GangState.GONE)
    assert looked_at(None, gone, last=pod("Failed", state=ended(143))).state is NodeState.MISSING


def test_a_program_without_an_agent_that_the_operator_ends_after_a_success_has_not_failed() -> None:
    gang, ending = Gang(GangState.SUCCEEDED), pod("Failed", state=ended(143))
    ending["metadata"]["deletionTimestamp"] = START
    assert looked_at(ending, gang).state is NodeState.SUCCEEDED
    # Nobody was ending this one.
    assert looked_at(pod("Failed", state=ended(143)), gang).state is NodeState.FAILED
    assert looked_at(ending, ACTIVE).state is NodeState.FAILED


def test_an_event_names_the_cause_of_a_node_whose_pod_has_vanished_and_of_no_other() -> None:
    said = {"p": "Preempted: for p2", "p-abcde": "Preempted: for p3", "other-p": "Preempted: for p4"}
    vanished = looked_at(None, ACTIVE, a_report(phase=Phase.DONE, exit_code=143))
    assert has_vanished(vanished, None)
    named = with_preemption(vanished, said)
    assert (named.cause, named.details) == (Cause.PREEMPTED, "Preempted: for p2")
    assert with_preemption(vanished, {"p-abcde": "Preempted: for p3"}).cause is Cause.PREEMPTED
    assert with_preemption(vanished, {"other-p": "Preempted: for p4"}) == vanished
    failed = a_report(phase=Phase.DONE, exit_code=3, cause=Cause.USER)
    assert not has_vanished(looked_at(None, ACTIVE, failed), None)
    assert not has_vanished(looked_at(None, ACTIVE, a_report(phase=Phase.DONE, exit_code=0)), None)
    crashed = pod("Failed", state=ended(1))
    assert not has_vanished(looked_at(crashed, ACTIVE, a_report()), crashed)


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("disrupted", [None, Cause.NODE, Cause.PREEMPTED])
def test_a_pod_whose_end_nothing_confirms_in_time_is_lost_where_another_takes_its_place(
    replaces: bool, disrupted: Cause | None
) -> None:
    reasons = {Cause.NODE: "DeletionByTaintManager", Cause.PREEMPTED: "PreemptionByScheduler"}
    why = {"type": "DisruptionTarget", "status": "True", "reason": reasons.get(disrupted), "message": "m"}
    found = pod(state={"running": {}}, **({"conditions": [why]} if disrupted else {}))
    # The time by which it was to end.
    found["metadata"]["deletionTimestamp"] = START
    for late in (-100.0, 0.0, OVERDUE_AFTER, OVERDUE_AFTER + 1):
        node = looked_at(found, report=a_report(), now=NOW + late, replaces=replaces)
        is_lost = replaces and late > OVERDUE_AFTER
        assert node.state is (NodeState.FAILED if is_lost else NodeState.ENDING)
        if is_lost:
            assert node.cause is (disrupted or Cause.NODE)


def test_an_event_about_an_earlier_pod_of_the_same_name_explains_nothing() -> None:
    report = a_report(instance="uid-2")
    node = looked_at(None, report=report)
    assert has_vanished(node, None)
    assert with_preemption(node, {"p": "Evicted: low", "uid-1": "Evicted: low"}) == node
    taken = with_preemption(node, {"p": "Evicted: low", "uid-2": "Preempted: by another"})
    assert (taken.cause, taken.details) == (Cause.PREEMPTED, "Preempted: by another")
