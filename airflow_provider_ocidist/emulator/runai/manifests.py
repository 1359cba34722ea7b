"""Manifests: the objects of Kubernetes that a workload becomes: a PyTorchJob, or one pod. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_ocidist.emulator.runai.submissions import WorkloadSubmission, gpus_of

CONTAINER = "pytorch"
"""Name of the container that the operator of Kubeflow asks for."""
LABEL = "workloadName"
"""Label of every pod of a workload."""
SHM = "dshm"


def manifest_of(
    submission: WorkloadSubmission, namespace: str, workload_id: str, project: str
) -> dict[str, Any]:
    """Return the object that runs a workload."""
    labels = {LABEL: submission.name, "project": project, "runai/workload-id": workload_id}
    metadata = {"name": submission.name, "namespace": namespace, "labels": labels}
    if submission.kind == "trainings":
        template = _template(submission, submission.spec, labels)
        name = f"{submission.name}-0-0"
        merged = {**template["metadata"]["labels"], **labels}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], **metadata, "name": name, "labels": merged},
            "spec": template["spec"],
        }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata,
        "spec": _pytorchjob(submission, labels),
    }


def _pytorchjob(submission: WorkloadSubmission, labels: Mapping[str, str]) -> dict[str, Any]:
    spec = submission.spec
    restart = spec.get("restartPolicy") or "OnFailure"
    replicas = {
        "Master": (1, submission.master),
        "Worker": (submission.pods - 1, spec),
    }
    return {
        "runPolicy": {
            "cleanPodPolicy": spec.get("cleanPodPolicy") or "Running",
            "backoffLimit": 6 if spec.get("backoffLimit") is None else spec["backoffLimit"],
        },
        "pytorchReplicaSpecs": {
            role: {
                "replicas": count,
                "restartPolicy": restart,
                "template": _template(submission, own, labels, job=True),
            }
            for role, (count, own) in replicas.items()
        },
    }


def _template(
    submission: WorkloadSubmission, spec: Mapping[str, Any], labels: Mapping[str, str], *, job: bool = False
) -> dict[str, Any]:
    volumes, mounts = _volumes(spec)
    own = {item["name"]: item.get("value") or "" for item in spec.get("labels") or ()}
    notes = {item["name"]: item.get("value") or "" for item in spec.get("annotations") or ()}
    pod: dict[str, Any] = {
        "containers": [_container(submission, spec, mounts)],
        "volumes": volumes,
        "imagePullSecrets": [{"name": item["name"]} for item in spec.get("imagePullSecrets") or ()],
        "tolerations": [_toleration(item) for item in spec.get("tolerations") or ()],
    }
    if (spec.get("security") or {}).get("hostNetwork"):
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if spec.get("terminationGracePeriodSeconds") is not None:
        pod["terminationGracePeriodSeconds"] = spec["terminationGracePeriodSeconds"]
    if not job:
        pod["restartPolicy"] = spec.get("restartPolicy") or "Never"
    return {"metadata": {"labels": {**own, **labels}, "annotations": notes}, "spec": _filled(pod)}


def _container(
    submission: WorkloadSubmission, spec: Mapping[str, Any], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    command = shlex.split(spec.get("command") or "")
    arguments = shlex.split(spec.get("args") or "")
    own = [
        {"name": "RUNAI_JOB_NAME", "value": submission.name},
        {"name": "jobName", "value": submission.name},
        {"name": "RUNAI_NUM_OF_GPUS", "value": f"{float(gpus_of(spec)):g}"},
    ]
    return _filled(
        {
            "name": CONTAINER,
            "image": spec["image"],
            "imagePullPolicy": spec.get("imagePullPolicy"),
            "command": command,
            "args": arguments,
            "workingDir": spec.get("workingDir"),
            "env": [*own, *(_variable(item) for item in spec.get("environmentVariables") or ())],
            "resources": _resources(spec.get("compute") or {}),
            "volumeMounts": mounts,
        }
    )


def _variable(item: Mapping[str, Any]) -> dict[str, Any]:
    for source, kind in (
        ("secret", "secretKeyRef"),
        ("userCredential", "secretKeyRef"),
        ("configMap", "configMapKeyRef"),
    ):
        if item.get(source):
            return {"name": item["name"], "valueFrom": {kind: dict(item[source])}}
    if item.get("podFieldRef"):
        return {"name": item["name"], "valueFrom": {"fieldRef": {"fieldPath": item["podFieldRef"]["path"]}}}
    return {"name": item["name"], "value": item.get("value") or ""}


def _resources(compute: Mapping[str, Any]) -> dict[str, Any]:
    gpus = math.ceil(gpus_of({"compute": compute}))
    requests = {"cpu": compute.get("cpuCoreRequest"), "memory": compute.get("cpuMemoryRequest")}
    limits = {"cpu": compute.get("cpuCoreLimit"), "memory": compute.get("cpuMemoryLimit")}
    extended = {item["resource"]: item["quantity"] for item in compute.get("extendedResources") or ()}
    if gpus:
        limits["nvidia.com/gpu"] = gpus
    return _filled({"requests": _texts(requests), "limits": _texts({**limits, **extended})})


def _texts(amounts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items() if amount is not None}


def _volumes(spec: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    storage = spec.get("storage") or {}
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    for number, item in enumerate(storage.get("pvc") or ()):
        source = {"persistentVolumeClaim": {"claimName": item["claimName"]}}
        volumes.append({"name": f"pvc-{number}", **source})
        mounts.append(
            {"name": f"pvc-{number}", "mountPath": item["path"], "readOnly": bool(item.get("readOnly"))}
        )
    for number, item in enumerate(storage.get("hostPath") or ()):
        volumes.append({"name": f"host-{number}", "hostPath": {"path": item["path"]}})
        mounts.append(
            {"name": f"host-{number}", "mountPath": item["mountPath"], "readOnly": item.get("readOnly", True)}
        )
    for number, (source, mount) in enumerate(_sources(storage)):
        volumes.append({"name": f"volume-{number}", **source})
        mounts.append({"name": f"volume-{number}", **mount})
    if (spec.get("compute") or {}).get("largeShmRequest"):
        volumes.append({"name": SHM, "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": SHM, "mountPath": "/dev/shm"})  # noqa: S108 - where shared memory is
    return volumes, mounts


def _sources(storage: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield volumes that are neither claims nor folders of machines, each with where it is mounted."""
    for item in storage.get("nfs") or ():
        source = {"server": item["server"], "path": item["path"]}
        yield {"nfs": source}, {"mountPath": item["mountPath"], "readOnly": bool(item.get("readOnly"))}
    for item in storage.get("secretVolume") or ():
        yield {"secret": {"secretName": item["secret"]}}, {"mountPath": item["mountPath"]}
    for item in storage.get("configMapVolume") or ():
        yield {"configMap": {"name": item["configMap"]}}, {"mountPath": item["mountPath"]}
    for item in storage.get("emptyDirVolume") or ():
        yield {"emptyDir": {}}, {"mountPath": item["path"]}


def _toleration(item: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {name: item.get(name) for name in ("key", "operator", "value", "effect")}
    return {name: value for name, value in wanted.items() if value is not None and value != "Any"}


def _filled(value: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is empty: the objects are checked strictly."""
    return {name: item for name, item in value.items() if item not in (None, [], {}, "")}
