"""The API server: who asks, whether that is allowed, and which part answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope

from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.faults import NOTHING, Effect, FaultRule, Faults
from airflow_provider_ocidist.emulator.faulty_app import FaultyApp, retry_after
from airflow_provider_ocidist.emulator.kubernetes import roles, statuses, users
from airflow_provider_ocidist.emulator.kubernetes.api.answers import as_json
from airflow_provider_ocidist.emulator.kubernetes.api.calls import Call, Handler, OpenStreams
from airflow_provider_ocidist.emulator.kubernetes.api.deletions import Deletions
from airflow_provider_ocidist.emulator.kubernetes.api.discovered import discovered
from airflow_provider_ocidist.emulator.kubernetes.api.object_requests import ObjectRequests
from airflow_provider_ocidist.emulator.kubernetes.api.paths import Paths, Target
from airflow_provider_ocidist.emulator.kubernetes.api.reviews import Reviews
from airflow_provider_ocidist.emulator.kubernetes.api.subresources import Subresources
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pod_logs import PodLogs
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.roles import Action
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError
from airflow_provider_ocidist.emulator.kubernetes.users import User, Users
from airflow_provider_ocidist.emulator.pacing import Dropped
from airflow_provider_ocidist.emulator.recorded_calls import new_record, recorded

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
MAX_WARNINGS = 20
MAX_WARNING_CHARS = 500
NOT_SERVED = ("exec", "attach", "portforward", "proxy")
PLAIN_404 = b"404 page not found\n"

logger = logging.getLogger(__name__)


class ApiServer(FaultyApp[Call]):
    """Answers requests, as ASGI."""

    def __init__(
        self, cluster: Cluster, known: Users, logs: PodLogs, faults: Faults, settings: ClusterSettings
    ) -> None:
        self._cluster = cluster
        self._users = known
        self._faults = faults
        self._paths = Paths(cluster.kinds)
        self._streams = OpenStreams()
        self._reviews = Reviews(cluster)
        objects = ObjectRequests(cluster, settings, self._streams)
        deletions = Deletions(cluster)
        parts = Subresources(cluster, known, logs, self._streams)
        self._of_part: Mapping[str, Handler] = {
            "log": parts.log,
            "token": parts.token,
            "eviction": deletions.evict,
        }
        self._of_all: Mapping[str, Handler] = {
            "GET": objects.list_objects,
            "POST": objects.create,
            "DELETE": deletions.delete_all,
        }
        self._of_one: Mapping[str, Handler] = {
            "GET": objects.get,
            "PUT": objects.update,
            "PATCH": objects.patch,
            "DELETE": deletions.delete,
        }
        self._away_until = 0.0
        self.url = ""
        self.calls = new_record()

    def go_away(self, seconds: float) -> None:
        """Cut all connections, and each new one at its first request, for so long."""
        self._away_until = time.monotonic() + seconds
        self.cut_watches()

    def cut_watches(self) -> None:
        self._streams.cut_all()

    def end_watches(self) -> None:
        """End all watches, and those that begin from now on at once."""
        self._streams.end_all()

    def come_back(self) -> None:
        self._away_until = 0.0

    def call_of(self, scope: Scope, receive: Receive) -> Call:
        return Call(scope, receive)

    def effect(self, scope: Scope) -> Effect:
        if time.monotonic() < self._away_until:
            return Effect(end=FaultRule(drop="before"))
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

    def refusal(self, call: Call, fault: FaultRule) -> Response:
        del call
        status = fault.status or 500
        error = KubernetesError(status, REASONS.get(status, "Unknown"), fault.message)
        return as_json(error.status(), error.code, retry_after(fault))

    async def answer(self, call: Call, effect: Effect) -> Response:
        del effect
        try:
            return await self._serve(call)
        except KubernetesError as error:
            return as_json(error.status(), error.code)
        except (Dropped, ClientDisconnect):
            raise
        except Exception as error:
            logger.exception("%s %s failed", call.method, call.path)
            return as_json(
                KubernetesError(500, "InternalError", f"Internal error occurred: {error}").status(), 500
            )

    async def _serve(self, call: Call) -> Response:
        if call.path in ("/healthz", "/livez", "/readyz"):
            return Response(b"ok", media_type="text/plain")
        call.user = _impersonated(call, self._users.of(call.request.headers.get("authorization", "")))
        known = discovered(call, self._cluster.kinds, self.url)
        if known is not None:
            return known
        if call.method == "POST" and (review := self._reviews.review(call)) is not None:
            return await review(call)
        target = self._paths.target(call.path)
        if target is None:
            return Response(PLAIN_404, 404, media_type="text/plain; charset=utf-8")
        self._authorize(call, target)
        return await self._about_objects(call, target)

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
        if target.subresource in self._of_part:
            return await self._of_part[target.subresource](call, target)
        if target.subresource not in ("", "status", "finalize"):
            raise statuses.not_found(target.kind.resource, target.name)
        handlers = self._of_one if target.name else self._of_all
        if call.method not in handlers:
            text = "the server does not allow this method on the requested resource"
            raise KubernetesError(405, "MethodNotAllowed", text)
        return await handlers[call.method](call, target)


def _ascii(text: str) -> str:
    """Return a text as a header can have it."""
    return text[:MAX_WARNING_CHARS].encode("unicode_escape").decode()


def _impersonated(call: Call, user: User) -> User:
    """Return who a request is made for: an administrator may act as others (`kubectl --as`). Raises 403."""
    name = call.request.headers.get("impersonate-user")
    if name is None:
        return user
    if not user.is_admin:
        why = f'User "{user.name}" cannot impersonate resource "users" in API group "" at the cluster scope'
        raise statuses.forbidden("users", name, why)
    return users.named(name, call.request.headers.getlist("impersonate-group"))


def _verb(call: Call, target: Target) -> str:
    if call.method == "GET":
        named = target.name and not call.flag("watch")
        return "watch" if call.flag("watch") else "get" if named else "list"
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch"}
    return verbs.get(call.method, "delete" if target.name else "deletecollection")
