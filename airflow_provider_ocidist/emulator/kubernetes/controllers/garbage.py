"""Garbage collection: dependents go when their owners are gone, or before them; namespaces go with all in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_provider_ocidist.emulator.kubernetes.controllers.manager import KeysOf, itself
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import owners_of
from airflow_provider_ocidist.emulator.kubernetes.objects import FOREGROUND, ORPHAN, Cluster, Key
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError


class GarbageCollector:
    """Looks at owners by their uid."""

    def __init__(self, cluster: Cluster) -> None:
        self._kinds = [kind.name for kind in cluster.kinds if kind.name not in ("Event", "Lease")]

    @property
    def watches(self) -> Mapping[str, KeysOf]:
        return dict.fromkeys(self._kinds, _uids)

    def reconcile(self, cluster: Cluster, _: str, uid: str) -> float | None:
        owner = cluster.by_uid(uid)
        finalizers = [] if owner is None else owner["metadata"].get("finalizers") or []
        if owner is None:
            for obj in cluster.dependents(uid):
                _collect(cluster, obj)
        elif ORPHAN in finalizers:
            for obj in cluster.dependents(uid):
                _leave(cluster, obj, uid)
            _finish(cluster, owner, ORPHAN)
        elif FOREGROUND in finalizers:
            _collect_first(cluster, owner)
        return None


def _uids(obj: Obj) -> Iterable[Key]:
    """Return the object and its owners: each may have waited for this change."""
    return [("", obj["metadata"]["uid"]), *(("", each["uid"]) for each in owners_of(obj))]


def _collect(cluster: Cluster, obj: Obj) -> None:
    """Delete an object none of whose owners is left."""
    if not any(cluster.has_uid(each["uid"]) for each in owners_of(obj)):
        _delete(cluster, obj)


def _collect_first(cluster: Cluster, owner: Obj) -> None:
    uid = owner["metadata"]["uid"]
    dependents = cluster.dependents(uid)
    for obj in dependents:
        if "deletionTimestamp" not in obj["metadata"]:
            _delete(cluster, obj, foreground=bool(cluster.dependents(obj["metadata"]["uid"])))
    if not any(_blocks(obj, uid) for obj in cluster.dependents(uid)):
        _finish(cluster, owner, FOREGROUND)


def _blocks(obj: Obj, uid: str) -> bool:
    return any(each["uid"] == uid and each.get("blockOwnerDeletion") for each in owners_of(obj))


def _delete(cluster: Cluster, obj: Obj, *, foreground: bool = False) -> None:
    metadata = obj["metadata"]
    if "deletionTimestamp" in metadata:
        return
    try:
        cluster.delete(
            obj["kind"],
            metadata.get("namespace"),
            metadata["name"],
            "Foreground" if foreground else "Background",
            uid=metadata["uid"],
        )
    except KubernetesError as error:
        if error.code not in (404, 409):
            raise


def _leave(cluster: Cluster, obj: Obj, uid: str) -> None:
    def change(new: Obj) -> None:
        new["metadata"]["ownerReferences"] = [each for each in owners_of(new) if each["uid"] != uid]

    metadata = obj["metadata"]
    cluster.modify(obj["kind"], metadata.get("namespace"), metadata["name"], change)


def _finish(cluster: Cluster, obj: Obj, finalizer: str) -> None:
    def change(new: Obj) -> None:
        kept = [each for each in new["metadata"].get("finalizers") or [] if each != finalizer]
        new["metadata"]["finalizers"] = kept

    metadata = obj["metadata"]
    cluster.modify(obj["kind"], metadata.get("namespace"), metadata["name"], change)


class Namespaces:
    """Empties namespaces that are being deleted, and gives new ones what each namespace has."""

    def __init__(self, cluster: Cluster) -> None:
        self._kinds = [kind.name for kind in cluster.kinds if kind.namespaced]

    @property
    def watches(self) -> Mapping[str, KeysOf]:
        return {"Namespace": itself, **dict.fromkeys(self._kinds, _namespace)}

    def reconcile(self, cluster: Cluster, _: str, name: str) -> float | None:
        namespace = cluster.find("Namespace", None, name)
        if namespace is None:
            return None
        if "deletionTimestamp" in namespace["metadata"]:
            self._empty(cluster, name)
        elif cluster.find("ServiceAccount", name, "default") is None:
            cluster.create({"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}})
        return None

    def _empty(self, cluster: Cluster, name: str) -> None:
        for kind in self._kinds:
            for obj in cluster.list(kind, name):
                _delete(cluster, obj)
        if not any(cluster.list(kind, name) for kind in self._kinds):
            cluster.modify("Namespace", None, name, lambda new: new["spec"].update(finalizers=[]))


def _namespace(obj: Obj) -> Iterable[Key]:
    return [("", obj["metadata"]["namespace"])]
