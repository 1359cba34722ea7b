"""Views: workloads, pods, projects and clusters as the control plane answers them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from airflow_provider_ocidist.emulator.runai.phases import WorkloadPhase
from airflow_provider_ocidist.emulator.runai.workloads import PhaseChange, Project, SubmittedWorkload

TENANT_ID = 1001
DEPARTMENT = {"departmentId": "1", "departmentName": "default"}
TYPES = {"distributed": "distributed-workloads", "trainings": "training-workloads"}


def instant(seconds: float | None) -> str | None:
    """Return a time as the control plane writes it, to the millisecond."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def workload_view(
    workload: SubmittedWorkload,
    change: PhaseChange,
    cluster_id: str,
    updated_at: float,
    *,
    with_variables: bool = True,
) -> dict[str, Any]:
    """Return a workload as the lists of all kinds have it, in the phase that it had come into by then."""
    answer = {
        **_owner(workload, cluster_id),
        **_moments(workload, updated_at),
        **_phase(change),
        **_placement(workload),
        **_program(workload, with_variables=with_variables),
        "actionsSupport": {"delete": True, "suspend": True},
    }
    return {name: value for name, value in answer.items() if value is not None}


def _owner(workload: SubmittedWorkload, cluster_id: str) -> dict[str, Any]:
    """Return what it is, who has submitted it, and where."""
    submission, spec = workload.submission, workload.submission.spec
    return {
        "tenantId": TENANT_ID,
        "id": workload.id,
        "name": submission.name,
        "type": TYPES[submission.kind],
        "source": "Control-plane",
        "priority": 50,
        "priorityClassName": spec.get("priorityClass") or "low",
        "preemptible": submission.preemptible,
        "submittedBy": workload.created_by,
        "clusterId": cluster_id,
        "projectId": workload.project.id,
        "projectName": workload.project.name,
        **DEPARTMENT,
        "namespace": workload.project.namespace,
        "category": spec.get("category") or "Train",
    }


def _moments(workload: SubmittedWorkload, updated_at: float) -> dict[str, Any]:
    return {
        "createdAt": instant(workload.created_at),
        "updatedAt": instant(updated_at),
        "deletedAt": instant(workload.deleted_at),
        "completedAt": instant(workload.completed_at),
        "totalPendingTimeSeconds": round(_seconds_in(workload, ("Pending",), updated_at)),
        "totalRunningTimeSeconds": round(_seconds_in(workload, ("Running",), updated_at)),
    }


def _phase(change: PhaseChange) -> dict[str, Any]:
    phase, since = change.phase, instant(change.at)
    return {
        "phase": phase.name,
        "phaseUpdatedAt": since,
        "phaseMessage": phase.message,
        "phaseReason": phase.reason,
        "conditions": [],
        "k8sPhase": phase.name,
        "k8sPhaseUpdatedAt": since,
    }


def _placement(workload: SubmittedWorkload) -> dict[str, Any]:
    """Return which machines it has asked for, and how many of them run."""
    submission = workload.submission
    running = [pod for pod in workload.pods if _k8s_phase(pod) == "Running"]
    return {
        "runningPods": len(running),
        "requestedPods": {"number": submission.pods},
        "requestedNodePools": submission.spec.get("nodePools") or ["default"],
        "currentNodePools": [workload.pool] if running else [],
        "workloadRequestedResources": {
            "gpuRequestType": "portion",
            "gpu": {"request": float(submission.gpus)},
        },
    }


def _program(workload: SubmittedWorkload, *, with_variables: bool) -> dict[str, Any]:
    submission, spec = workload.submission, workload.submission.spec
    return {
        "images": [spec["image"]],
        "environmentVariables": submission.environment if with_variables else None,
        "command": spec.get("command"),
        "arguments": spec.get("args"),
        "distributedFramework": spec.get("distributedFramework"),
    }


def detailed_view(
    workload: SubmittedWorkload,
    change: PhaseChange,
    cluster_id: str,
    updated_at: float,
    *,
    with_variables: bool = True,
) -> dict[str, Any]:
    """Return a workload as the answer to a question for it alone has it."""
    wanted, phase = workload.submission.spec.get("nodePools") or ["default"], change.phase
    messages = [
        {
            "nodePool": workload.pool or wanted[0],
            "phaseReason": phase.reason,
            "reason": phase.reason,
            "orgType": "PROJECT",
            "userMessage": phase.message,
        }
    ]
    view = workload_view(workload, change, cluster_id, updated_at, with_variables=with_variables)
    return {**view, "pendingSchedulingMessages": messages if phase.reason else None}


def own_view(workload: SubmittedWorkload, phase: WorkloadPhase, cluster_id: str) -> dict[str, Any]:
    """Return a workload as the endpoints of its own kind have it, with what was submitted."""
    submission = workload.submission
    return {
        "name": submission.name,
        "requestedName": submission.requested_name,
        "workloadId": workload.id,
        "projectId": workload.project.id,
        "departmentId": DEPARTMENT["departmentId"],
        "clusterId": cluster_id,
        "createdBy": workload.created_by,
        "createdAt": instant(workload.created_at),
        "deletedAt": instant(workload.deleted_at),
        "desiredPhase": workload.desired,
        "actualPhase": phase.name,
        "spec": submission.spec,
    }


def pod_view(workload: SubmittedWorkload, pod: Mapping[str, Any], cluster_id: str) -> dict[str, Any]:
    metadata, status = pod["metadata"], pod.get("status") or {}
    return {
        "id": metadata["uid"],
        "name": metadata["name"],
        "workloadId": workload.id,
        "workloadName": workload.submission.name,
        "projectId": workload.project.id,
        "projectName": workload.project.name,
        "clusterId": cluster_id,
        "priorityClassName": workload.submission.spec.get("priorityClass") or "low",
        "createdAt": metadata.get("creationTimestamp"),
        "nodeName": (pod.get("spec") or {}).get("nodeName"),
        "ip": status.get("podIP"),
        "k8sPhase": _k8s_phase(pod),
        "containers": [
            {"name": each["name"], "image": each.get("image", "")} for each in pod["spec"]["containers"]
        ],
    }


def project_view(project: Project, cluster_id: str, pools: Iterable[str]) -> dict[str, Any]:
    return {
        "id": project.id,
        "name": project.name,
        "clusterId": cluster_id,
        "parent": {"id": "1", "name": "default", "type": "department"},
        "status": {"namespace": project.namespace, "phase": "Ready"},
        "resources": [
            {
                "nodePool": {"id": str(number), "name": name},
                "gpu": {"deserved": project.quota.gpus, "limit": project.quota.limit},
            }
            for number, name in enumerate(pools, 1)
        ],
    }


def event_views(workload: SubmittedWorkload) -> list[dict[str, Any]]:
    """Return one event for each change of phase, the newest first, as in the console."""
    return [
        {
            "id": f"{workload.id}-{number}",
            "workloadId": workload.id,
            "createdAt": instant(change.at),
            "type": "Warning" if change.phase.reason or change.phase.name == "Failed" else "Normal",
            "reason": change.phase.reason or change.phase.name,
            "message": change.phase.message or f"The workload is {change.phase.name}",
        }
        for number, change in reversed(list(enumerate(workload.history)))
    ]


def history_views(workload: SubmittedWorkload) -> list[dict[str, Any]]:
    """Return which phases it was in, the newest first."""
    return [
        {
            "workloadId": workload.id,
            "phase": change.phase.name,
            "phaseMessage": change.phase.message,
            "eventTime": instant(change.at),
        }
        for change in reversed(workload.history)
    ]


def _k8s_phase(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _seconds_in(workload: SubmittedWorkload, names: tuple[str, ...], now: float) -> float:
    ends = [*(change.at for change in list(workload.history)[1:]), now]
    return sum(
        end - change.at
        for change, end in zip(workload.history, ends, strict=True)
        if change.phase.name in names
    )
