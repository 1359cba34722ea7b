"""Kueue's controller: one look at all queues whenever a job, a workload or a queue has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone

from airflow_provider_ocidist.emulator.kubernetes.changes import copy_of
from airflow_provider_ocidist.emulator.kubernetes.controllers import conditions
from airflow_provider_ocidist.emulator.kubernetes.controllers.kueue.queues import QueuePlace, places
from airflow_provider_ocidist.emulator.kubernetes.controllers.kueue.workloads import (
    JOB_KINDS,
    has_ended,
    holder_of_suspend,
    is_finished,
    is_reserved,
    is_suspended,
    name_of,
    queue_of,
    workload,
)
from airflow_provider_ocidist.emulator.kubernetes.controllers.manager import KeysOf
from airflow_provider_ocidist.emulator.kubernetes.events import record
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster, Key

RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
_WATCHED = ("ClusterQueue", "LocalQueue", "Workload")


def suspend(_: Cluster, job: Obj, old: Obj | None) -> None:
    """Kueue's webhook: a new job of a queue begins suspended."""
    if old is None and queue_of(job):
        holder_of_suspend(job)["suspend"] = True


def _all(_: Obj) -> Iterable[Key]:
    return [("", "")]


def _queued(job: Obj) -> Iterable[Key]:
    return [("", "")] if queue_of(job) else []


class Kueue:
    """Looks at everything at once: what one job gives back is another's."""

    @property
    def watches(self) -> Mapping[str, KeysOf]:
        return {**dict.fromkeys(_WATCHED, _all), **dict.fromkeys(JOB_KINDS, _queued)}

    def reconcile(self, cluster: Cluster, _namespace: str, _name: str) -> float | None:
        jobs = [job for kind in JOB_KINDS if cluster.has_kind(kind) for job in cluster.stored(kind)]
        for job in jobs:
            if queue_of(job) and "deletionTimestamp" not in job["metadata"]:
                _follow(cluster, copy_of(job))
        workloads = cluster.list("Workload")
        found = places(workloads, cluster.list("LocalQueue"), cluster.list("ClusterQueue"))
        for one in workloads:
            if place := found.get(one["metadata"]["uid"]):
                _describe(cluster, one, place)
        _count(cluster)
        return None


def _follow(cluster: Cluster, job: Obj) -> None:
    """Bring a job and its workload together: made, started, finished, or given up."""
    one = cluster.find("Workload", job["metadata"]["namespace"], name_of(job))
    if one is None:
        if not has_ended(job):
            made = cluster.create(workload(job, _runtimes(cluster)))
            text = f"Created Workload: {made['metadata']['namespace']}/{made['metadata']['name']}"
            _say(cluster, job, "CreatedWorkload", text)
        return
    if end := has_ended(job):
        _finish(cluster, one, end)
    elif is_reserved(one) and not one["spec"].get("active", True):
        _evict(cluster, one)
    elif is_reserved(one) and is_suspended(job):
        _set_suspend(cluster, job, value=False)
        _say(
            cluster,
            job,
            "Started",
            f"Admitted by clusterQueue {(one['status'].get('admission') or {}).get('clusterQueue')}",
        )
    elif not is_reserved(one) and not is_suspended(job):
        _set_suspend(cluster, job, value=True)
        _say(cluster, job, "Stopped", "The workload is deactivated")


def _runtimes(cluster: Cluster) -> Mapping[tuple[str, str], Obj]:
    return {
        (kind, one["metadata"]["name"]): one
        for kind in RUNTIMES
        if cluster.has_kind(kind)
        for one in cluster.list(kind)
    }


def _set_suspend(cluster: Cluster, job: Obj, *, value: bool) -> None:
    metadata = job["metadata"]

    def change(obj: Obj) -> None:
        holder_of_suspend(obj)["suspend"] = value

    cluster.modify(job["kind"], metadata["namespace"], metadata["name"], change)


def _finish(cluster: Cluster, one: Obj, end: str) -> None:
    if not is_finished(one):
        text = "Job failed" if end == "Failed" else "Job finished successfully"
        _write(cluster, one, [("Finished", "Failed" if end == "Failed" else "Succeeded", text, True)])


def _evict(cluster: Cluster, one: Obj) -> None:
    text = "The workload is deactivated"
    changes = [
        ("QuotaReserved", "Pending", text, False),
        ("Admitted", "NoReservation", text, False),
        ("Evicted", "Deactivated", text, True),
    ]
    _write(cluster, one, changes, admission=None)
    _say(cluster, one, "EvictedDueToDeactivated", text)


def _describe(cluster: Cluster, one: Obj, place: QueuePlace) -> None:
    if place.cluster_queue is None:
        if _write(cluster, one, [("QuotaReserved", place.reason, place.message, False)]):
            _say(cluster, one, place.reason, place.message, warning=True)
        return
    changes = [
        ("QuotaReserved", place.reason, place.message, True),
        ("Admitted", "Admitted", "The workload is admitted", True),
    ]
    _write(cluster, one, changes, admission={"clusterQueue": place.cluster_queue})
    _say(cluster, one, "QuotaReserved", place.message)
    _say(cluster, one, "Admitted", f"Admitted by ClusterQueue {place.cluster_queue}")


def _write(
    cluster: Cluster,
    one: Obj,
    changes: Sequence[tuple[str, str, str, bool]],
    **fields: Obj | None,
) -> bool:
    """Set conditions (type, reason, message, status) and fields of a status; return whether anything is new."""
    status = {**one.get("status", {})}
    status["conditions"] = [dict(each) for each in status.get("conditions", ())]
    now = datetime.now(timezone.utc)
    new = [
        conditions.set_condition(status, kind, reason, message, now, truth=truth)
        for kind, reason, message, truth in changes
    ]
    for name, value in fields.items():
        status.pop(name, None)
        status.update({} if value is None else {name: value})
    if any(new):
        cluster.update({**one, "status": status}, "status")
    return any(new)


def _count(cluster: Cluster) -> None:
    """Write how many workloads each queue has."""
    workloads = [one for one in cluster.list("Workload") if not is_finished(one)]
    for queue in cluster.list("LocalQueue"):
        own = [
            one
            for one in workloads
            if one["spec"].get("queueName") == queue["metadata"]["name"]
            and one["metadata"]["namespace"] == queue["metadata"]["namespace"]
        ]
        _write_counts(cluster, queue, own)
    for queue in cluster.list("ClusterQueue"):
        local = {
            (one["metadata"]["namespace"], one["metadata"]["name"])
            for one in cluster.list("LocalQueue")
            if one["spec"].get("clusterQueue") == queue["metadata"]["name"]
        }
        own = [
            one for one in workloads if (one["metadata"]["namespace"], one["spec"].get("queueName")) in local
        ]
        _write_counts(cluster, queue, own)


def _write_counts(cluster: Cluster, queue: Obj, own: Sequence[Obj]) -> None:
    reserved = sum(is_reserved(one) for one in own)
    counts = {
        "pendingWorkloads": len(own) - reserved,
        "reservingWorkloads": reserved,
        "admittedWorkloads": reserved,
    }
    status = queue.get("status", {})
    if {name: status.get(name) for name in counts} != counts:
        cluster.update({**queue, "status": {**status, **counts}}, "status")


def _say(cluster: Cluster, about: Obj, reason: str, message: str, *, warning: bool = False) -> None:
    record(cluster, about, reason, message, component="kueue-admission", warning=warning)
