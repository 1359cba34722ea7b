"""The ASGI application: tokens, faults, and every route of the control plane that the stand-in knows."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from airflow_provider_ocidist.emulator.faults import NOTHING, Effect, Fault, Faults
from airflow_provider_ocidist.emulator.runai import filters, views
from airflow_provider_ocidist.emulator.runai.refusals import Refusal, bad_request, forbidden, not_found
from airflow_provider_ocidist.emulator.runai.submissions import Kind, submission_of
from airflow_provider_ocidist.emulator.runai.tokens import Tokens
from airflow_provider_ocidist.emulator.runai.workloads import Project, Workload, Workloads, with_quota
from airflow_provider_ocidist.emulator.runai_settings import RunaiOptions

CONTROL = "/_emulator"
ACCEPTED = {"code": 202, "message": "Request has been accepted."}
WORKLOAD_FIELDS = (
    "type",
    "name",
    "clusterId",
    "projectId",
    "projectName",
    "departmentId",
    "departmentName",
    "createdAt",
    "deletedAt",
    "submittedBy",
    "phase",
    "completedAt",
    "distributedFramework",
    "phaseUpdatedAt",
    "category",
    "priority",
    "priorityClassName",
)
POD_FIELDS = ("clusterId", "workloadId", "nodeName", "createdAt", "completedAt", "deletedAt")
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was answered; status 0: cut off."""

    method: str
    path: str
    status: int


class Control:
    """What tests set and see of the stand-in, under `/_emulator`, without a token."""

    def __init__(self, workloads: Workloads, tokens: Tokens, faults: Faults) -> None:
        self._workloads = workloads
        self._tokens = tokens
        self._quotas = {project.id: project.quota for project in workloads.projects.values()}
        self.faults = faults
        self.calls: list[Call] = []

    def routes(self) -> list[Route]:
        return [
            Route(f"{CONTROL}/faults", _answering(self.fault), methods=["POST", "DELETE"]),
            Route(f"{CONTROL}/calls", _answering(self.list_calls), methods=["GET"]),
            Route(f"{CONTROL}/tokens", _answering(self.revoke), methods=["DELETE"]),
            Route(f"{CONTROL}/projects/{{id}}", _answering(self.quota), methods=["PUT"]),
            Route(f"{CONTROL}/reset", _answering(self.reset), methods=["POST"]),
        ]

    async def fault(self, request: Request) -> Response:
        if request.method == "DELETE":
            self.faults.clear()
        else:
            try:
                self.faults.add(Fault(**await request.json()))
            except TypeError as error:
                raise bad_request(str(error)) from error
        return JSONResponse(self.faults.bodies())

    async def list_calls(self, _: Request) -> Response:
        return JSONResponse([asdict(call) for call in self.calls])

    async def revoke(self, _: Request) -> Response:
        self._tokens.revoke()
        return JSONResponse({})

    async def quota(self, request: Request) -> Response:
        project = _project(self._workloads, request.path_params["id"])
        try:
            with_quota(project, **await request.json())
        except TypeError as error:
            raise bad_request(str(error)) from error
        self._workloads.tick()
        return JSONResponse(asdict(project.quota))

    async def reset(self, _: Request) -> Response:
        """Return to the state of a fresh start."""
        self.faults.clear()
        self._workloads.reset()
        for project_id, quota in self._quotas.items():
            self._workloads.projects[project_id].quota = quota
        self.calls.clear()
        return JSONResponse({})


class ControlPlane:
    """The routes of Run:ai."""

    def __init__(
        self, workloads: Workloads, tokens: Tokens, options: RunaiOptions, *, cluster_id: str, url: str
    ) -> None:
        self._workloads = workloads
        self._tokens = tokens
        self._options = options
        self._cluster_id = cluster_id
        self._url = url

    def routes(self) -> list[Route]:
        open_routes: list[tuple[str, str, Handler]] = [
            ("POST", "/api/v2/token", self.token_v2),
            ("POST", "/api/v1/token", self.token_v1),
        ]
        own: list[tuple[str, str, Handler]] = [
            ("GET", "/api/v1/clusters", self.clusters),
            ("GET", "/api/v1/org-unit/projects", self.projects),
            ("GET", "/api/v1/workloads", self.workloads),
            ("GET", "/api/v1/workloads/pods", self.pods),
            *self._of_kind("distributed"),
            *self._of_kind("trainings"),
            ("GET", "/api/v1/workloads/{id}", self.workload),
            ("GET", "/api/v1/workloads/{id}/pods", self.pods_of),
            ("GET", "/api/v1/workloads/{id}/events", self.events_of),
            ("GET", "/api/v1/workloads/{id}/history", self.history_of),
        ]
        return [
            *(Route(path, _answering(handler), methods=[method]) for method, path, handler in open_routes),
            *(
                Route(path, _answering(self._known(handler)), methods=[method])
                for method, path, handler in own
            ),
        ]

    def _of_kind(self, kind: Kind) -> list[tuple[str, str, Handler]]:
        base = f"/api/v1/workloads/{kind}"

        def acting(act: Callable[[Workload], None]) -> Handler:
            async def handle(request: Request) -> Response:
                act(self._found(request, kind))
                return JSONResponse(ACCEPTED, 202)

            return handle

        async def create(request: Request) -> Response:
            return await self._create(request, kind)

        async def get(request: Request) -> Response:
            workload = self._found(request, kind)
            phase = workload.phase_at(time.time() - self._options.lag_s)
            return JSONResponse(views.own_view(workload, phase, self._cluster_id))

        return [
            ("POST", base, create),
            ("GET", f"{base}/{{id}}", get),
            ("DELETE", f"{base}/{{id}}", acting(self._workloads.delete)),
            ("POST", f"{base}/{{id}}/suspend", acting(self._workloads.suspend)),
            ("POST", f"{base}/{{id}}/resume", acting(self._workloads.resume)),
        ]

    # tokens

    async def token_v2(self, request: Request) -> Response:
        self._require_version("v2")
        form = dict(parse_qsl((await request.body()).decode()))
        if form.get("grant_type") != "client_credentials":
            return JSONResponse({"error": "unsupported_grant_type"}, 400)
        token = self._tokens.issue(form.get("client_id", ""), form.get("client_secret", ""))
        if token is None:
            text = "Client authentication failed"
            return JSONResponse({"error": "invalid_client", "error_description": text}, 401)
        lifetime = int(self._tokens.lifetime_s)
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": lifetime})

    async def token_v1(self, request: Request) -> Response:
        self._require_version("v1")
        # The control plane is written in Go, which reads names whatever their case.
        body = {name.lower(): str(value) for name, value in (await _json(request)).items()}
        names = {"app_token": ("appid", "appsecret"), "client_credentials": ("clientid", "clientsecret")}
        if body.get("granttype") not in names:
            raise bad_request("grantType is not supported")
        client, secret = (body.get(name, "") for name in names[body["granttype"]])
        token = self._tokens.issue(client, secret)
        if token is None:
            raise bad_request("Client authentication failed")
        return JSONResponse({"accessToken": token, "expiresIn": int(self._tokens.lifetime_s)})

    def _require_version(self, version: str) -> None:
        if version not in self._options.token_versions:
            raise Refusal(404, "page not found")

    def _known(self, handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            request.state.account = self._tokens.account_of(request.headers.get("authorization", ""))
            return await handler(request)

        return handle

    # the organisation

    async def clusters(self, _: Request) -> Response:
        status = {"state": "Connected"}
        return JSONResponse(
            [{"uuid": self._cluster_id, "name": "stand-in", "domain": self._url, "status": status}]
        )

    async def projects(self, request: Request) -> Response:
        opened = [
            views.project_view(project, self._cluster_id)
            for project in self._workloads.projects.values()
            if _may(request, project)
        ]
        return JSONResponse(
            filters.page(opened, request.query_params, ("id", "name", "clusterId"), "projects")
        )

    # workloads

    async def _create(self, request: Request, kind: Kind) -> Response:
        body = await _json(request)
        taken = self._workloads.names_in(str(body.get("projectId")))
        submission = submission_of(kind, body, taken)
        if (project := self._workloads.projects.get(submission.project_id)) and not _may(request, project):
            raise forbidden()
        try:
            workload = self._workloads.create(submission, request.state.account.client_id)
        except Refusal as refusal:
            if refusal.status == 409:
                raise Refusal(self._options.exists_status, refusal.body["message"]) from refusal
            raise
        return JSONResponse(views.own_view(workload, workload.phase, self._cluster_id), 202)

    async def workloads(self, request: Request) -> Response:
        gone = request.query_params.get("deleted") == "true"
        found = self._workloads.deleted() if gone else self._workloads.living()
        seen = [
            views.workload_view(each, each.phase, self._cluster_id, time.time())
            for each in found
            if _may(request, each.project)
        ]
        return JSONResponse(filters.page(seen, request.query_params, WORKLOAD_FIELDS, "workloads"))

    async def workload(self, request: Request) -> Response:
        workload = self._found(request)
        return JSONResponse(views.detailed_view(workload, workload.phase, self._cluster_id, time.time()))

    async def pods(self, request: Request) -> Response:
        found = [
            views.pod_view(workload, pod, self._cluster_id)
            for workload in self._workloads.living()
            if _may(request, workload.project)
            for pod in workload.pods
        ]
        return JSONResponse(filters.page(found, request.query_params, POD_FIELDS, "pods"))

    async def pods_of(self, request: Request) -> Response:
        workload = self._found(request)
        found = [views.pod_view(workload, pod, self._cluster_id) for pod in workload.pods]
        return JSONResponse(filters.page(found, request.query_params, POD_FIELDS, "pods"))

    async def events_of(self, request: Request) -> Response:
        return JSONResponse({"events": views.event_views(self._found(request))})

    async def history_of(self, request: Request) -> Response:
        return JSONResponse({"history": views.history_views(self._found(request))})

    def _found(self, request: Request, kind: Kind | None = None) -> Workload:
        workload = self._workloads.get(request.path_params["id"])
        if kind not in (None, workload.submission.kind):
            raise not_found()
        if not _may(request, workload.project):
            raise forbidden()
        return workload


class Faulty:
    """Applies faults to requests to the control plane, and records every request."""

    def __init__(self, app: ASGIApp, control: Control) -> None:
        self._app = app
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, status = scope["path"], 0

        async def noting(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        effect = NOTHING if path.startswith(CONTROL) else self._effect(scope)
        await asyncio.sleep(effect.latency_s)
        try:
            await _apply(self._app, effect, scope, receive, noting)
        except ClientDisconnect:
            pass
        finally:
            if not path.startswith(CONTROL):
                query = scope["query_string"].decode("latin-1")
                self._control.calls.append(
                    Call(scope["method"], f"{path}?{query}" if query else path, status)
                )

    def _effect(self, scope: Scope) -> Effect:
        return self._control.faults.decide(scope["method"], scope["raw_path"].decode("latin-1"), "")


async def _apply(app: ASGIApp, effect: Effect, scope: Scope, receive: Receive, send: Send) -> None:
    fault = effect.end
    if fault is None:
        await app(scope, receive, send)
    elif fault.status is not None:
        headers = {} if fault.retry_after_s is None else {"retry-after": str(fault.retry_after_s)}
        body = {"code": fault.status, "message": fault.message}
        await JSONResponse(body, fault.status, headers)(scope, receive, send)
    else:
        if fault.drop == "after":
            await app(scope, receive, _swallow)
        scope["ocidist.abort"]()


async def _swallow(_: Any) -> None:
    """Send nothing."""


def application(control: Control, plane: ControlPlane) -> Faulty:
    return Faulty(Starlette(routes=[*control.routes(), *plane.routes()]), control)


def _answering(handler: Handler) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except Refusal as refusal:
            return JSONResponse(refusal.body, refusal.status)

    return handle


async def _json(request: Request) -> Mapping[str, Any]:
    try:
        body = json.loads(await request.body() or b"{}")
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise bad_request("the body must be an object")
    return body


def _may(request: Request, project: Project) -> bool:
    projects = request.state.account.projects
    return projects is None or project.id in projects


def _project(workloads: Workloads, project_id: str) -> Project:
    project = workloads.projects.get(project_id)
    if project is None:
        raise not_found()
    return project
