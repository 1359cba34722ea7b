"""The Jobs and the service of a JobSet."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import owner_reference

PREFIX = "jobset.sigs.k8s.io/"
NAME = f"{PREFIX}jobset-name"
REPLICATED_JOB = f"{PREFIX}replicatedjob-name"
ATTEMPT = f"{PREFIX}restart-attempt"


def subdomain(jobset: Obj) -> str:
    return str((jobset["spec"].get("network") or {}).get("subdomain") or jobset["metadata"]["name"])


def has_names(jobset: Obj) -> bool:
    return bool((jobset["spec"].get("network") or {}).get("enableDNSHostnames", True))


def service(jobset: Obj) -> Obj:
    """Return the headless service that gives the pods their DNS names, also before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": subdomain(jobset),
            "namespace": jobset["metadata"]["namespace"],
            "ownerReferences": [owner_reference(jobset)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {NAME: jobset["metadata"]["name"]},
            "publishNotReadyAddresses": True,
        },
    }


def jobs(jobset: Obj) -> Iterator[Obj]:
    """Return the Jobs that there should be in this attempt."""
    for replicated in jobset["spec"]["replicatedJobs"]:
        for index in range(replicated.get("replicas", 1)):
            yield _job(jobset, replicated, index)


def _job(jobset: Obj, replicated: Obj, index: int) -> Obj:
    template = deepcopy(replicated["template"])
    metadata, spec = template.get("metadata") or {}, template["spec"]
    spec.setdefault("completionMode", "Indexed")
    spec["suspend"] = bool(jobset["spec"].get("suspend"))
    labels = _labels(jobset, replicated, index)
    _mark_pods(jobset, spec["template"], labels)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{jobset['metadata']['name']}-{replicated['name']}-{index}",
            "namespace": jobset["metadata"]["namespace"],
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": {**(metadata.get("annotations") or {}), **labels},
            "ownerReferences": [owner_reference(jobset)],
        },
        "spec": spec,
    }


def _mark_pods(jobset: Obj, template: Obj, labels: dict[str, str]) -> None:
    metadata = template["metadata"] = {**(template.get("metadata") or {})}
    for part in ("labels", "annotations"):
        metadata[part] = {**(metadata.get(part) or {}), **labels}
    template["spec"].setdefault("restartPolicy", "OnFailure")
    if has_names(jobset):
        template["spec"].setdefault("subdomain", subdomain(jobset))


def _labels(jobset: Obj, replicated: Obj, index: int) -> dict[str, str]:
    return {
        NAME: jobset["metadata"]["name"],
        f"{PREFIX}jobset-uid": jobset["metadata"]["uid"],
        REPLICATED_JOB: replicated["name"],
        f"{PREFIX}replicatedjob-replicas": str(replicated.get("replicas", 1)),
        f"{PREFIX}job-index": str(index),
        ATTEMPT: str(jobset.get("status", {}).get("restarts", 0)),
    }
