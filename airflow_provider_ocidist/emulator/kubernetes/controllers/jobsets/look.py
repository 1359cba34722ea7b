"""One look of the JobSet controller at a JobSet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import datetime

from airflow_provider_ocidist.emulator.kubernetes.controllers import conditions
from airflow_provider_ocidist.emulator.kubernetes.controllers.jobsets.jobs import (
    ATTEMPT,
    REPLICATED_JOB,
    has_names,
    jobs,
    service,
)
from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import Note, Step, age_s
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj


def look(jobset: Obj, owned: Mapping[str, Sequence[Obj]], now: datetime) -> Step:
    """Return what the controller does next. Source: kubernetes-sigs/jobset, of which 0.12.0 was run."""
    status = deepcopy(jobset.get("status", {}))
    attempt = status.setdefault("restarts", 0)
    old = [job for job in owned.get("Job", ()) if _attempt(job) < attempt]
    present = [job for job in owned.get("Job", ()) if _attempt(job) == attempt]
    status["replicatedJobsStatus"] = _counts(jobset, present)
    if conditions.is_true(status, "Completed") or conditions.is_true(status, "Failed"):
        return _ended(jobset, status, [*old, *present], now)
    note = _judge(jobset, status, present, now)
    _describe_suspension(jobset, status, now)
    if status["restarts"] > attempt or status.get("terminalState"):
        return Step(notes=[note] if note else [], status=status)
    create, update = _wanted(jobset, owned, present)
    changed = status != jobset.get("status", {})
    return Step(delete=old, create=create, update=update, status=status if changed else None)


def _attempt(job: Obj) -> int:
    return int(job["metadata"]["labels"][ATTEMPT])


def _has(job: Obj, kind: str) -> bool:
    return conditions.is_true(job.get("status", {}), kind)


def _counts(jobset: Obj, present: Sequence[Obj]) -> list[Obj]:
    """Count Jobs, not pods."""
    return [_count(each["name"], present) for each in jobset["spec"]["replicatedJobs"]]


def _count(name: str, present: Sequence[Obj]) -> Obj:
    own = [job for job in present if job["metadata"]["labels"][REPLICATED_JOB] == name]
    return {
        "name": name,
        "ready": sum(_is_ready(job) for job in own),
        "succeeded": sum(_has(job, "Complete") for job in own),
        "failed": sum(_has(job, "Failed") for job in own),
        "active": sum(bool(job.get("status", {}).get("active")) for job in own),
        "suspended": sum(bool(job["spec"].get("suspend")) for job in own),
    }


def _is_ready(job: Obj) -> bool:
    spec, status = job["spec"], job.get("status", {})
    if _has(job, "Complete") or _has(job, "Failed") or spec.get("suspend"):
        return False
    needed = min(spec.get("parallelism", 1), spec.get("completions") or spec.get("parallelism", 1))
    return bool(status.get("ready", 0) + status.get("succeeded", 0) >= needed)


def _judge(jobset: Obj, status: Obj, present: Sequence[Obj], now: datetime) -> Note | None:
    failed = [job["metadata"]["name"] for job in present if _has(job, "Failed")]
    if failed:
        return _fail_or_restart(jobset, status, failed[0], now)
    wanted = sum(each.get("replicas", 1) for each in jobset["spec"]["replicatedJobs"])
    if sum(_has(job, "Complete") for job in present) < wanted:
        return None
    text = "jobset completed successfully"
    conditions.set_condition(status, "Completed", "AllJobsCompleted", text, now)
    status["terminalState"] = "Completed"
    return Note("AllJobsCompleted", text)


def _fail_or_restart(jobset: Obj, status: Obj, first: str, now: datetime) -> Note:
    most = (jobset["spec"].get("failurePolicy") or {}).get("maxRestarts", 0)
    if status["restarts"] < most:
        status["restarts"] += 1
        return Note("Restarting", f"restarting jobset, attempt {status['restarts']}", warning=True)
    reason, text = "FailedJobs", "jobset failed due to one or more job failures"
    if most:
        reason, text = "ReachedMaxRestarts", "jobset failed due to reaching max number of restarts"
    text = f"{text} (first failed job: {first})"
    conditions.set_condition(status, "Failed", reason, text, now)
    status["terminalState"] = "Failed"
    return Note(reason, text, warning=True)


def _describe_suspension(jobset: Obj, status: Obj, now: datetime) -> None:
    if jobset["spec"].get("suspend"):
        conditions.set_condition(status, "Suspended", "SuspendedJobs", "jobset is suspended", now)
    elif conditions.is_true(status, "Suspended"):
        text = "jobset is resumed"
        conditions.set_condition(status, "Suspended", "ResumeJobs", text, now, truth=False)


def _wanted(
    jobset: Obj, owned: Mapping[str, Sequence[Obj]], present: Sequence[Obj]
) -> tuple[list[Obj], list[Obj]]:
    """Return what is missing, and Jobs whose suspension is not the JobSet's."""
    names = {job["metadata"]["name"]: job for job in present}
    create = [service(jobset)] if has_names(jobset) and not owned.get("Service") else []
    update = []
    for job in jobs(jobset):
        there = names.get(job["metadata"]["name"])
        if there is None:
            create.append(job)
        elif bool(there["spec"].get("suspend")) != job["spec"]["suspend"]:
            update.append(_resumed_or_suspended(there, job))
    return create, update


def _resumed_or_suspended(there: Obj, job: Obj) -> Obj:
    changed = deepcopy(there)
    changed["spec"]["suspend"] = job["spec"]["suspend"]
    return changed


def _ended(jobset: Obj, status: Obj, present: Sequence[Obj], now: datetime) -> Step:
    """Delete Jobs that still run, and the JobSet when its time is over."""
    delete = [job for job in present if not _has(job, "Complete") and not _has(job, "Failed")]
    changed = status if status != jobset.get("status", {}) else None
    ttl = jobset["spec"].get("ttlSecondsAfterFinished")
    if ttl is None:
        return Step(delete=delete, status=changed)
    ended = next(
        one["lastTransitionTime"] for one in status["conditions"] if one["type"] in ("Completed", "Failed")
    )
    left_s = ttl - age_s(ended, now)
    return Step(delete=delete, status=changed, remove=left_s <= 0, again_s=left_s if left_s > 0 else None)
