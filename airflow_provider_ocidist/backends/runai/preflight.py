"""Preflight: what would stop a job at Run:ai, found beforehand; each finding names the fix. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.backends.capabilities import Finding

ACCESS = "correct host, login and password of the connection; see that the service account exists"
CONNECTED = "Connected"

Obj = Mapping[str, Any]


def cluster_of(clusters: Iterable[Obj], cluster_id: str) -> Finding:
    """Report whether the cluster that runs the project's workloads is connected."""
    found = next((each for each in clusters if str(each.get("uuid")) == cluster_id), None)
    if found is None:
        fix = "correct backend.cluster_id, or leave it out: it is then the project's"
        return Finding.failed("cluster", f"there is no cluster {cluster_id} that the account may use", fix)
    state = (found.get("status") or {}).get("state")
    name = f"cluster {found.get('name') or cluster_id}"
    if state != CONNECTED:
        return Finding.failed("cluster", f"{name} is {state or 'in no known state'}", "ask its administrator")
    return Finding.passed("cluster", f"{name} is connected")


def gpus_of(spec: Obj, nodes: int) -> float | None:
    """Return how many GPUs the request of a workload asks for in all; None: a part of one by its memory."""
    compute = spec.get("compute") or {}
    if compute.get("gpuRequestType") == "memory":
        return None
    return float(compute.get("gpuDevicesRequest") or 0) * float(compute.get("gpuPortionRequest") or 1) * nodes


def quota_of(project: Obj, spec: Obj, nodes: int) -> Finding:
    """Report whether the GPUs that a workload asks for are within what its project may have."""
    name, gpus = f"project {project.get('name')}", gpus_of(spec, nodes)
    if gpus is None:
        return Finding.passed("quota", f"{name}: parts of GPUs by their memory are not compared")
    pools = _pools(project, spec.get("nodePools") or ())
    asked = f"{name}: {gpus:g} GPUs are asked for"
    if not _fits(pools, "limit", gpus):
        fix = "ask for fewer, or have the project's limit raised"
        return Finding.failed("quota", f"{asked}, and it may have {_most(pools, 'limit'):g} at most", fix)
    if _fits(pools, "deserved", gpus):
        return Finding.passed("quota", f"{asked}, within its quota")
    over = f"{asked}, and its quota is {_most(pools, 'deserved'):g}"
    if spec.get("preemptibility") == "non-preemptible":
        fix = "leave out backend.preemptible: false, ask for fewer, or have the quota raised"
        return Finding.failed(
            "quota", f"{over}, which a workload that cannot be preempted never exceeds", fix
        )
    fix = "expect it to wait for GPUs that others leave, and to be preempted; or ask for fewer"
    return Finding.warned("quota", over, fix)


def node_pools_of(project: Obj, spec: Obj) -> Iterator[Finding]:
    """Yield whether the project has the pools of nodes that a workload names, where it says which it has."""
    wanted = spec.get("nodePools") or ()
    known = {str((each.get("nodePool") or {}).get("name")) for each in project.get("resources") or ()}
    if not wanted or not known:
        return
    absent = [name for name in wanted if name not in known]
    if not absent:
        yield Finding.passed("node pools", f"project {project.get('name')} may use {', '.join(wanted)}")
        return
    message = f"project {project.get('name')} has no pool {', '.join(absent)}; it may use {', '.join(sorted(known))}"
    fix = "correct backend.node_pools, or have the project given a quota there"
    yield Finding.failed("node pools", message, fix)


def _pools(project: Obj, wanted: Sequence[str]) -> list[Obj]:
    """Return what the project has in each pool of nodes in which the workload may run."""
    return [
        each.get("gpu") or {}
        for each in project.get("resources") or ()
        if not wanted or (each.get("nodePool") or {}).get("name") in wanted
    ]


def _fits(pools: Sequence[Obj], bound: str, gpus: float) -> bool:
    return not gpus or not pools or any(_is_unbound(each.get(bound)) or each[bound] >= gpus for each in pools)


def _most(pools: Sequence[Obj], bound: str) -> float:
    return max(float(each[bound]) for each in pools)


def _is_unbound(value: Any) -> bool:
    return value is None or value < 0
