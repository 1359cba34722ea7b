"""The API server: requests become reads and writes of the cluster, answers are JSON."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import cached_property, partial
from typing import Any
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope

from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.control import MAX_CALLS, RecordedCall, recorded
from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.faults import NOTHING, Effect, Fault, Faults
from airflow_provider_ocidist.emulator.faulty_app import FaultyApp, retry_after
from airflow_provider_ocidist.emulator.kubernetes import (
    discovery,
    fields,
    manifests,
    patches,
    protobuf,
    roles,
    selectors,
    statuses,
    tables,
    users,
    watching,
)
from airflow_provider_ocidist.emulator.kubernetes.api_paths import Paths, Target
from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pod_logs import PodLogs
from airflow_provider_ocidist.emulator.kubernetes.log_reading import LogQuery, follow
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster, Propagation, now, stamp
from airflow_provider_ocidist.emulator.kubernetes.roles import Action
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError, Problem
from airflow_provider_ocidist.emulator.kubernetes.users import User, Users
from airflow_provider_ocidist.emulator.pacing import Dropped
from airflow_provider_ocidist.emulator.wire import (
    encode_json,
    page_token,
    read_page_token,
    stored_json,
    whole_number,
)

WATCH_S = (1800.0, 3600.0)
"""Least and most seconds of a watch that names no time."""
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
ACCESS_REVIEW: Mapping[str, Any] = {
    **fields.ALWAYS,
    "spec": {
        "resourceAttributes": dict.fromkeys(
            ("verb", "group", "version", "resource", "subresource", "namespace", "name"), "str"
        ),
        "nonResourceAttributes": {"path": "str", "verb": "str"},
    },
}
RULES_REVIEW: Mapping[str, Any] = {**fields.ALWAYS, "spec": {"namespace": "str"}}
TOKEN_REQUEST: Mapping[str, Any] = {
    **fields.ALWAYS,
    "spec": {"expirationSeconds": "int", "audiences": "list[str]", "boundObjectRef": "object"},
}
DELETE_OPTIONS: Mapping[str, Any] = {
    **fields.ALWAYS,
    "gracePeriodSeconds": "int",
    "propagationPolicy": "str",
    "orphanDependents": "bool",
    "preconditions": {"uid": "str", "resourceVersion": "str"},
    "dryRun": "list[str]",
}
MIN_TOKEN_S, MAX_TOKEN_S = 1, 2**32
"""Least and most seconds of a token's life."""
MAX_WARNINGS = 20
MAX_WARNING_CHARS = 500
NOT_SERVED = ("exec", "attach", "portforward", "proxy")
PLAIN_404 = b"404 page not found\n"

logger = logging.getLogger(__name__)


Handler = Callable[["Call", Target], Awaitable[Response]]


class Call:
    """One request."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.request = Request(scope, receive)
        self.method = self.request.method
        self.path = unquote(scope["raw_path"].decode("latin-1"))
        self.query = self.request.query_params
        self.accept = self.request.headers.get("accept", "")
        self.warnings: list[str] = []
        self.user = users.named("system:anonymous")

    @cached_property
    def dry_run(self) -> bool:
        return self.query.get("dryRun") == "All"

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("true", "1")

    def number(self, name: str) -> int | None:
        """Return a query parameter. Raises 400 for what is no number from 0 on."""
        text = self.query.get(name)
        if not text:
            return None
        number = whole_number(text)
        if number is None:
            text = text[:100]
            raise statuses.bad_request(
                f'invalid {name} {text!r}: strconv.ParseInt: parsing "{text}": invalid syntax'
            )
        return number

    async def body(self) -> Any:
        """Return the body as JSON. Raises 400, 413."""
        held = bytearray()
        async for chunk in self.request.stream():
            held += chunk
            if len(held) > patches.MAX_BYTES:
                raise patches.too_large()
        kind = self.request.headers.get("content-type", "")
        if "protobuf" in kind and held:
            return protobuf.decode(bytes(held))
        if not held:
            return {}
        try:
            is_yaml = "yaml" in kind and not held.startswith(b"{")
            return manifests.read(bytes(held)) if is_yaml else stored_json(bytes(held))
        except ValueError as error:
            raise statuses.bad_request(f"the object provided is unrecognized: {error}") from error

    async def fields(self, name: str, schema: fields.Type) -> Obj:
        """Return the fields of a body that is no stored object. Raises 400 for one of another type."""
        return fields.read(await self.body(), schema, name)


class Api(FaultyApp[Call]):
    """Answers requests, as ASGI."""

    def __init__(
        self, cluster: Cluster, known: Users, logs: PodLogs, faults: Faults, settings: ClusterSettings
    ) -> None:
        self._cluster = cluster
        self._users = known
        self._logs = logs
        self._faults = faults
        self._settings = settings
        self._paths = Paths(cluster.kinds)
        self._away_until = 0.0
        self.cut = asyncio.Event()
        self.url = ""
        self.calls: deque[RecordedCall] = deque(maxlen=MAX_CALLS)

    def go_away(self, seconds: float) -> None:
        """Cut all connections, and each new one at its first request, for so long."""
        self._away_until = time.monotonic() + seconds
        self.cut_watches()

    def cut_watches(self) -> None:
        self.cut.set()
        self.cut = asyncio.Event()

    def come_back(self) -> None:
        self._away_until = 0.0

    def call_of(self, scope: Scope, receive: Receive) -> Call:
        return Call(scope, receive)

    def effect(self, scope: Scope) -> Effect:
        if time.monotonic() < self._away_until:
            return Effect(end=Fault(drop="before"))
        if not self._faults:
            return NOTHING
        return self._faults.decide(scope["method"], scope["raw_path"].decode("latin-1"), "kubernetes")

    def record(self, call: Call, status: int, started: float) -> None:
        query, headers = call.request.url.query, call.request.headers
        self.calls.append(
            recorded(
                call.method,
                f"{call.path}?{query}" if query else call.path,
                status,
                started,
                request_id=headers.get("x-request-id", ""),
                host=call.user.name,
            )
        )

    def finish(self, call: Call, response: Response) -> None:
        for text in call.warnings[:MAX_WARNINGS]:
            response.headers.append("warning", f'299 - "{_ascii(text)}"')

    def refusal(self, call: Call, fault: Fault) -> Response:
        del call
        status = fault.status or 500
        error = KubernetesError(status, REASONS.get(status, "Unknown"), fault.message)
        return _json(error.status(), error.code, retry_after(fault))

    async def answer(self, call: Call, effect: Effect) -> Response:
        del effect
        try:
            return await self._serve(call)
        except KubernetesError as error:
            return _json(error.status(), error.code)
        except (Dropped, ClientDisconnect):
            raise
        except Exception as error:
            logger.exception("%s %s failed", call.method, call.path)
            return _json(
                KubernetesError(500, "InternalError", f"Internal error occurred: {error}").status(), 500
            )

    async def _serve(self, call: Call) -> Response:
        if call.path in ("/healthz", "/livez", "/readyz"):
            return Response(b"ok", media_type="text/plain")
        call.user = _impersonated(call, self._users.of(call.request.headers.get("authorization", "")))
        discovered = self._discovered(call)
        if discovered is not None:
            return discovered
        if call.method == "POST" and (review := self._review(call)) is not None:
            return await review(call)
        target = self._paths.target(call.path)
        if target is None:
            return Response(PLAIN_404, 404, media_type="text/plain; charset=utf-8")
        self._authorize(call, target)
        return await self._about_objects(call, target)

    def _discovered(self, call: Call) -> Response | None:
        kinds, parts = self._cluster.kinds, call.path.strip("/").split("/")
        if call.method != "GET":
            return None
        if call.path == "/openapi/v2":
            # As protobuf this is a document without definitions: older kubectl then leaves validation to us.
            return Response(b"", media_type="application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
        if call.path == "/version":
            return _json(discovery.VERSION)
        if parts[0] in ("api", "apis") and len(parts) == 1:
            if discovery.AGGREGATED in call.accept:
                groups = discovery.aggregated(kinds, core=parts[0] == "api")
                return _json(
                    groups, media_type="application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
                )
            return _json(discovery.versions(self.url) if parts[0] == "api" else discovery.group_list(kinds))
        if parts[0] == "apis" and len(parts) == 2 and parts[1] in discovery.groups(kinds):
            return _json(discovery.group(parts[1], kinds))
        if parts[0] in ("api", "apis") and len(parts) == (2 if parts[0] == "api" else 3):
            found = discovery.resource_list("/".join(parts[1:]), kinds)
            return None if found is None else _json(found)
        if parts[:2] == ["openapi", "v3"]:
            place = "/".join(parts[2:])
            found = discovery.openapi(place, kinds) if place else discovery.openapi_index(kinds)
            return None if found is None else _json(found)
        return None

    def _review(self, call: Call) -> Callable[[Call], Awaitable[Response]] | None:
        reviews = {
            "selfsubjectaccessreviews": self._may_i,
            "selfsubjectrulesreviews": self._what_may_i,
            "selfsubjectreviews": self._who_am_i,
        }
        return reviews.get(call.path.rpartition("/")[2])

    async def _may_i(self, call: Call) -> Response:
        review = await call.fields("SelfSubjectAccessReview", ACCESS_REVIEW)
        asked = (review.get("spec") or {}).get("resourceAttributes") or {}
        part, resource = asked.get("subresource"), asked.get("resource", "")
        allowed = not asked or roles.allowed(
            self._cluster,
            call.user,
            Action(
                verb=asked.get("verb", ""),
                group=asked.get("group", ""),
                resource=f"{resource}/{part}" if part else resource,
                namespace=asked.get("namespace", ""),
                name=asked.get("name", ""),
            ),
        )
        return _json({**review, "metadata": {}, "status": {"allowed": allowed}}, 201)

    async def _what_may_i(self, call: Call) -> Response:
        review = await call.fields("SelfSubjectRulesReview", RULES_REVIEW)
        everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
        namespace = (review.get("spec") or {}).get("namespace", "")
        found = [everything] if call.user.is_admin else list(roles.rules(self._cluster, call.user, namespace))
        status = {"resourceRules": found, "nonResourceRules": [], "incomplete": False}
        return _json({**review, "metadata": {}, "status": status}, 201)

    async def _who_am_i(self, call: Call) -> Response:
        review = await call.fields("SelfSubjectReview", fields.ALWAYS)
        user = {"username": call.user.name, "groups": list(call.user.groups)}
        return _json({**review, "metadata": {}, "status": {"userInfo": user}}, 201)

    def _authorize(self, call: Call, target: Target) -> None:
        resource = target.kind.plural + (f"/{target.subresource}" if target.subresource else "")
        namespace = target.namespace or (target.name if target.kind.name == "Namespace" else "")
        verb = _verb(call, target)
        action = Action(
            verb=verb, group=target.kind.group, resource=resource, namespace=namespace, name=target.name
        )
        roles.check(self._cluster, call.user, action)

    async def _about_objects(self, call: Call, target: Target) -> Response:
        if target.subresource in NOT_SERVED:
            text = (
                f"{target.subresource} is not served by the emulator's Kubernetes: pods here have no console"
            )
            raise KubernetesError(501, "NotImplemented", text)
        parts = {"log": self._log, "eviction": self._evict, "token": self._token}
        if target.subresource in parts:
            return await parts[target.subresource](call, target)
        if target.subresource not in ("", "status", "finalize"):
            raise statuses.not_found(target.kind.resource, target.name)
        if not target.name:
            of_all: Mapping[str, Handler] = {
                "GET": self._list,
                "POST": self._create,
                "DELETE": self._delete_all,
            }
            return await self._method(call, of_all)(call, target)
        of_one: Mapping[str, Handler] = {
            "GET": self._get,
            "PUT": self._update,
            "PATCH": self._patch,
            "DELETE": self._delete,
        }
        return await self._method(call, of_one)(call, target)

    def _method(self, call: Call, handlers: Mapping[str, Handler]) -> Handler:
        if call.method not in handlers:
            text = "the server does not allow this method on the requested resource"
            raise KubernetesError(405, "MethodNotAllowed", text)
        return handlers[call.method]

    async def _get(self, call: Call, target: Target) -> Response:
        if call.flag("watch"):
            return self._watch(call, target)
        return self._object_answer(
            call, target.kind, self._cluster.get(target.kind.name, target.namespace, target.name)
        )

    def _object_answer(self, call: Call, kind: Kind, obj: Obj, status: int = 200) -> Response:
        if "as=Table" in call.accept:
            return _json(tables.table(kind, [obj], obj["metadata"]["resourceVersion"]), status)
        return _json(obj, status)

    def _fits(self, call: Call, target: Target) -> Callable[[Obj], bool]:
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

    async def _list(self, call: Call, target: Target) -> Response:
        if call.flag("watch"):
            return self._watch(call, target)
        kind, version = target.kind, self._cluster.version
        fits = self._fits(call, target)
        found = [obj for obj in self._cluster.list(kind.name, target.namespace) if fits(obj)]
        page, more = self._page(call, found)
        metadata = {"resourceVersion": str(version), **more}
        if "as=Table" in call.accept:
            table = tables.table(kind, page, str(version))
            return _json({**table, "metadata": metadata})
        items = page if kind.is_custom else [_bare(obj) for obj in page]
        body = {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata}
        return _json({**body, "items": items})

    def _page(self, call: Call, found: Sequence[Obj]) -> tuple[list[Obj], Obj]:
        """Return so many objects as the client asks for, after those that it has."""
        limit, token = call.number("limit"), call.query.get("continue")
        if token:
            last = self._last_seen(token)
            found = [obj for obj in found if _place(obj) > last]
        if not limit or len(found) <= limit:
            return list(found), {}
        page = list(found[:limit])
        return page, {
            "continue": page_token([self._cluster.compactions, *_place(page[-1])]),
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
        watch = watching.Watch(
            kind=kind.name,
            namespace=target.namespace,
            version=None if initial else version or None,
            fits=self._fits(call, target),
            bookmarks=call.flag("allowWatchBookmarks"),
            marks_initial=initial,
            timeout_s=call.number("timeoutSeconds") or random.uniform(*WATCH_S),
            bookmark_s=self._settings.bookmark_s,
            shown=lambda obj: (
                tables.table(kind, [obj], obj["metadata"]["resourceVersion"]) if as_table else obj
            ),
        )
        return StreamingResponse(
            watching.lines(self._cluster, watch, self.cut), media_type="application/json"
        )

    async def _create(self, call: Call, target: Target) -> Response:
        obj = self._checked(call, target, await call.body())
        made = self._cluster.create(obj, dry_run=call.dry_run)
        return self._object_answer(call, target.kind, made, 201)

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

    async def _update(self, call: Call, target: Target) -> Response:
        obj = self._checked(call, target, await call.body())
        part = "status" if target.subresource == "status" else None
        return self._object_answer(call, target.kind, self._cluster.update(obj, part, dry_run=call.dry_run))

    async def _patch(self, call: Call, target: Target) -> Response:
        form = call.request.headers.get("content-type", "").partition(";")[0].strip()
        patch = await call.body()
        apply = partial(patches.applied, self._patching(target.kind, form, patch))
        kind, part = target.kind, "status" if target.subresource == "status" else None
        if form == APPLY and self._cluster.find(kind.name, target.namespace, target.name) is None:
            made = self._cluster.create(self._checked(call, target, patch), dry_run=call.dry_run)
            return self._object_answer(call, kind, made, 201)
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
        return self._object_answer(call, kind, changed)

    def _patching(self, kind: Kind, form: str, patch: Any) -> Callable[[Obj], Any]:
        """Return what applies a patch. Raises 400, 415."""
        accepted = [JSON_PATCH, MERGE, *([] if kind.is_custom else [STRATEGIC]), APPLY]
        if form not in accepted:
            text = "the body of the request was in an unknown format - accepted media types include: "
            raise KubernetesError(415, "UnsupportedMediaType", text + ", ".join(accepted))
        if not isinstance(patch, list if form == JSON_PATCH else dict):
            raise statuses.bad_request(f"the body is no patch of the form {form}")
        if form == JSON_PATCH:
            return lambda obj: patches.json_patch(obj, list(patch))
        if form == STRATEGIC or (form == APPLY and not kind.is_custom):
            return lambda obj: patches.strategic(obj, patch)
        return lambda obj: patches.merge(obj, patch)

    async def _delete(self, call: Call, target: Target) -> Response:
        options = await call.fields("DeleteOptions", DELETE_OPTIONS)
        obj = self._removed(call, target.kind, target.namespace, target.name, options)
        gone = self._cluster.find(target.kind.name, target.namespace, target.name)
        if gone is not None or target.kind.name in ("Pod", "Namespace"):
            return self._object_answer(call, target.kind, obj)
        details = {"name": target.name, "group": target.kind.group, "kind": target.kind.plural}
        given = {name: value for name, value in details.items() if value}
        success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return _json({**success, "details": {**given, "uid": obj["metadata"]["uid"]}})

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

    async def _delete_all(self, call: Call, target: Target) -> Response:
        options, kind = await call.fields("DeleteOptions", DELETE_OPTIONS), target.kind
        fits = self._fits(call, target)
        found = [obj for obj in self._cluster.list(kind.name, target.namespace) if fits(obj)]
        for obj in found:
            self._removed(call, kind, target.namespace or _place(obj)[0], obj["metadata"]["name"], options)
        metadata = {"resourceVersion": str(self._cluster.version)}
        body = {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata}
        return _json({**body, "items": found})

    async def _log(self, call: Call, target: Target) -> Response:
        pod = self._cluster.get("Pod", target.namespace, target.name)
        query = LogQuery.of(call.query, pod)
        path = self._logs.path(pod["metadata"]["uid"], query.container, previous=query.previous)
        query.check(pod, has_log=path is not None)
        if path is None:
            return Response(b"", media_type="text/plain")
        pieces = follow(path, query, partial(self._is_running, pod, query.container), self.cut)
        if query.follow:
            return StreamingResponse(pieces, media_type="text/plain")
        return Response(b"".join([piece async for piece in pieces]), media_type="text/plain")

    def _is_running(self, pod: Obj, container: str) -> bool:
        metadata = pod["metadata"]
        found = self._cluster.find("Pod", metadata["namespace"], metadata["name"])
        if found is None or found["metadata"]["uid"] != metadata["uid"]:
            return False
        status = found["status"]
        states = (status.get("containerStatuses") or []) + (status.get("initContainerStatuses") or [])
        return any(each["name"] == container and "running" in each["state"] for each in states)

    async def _evict(self, call: Call, target: Target) -> Response:
        eviction = await call.fields("Eviction", {**fields.ALWAYS, "deleteOptions": DELETE_OPTIONS})
        options = eviction.get("deleteOptions") or {}
        self._removed(call, target.kind, target.namespace, target.name, options)
        return _json(
            {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201
        )

    async def _token(self, call: Call, target: Target) -> Response:
        self._cluster.get("ServiceAccount", target.namespace, target.name)
        request = await call.fields("TokenRequest", TOKEN_REQUEST)
        seconds = (request.get("spec") or {}).get("expirationSeconds") or 3600
        if not MIN_TOKEN_S <= seconds <= MAX_TOKEN_S:
            text = f"Invalid value: {seconds}: must be from {MIN_TOKEN_S} to {MAX_TOKEN_S}"
            problem = Problem("spec.expirationSeconds", text)
            raise statuses.unprocessable("TokenRequest.authentication.k8s.io", target.name, [problem])
        user: User = users.service_account(target.namespace, target.name)
        token = self._users.issue(user, seconds)
        status = {"token": token, "expirationTimestamp": _after(seconds)}
        metadata = {"name": target.name, "namespace": target.namespace, "creationTimestamp": now()}
        body = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": metadata}
        return _json({**body, "spec": {"expirationSeconds": seconds}, "status": status}, 201)


def _ascii(text: str) -> str:
    """Return a text as a header can have it."""
    return text[:MAX_WARNING_CHARS].encode("unicode_escape").decode()


def _after(seconds: float) -> str:
    return stamp(datetime.now(timezone.utc) + timedelta(seconds=seconds))


def _impersonated(call: Call, user: User) -> User:
    """Return who a request is made for: an administrator may act as others (`kubectl --as`). Raises 403."""
    name = call.request.headers.get("impersonate-user")
    if name is None:
        return user
    if not user.is_admin:
        why = f'User "{user.name}" cannot impersonate resource "users" in API group "" at the cluster scope'
        raise statuses.forbidden("users", name, why)
    return users.named(name, call.request.headers.getlist("impersonate-group"))


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


def _verb(call: Call, target: Target) -> str:
    if call.method == "GET":
        named = target.name and not call.flag("watch")
        return "watch" if call.flag("watch") else "get" if named else "list"
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch"}
    return verbs.get(call.method, "delete" if target.name else "deletecollection")


def _place(obj: Obj) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _bare(obj: Obj) -> Obj:
    """Return an entry of a list of Kubernetes' own kinds: the list names the kind."""
    return {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}


def _json(
    body: Obj,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = "application/json",
) -> Response:
    return Response(encode_json(body), status, dict(headers or {}), media_type)
