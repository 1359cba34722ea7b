"""What every object of Kubernetes says of itself: its conditions, reason and message, its end. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.backends.as_created import bare

Obj = Mapping[str, Any]
OF_OTHERS = ("suspend", "managedBy")
"""Fields that a queue, a person or the server's defaults set in the object of a gang that exists."""


def true_conditions(obj: Obj) -> dict[str, Obj]:
    """Return the conditions of an object that hold, by type: their order means nothing, and one may be "False"."""
    found = (obj.get("status") or {}).get("conditions") or ()
    return {str(each.get("type")): each for each in found if str(each.get("status")) == "True"}


def is_deleted(obj: Obj) -> bool:
    """Whether an object is being deleted; it stays until its finalizers, or the processes of a pod, have ended."""
    return bool((obj.get("metadata") or {}).get("deletionTimestamp"))


def sentence(condition: Obj) -> str:
    said = str(condition.get("message") or "").strip()
    return said or str(condition.get("reason") or "")


def reason_and_message(found: Obj) -> str:
    return ": ".join(filter(None, [str(found.get("reason") or ""), str(found.get("message") or "")]))


def asked_for(obj: Obj) -> dict[str, Any]:
    """Return the fields that the creator of an object has set, of a planned one or of one at the API server."""
    metadata = picked(obj["metadata"], ("name", "namespace", "labels", "annotations"))
    return {
        **picked(obj, ("apiVersion", "kind")),
        "metadata": metadata,
        "spec": bare(obj.get("spec") or {}, OF_OTHERS),
    }


def picked(values: Obj, wanted: Sequence[str]) -> dict[str, Any]:
    """Return the fields of these names that are set."""
    return {name: values[name] for name in wanted if values.get(name)}


def container_in(spec: Obj, name: str) -> Obj:
    """Return the container of this name in the specification of a pod, which has it."""
    (found,) = [each for each in spec["containers"] if each["name"] == name]
    return dict(found)
