"""What a cluster has from its start: namespaces, nodes, roles for people."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster, now

READERS = ("get", "list", "watch")
WRITERS = (*READERS, "create", "update", "patch", "delete", "deletecollection")


def furnish(cluster: Cluster, settings: ClusterSettings) -> None:
    for name in dict.fromkeys(("default", "kube-system", settings.namespace)):
        cluster.create({"kind": "Namespace", "metadata": {"name": name}})
    for index in range(settings.nodes):
        node = cluster.create(_node(f"node-{index}"))
        cluster.update({**node, "status": _node_status(settings)}, "status")
    for role in _roles():
        cluster.create(role)


def _node(name: str) -> Obj:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": f"emulator://{name}"},
    }


def _node_status(settings: ClusterSettings) -> Obj:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now()}
    return {
        "capacity": dict(settings.node_capacity),
        "allocatable": dict(settings.node_capacity),
        "conditions": [ready],
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
    }


def _roles() -> Iterator[Obj]:
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    yield _role("cluster-admin", everything)
    for name, verbs in (("view", READERS), ("edit", WRITERS), ("admin", WRITERS)):
        yield _role(name, {"apiGroups": ["*"], "resources": ["*"], "verbs": list(verbs)})


def _role(name: str, rule: Obj) -> Obj:
    return {"kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]}
