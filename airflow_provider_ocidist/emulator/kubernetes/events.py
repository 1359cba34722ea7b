"""Events: what a component says of an object, counted when it says so again."""

from __future__ import annotations

import hashlib

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import now
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError


def record(
    cluster: Cluster, about: Obj, reason: str, message: str, *, component: str, warning: bool = False
) -> None:
    """Write an event, or count the one that says the same. Nothing is written in a namespace that is gone."""
    metadata = about["metadata"]
    namespace = metadata.get("namespace", "default")
    digest = hashlib.sha256(f"{metadata['uid']} {reason} {message} {component}".encode()).hexdigest()[:16]
    name = f"{metadata['name']}.{digest}"
    try:
        if cluster.find("Event", namespace, name) is None:
            cluster.create(_event(about, namespace, name, reason, message, component, warning))
        else:
            cluster.modify("Event", namespace, name, _again)
    except KubernetesError as error:
        if error.code not in (403, 404):
            raise


def _again(event: Obj) -> None:
    event.update(count=event.get("count", 1) + 1, lastTimestamp=now())


def _event(
    about: Obj, namespace: str, name: str, reason: str, message: str, component: str, warning: bool
) -> Obj:
    metadata = about["metadata"]
    return {
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "kind": about["kind"],
            "apiVersion": about["apiVersion"],
            "namespace": metadata.get("namespace"),
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "reason": reason,
        "message": message,
        "type": "Warning" if warning else "Normal",
        "source": {"component": component},
        "reportingComponent": component,
        "firstTimestamp": now(),
        "lastTimestamp": now(),
    }
