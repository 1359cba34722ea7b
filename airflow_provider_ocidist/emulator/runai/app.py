"""The ASGI application: tokens, faults, and every route of the control plane that the stand-in knows."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.faults import NOTHING, Effect, FaultRule
from airflow_provider_ocidist.emulator.faulty_app import FaultyApp, retry_after
from airflow_provider_ocidist.emulator.pacing import Dropped
from airflow_provider_ocidist.emulator.recorded_calls import recorded
from airflow_provider_ocidist.emulator.runai import filters, views
from airflow_provider_ocidist.emulator.runai.control import RunaiControl
from airflow_provider_ocidist.emulator.runai.refusals import ApiRefusal, bad_request, forbidden, not_found
from airflow_provider_ocidist.emulator.runai.submissions import Kind, submission_of
from airflow_provider_ocidist.emulator.runai.tokens import Tokens
from airflow_provider_ocidist.emulator.runai.workloads import Project, SubmittedWorkload, SubmittedWorkloads
from airflow_provider_ocidist.emulator.runai_settings import Account, RunaiSettings
from airflow_provider_ocidist.emulator.status_page import browser
from airflow_provider_ocidist.emulator.store import AS_OF
from airflow_provider_ocidist.emulator.wire import Call, Handler, Route, Router, answer

MAX_FORM_FIELDS = 100
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


logger = logging.getLogger(__name__)

AuthenticatedHandler = Callable[[Call, Account], Awaitable[Response]]


class ControlPlane:
    """The routes of Run:ai."""

    def __init__(
        self,
        workloads: SubmittedWorkloads,
        tokens: Tokens,
        options: RunaiSettings,
        *,
        cluster_id: str,
        url: str,
    ) -> None:
        self._workloads = workloads
        self._tokens = tokens
        self._options = options
        self._cluster_id = cluster_id
        self._url = url

    def routes(self) -> list[Route]:
        own: list[tuple[str, str, AuthenticatedHandler]] = [
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
            Route("POST", "/api/v2/token", self.token_v2, signed=False),
            Route("POST", "/api/v1/token", self.token_v1, signed=False),
            *(Route(method, path, self._authenticated(handler)) for method, path, handler in own),
        ]

    def _of_kind(self, kind: Kind) -> list[tuple[str, str, AuthenticatedHandler]]:
        base = f"/api/v1/workloads/{kind}"

        def acting(act: Callable[[SubmittedWorkload], None]) -> AuthenticatedHandler:
            async def handle(call: Call, account: Account) -> Response:
                act(self._found(call, account, kind))
                return answer(ACCEPTED, status=202)

            return handle

        async def create(call: Call, account: Account) -> Response:
            return await self._create(call, account, kind)

        async def get(call: Call, account: Account) -> Response:
            workload = self._found(call, account, kind)
            change = workload.change_at(now_or_before() - self._options.lag_s)
            return answer(views.own_view(workload, change.phase, self._cluster_id))

        return [
            ("POST", base, create),
            ("GET", f"{base}/{{id}}", get),
            ("DELETE", f"{base}/{{id}}", acting(self._workloads.delete)),
            ("POST", f"{base}/{{id}}/suspend", acting(self._workloads.suspend)),
            ("POST", f"{base}/{{id}}/resume", acting(self._workloads.resume)),
        ]

    # tokens

    async def token_v2(self, call: Call) -> Response:
        self._require_version("v2")
        try:
            form = dict(parse_qsl((await call.body()).decode("latin-1"), max_num_fields=MAX_FORM_FIELDS))
        except ValueError as error:
            return answer({"error": "invalid_request", "error_description": str(error)}, status=400)
        if form.get("grant_type") != "client_credentials":
            return answer({"error": "unsupported_grant_type"}, status=400)
        token = self._tokens.issue(form.get("client_id", ""), form.get("client_secret", ""))
        if token is None:
            text = "Client authentication failed"
            return answer({"error": "invalid_client", "error_description": text}, status=401)
        lifetime = int(self._tokens.lifetime_s)
        return answer({"access_token": token, "token_type": "Bearer", "expires_in": lifetime})

    async def token_v1(self, call: Call) -> Response:
        self._require_version("v1")
        # The control plane is written in Go, which reads names whatever their case.
        body = {name.lower(): str(value) for name, value in (await call.json()).items()}
        names = {"app_token": ("appid", "appsecret"), "client_credentials": ("clientid", "clientsecret")}
        if body.get("granttype") not in names:
            raise bad_request("grantType is not supported")
        client, secret = (body.get(name, "") for name in names[body["granttype"]])
        token = self._tokens.issue(client, secret)
        if token is None:
            raise bad_request("Client authentication failed")
        return answer({"accessToken": token, "expiresIn": int(self._tokens.lifetime_s)})

    def _require_version(self, version: str) -> None:
        if version not in self._options.token_versions:
            raise ApiRefusal(404, "page not found")

    def _authenticated(self, handler: AuthenticatedHandler) -> Handler:
        async def handle(call: Call) -> Response:
            return await handler(call, self._tokens.account_of(call.headers.get("authorization", "")))

        return handle

    # the organisation

    async def clusters(self, _: Call, __: Account) -> Response:
        status = {"state": "Connected"}
        return answer([{"uuid": self._cluster_id, "name": "stand-in", "domain": self._url, "status": status}])

    async def projects(self, call: Call, account: Account) -> Response:
        opened = [
            views.project_view(project, self._cluster_id, self._workloads.pools)
            for project in self._workloads.projects.values()
            if _may(account, project)
        ]
        return answer(filters.page(opened, call.query, ("id", "name", "clusterId"), "projects"))

    # workloads

    async def _create(self, call: Call, account: Account, kind: Kind) -> Response:
        body = await call.json()
        taken = self._workloads.names_in(str(body.get("projectId")))
        submission = submission_of(kind, body, taken)
        if (project := self._workloads.projects.get(submission.project_id)) and not _may(account, project):
            raise forbidden()
        try:
            workload = self._workloads.create(submission, account.client_id)
        except ApiRefusal as refusal:
            if refusal.status == 409:
                raise ApiRefusal(self._options.exists_status, refusal.body["message"]) from refusal
            raise
        return answer(views.own_view(workload, workload.phase, self._cluster_id), status=202)

    async def workloads(self, call: Call, account: Account) -> Response:
        gone, now = call.query.get("deleted") == "true", now_or_before()
        found = self._workloads.deleted(now) if gone else self._workloads.living(now)
        seen = [
            views.workload_view(
                each,
                each.change_at(now),
                self._cluster_id,
                now,
                with_variables=self._options.shows_variables,
            )
            for each in found
            if _may(account, each.project)
        ]
        return answer(filters.page(seen, call.query, WORKLOAD_FIELDS, "workloads"))

    async def workload(self, call: Call, account: Account) -> Response:
        workload = self._found(call, account)
        now = now_or_before()
        view = views.detailed_view(
            workload,
            workload.change_at(now),
            self._cluster_id,
            now,
            with_variables=self._options.shows_variables,
        )
        return answer(view)

    async def pods(self, call: Call, account: Account) -> Response:
        found = [
            views.pod_view(workload, pod, self._cluster_id)
            for workload in self._workloads.living()
            if _may(account, workload.project)
            for pod in workload.pods
        ]
        return answer(filters.page(found, call.query, POD_FIELDS, "pods"))

    async def pods_of(self, call: Call, account: Account) -> Response:
        workload = self._found(call, account)
        found = [views.pod_view(workload, pod, self._cluster_id) for pod in workload.pods]
        return answer(filters.page(found, call.query, POD_FIELDS, "pods"))

    async def events_of(self, call: Call, account: Account) -> Response:
        return answer({"events": views.event_views(self._found(call, account))})

    async def history_of(self, call: Call, account: Account) -> Response:
        return answer({"history": views.history_views(self._found(call, account))})

    def _found(self, call: Call, account: Account, kind: Kind | None = None) -> SubmittedWorkload:
        workload = self._workloads.get(call.params["id"], now_or_before())
        if kind not in (None, workload.submission.kind):
            raise not_found()
        if not _may(account, workload.project):
            raise forbidden()
        return workload


class ControlPlaneApp(FaultyApp[Call]):
    """Answers requests to the control plane, and to `/_emulator`."""

    def __init__(self, control: RunaiControl, plane: ControlPlane) -> None:
        self._control = control
        self._router = Router([*control.routes(), *plane.routes()])

    def call_of(self, scope: Scope, receive: Receive) -> Call:
        return Call(request=Request(scope, receive), raw_path=scope["raw_path"].decode("latin-1"))

    def effect(self, scope: Scope) -> Effect:
        path = scope["raw_path"].decode("latin-1")
        return NOTHING if browser.is_ours(path) else self._control.faults.decide(scope["method"], path, "")

    def record(self, call: Call, status: int, started: float) -> None:
        if not browser.is_ours(call.raw_path):
            self._control.calls.append(recorded(call.method, call.target, status, started))

    def refusal(self, call: Call, fault: FaultRule) -> Response:
        del call
        body = {"code": fault.status, "message": fault.message}
        return answer(body, status=fault.status or 500, headers=retry_after(fault))

    async def answer(self, call: Call, effect: Effect) -> Response:
        stale_s = effect.end.stale_s if effect.end else None
        if stale_s is not None and call.method == "GET":
            AS_OF.set(max(time.time() - stale_s, self._control.stale_since))
        try:
            return await self._serve(call)
        except ApiRefusal as refusal:
            return answer(refusal.body, status=refusal.status)
        except ApiError as error:
            return answer({"code": error.status, "message": error.message}, status=error.status)
        except (Dropped, ClientDisconnect):
            raise
        except Exception as error:
            logger.exception("%s %s failed", call.method, call.raw_path)
            return answer({"code": 500, "message": f"The emulator failed: {error}"}, status=500)

    async def _serve(self, call: Call) -> Response:
        route, call.params = self._router.find(call.method, call.raw_path)
        browser.check_user(call)
        if browser.is_ours(call.raw_path):
            browser.check(call)
        return await route.handler(call)


def now_or_before() -> float:
    """Return the time whose state a request is answered with."""
    as_of = AS_OF.get()
    return time.time() if as_of is None else as_of


def _may(account: Account, project: Project) -> bool:
    return account.projects is None or project.id in account.projects
