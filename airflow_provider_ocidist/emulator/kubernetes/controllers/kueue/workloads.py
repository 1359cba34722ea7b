"""Workloads: what Kueue makes of a job, and what it reads of one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction

from airflow_provider_ocidist.emulator.kubernetes.controllers import conditions
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import owner_reference
from airflow_provider_ocidist.emulator.kubernetes.quantities import amount

QUEUE = "kueue.x-k8s.io/queue-name"
JOB_KINDS = ("PyTorchJob", "TrainJob", "Job")
_ENDS = ("Succeeded", "Complete", "Failed")

Amounts = Mapping[str, Fraction]


def queue_of(job: Obj) -> str | None:
    return (job["metadata"].get("labels") or {}).get(QUEUE)


def holder_of_suspend(job: Obj) -> Obj:
    """Return the part of a job's specification whose `suspend` counts."""
    spec: Obj = job["spec"]
    if job["kind"] != "PyTorchJob":
        return spec
    policy: Obj = spec.setdefault("runPolicy", {})
    return policy


def is_suspended(job: Obj) -> bool:
    holder = job["spec"].get("runPolicy") or {} if job["kind"] == "PyTorchJob" else job["spec"]
    return bool(holder.get("suspend"))


def has_ended(job: Obj) -> str | None:
    """Return the condition with which a job has ended."""
    return next((end for end in _ENDS if conditions.is_true(job.get("status", {}), end)), None)


def name_of(job: Obj) -> str:
    name, kind = job["metadata"]["name"], job["kind"].lower()
    digest = hashlib.sha256(f"{kind} {name} {job['metadata']['uid']}".encode()).hexdigest()[:5]
    return f"{kind}-{name[: 200 - len(kind)]}-{digest}"


def workload(job: Obj, runtimes: Mapping[tuple[str, str], Obj]) -> Obj:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {
            "name": name_of(job),
            "namespace": job["metadata"]["namespace"],
            "labels": {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "active": True,
            "queueName": queue_of(job),
            "priority": 0,
            "podSets": pod_sets(job, runtimes),
        },
    }


def pod_sets(job: Obj, runtimes: Mapping[tuple[str, str], Obj]) -> list[Obj]:
    """Return groups of equal pods: name, count, template. `runtimes` by kind and name, for TrainJobs."""
    spec = job["spec"]
    if job["kind"] == "PyTorchJob":
        return [
            {"name": kind.lower(), "count": each.get("replicas", 1), "template": each["template"]}
            for kind, each in spec["pytorchReplicaSpecs"].items()
        ]
    if job["kind"] == "Job":
        return [{"name": "main", "count": spec["parallelism"], "template": spec["template"]}]
    return _of_trainjob(spec, runtimes)


def _of_trainjob(spec: Obj, runtimes: Mapping[tuple[str, str], Obj]) -> list[Obj]:
    trainer, ref = spec.get("trainer") or {}, spec["runtimeRef"]
    runtime = runtimes.get((ref.get("kind", "ClusterTrainingRuntime"), ref["name"]), {"spec": {}})
    count = trainer.get("numNodes") or runtime["spec"].get("mlPolicy", {}).get("numNodes") or 1
    container = {"name": "node", "resources": trainer.get("resourcesPerNode") or {}}
    return [{"name": "node", "count": count, "template": {"spec": {"containers": [container]}}}]


def requests(pod_set: Obj) -> Amounts:
    """Return what all pods of a set ask for together; a limit stands for a request."""
    found: dict[str, Fraction] = {"pods": Fraction(pod_set["count"])}
    for container in pod_set["template"]["spec"].get("containers", ()):
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, value in asked.items():
            found[name] = found.get(name, Fraction(0)) + amount(value) * pod_set["count"]
    return found


def total(workload_: Obj) -> Amounts:
    found: dict[str, Fraction] = {}
    for pod_set in workload_["spec"].get("podSets") or ():
        for name, value in requests(pod_set).items():
            found[name] = found.get(name, Fraction(0)) + value
    return found


def is_reserved(workload_: Obj) -> bool:
    return conditions.is_true(workload_.get("status", {}), "QuotaReserved")


def is_finished(workload_: Obj) -> bool:
    return conditions.is_true(workload_.get("status", {}), "Finished")


def in_order(workloads: Sequence[Obj]) -> list[Obj]:
    """Return workloads as a queue has them: by priority, then by age."""
    return sorted(
        workloads,
        key=lambda one: (
            -one["spec"].get("priority", 0),
            one["metadata"]["creationTimestamp"],
            one["metadata"]["name"],
        ),
    )
