"""Deleting and evicting objects, one or many, with what depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.kubernetes import fields, statuses
from airflow_provider_ocidist.emulator.kubernetes.api.answers import as_json, fits_in, object_answer, place_of
from airflow_provider_ocidist.emulator.kubernetes.api.calls import Call
from airflow_provider_ocidist.emulator.kubernetes.api.paths import Target
from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster, Propagation
from airflow_provider_ocidist.emulator.kubernetes.statuses import Problem

DELETE_OPTIONS: Mapping[str, Any] = {
    **fields.ALWAYS,
    "gracePeriodSeconds": "int",
    "propagationPolicy": "str",
    "orphanDependents": "bool",
    "preconditions": {"uid": "str", "resourceVersion": "str"},
    "dryRun": "list[str]",
}


class Deletions:
    """Deletes what requests name."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def delete(self, call: Call, target: Target) -> Response:
        options = await call.fields("DeleteOptions", DELETE_OPTIONS)
        obj = self._removed(call, target.kind, target.namespace, target.name, options)
        gone = self._cluster.find(target.kind.name, target.namespace, target.name)
        if gone is not None or target.kind.name in ("Pod", "Namespace"):
            return object_answer(call, target.kind, obj)
        details = {"name": target.name, "group": target.kind.group, "kind": target.kind.plural}
        given = {name: value for name, value in details.items() if value}
        success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return as_json({**success, "details": {**given, "uid": obj["metadata"]["uid"]}})

    def _removed(self, call: Call, kind: Kind, namespace: str, name: str, options: Obj) -> Obj:
        grace = options.get("gracePeriodSeconds")
        if grace is None:
            grace = call.number("gracePeriodSeconds")
        policy = options.get("propagationPolicy") or call.query.get("propagationPolicy")
        # Since 1.9 dependents go in the background, unless the client says otherwise.
        orphans = options.get("orphanDependents", call.flag("orphanDependents"))
        conditions = options.get("preconditions") or {}
        return self._cluster.delete(
            kind.name,
            namespace,
            name,
            _propagation(policy, orphans=bool(orphans)),
            grace,
            uid=conditions.get("uid"),
            version=conditions.get("resourceVersion"),
            dry_run=call.dry_run or options.get("dryRun") == ["All"],
        )

    async def delete_all(self, call: Call, target: Target) -> Response:
        options, kind = await call.fields("DeleteOptions", DELETE_OPTIONS), target.kind
        fits = fits_in(call, target)
        found = [obj for obj in self._cluster.stored(kind.name, target.namespace) if fits(obj)]
        for obj in found:
            self._removed(call, kind, target.namespace or place_of(obj)[0], obj["metadata"]["name"], options)
        metadata = {"resourceVersion": str(self._cluster.version)}
        body = {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata}
        return as_json({**body, "items": found})

    async def evict(self, call: Call, target: Target) -> Response:
        eviction = await call.fields("Eviction", {**fields.ALWAYS, "deleteOptions": DELETE_OPTIONS})
        options = eviction.get("deleteOptions") or {}
        self._removed(call, target.kind, target.namespace, target.name, options)
        return as_json(
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201
        )


def _propagation(policy: str | None, *, orphans: bool) -> Propagation:
    """Return how a deletion reaches dependents. Raises 422."""
    if policy in (None, ""):
        return "Orphan" if orphans else "Background"
    if policy == "Orphan":
        return "Orphan"
    if policy == "Background":
        return "Background"
    if policy == "Foreground":
        return "Foreground"
    text = f'Unsupported value: "{policy}": supported values: "Background", "Foreground", "Orphan"'
    raise statuses.unprocessable("DeleteOptions.meta.k8s.io", "", [Problem("propagationPolicy", text)])
