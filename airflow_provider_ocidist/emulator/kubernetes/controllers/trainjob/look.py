"""One look of Kubeflow Trainer at a TrainJob."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import datetime

from airflow_provider_ocidist.emulator.kubernetes.controllers import conditions
from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import Note, Step, age_s
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.jobset import jobset
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.release import Release
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.runtime import find
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj

OWN_MANAGER = "trainer.kubeflow.org/trainjob-controller"
COUNTS = ("name", "ready", "succeeded", "failed", "active", "suspended")
# A JobSet's conditions that become the job's.
_ENDS = {"Completed": "Complete", "Failed": "Failed"}


def look(job: Obj, owned: Mapping[str, Sequence[Obj]], now: datetime, release: Release | None = None) -> Step:
    """Return what Trainer does next. Source: kubeflow/trainer v2.3.0."""
    release = release or Release()
    if job["spec"].get("managedBy") not in (None, OWN_MANAGER):
        return Step()
    status = deepcopy(job.get("status", {}))
    present = owned.get("JobSet", ())
    if any(conditions.is_true(status, end) for end in _ENDS.values()):
        return Step()
    runtime = find(job, owned)
    if runtime is None:
        return _without_runtime(job)
    create, update = _wanted(job, runtime, present, release)
    _describe(job, status, present, now)
    left_s = _left_s(job, status, now)
    if left_s is not None and left_s <= 0:
        text = "TrainJob exceeded its activeDeadlineSeconds"
        conditions.set_condition(status, "Failed", "DeadlineExceeded", text, now)
        return Step(delete=present, status=status, notes=[Note("DeadlineExceeded", text, warning=True)])
    changed = status != job.get("status", {})
    return Step(create=create, update=update, status=status if changed else None, again_s=left_s)


def _without_runtime(job: Obj) -> Step:
    name = job["spec"]["runtimeRef"]["name"]
    text = f'TrainJob resources reconciliation failed: runtime "{name}" not found'
    return Step(notes=[Note("TrainJobResourcesCreationFailed", text, warning=True)], again_s=5.0)


def _wanted(job: Obj, runtime: Obj, present: Sequence[Obj], release: Release) -> tuple[list[Obj], list[Obj]]:
    """Return a JobSet that is missing, and one whose suspension is not the job's."""
    new = jobset(job, runtime, release)
    if not present:
        return [new], []
    there = present[0]
    if bool(there["spec"].get("suspend")) == new["spec"]["suspend"]:
        return [], []
    return [], [{**there, "spec": {**there["spec"], "suspend": new["spec"]["suspend"]}}]


def _describe(job: Obj, status: Obj, present: Sequence[Obj], now: datetime) -> None:
    if job["spec"].get("suspend"):
        conditions.set_condition(status, "Suspended", "Suspended", "TrainJob is suspended", now)
    elif conditions.is_true(status, "Suspended"):
        conditions.set_condition(status, "Suspended", "Resumed", "TrainJob is resumed", now, truth=False)
    for one in present:
        found = one.get("status", {})
        for condition in found.get("conditions", ()):
            if condition["type"] in _ENDS and condition["status"] == "True":
                kind = _ENDS[condition["type"]]
                conditions.set_condition(status, kind, condition["reason"], condition["message"], now)
        if counts := found.get("replicatedJobsStatus"):
            status["jobsStatus"] = [{name: each[name] for name in COUNTS} for each in counts]


def _left_s(job: Obj, status: Obj, now: datetime) -> float | None:
    """Return the seconds until the deadline, which begins again when a job is resumed."""
    deadline_s = job["spec"].get("activeDeadlineSeconds")
    ended = any(conditions.is_true(status, end) for end in _ENDS.values())
    if deadline_s is None or job["spec"].get("suspend") or ended:
        return None
    resumed = [one for one in status.get("conditions", ()) if one["type"] == "Suspended"]
    begun = resumed[0]["lastTransitionTime"] if resumed else job["metadata"]["creationTimestamp"]
    return float(deadline_s - age_s(begun, now))
