"""What the operator takes for granted where a PyTorchJob says nothing; the stored object keeps its gaps."""

from __future__ import annotations

from copy import deepcopy

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj

CONTAINER = "pytorch"
PORT_NAME = "pytorchjob-port"
PORT = 23456
TYPES = ("Master", "Worker")


def with_defaults(job: Obj) -> Obj:
    job = deepcopy(job)
    spec = job["spec"]
    spec["runPolicy"] = {"cleanPodPolicy": "None", **(spec.get("runPolicy") or {})}
    spec.setdefault("nprocPerNode", "auto")
    for replica in spec["pytorchReplicaSpecs"].values():
        _complete(replica)
    if spec.get("elasticPolicy") is not None:
        _bound(spec)
    return job


def _complete(replica: Obj) -> None:
    replica.setdefault("replicas", 1)
    replica.setdefault("restartPolicy", "OnFailure")
    for container in replica["template"]["spec"]["containers"]:
        if container["name"] == CONTAINER:
            ports = container.setdefault("ports", [])
            if not any(port.get("name") == PORT_NAME for port in ports):
                ports.append({"name": PORT_NAME, "containerPort": PORT})


def _bound(spec: Obj) -> None:
    """Either bound of an elastic job stands for the other one, the number of workers for both."""
    elastic = spec["elasticPolicy"]
    given = [elastic[name] for name in ("minReplicas", "maxReplicas") if elastic.get(name) is not None]
    either = given[0] if given else spec["pytorchReplicaSpecs"]["Worker"]["replicas"]
    elastic["minReplicas"] = elastic.get("minReplicas") or either
    elastic["maxReplicas"] = elastic.get("maxReplicas") or either


def replica_specs(job: Obj) -> list[tuple[str, Obj]]:
    """Return the kinds of replicas in rank order; with defaults set."""
    specs = job["spec"]["pytorchReplicaSpecs"]
    return [(kind, specs[kind]) for kind in TYPES if kind in specs]
