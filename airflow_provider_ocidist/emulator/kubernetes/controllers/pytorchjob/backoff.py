"""The limits of a PyTorchJob, with what the operator makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.defaults import replica_specs
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.replicas import of_kind
from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import age_s, is_terminating, phase
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj


def past_backoff(job: Obj, pods: Sequence[Obj], status: Obj) -> bool:
    limit = job["spec"]["runPolicy"].get("backoffLimit")
    if limit is None:
        return False
    restarts = _restarts_in_place(job, pods)
    return _fails_at_once(job, pods, status, limit) or restarts >= max(limit, 1)


def _restarts_in_place(job: Obj, pods: Sequence[Obj]) -> int:
    """Count restarts of containers whose pods run: a pod that is made again counts from zero again."""
    return sum(
        container.get("restartCount", 0)
        for kind, spec in replica_specs(job)
        if spec["restartPolicy"] != "Never"
        for pod in of_kind(pods, kind)
        if phase(pod) == "Running"
        for group in ("initContainerStatuses", "containerStatuses")
        for container in pod["status"].get(group, ())
    )


def _fails_at_once(job: Obj, pods: Sequence[Obj], status: Obj, limit: int) -> bool:
    """Return whether there is a new failed pod and no retry allowed: the operator's own count of retries stays 0."""
    total = sum(spec["replicas"] for _, spec in replica_specs(job))
    known = sum(counts.get("failed", 0) for counts in status.get("replicaStatuses", {}).values())
    failed = sum(phase(pod) == "Failed" for pod in pods)
    active = sum(phase(pod) not in ("Failed", "Succeeded") and not is_terminating(pod) for pod in pods)
    return failed > known and active != total and limit < 1


def is_past_deadline(policy: Obj, status: Obj, now: datetime) -> bool:
    deadline_s, started = policy.get("activeDeadlineSeconds"), status.get("startTime")
    return deadline_s is not None and started is not None and age_s(started, now) >= deadline_s
