"""Which pods the cluster has taken away, and why: preempted, evicted, lost with a machine. Pure; no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_ocidist.backends.kubernetes.events import EVICTED
from airflow_provider_ocidist.backends.kubernetes.objects import Obj, reason_and_message, true_conditions
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.run import NodeState, NodeStatus

DISRUPTIONS = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "EvictionByEvictionAPI": Cause.PREEMPTED,
    "DeletionByTaintManager": Cause.NODE,
    "DeletionByPodGC": Cause.NODE,
    "TerminationByKubelet": Cause.NODE,
}
"""Reasons of a pod's condition DisruptionTarget (Kubernetes' documentation, Disruptions)."""
OWN_EXCESS = re.compile(r"^(?!.*low on resource).*\bexceed(s|ed)\b", re.DOTALL)
"""Text of an eviction for what a pod itself uses: a limit of its storage. Of a full machine, older kubelets say too by
how much the chosen pod exceeds its request."""
POD_REASONS = {
    EVICTED: Cause.PREEMPTED,
    "Preempting": Cause.PREEMPTED,
    "NodeLost": Cause.NODE,
    "NodeShutdown": Cause.NODE,
    "NodeAffinity": Cause.CONFIG,
    "Shutdown": Cause.NODE,
    "Terminated": Cause.NODE,
    "UnexpectedAdmissionError": Cause.NODE,
    "DeadlineExceeded": Cause.DEADLINE,
}
"""Reasons of a failed pod, beside those that begin with OutOf."""


def loss_of(status: Obj) -> tuple[str, Cause | None] | None:
    """Return why the cluster has ended a pod, if it has: the kubelet's reason, else the disruption."""
    named, disrupted = _reason_of(status), disruption_of(status)
    return named if named and (named[1] or not disrupted) else disrupted


def disruption_of(status: Obj) -> tuple[str, Cause | None] | None:
    """Return the words and the cause for which the cluster has ended a pod, if it has."""
    found = true_conditions({"status": status}).get("DisruptionTarget")
    if found is None:
        return None
    reason = str(found.get("reason") or "")
    return reason_and_message(found), DISRUPTIONS.get(reason, Cause.NODE)


def _reason_of(status: Obj) -> tuple[str, Cause | None] | None:
    reason = str(status.get("reason") or "")
    if not reason:
        return None
    cause = Cause.CAPACITY if reason.startswith("OutOf") else POD_REASONS.get(reason)
    if reason == EVICTED and OWN_EXCESS.search(str(status.get("message") or "")):
        cause = Cause.USER
    return reason_and_message(status), cause


def has_vanished(node: NodeStatus, pod: Obj | None) -> bool:
    """Whether a node has failed with its pod, and nothing of both says why."""
    report = node.report
    if node.state is not NodeState.FAILED or node.cause not in (None, Cause.NODE):
        return False
    if report is not None and report.cause is not None:
        return False
    return pod is None or (report is not None and report.lost)


def with_preemption(node: NodeStatus, preempted: Mapping[str, str]) -> NodeStatus:
    """Return a node with what an event says of its pod; `preempted`: sentences by names and UIDs of pods."""
    if node.report is not None and node.report.instance:
        text = preempted.get(node.report.instance)
    else:
        text = next((text for name, text in preempted.items() if _is_pod_of(node, name)), None)
    if text is None:
        return node
    is_excess = text.startswith(EVICTED) and OWN_EXCESS.search(text)
    return replace(node, cause=Cause.USER if is_excess else Cause.PREEMPTED, details=text)


def _is_pod_of(node: NodeStatus, name: str) -> bool:
    # The name of a pod may end in random letters.
    return name == node.run_id or name.startswith(f"{node.run_id}-")
