"""The JobSet of a TrainJob: its runtime's template, with what the job says put in."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.patches import patched
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.release import Release
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.runtime import CONTAINER, is_trainer
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import owner_reference

PORT = 29500
RANK_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def jobset(job: Obj, runtime: Obj, release: Release) -> Obj:
    spec = deepcopy(runtime["spec"]["template"]["spec"])
    for replicated in spec["replicatedJobs"]:
        replicated["replicas"] = 1
        if is_trainer(replicated):
            _set_trainer(job, runtime, replicated["template"]["spec"])
    spec["replicatedJobs"] = patched(spec["replicatedJobs"], job["spec"].get(release.patches) or (), release)
    spec["suspend"] = bool(job["spec"].get("suspend"))
    spec.setdefault("network", {}).setdefault("publishNotReadyAddresses", True)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": job["metadata"]["name"],
            "namespace": job["metadata"]["namespace"],
            "ownerReferences": [owner_reference(job)],
            **_metadata(job, runtime, release),
        },
        "spec": spec,
    }


def _metadata(job: Obj, runtime: Obj, release: Release) -> Obj:
    metadata = runtime["spec"]["template"].get("metadata") or {}
    found = {}
    for part in ("labels", "annotations"):
        own = (job["spec"].get(part) or {}) if release.has_labels else {}
        if merged := {**(metadata.get(part) or {}), **own}:
            found[part] = merged
    return found


def _set_trainer(job: Obj, runtime: Obj, spec: Obj) -> None:
    trainer = job["spec"].get("trainer") or {}
    policy = runtime["spec"].get("mlPolicy") or {}
    nodes = trainer.get("numNodes") or policy.get("numNodes") or 1
    spec["parallelism"] = spec["completions"] = nodes
    for container in spec["template"]["spec"]["containers"]:
        if container["name"] == CONTAINER:
            _set_container(container, trainer)
            if "torch" in policy:
                _add_torch(container, job, nodes, trainer, policy["torch"])


def _set_container(container: Obj, trainer: Obj) -> None:
    for name in ("image", "command", "args"):
        if trainer.get(name):
            container[name] = trainer[name]
    if trainer.get("resourcesPerNode"):
        container["resources"] = trainer["resourcesPerNode"]
    container["env"] = with_variables(container.get("env") or (), trainer.get("env") or ())


def _add_torch(container: Obj, job: Obj, nodes: int, trainer: Obj, torch: Obj) -> None:
    name = job["metadata"]["name"]
    values = {
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": _processes(trainer, torch),
        "PET_NODE_RANK": None,
        "PET_MASTER_ADDR": f"{name}-{CONTAINER}-0-0.{name}",
        "PET_MASTER_PORT": str(PORT),
    }
    rank = {"fieldRef": {"fieldPath": RANK_FIELD}}
    added: list[Obj] = [
        {"name": each, "valueFrom": rank} if value is None else {"name": each, "value": value}
        for each, value in values.items()
    ]
    container["env"] = with_variables(container["env"], added)
    container["ports"] = [*(container.get("ports") or ()), {"containerPort": PORT}]


def _processes(trainer: Obj, torch: Obj) -> str:
    """Return the processes of a node: "auto" without a GPU is the number of its CPUs."""
    given = trainer.get("numProcPerNode") or torch.get("numProcPerNode") or "auto"
    resources = trainer.get("resourcesPerNode") or {}
    amounts: dict[str, Any] = resources.get("limits") or resources.get("requests") or {}
    if given in ("auto", "cpu") and amounts:
        has_gpu = any("gpu" in name.lower() for name in amounts)
        if (given == "cpu" or not has_gpu) and "cpu" in amounts:
            return str(max(1, _whole(amounts["cpu"])))
    return str(given)


def _whole(quantity: Any) -> int:
    """Return a CPU quantity, rounded up."""
    text = str(quantity)
    return -(-int(text[:-1]) // 1000) if text.endswith("m") else -int(-float(text) // 1)


def with_variables(own: Sequence[Obj], more: Sequence[Obj]) -> list[Obj]:
    """Return variables; one that is there already is replaced in its place."""
    found = {one["name"]: one for one in own}
    found.update({one["name"]: one for one in more})
    return list(found.values())
