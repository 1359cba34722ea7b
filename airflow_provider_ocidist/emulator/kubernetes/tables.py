"""Tables: objects as `kubectl get` prints them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import moment

STEP = re.compile(r'\.(\w+)(?:\[(?:(-1:)|\?\(@\.type=="(\w+)"\))\])?')
UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def table(kind: Kind, objects: Sequence[Obj], version: str) -> Obj:
    """Return objects as a `Table`: name, the kind's columns, age."""
    own = [name for name, _ in _columns(kind)]
    names = own if kind.name == "Event" else ["Name", *own, "Age"]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": [
            {
                "name": name,
                "type": "string",
                "format": "name" if name == "Name" else "",
                "description": "",
                "priority": 0,
            }
            for name in names
        ],
        "rows": [_row(kind, obj) for obj in objects],
    }


def _columns(kind: Kind) -> Sequence[tuple[str, str]]:
    if kind.name == "Pod":
        return (("Ready", ""), ("Status", ""), ("Restarts", ""))
    return kind.columns


def _row(kind: Kind, obj: Obj) -> Obj:
    if kind.name == "Event":
        return _shown(_event(obj), obj)
    cells = _pod(obj) if kind.name == "Pod" else [str(_at(obj, path)) for _, path in kind.columns]
    metadata = obj["metadata"]
    return _shown([metadata["name"], *cells, age(metadata["creationTimestamp"])], obj)


def _shown(cells: Sequence[str], obj: Obj) -> Obj:
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
    return {"cells": list(cells), "object": partial}


def _event(event: Obj) -> list[str]:
    about = event.get("involvedObject") or {}
    subject = f"{(about.get('kind') or '').lower()}/{about.get('name') or ''}"
    since = age(event.get("lastTimestamp") or event["metadata"]["creationTimestamp"])
    return [since, event.get("type", ""), event.get("reason", ""), subject, event.get("message", "")]


def _at(obj: Obj, path: str) -> Any:
    """Return the value at a path; `[-1:]` is the last of a list, `[?(@.type=="X")]` the one of a type."""
    found: Any = obj
    for name, last, kind in STEP.findall(path):
        found = found.get(name) if isinstance(found, dict) else None
        if last or kind:
            members = found if isinstance(found, list) else []
            fitting = [
                one for one in members if not kind or (isinstance(one, dict) and one.get("type") == kind)
            ]
            found = fitting[-1] if fitting else None
    return "<none>" if found is None else found


def _pod(pod: Obj) -> list[str]:
    statuses = pod["status"].get("containerStatuses") or []
    ready = sum(bool(each.get("ready")) for each in statuses)
    restarts = sum(each.get("restartCount", 0) for each in statuses)
    return [f"{ready}/{len(pod['spec']['containers'])}", _reason(pod, statuses), str(restarts)]


def _reason(pod: Obj, statuses: Sequence[Obj]) -> str:
    """Return what the column Status says: the most specific of all reasons."""
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    for index, init in enumerate(pod["status"].get("initContainerStatuses") or []):
        state = init["state"]
        if state.get("terminated", {}).get("exitCode") != 0:
            reason = (state.get("waiting") or state.get("terminated") or {}).get("reason", "")
            plain = reason in ("", "PodInitializing", "ContainerCreating")
            return f"Init:{index}/{len(pod['spec']['initContainers'])}" if plain else f"Init:{reason}"
    for each in statuses:
        for state in ("waiting", "terminated"):
            if reason := each["state"].get(state, {}).get("reason"):
                return str(reason)
    return str(pod["status"].get("reason") or pod["status"].get("phase", ""))


def age(created: str) -> str:
    try:
        seconds = int((datetime.now(timezone.utc) - moment(created)).total_seconds())
    except ValueError:
        return "<unknown>"
    for unit, length in UNITS:
        if seconds >= 2 * length or unit == "s":
            return f"{seconds // length}{unit}"
    return ""
