"""The pods of a Job: how they are made, and what each counts as."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy

from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import is_terminating, phase
from airflow_provider_ocidist.emulator.kubernetes.kinds import MAX_REPLICAS, Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import owner_reference

INDEX = "batch.kubernetes.io/job-completion-index"
TRACKED = "batch.kubernetes.io/job-tracking"
"""Finalizer of a pod that its Job has not counted yet."""
NAMES = ("batch.kubernetes.io/job-name", "job-name")
UIDS = ("batch.kubernetes.io/controller-uid", "controller-uid")


def is_indexed(job: Obj) -> bool:
    return bool(job["spec"].get("completionMode") == "Indexed")


def pod(job: Obj, index: int | None) -> Obj:
    """Return a new pod; `index` is None for a Job whose pods are all alike."""
    template = deepcopy(job["spec"]["template"])
    metadata, spec = template.get("metadata") or {}, template["spec"]
    name = job["metadata"]["name"]
    labels = {**(metadata.get("labels") or {}), **own_labels(job)}
    annotations = dict(metadata.get("annotations") or {})
    base = f"{name}-"
    if index is not None:
        base = f"{name}-{index}-"
        labels[INDEX] = annotations[INDEX] = str(index)
        spec.setdefault("hostname", f"{name}-{index}")
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            container["env"] = [*(container.get("env") or ()), _index_variable()]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": base,
            "namespace": job["metadata"]["namespace"],
            "labels": labels,
            **({"annotations": annotations} if annotations else {}),
            "finalizers": [TRACKED],
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }


def own_labels(job: Obj) -> dict[str, str]:
    """Return the labels by which a Job's pods are found."""
    metadata = job["metadata"]
    return {**dict.fromkeys(NAMES, metadata["name"]), **dict.fromkeys(UIDS, metadata["uid"])}


def _index_variable() -> Obj:
    return {
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}},
    }


def index_of(each: Obj) -> int | None:
    found = (each["metadata"].get("labels") or {}).get(INDEX)
    return None if found is None else int(found)


def is_active(each: Obj) -> bool:
    return phase(each) not in ("Succeeded", "Failed") and not is_terminating(each)


def is_ending(each: Obj) -> bool:
    """Whether a pod is being deleted, and its machine has not confirmed its end."""
    return is_terminating(each) and phase(each) not in ("Succeeded", "Failed")


def awaits_ends(job: Obj) -> bool:
    """Whether a pod that is being deleted is replaced, and counted, only once it has ended.

    Source: onlyReplaceFailedPods in pkg/controller/job of Kubernetes 1.34.
    """
    spec = job["spec"]
    return spec.get("podReplacementPolicy") == "Failed" or bool(spec.get("podFailurePolicy"))


def is_failed(job: Obj, each: Obj) -> bool:
    """Whether a pod counts as failed: also while it is being deleted, unless its Job awaits its end.

    Source: isPodFailed in pkg/controller/job of Kubernetes 1.34.
    """
    return phase(each) == "Failed" or (is_ending(each) and not awaits_ends(job))


def is_tracked(each: Obj) -> bool:
    return TRACKED in (each["metadata"].get("finalizers") or ())


def is_ready(each: Obj) -> bool:
    conditions = each.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def restarts(pods: Iterable[Obj]) -> int:
    """Count restarts in place, of pods that are still there to restart."""
    return sum(
        container.get("restartCount", 0)
        for each in pods
        if phase(each) in ("Running", "Pending")
        for group in ("initContainerStatuses", "containerStatuses")
        for container in each.get("status", {}).get(group, ())
    )


def written(indexes: Iterable[int]) -> str:
    """Return indexes as a status has them, such as `0-2,5`."""
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(_written_range(first, last) for first, last in ranges)


def _written_range(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"


def read(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        # Anybody who may write a status may write any.
        found.update(range(int(first), min(int(last or first), MAX_REPLICAS) + 1))
    return found


def missing_indexes(job: Obj, done: set[int], pods: Sequence[Obj]) -> list[int]:
    """Return the indexes that have neither succeeded nor a pod on its way, lowest first."""
    awaited = awaits_ends(job)
    present = {index_of(each) for each in pods if is_active(each) or (awaited and is_ending(each))}
    return [index for index in range(job["spec"]["completions"]) if index not in done | present]
