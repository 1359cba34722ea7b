"""What becomes of an object that a client writes or deletes: what it may set, what is kept, how long it stays. Pure."""

from __future__ import annotations

from typing import Any

from airflow_provider_ocidist.emulator.kubernetes import statuses
from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj

MAX_GRACE_S = 10**9
"""Most seconds of grace, a generation; a time that is much later could not be written."""


def with_status(old: Obj, obj: Obj) -> Obj:
    new = copy_of(old)
    new.pop("status", None)
    if "status" in obj or "status" in old:
        new["status"] = obj.get("status") or {}
    return new


def with_the_rest(kind: Kind, old: Obj, obj: Obj) -> Obj:
    """Return the new object, with what only the API server sets as it was."""
    new = {**obj, "apiVersion": kind.api_version}
    kept = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
    previous = old["metadata"]
    metadata = {name: value for name, value in obj["metadata"].items() if name not in kept}
    metadata.update({name: previous[name] for name in (*kept, "resourceVersion") if name in previous})
    new["metadata"] = metadata
    if kind.has_status:
        new.pop("status", None)
        new.update({"status": old["status"]} if "status" in old else {})
    return new


def grace_of(kind: Kind, obj: Obj, wanted: float | None) -> float:
    """Return the seconds that a deletion waits. Only pods that a node has, and that have not ended, have any."""
    if kind.name != "Pod" or not obj["spec"].get("nodeName"):
        return 0
    if obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    seconds = obj["spec"].get("terminationGracePeriodSeconds", 30) if wanted is None else wanted
    return max(0.0, min(seconds, MAX_GRACE_S))


def check_preconditions(kind: Kind, obj: Obj, uid: str | None, version: str | None) -> None:
    metadata = obj["metadata"]
    if uid is not None and uid != metadata["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}"
        raise statuses.conflict(kind.resource, metadata["name"], why)
    if version is not None and version != metadata["resourceVersion"]:
        why = (
            f"Precondition failed: ResourceVersion in precondition: {version},"
            f" ResourceVersion in object meta: {metadata['resourceVersion']}"
        )
        raise statuses.conflict(kind.resource, metadata["name"], why)


def copy_of(obj: Obj) -> Obj:
    return {name: _copied(each) for name, each in obj.items()}


def _copied(value: Any) -> Any:
    """Return a copy of JSON; several times as fast as `copy.deepcopy`."""
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value
