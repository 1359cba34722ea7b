"""The environment that the operator adds to every container, after the person's own."""

from __future__ import annotations

from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.defaults import (
    CONTAINER,
    PORT_NAME,
    replica_specs,
)
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.generation import Generation
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj

Variables = dict[str, str]


def environment(job: Obj, kind: str, index: int, generation: Generation) -> list[Obj]:
    """Return `env` entries for a replica of a job with defaults set."""
    found: Variables = {"PYTHONUNBUFFERED": "1"}
    if "Master" in job["spec"]["pytorchReplicaSpecs"]:
        found |= _with_master(job, kind, index, generation)
    if generation.torchrun_environment:
        found["PET_NPROC_PER_NODE"] = job["spec"]["nprocPerNode"]
        found["PET_NNODES"] = str(_total(job))
    if job["spec"].get("elasticPolicy") is not None:
        found |= _elastic(job)
    return [{"name": name, "value": value} for name, value in found.items()]


def _with_master(job: Obj, kind: str, index: int, generation: Generation) -> Variables:
    at_home = generation.master_is_localhost and kind == "Master"
    address = "localhost" if at_home else f"{job['metadata']['name']}-master-0"
    port = str(_port(job, "Master"))
    rank = str(index + (kind == "Worker"))
    torchrun = generation.torchrun_environment
    return {
        "MASTER_PORT": port,
        **({"PET_MASTER_PORT": port} if torchrun else {}),
        "MASTER_ADDR": address,
        **({"PET_MASTER_ADDR": address} if torchrun else {}),
        "WORLD_SIZE": str(_total(job) * (_processes(job) if torchrun else 1)),
        "RANK": rank,
        **({"PET_NODE_RANK": rank} if torchrun else {}),
    }


def _elastic(job: Obj) -> Variables:
    policy = job["spec"]["elasticPolicy"]
    host = policy.get("rdzvHost") or f"{job['metadata']['name']}-worker-0"
    port = policy.get("rdzvPort") or _port(job, "Worker")
    pairs = ",".join(f"{one['key']}={one['value']}" for one in policy.get("rdzvConf") or ())
    found: dict[str, str | None] = {
        "PET_RDZV_ENDPOINT": f"{host}:{port}",
        "PET_RDZV_BACKEND": policy.get("rdzvBackend", "c10d"),
        "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
        "PET_MAX_RESTARTS": _text(policy.get("maxRestarts")),
        "PET_NPROC_PER_NODE": _text(policy.get("nProcPerNode")),
        "PET_RDZV_ID": policy.get("rdzvId"),
        "PET_RDZV_CONF": pairs or None,
        "PET_STANDALONE": "" if policy.get("standalone") else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _total(job: Obj) -> int:
    return sum(replica["replicas"] for _, replica in replica_specs(job))


def _processes(job: Obj) -> int:
    """Return nprocPerNode where it is a number; "auto" and the like count as one."""
    given = job["spec"]["nprocPerNode"]
    return int(given) if given.isdigit() else 1


def _port(job: Obj, kind: str) -> int:
    containers = job["spec"]["pytorchReplicaSpecs"][kind]["template"]["spec"]["containers"]
    ports = next(one["ports"] for one in containers if one["name"] == CONTAINER)
    return int(next(port["containerPort"] for port in ports if port.get("name") == PORT_NAME))
