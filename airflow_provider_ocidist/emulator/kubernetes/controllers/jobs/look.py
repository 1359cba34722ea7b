"""One look of the Job controller at a Job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_provider_ocidist.emulator.kubernetes.controllers import conditions
from airflow_provider_ocidist.emulator.kubernetes.controllers.jobs.failure_policy import meaning
from airflow_provider_ocidist.emulator.kubernetes.controllers.jobs.pods import (
    awaits_ends,
    index_of,
    is_active,
    is_ending,
    is_failed,
    is_indexed,
    is_ready,
    is_tracked,
    missing_indexes,
    pod,
    read,
    restarts,
    written,
)
from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import (
    Note,
    Step,
    age_s,
    is_terminating,
    phase,
)
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import moment, stamp

POD_BACKOFF_S = 10.0
"""Seconds after the first failed pod; doubled with each further one."""
MAX_POD_BACKOFF_S = 600.0


@dataclass(slots=True)
class _Draft:
    job: Obj
    pods: Sequence[Obj]
    now: datetime
    backoff_s: float
    status: Obj
    new_failures: list[Obj] = field(default_factory=list)
    delete: list[Obj] = field(default_factory=list)
    create: list[Obj] = field(default_factory=list)
    release: list[Obj] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    again_s: list[float] = field(default_factory=list)
    remove: bool = False

    @property
    def spec(self) -> Obj:
        spec: Obj = self.job["spec"]
        return spec

    @property
    def active(self) -> list[Obj]:
        return [each for each in self.pods if is_active(each)]

    def is_true(self, kind: str) -> bool:
        return conditions.is_true(self.status, kind)

    def set(self, kind: str, reason: str, message: str, *, truth: bool = True) -> bool:
        return conditions.set_condition(self.status, kind, reason, message, self.now, truth=truth)

    def step(self) -> Step:
        changed = self.status != self.job.get("status", {})
        return Step(
            delete=self.delete,
            create=self.create,
            release=self.release,
            notes=self.notes,
            status=self.status if changed else None,
            again_s=min(self.again_s, default=None),
            remove=self.remove,
        )


def look(
    job: Obj, owned: Mapping[str, Sequence[Obj]], now: datetime, backoff_s: float = POD_BACKOFF_S
) -> Step:
    """Return what the Job controller does next.

    Source: the Kubernetes documentation of Jobs, 1.31 and later; syncJob and manageJob in pkg/controller/job, 1.34.
    """
    if job["spec"].get("managedBy") not in (None, "kubernetes.io/job-controller"):
        return Step()
    draft = _Draft(job, owned.get("Pod", ()), now, backoff_s, deepcopy(job.get("status", {})))
    if draft.is_true("Complete") or draft.is_true("Failed"):
        draft.release = [each for each in draft.pods if is_tracked(each)]
        _expire(draft)
        return draft.step()
    _count(draft)
    _judge(draft)
    if draft.is_true("FailureTarget") or draft.is_true("SuccessCriteriaMet"):
        _end(draft)
    elif draft.spec.get("suspend"):
        _suspend(draft)
    else:
        _go_on(draft)
    _describe(draft)
    return draft.step()


def _count(draft: _Draft) -> None:
    """Count pods that have ended, each once: one that is counted loses its finalizer."""
    counts = draft.status
    done = read(counts.get("completedIndexes", ""))
    for each in draft.pods:
        if not is_tracked(each):
            continue
        if phase(each) == "Succeeded":
            index = index_of(each)
            if index is None or index not in done:
                counts["succeeded"] = counts.get("succeeded", 0) + 1
            done |= set() if index is None else {index}
        elif is_failed(draft.job, each):
            _count_failure(draft, each)
        else:
            continue
        draft.release.append(each)
    if is_indexed(draft.job) and done:
        counts["completedIndexes"] = written(done)


def _count_failure(draft: _Draft, each: Obj) -> None:
    if draft.spec.get("suspend") and phase(each) != "Failed":
        return
    found = meaning(draft.job, each) if phase(each) == "Failed" else None
    if found and found.action == "Ignore":
        return
    draft.status["failed"] = draft.status.get("failed", 0) + 1
    draft.new_failures.append(each)
    if found and found.action == "FailJob":
        _fail(draft, "PodFailurePolicy", found.message)


def _judge(draft: _Draft) -> None:
    limit = draft.spec["backoffLimit"]
    in_place = draft.spec["template"]["spec"].get("restartPolicy") == "OnFailure"
    failed = draft.status.get("failed", 0)
    if (draft.new_failures and failed > limit) or (in_place and restarts(draft.active) >= max(limit, 1)):
        _fail(draft, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    elif _is_past_deadline(draft):
        _fail(draft, "DeadlineExceeded", "Job was active longer than specified deadline")
    elif not draft.is_true("FailureTarget") and _has_succeeded(draft):
        text = "Reached expected number of succeeded pods"
        draft.set("SuccessCriteriaMet", "CompletionsReached", text)


def _fail(draft: _Draft, reason: str, message: str) -> None:
    if not draft.is_true("FailureTarget"):
        draft.set("FailureTarget", reason, message)
        draft.notes.append(Note(reason, message, warning=True))


def _is_past_deadline(draft: _Draft) -> bool:
    deadline_s, started = draft.spec.get("activeDeadlineSeconds"), draft.status.get("startTime")
    if deadline_s is None or started is None or draft.spec.get("suspend"):
        return False
    left_s: float = deadline_s - age_s(started, draft.now)
    draft.again_s += [left_s] if left_s > 0 else []
    return left_s <= 0


def _has_succeeded(draft: _Draft) -> bool:
    completions, succeeded = draft.spec.get("completions"), draft.status.get("succeeded", 0)
    if completions is None:
        return bool(succeeded and not draft.active)
    return bool(succeeded >= completions)


def _end(draft: _Draft) -> None:
    """Delete what still runs; the last condition comes when nothing runs any more."""
    draft.delete += draft.active
    if any(phase(each) not in ("Succeeded", "Failed") for each in draft.pods):
        return
    if draft.is_true("FailureTarget"):
        target = next(one for one in draft.status["conditions"] if one["type"] == "FailureTarget")
        draft.set("Failed", target["reason"], target["message"])
    else:
        draft.set("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
        draft.status["completionTime"] = stamp(draft.now)
        draft.notes.append(Note("Completed", "Job completed"))


def _suspend(draft: _Draft) -> None:
    draft.delete += draft.active
    draft.status.pop("startTime", None)
    if draft.set("Suspended", "JobSuspended", "Job suspended"):
        draft.notes.append(Note("Suspended", "Job suspended"))


def _go_on(draft: _Draft) -> None:
    if draft.is_true("Suspended"):
        draft.set("Suspended", "JobResumed", "Job resumed", truth=False)
        draft.notes.append(Note("Resumed", "Job resumed"))
    if "startTime" not in draft.status:
        draft.status["startTime"] = stamp(draft.now)
        if deadline_s := draft.spec.get("activeDeadlineSeconds"):
            draft.again_s.append(deadline_s)
    wait_s = _backoff_left_s(draft)
    if wait_s > 0:
        draft.again_s.append(wait_s)
    else:
        draft.create += [pod(draft.job, index) for index in _missing(draft)]


def _missing(draft: _Draft) -> Sequence[int | None]:
    """Return an index, or None, for each pod that is to be made."""
    parallelism, active = draft.spec["parallelism"], len(draft.active)
    if awaits_ends(draft.job):
        active += sum(is_ending(each) for each in draft.pods)
    completions, succeeded = draft.spec.get("completions"), draft.status.get("succeeded", 0)
    if completions is None:
        return [None] * (parallelism - active if not succeeded else 0)
    room = max(min(parallelism, completions - succeeded) - active, 0)
    if not is_indexed(draft.job):
        return [None] * room
    done = read(draft.status.get("completedIndexes", ""))
    return missing_indexes(draft.job, done, draft.pods)[:room]


def _backoff_left_s(draft: _Draft) -> float:
    """Return the seconds until a failed pod's place is filled: longer with each failure."""
    ended = [_ended(each, draft.now) for each in draft.pods if is_failed(draft.job, each)]
    failed = draft.status.get("failed", 0)
    if not ended or not failed:
        return 0.0
    wait_s: float = min(draft.backoff_s * 2.0 ** min(failed - 1, 100), MAX_POD_BACKOFF_S)
    return wait_s - age_s(max(ended), draft.now)


def _ended(each: Obj, now: datetime) -> str:
    times: list[str | None] = [
        container["state"]["terminated"].get("finishedAt")
        for container in each.get("status", {}).get("containerStatuses", ())
        if "terminated" in container.get("state", {})
    ]
    if found := [*filter(None, times)]:
        return max(found)
    if is_terminating(each):
        # Source: getFinishedTime in pkg/controller/job of Kubernetes 1.34.
        metadata = each["metadata"]
        grace = timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
        return stamp(moment(metadata["deletionTimestamp"]) - grace)
    return stamp(now)


def _describe(draft: _Draft) -> None:
    """Write how many pods there are, of each sort."""
    counts = {
        "active": len(draft.active) + len(draft.create) - len(draft.delete),
        "terminating": sum(is_ending(each) for each in draft.pods),
        "ready": sum(is_active(each) and is_ready(each) for each in draft.pods),
    }
    draft.status["uncountedTerminatedPods"] = {}
    for name, value in counts.items():
        draft.status[name] = value
    if not draft.status["active"]:
        del draft.status["active"]


def _expire(draft: _Draft) -> None:
    ttl = draft.spec.get("ttlSecondsAfterFinished")
    if ttl is None:
        return
    ended = next(
        one["lastTransitionTime"]
        for one in draft.status["conditions"]
        if one["type"] in ("Complete", "Failed") and one["status"] == "True"
    )
    left_s = ttl - age_s(ended, draft.now)
    draft.remove = left_s <= 0
    draft.again_s += [left_s] if left_s > 0 else []
