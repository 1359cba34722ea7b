"""What a cluster has from its start: namespaces, nodes, roles for people."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import now
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster

READERS = ("get", "list", "watch")
WRITERS = (*READERS, "create", "update", "patch", "delete", "deletecollection")


def create_initial_objects(cluster: Cluster, settings: ClusterSettings) -> None:
    for name in dict.fromkeys(("default", "kube-system", settings.namespace)):
        cluster.create({"kind": "Namespace", "metadata": {"name": name}})
    for index in range(settings.nodes):
        node = cluster.create(_node(f"node-{index}"))
        cluster.update({**node, "status": _node_status(settings)}, "status")
    for role in _roles():
        cluster.create(role)
    for kind in cluster.kinds:
        if kind.is_custom:
            cluster.create(_definition(kind))


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


def _definition(kind: Kind) -> Obj:
    """Return the CustomResourceDefinition of a kind, by which clients see that it is installed; read-only."""
    names = {
        "plural": kind.plural,
        "singular": kind.singular,
        "kind": kind.name,
        "listKind": f"{kind.name}List",
    }
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": kind.version, "served": True, "storage": True, "schema": schema}
    spec = {"group": kind.group, "names": names, "versions": [version]}
    return {
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.resource},
        "spec": {**spec, "scope": "Namespaced" if kind.namespaced else "Cluster"},
        "status": {
            "conditions": [{"type": "Established", "status": "True"}],
            "storedVersions": [kind.version],
        },
    }


def _roles() -> Iterator[Obj]:
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    yield _role("cluster-admin", everything)
    for name, verbs in (("view", READERS), ("edit", WRITERS), ("admin", WRITERS)):
        yield _role(name, {"apiGroups": ["*"], "resources": ["*"], "verbs": list(verbs)})


def _role(name: str, rule: Obj) -> Obj:
    return {"kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]}
