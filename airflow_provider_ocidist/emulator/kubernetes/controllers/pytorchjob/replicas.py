"""The pod and the headless service of one replica; both have its name."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.defaults import CONTAINER
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.environment import environment
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.generation import Generation
from airflow_provider_ocidist.emulator.kubernetes.kinds import MAX_REPLICAS, Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import owner_reference
from airflow_provider_ocidist.emulator.wire import whole_number

LABELS = "training.kubeflow.org/"
INDEX_LABELS = (f"{LABELS}replica-index", "replica-index")
TYPE_LABELS = (f"{LABELS}replica-type", "replica-type")
# As the operator's own: a hundred tries, two seconds apart.
_WAIT = (
    "err=1;for i in $(seq {tries}); do if nslookup {master}; then err=0 && break; fi;"
    "echo waiting for master; sleep 2; done; exit $err"
)


def replica_name(job: Obj, kind: str, index: int) -> str:
    return f"{job['metadata']['name']}-{kind.lower()}-{index}"


def labels(job: Obj, kind: str, index: int, generation: Generation) -> dict[str, str]:
    own = {
        "job-name": job["metadata"]["name"],
        "replica-type": kind.lower(),
        "replica-index": str(index),
    }
    new = {f"{LABELS}{name}": value for name, value in own.items()}
    new[f"{LABELS}operator-name"] = "pytorchjob-controller"
    old = {**own, "group-name": "kubeflow.org"}
    return {**(new if generation.new_labels else {}), **(old if generation.old_labels else {})}


def pod(job: Obj, kind: str, index: int, generation: Generation, init_image: str, init_tries: int) -> Obj:
    """Return the pod of a replica; the job has its defaults."""
    replica = job["spec"]["pytorchReplicaSpecs"][kind]
    template = deepcopy(replica["template"])
    spec = template["spec"]
    for container in spec["containers"]:
        container["env"] = [*(container.get("env") or ()), *environment(job, kind, index, generation)]
    if kind == "Worker" and "Master" in job["spec"]["pytorchReplicaSpecs"]:
        spec["initContainers"] = [
            *(spec.get("initContainers") or ()),
            _init_container(job, init_image, init_tries),
        ]
    policy = replica["restartPolicy"]
    spec["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    metadata = template.get("metadata") or {}
    own = {**labels(job, kind, index, generation), **_role(job, kind, index, generation)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **_names(job, kind, index),
            "labels": {**(metadata.get("labels") or {}), **own},
            **({"annotations": metadata["annotations"]} if metadata.get("annotations") else {}),
        },
        "spec": spec,
    }


def service(job: Obj, kind: str, index: int, generation: Generation) -> Obj:
    """Return the headless service that gives a replica its DNS name."""
    own = labels(job, kind, index, generation)
    containers = job["spec"]["pytorchReplicaSpecs"][kind]["template"]["spec"]["containers"]
    ports = [
        {"name": port["name"], "port": port["containerPort"], "targetPort": 0, "protocol": "TCP"}
        for container in containers
        if container["name"] == CONTAINER
        for port in container["ports"]
        if port.get("name")
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**_names(job, kind, index), "labels": own},
        "spec": {"clusterIP": "None", "selector": own, "ports": ports, "type": "ClusterIP"},
    }


def _names(job: Obj, kind: str, index: int) -> Obj:
    return {
        "name": replica_name(job, kind, index),
        "namespace": job["metadata"]["namespace"],
        "ownerReferences": [owner_reference(job)],
    }


def _role(job: Obj, kind: str, index: int, generation: Generation) -> dict[str, str]:
    """Return the label of rank 0: the master, or the first of workers without one."""
    has_master = "Master" in job["spec"]["pytorchReplicaSpecs"]
    if kind == "Master" or (not has_master and index == 0):
        return {
            **({f"{LABELS}job-role": "master"} if generation.new_labels else {}),
            **({"job-role": "master"} if generation.old_labels else {}),
        }
    return {}


def _init_container(job: Obj, image: str, tries: int) -> Obj:
    """Return what holds a worker back until the master's name resolves."""
    return {
        "name": "init-pytorch",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {
            "limits": {"cpu": "100m", "memory": "20Mi"},
            "requests": {"cpu": "50m", "memory": "10Mi"},
        },
        "command": ["sh", "-c", _WAIT.format(master=replica_name(job, "Master", 0), tries=tries)],
    }


def of_kind(things: Sequence[Obj], kind: str) -> list[Obj]:
    """Return the pods or services of one kind of replica."""
    return [thing for thing in things if _label(thing, TYPE_LABELS) == kind.lower()]


def by_index(things: Sequence[Obj]) -> dict[int, Obj]:
    """Return pods or services by their index; others may have labels of any form."""
    indexes = [(whole_number(_label(thing, INDEX_LABELS)), thing) for thing in things]
    return {index: thing for index, thing in indexes if index is not None and index < MAX_REPLICAS}


def _label(thing: Obj, names: Sequence[str]) -> str:
    found = thing["metadata"].get("labels") or {}
    return next((found[name] for name in names if name in found), "")
