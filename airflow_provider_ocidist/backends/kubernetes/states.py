"""What a pod, its events and the operator's object say of one node. Pure; no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_provider_ocidist.backends.kubernetes.events import Warned
from airflow_provider_ocidist.backends.kubernetes.gang_state import Gang, GangState
from airflow_provider_ocidist.backends.kubernetes.objects import (
    Obj,
    is_deleted,
    reason_and_message,
)
from airflow_provider_ocidist.backends.kubernetes.pod_losses import disruption_of, loss_of
from airflow_provider_ocidist.backends.kubernetes.pod_parts import (
    container_has_begun,
    container_of,
    exit_of,
    may_restart,
    runs_agent,
)
from airflow_provider_ocidist.backports import unix_time
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import NodeState, NodeStatus

IMAGE_PATIENCE = 120.0
"""Seconds to wait for an image that cannot be pulled, since a registry may be down for a while."""
FINAL_PULLS = ("InvalidImageName", "ErrImageNeverPull")
PULLS = (*FINAL_PULLS, "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")
NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|does not exist|unauthorized|denied|forbidden|invalid reference",
    re.IGNORECASE,
)
"""Texts in a registry's answer after which another pull does not help."""
CONFIG_FAULTS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError")
WAITS_FOR_MASTER = "init-pytorch"
"""Container by which the training operator holds a Worker back; it gives up after 200 s (100 looks, 2 s apart)."""
REFUSED = re.compile(
    r"is forbidden: .*(violates PodSecurity|(usage|limit to request ratio) per (Pod|Container) is)"
    r'|Pod "[^"]*" is invalid: '
)
"""Text of what a namespace refuses each time: pods beyond its level of PodSecurity or its LimitRange, or which a
default of the latter contradicts."""
REFUSED_AGAIN_WITHIN = 1200.0
"""Seconds after which a refusal that was not repeated is of the past: controllers try again after 1000 s at most (the
usual rate limiter of client-go)."""
OVERDUE_AFTER = 30.0
"""Seconds after the end of its grace for which a pod that is deleted may still be there."""
LEFT_AFTER = 60.0
"""Seconds after its last change for which a rejected pod may still be there, where its operator deletes it."""
IN_VAIN = "node 0 had not begun when this node gave up waiting for it"
TOO_LATE = "node 0 had ended when this node began"
FORBIDDEN = ("is forbidden: ", "denied the request")
"""Texts in events about requests that the cluster does not allow now."""
ENDED_AFTER_SUCCESS = "the operator has ended it, since the gang had succeeded"
ENDED_AFTER_FAILURE = "the operator has ended the gang"


@dataclass(frozen=True, slots=True)
class _Found:
    """What a pod shows of its node."""

    state: NodeState
    details: str | None = None
    cause: Cause | None = None
    finished_at: float | None = None
    exit_code: int | None = None
    is_left: bool = False
    """Whether its pod was rejected, and its operator leaves it there and makes no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What one look has shown of a node."""

    rank: int
    name: str
    """Name of its pod: the id of the node in its gang."""
    pod: Obj | None
    report: NodeReport | None = None
    events: Sequence[str] = ()
    """Warnings about it."""
    replaces: bool = False
    """Whether another pod takes its place when it is lost."""
    is_new: bool = False
    """Whether it has the place of a lost one."""
    has_another: bool = False
    """Whether there is another pod in the place of its own."""
    secret: str = ""
    """Name of the Secret of its gang, which is created after the pods."""
    keeps_failed: bool = False
    """Whether its operator keeps pods that have failed, and makes others beside them."""
    last: Obj | None = None
    """Pod as seen last, which may have said why it would go; the only source about a node without an agent."""


def present(warnings: Iterable[Warned], now: float) -> list[str]:
    """Return what warnings say, without refusals of the past. `now`: Unix time by the API server's clock."""
    return [each.text for each in warnings if not (REFUSED.search(each.text) and _is_past(each, now))]


def _is_past(refusal: Warned, now: float) -> bool:
    return bool(refusal.at) and now - refusal.at > REFUSED_AGAIN_WITHIN


def node_status(facts: NodeFacts, gang: Gang, *, container: str, now: float) -> NodeStatus:
    """Return a node's status. `now`: Unix time by the API server's clock."""
    pod, report = facts.pod, facts.report
    if pod is None:
        found = _without_pod(facts, gang, container)
    else:
        found = _of_pod(pod, container, facts, now)
        # An agent that idles ends with 0, so that it is not started again, once nobody needs it any more.
        has_idled = facts.replaces and found.state is NodeState.SUCCEEDED
        if report is not None and report.lost:
            # How the agent ends that has idled since says nothing of the training.
            before = _before_restart(pod, container)
            if before is not None and before.cause is not None:
                found = before
            elif has_idled or not found.state.terminal:
                found = _Found(NodeState.FAILED, report.message, Cause.NODE)
        if facts.replaces:
            found = _replaceable(found, facts, gang, pod, container, now)
        if report is None and gang.state is GangState.SUCCEEDED and is_deleted(pod) and found.state.terminal:
            # A program without an agent: SIGTERM was the operator's, and no failure.
            found = _Found(NodeState.SUCCEEDED, ENDED_AFTER_SUCCESS)
    had_begun = report is not None or (pod is not None and is_deleted(pod))
    if had_begun and _is_unexplained(found) and gang.state is GangState.SUSPENDED:
        found = replace(found, details=f"{gang.details}; it had begun", cause=gang.ended_by)
    if pod is not None and gang.state in (GangState.ENDING, GangState.GONE):
        # A node counts as ending until its pod is deleted.
        found = replace(found, state=NodeState.ENDING)
    started = unix_time(((pod or {}).get("status") or {}).get("startTime"))
    if started is None and report is not None:
        started = report.started_at
    return NodeStatus(
        rank=facts.rank,
        run_id=facts.name,
        state=found.state,
        details=found.details,
        cause=found.cause,
        started_at=started,
        finished_at=found.finished_at,
        report=report,
        exited=found.exit_code,
        is_left=found.is_left,
    )


def _replaceable(found: _Found, facts: NodeFacts, gang: Gang, pod: Obj, container: str, now: float) -> _Found:
    """Return what a pod shows of its node where another pod may take its place, or has done so."""
    status, report = pod.get("status") or {}, facts.report
    if found.state is NodeState.ENDING and _is_overdue(pod, now):
        if report is not None and report.has_succeeded:
            return _Found(NodeState.SUCCEEDED, "it had succeeded", None, report.finished_at)
        cause = (disruption_of(status) or ("", Cause.NODE))[1]
        return _Found(NodeState.FAILED, f"{found.details}; nothing confirms its end", cause)
    if found.state is not NodeState.FAILED:
        return found
    phase = status.get("phase")
    if report is None and phase == "Failed" and found.cause is not Cause.DEADLINE:
        return _rejected(found, facts, gang, container_has_begun(pod, container), _is_left(status, now))
    if phase in ("Succeeded", "Failed") or not runs_agent(pod):
        return found
    if report is not None and _reports_now(report, pod, container):
        # It was restarted before its turn.
        return _Found(NodeState.RUNNING)
    if report is None and facts.is_new and exit_of(pod, container) is not None:
        return replace(found, state=NodeState.PENDING)
    return found


def _rejected(found: _Found, facts: NodeFacts, gang: Gang, has_begun: bool, is_left: bool) -> _Found:
    """Return what a pod shows that has failed without a report: while the gang lives, its operator makes another."""
    # A failed init container would fail again.
    goes_on = gang.state in (GangState.NEW, GangState.ACTIVE) and found.cause is not Cause.USER
    if not goes_on or (has_begun and not (facts.is_new and facts.keeps_failed)):
        return found
    return replace(found, state=NodeState.PENDING, is_left=is_left and not facts.keeps_failed)


def _reports_now(report: NodeReport, pod: Obj, container: str) -> bool:
    """Whether the present process of a container has written a report, and no process before it."""
    running = (container_of(pod, container).get("state") or {}).get("running")
    is_own = report.instance == str((pod.get("metadata") or {}).get("uid"))
    if running is None or not is_own or report.phase is Phase.DONE:
        return False
    # Both times are of its machine's clock.
    return report.heartbeat_at >= (unix_time(running.get("startedAt")) or 0.0)


def _is_left(status: Obj, now: float) -> bool:
    """Whether a rejected pod has been there for so long that its operator does not make another by itself."""
    changes = (each.get("lastTransitionTime") for each in status.get("conditions") or ())
    times = [time for text in (status.get("startTime"), *changes) if (time := unix_time(text)) is not None]
    return bool(times) and now - max(times) > LEFT_AFTER


def _is_overdue(pod: Obj, now: float) -> bool:
    """Whether a pod that is deleted has not ended in its time: its machine does not answer, and may never."""
    # The time at which it was to have ended (Kubernetes' API, ObjectMeta).
    until = unix_time((pod.get("metadata") or {}).get("deletionTimestamp"))
    return until is not None and now - until > OVERDUE_AFTER


def _is_unexplained(found: _Found) -> bool:
    return found.state is NodeState.FAILED and found.cause in (None, Cause.NODE)


def _without_pod(facts: NodeFacts, gang: Gang, container: str) -> _Found:
    """Return what is known of a node whose pod is not there yet, or no more: its own report says how it ended."""
    report, events, last = facts.report, facts.events, facts.last or {}
    status = last.get("status") or {}
    lost, ended = loss_of(status), exit_of(last, container)
    done = report is not None and report.phase is Phase.DONE
    if gang.state in (GangState.NEW, GangState.SUSPENDED, GangState.ACTIVE) and not done:
        if report is not None:
            return _Found(NodeState.FAILED, *(lost or ("its pod was deleted", Cause.NODE)))
        refusal = next((text for text in events if REFUSED.search(text)), None)
        if refusal is not None:
            return _Found(NodeState.FAILED, f"its pod cannot be created: {refusal}", Cause.CONFIG)
        cause = _why_it_waits(gang, events)
        return _Found(NodeState.PENDING, "; ".join([*filter(None, [gang.details]), *events]) or None, cause)
    if done and report is not None:
        # When the gang has succeeded, the operator ends what is left of it; what was lost before has not succeeded.
        was_lost = facts.replaces and (facts.has_another or lost is not None)
        was_ended = gang.state is GangState.SUCCEEDED and not was_lost
        is_well = report.has_succeeded or (report.exit_code == 0 and was_ended)
        state = NodeState.SUCCEEDED if is_well and report.cause is None else NodeState.FAILED
        said = (
            ("its pod was stopped", Cause.NODE) if report.stopped else (f"exit code {report.exit_code}", None)
        )
        why, cause = lost if lost and state is NodeState.FAILED else said
        return _Found(state, why, cause, report.finished_at)
    if gang.state is GangState.ENDING:
        # Deleted in the foreground: the object stays until no pod is left.
        return _Found(NodeState.ENDING, "it is being deleted")
    if gang.state is GangState.SUCCEEDED and report is None:
        return _Found(NodeState.SUCCEEDED, ENDED_AFTER_SUCCESS)
    if report is None and ended is not None and gang.state is not GangState.GONE:
        return _ended(status, ended)
    if gang.state is GangState.FAILED:
        return _Found(NodeState.FAILED, *(lost or (gang.details or ENDED_AFTER_FAILURE, gang.cause)))
    if gang.state is GangState.SUCCEEDED:
        return _Found(NodeState.FAILED, "the operator has ended it before it was done", Cause.NODE)
    return _Found(NodeState.MISSING, "it was deleted")


def _of_pod(pod: Obj, container: str, facts: NodeFacts, now: float) -> _Found:
    status = pod.get("status") or {}
    own = container_of(pod, container)
    states = own.get("state") or {}
    ended = states.get("terminated")
    if ended is None and runs_agent(pod):
        # The operator has restarted the container; the gang does not go on for that, so the end before counts.
        ended = (own.get("lastState") or {}).get("terminated")
    phase = str(status.get("phase") or "Pending")
    if ended is not None and (phase in ("Succeeded", "Failed") or not may_restart(pod) or runs_agent(pod)):
        return _ended(status, ended)
    if phase == "Succeeded":
        return _Found(NodeState.SUCCEEDED)
    if phase == "Failed":
        return _failed(status)
    if is_deleted(pod):
        disruption = disruption_of(status)
        return _Found(NodeState.ENDING, disruption[0] if disruption else "its pod is being deleted")
    if phase == "Unknown":
        return _Found(NodeState.UNKNOWN, "Kubernetes has lost contact with its machine (phase Unknown)")
    if phase == "Running" and "running" in states:
        return _Found(NodeState.RUNNING)
    before = (own.get("lastState") or {}).get("terminated")
    if before is not None:
        # Without an agent, by its pod's policy: it has begun, and begins again.
        words = [
            reason_and_message(states.get("waiting") or {}),
            f"it had ended with exit code {before.get('exitCode')}",
        ]
        return _Found(NodeState.RUNNING, "; ".join(filter(None, words)))
    return _pending(status, states.get("waiting") or {}, facts.events, now, facts.secret)


def _before_restart(pod: Obj, container: str) -> _Found | None:
    """Return how a container had failed before it was started again, which the agent in it cannot know."""
    before = (container_of(pod, container).get("lastState") or {}).get("terminated") or {}
    return _ended(pod.get("status") or {}, before) if before.get("exitCode") else None


def _ended(status: Obj, ended: Obj) -> _Found:
    code, at = ended.get("exitCode"), unix_time(ended.get("finishedAt"))
    if code == 0:
        return _Found(NodeState.SUCCEEDED, "exit code 0", None, at, 0)
    reason = str(ended.get("reason") or "")
    facts = [f"exit code {code}"]
    if reason not in ("", "Error", "Completed"):
        facts.append(reason)
    lost = loss_of(status)
    if lost is not None:
        facts.append(lost[0])
    said = str(ended.get("message") or "").strip()
    cause = Cause.OOM if reason == "OOMKilled" else lost[1] if lost else None
    if reason in CONFIG_FAULTS or reason == "ContainerCannotRun":
        cause = Cause.CONFIG
    return _Found(NodeState.FAILED, ": ".join(filter(None, [", ".join(facts), said])), cause, at, code)


def _failed(status: Obj) -> _Found:
    lost, init = loss_of(status), _failed_init(status)
    if lost is None and init is not None:
        if init.get("name") == WAITS_FOR_MASTER:
            return _Found(NodeState.FAILED, IN_VAIN, Cause.CAPACITY)
        return _Found(NodeState.FAILED, _init_failure(init), Cause.USER)
    if lost is None:
        return _Found(NodeState.FAILED, str(status.get("message") or "") or None)
    return _Found(NodeState.FAILED, lost[0], lost[1])


def _failed_init(status: Obj) -> Obj | None:
    """Return the status of the init container that has failed last, if any has."""
    found = [each for each in status.get("initContainerStatuses") or () if _init_end(each).get("exitCode")]
    return found[-1] if found else None


def _init_end(init: Obj) -> Obj:
    states = ((init.get(name) or {}).get("terminated") for name in ("state", "lastState"))
    return next(filter(None, states), {})


def _init_failure(init: Obj) -> str:
    end = _init_end(init)
    said = [f"its init container {init.get('name')} has failed", f"exit code {end.get('exitCode')}"]
    return ": ".join(filter(None, [*said, str(end.get("message") or "").strip()]))


def with_absent_master(node: NodeStatus, master: Obj | None) -> NodeStatus:
    """Return a node that gave up waiting for node 0, with what held that back; `master`: its pod as seen last."""
    if node.details != IN_VAIN or master is None:
        return node
    status = master.get("status") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        # It had a machine, so what is wrong is what ended it.
        return replace(node, details=TOO_LATE, cause=None)
    found = _pending(status, {}, (), 0.0)
    return replace(node, details=": ".join(filter(None, [IN_VAIN, found.details])))


def _pending(status: Obj, waiting: Obj, events: Sequence[str], now: float, secret: str = "") -> _Found:
    unscheduled = next(
        (
            each
            for each in status.get("conditions") or ()
            if each.get("type") == "PodScheduled" and str(each.get("status")) == "False"
        ),
        None,
    )
    if unscheduled is not None:
        return _Found(NodeState.PENDING, reason_and_message(unscheduled) or None, Cause.CAPACITY)
    waits = [waiting, *_waiting(status.get("initContainerStatuses") or ())]
    fault = next((each for each in waits if each.get("reason") in (*PULLS, *CONFIG_FAULTS)), None)
    init = _failed_init(status)
    if fault is None and init is not None:
        again = reason_and_message((init.get("state") or {}).get("waiting") or {})
        return _Found(NodeState.PENDING, "; ".join(filter(None, [_init_failure(init), again])))
    if fault is None:
        return _Found(NodeState.PENDING, reason_and_message(waiting) or "; ".join(events) or None)
    details = reason_and_message(fault)
    if secret and f'secret "{secret}" not found' in details:
        # An outage has kept it from being created; the try that completes the gang creates it.
        return _Found(NodeState.PENDING, details, Cause.SERVICE)
    if not _is_final(fault, [details, *events], _tried_since(status), now):
        return _Found(NodeState.PENDING, details)
    return _Found(NodeState.FAILED, f"its container cannot start: {details}", Cause.CONFIG)


def _waiting(statuses: Iterable[Obj]) -> list[Obj]:
    return [(item.get("state") or {}).get("waiting") or {} for item in statuses]


def _tried_since(status: Obj) -> float | None:
    """Return since when the image of a pod's own container may have been asked for: init containers come before."""
    ends = (_init_end(each).get("finishedAt") for each in status.get("initContainerStatuses") or ())
    times = (unix_time(text) for text in (status.get("startTime"), *ends))
    return max((time for time in times if time is not None), default=None)


def _is_final(fault: Obj, said: Sequence[str], started: float | None, now: float) -> bool:
    """Whether another pull does not help: by the registry's own words, or after a while."""
    reason = str(fault.get("reason"))
    if reason in FINAL_PULLS:
        return True
    # The first answer of a registry may be wrong; the kubelet backs off after another.
    refused = reason == "ImagePullBackOff" and any(NO_SUCH_IMAGE.search(text) for text in said)
    return refused or (started is not None and now - started > IMAGE_PATIENCE)


def _why_it_waits(gang: Gang, events: Sequence[str]) -> Cause | None:
    if any("exceeded quota" in text for text in events):
        return Cause.QUOTA
    if gang.awaits is not None:
        # No pod is asked for while it is suspended: what was forbidden before is no reason now.
        return gang.awaits
    # A service account, a right or a policy's approval may still come.
    return Cause.CONFIG if any(sign in text for text in events for sign in FORBIDDEN) else None
