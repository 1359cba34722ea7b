"""Reading, watching, creating and changing objects."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.responses import Response, StreamingResponse

from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.kubernetes import fields, patches, statuses, tables, watching
from airflow_provider_ocidist.emulator.kubernetes.api.answers import (
    as_json,
    bare,
    fits_in,
    object_answer,
    place_of,
)
from airflow_provider_ocidist.emulator.kubernetes.api.calls import Call, OpenStreams
from airflow_provider_ocidist.emulator.kubernetes.api.paths import Target
from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError
from airflow_provider_ocidist.emulator.wire import page_token, read_page_token

WATCH_S = (1800.0, 3600.0)
"""Least and most seconds of a watch that names no time."""
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"


class ObjectRequests:
    """Answers requests about the objects of any kind."""

    def __init__(self, cluster: Cluster, settings: ClusterSettings, streams: OpenStreams) -> None:
        self._cluster = cluster
        self._settings = settings
        self._streams = streams

    async def get(self, call: Call, target: Target) -> Response:
        if call.flag("watch"):
            return self._watch(call, target)
        return object_answer(
            call, target.kind, self._cluster.get(target.kind.name, target.namespace, target.name)
        )

    async def list_objects(self, call: Call, target: Target) -> Response:
        if call.flag("watch"):
            return self._watch(call, target)
        kind, version = target.kind, self._cluster.version
        fits = fits_in(call, target)
        found = [obj for obj in self._cluster.stored(kind.name, target.namespace) if fits(obj)]
        page, more = self._page(call, found)
        metadata = {"resourceVersion": str(version), **more}
        if "as=Table" in call.accept:
            table = tables.table(kind, page, str(version))
            return as_json({**table, "metadata": metadata})
        items = page if kind.is_custom else [bare(obj) for obj in page]
        body = {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata}
        return as_json({**body, "items": items})

    def _page(self, call: Call, found: Sequence[Obj]) -> tuple[list[Obj], Obj]:
        """Return so many objects as the client asks for, after those that it has."""
        limit, token = call.number("limit"), call.query.get("continue")
        if token:
            last = self._last_seen(token)
            found = [obj for obj in found if place_of(obj) > last]
        if not limit or len(found) <= limit:
            return list(found), {}
        page = list(found[:limit])
        return page, {
            "continue": page_token([self._cluster.compactions, *place_of(page[-1])]),
            "remainingItemCount": len(found) - limit,
        }

    def _last_seen(self, token: str) -> tuple[str, str]:
        try:
            compactions, namespace, name = read_page_token(token)
        except (ValueError, TypeError, ApiError) as error:
            raise statuses.bad_request("continue key is not valid") from error
        if compactions != self._cluster.compactions:
            raise statuses.expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a"
                " new list without the continue parameter."
            )
        return str(namespace), str(name)

    def _watch(self, call: Call, target: Target) -> Response:
        version = call.number("resourceVersion")
        initial = call.flag("sendInitialEvents")
        kind = target.kind
        as_table = "as=Table" in call.accept
        watch = watching.WatchRequest(
            kind=kind.name,
            namespace=target.namespace,
            version=None if initial else version or None,
            fits=fits_in(call, target),
            bookmarks=call.flag("allowWatchBookmarks"),
            marks_initial=initial,
            timeout_s=call.number("timeoutSeconds") or random.uniform(*WATCH_S),
            bookmark_s=self._settings.bookmark_s,
            shown=lambda obj: (
                tables.table(kind, [obj], obj["metadata"]["resourceVersion"]) if as_table else obj
            ),
        )
        return StreamingResponse(
            watching.lines(self._cluster, watch, self._streams.cut), media_type="application/json"
        )

    async def create(self, call: Call, target: Target) -> Response:
        obj = self._checked(call, target, await call.body())
        made = self._cluster.create(obj, dry_run=call.dry_run)
        return object_answer(call, target.kind, made, 201)

    def _checked(self, call: Call, target: Target, body: Any) -> Obj:
        """Return the object of a request. Raises 400 for one that is not of the path's kind and place."""
        kind = target.kind
        if not isinstance(body, dict):
            raise statuses.bad_request("the object provided is unrecognized (must be of type object)")
        if (
            body.get("kind", kind.name) != kind.name
            or body.get("apiVersion", kind.api_version) != kind.api_version
        ):
            given = f"{body.get('apiVersion')}, Kind={body.get('kind')}"
            text = f"({given}) does not match the expected API version and kind ({kind.api_version}, Kind={kind.name})"
            raise statuses.bad_request(f"the API version in the data {text}")
        metadata = body.get("metadata")
        if not isinstance(metadata, dict):
            metadata = {}
        if kind.namespaced and metadata.get("namespace", target.namespace) != target.namespace:
            text = (
                f"({metadata['namespace']}) does not match the namespace on the request ({target.namespace})"
            )
            raise statuses.bad_request(f"the namespace of the provided object {text}")
        if target.name and metadata.get("name", target.name) != target.name:
            text = f"({metadata['name']}) does not match the name on the URL ({target.name})"
            raise statuses.bad_request(f"the name of the object {text}")
        full = {**body, "kind": kind.name, "apiVersion": kind.api_version, "metadata": {**metadata}}
        if kind.namespaced:
            full["metadata"]["namespace"] = target.namespace
        if target.name:
            full["metadata"]["name"] = target.name
        validation = call.query.get("fieldValidation") or "Warn"
        checked, warnings = fields.checked(kind, full, validation)
        call.warnings += warnings
        return checked

    async def update(self, call: Call, target: Target) -> Response:
        obj = self._checked(call, target, await call.body())
        part = "status" if target.subresource == "status" else None
        return object_answer(call, target.kind, self._cluster.update(obj, part, dry_run=call.dry_run))

    async def patch(self, call: Call, target: Target) -> Response:
        form = call.request.headers.get("content-type", "").partition(";")[0].strip()
        patch = await call.body()
        apply = partial(patches.applied, self._patching(target.kind, form, patch))
        kind, part = target.kind, "status" if target.subresource == "status" else None
        if form == APPLY and self._cluster.find(kind.name, target.namespace, target.name) is None:
            made = self._cluster.create(self._checked(call, target, patch), dry_run=call.dry_run)
            return object_answer(call, kind, made, 201)
        metadata = patch.get("metadata") if isinstance(patch, dict) else None
        asked = metadata.get("resourceVersion") if isinstance(metadata, dict) else None

        def change(obj: Obj) -> Obj:
            patched = self._checked(call, target, apply(obj))
            if asked is None:
                patched["metadata"].pop("resourceVersion", None)
            return patched

        changed = self._cluster.modify(
            kind.name, target.namespace, target.name, change, part, dry_run=call.dry_run
        )
        return object_answer(call, kind, changed)

    def _patching(self, kind: Kind, form: str, patch: Any) -> Callable[[Obj], Any]:
        """Return what applies a patch. Raises 400, 415."""
        accepted = [JSON_PATCH, MERGE, *([] if kind.is_custom else [STRATEGIC]), APPLY]
        if form not in accepted:
            text = "the body of the request was in an unknown format - accepted media types include: "
            raise KubernetesError(415, "UnsupportedMediaType", text + ", ".join(accepted))
        if not isinstance(patch, list if form == JSON_PATCH else dict):
            raise statuses.bad_request(f"the body is not a patch of the form {form}")
        if form == JSON_PATCH:
            return lambda obj: patches.json_patch(obj, list(patch))
        if form == STRATEGIC or (form == APPLY and not kind.is_custom):
            return lambda obj: patches.strategic(obj, patch)
        return lambda obj: patches.merge(obj, patch)
