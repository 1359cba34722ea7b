"""Answers of the API server: JSON, tables, and which objects a request means."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.responses import Response

from airflow_provider_ocidist.emulator.kubernetes import selectors, tables
from airflow_provider_ocidist.emulator.kubernetes.api.calls import Call
from airflow_provider_ocidist.emulator.kubernetes.api.paths import Target
from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj
from airflow_provider_ocidist.emulator.wire import encode_json


def as_json(
    body: Obj,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    return Response(encode_json(body), status, dict(headers or {}), media_type)


def object_answer(call: Call, kind: Kind, obj: Obj, status: int = 200) -> Response:
    if "as=Table" in call.accept:
        return as_json(tables.table(kind, [obj], obj["metadata"]["resourceVersion"]), status)
    return as_json(obj, status)


def fits_in(call: Call, target: Target) -> Callable[[Obj], bool]:
    """Return what says whether an object is one of those that a request means."""
    by_labels = selectors.labels(call.query.get("labelSelector", ""))
    by_fields = selectors.fields(call.query.get("fieldSelector", ""), target.kind.name)
    namespace, name = target.namespace, target.name

    def fits(obj: Obj) -> bool:
        metadata = obj["metadata"]
        return (
            namespace in ("", metadata.get("namespace"))
            and name in ("", metadata["name"])
            and by_labels(metadata.get("labels") or {})
            and by_fields(obj)
        )

    return fits


def place_of(obj: Obj) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def bare(obj: Obj) -> Obj:
    """Return an entry of a list of Kubernetes' own kinds: the list names the kind."""
    return {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}
