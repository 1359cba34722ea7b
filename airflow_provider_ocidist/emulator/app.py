"""The ASGI application: in one place, for all services, request ids, faults, signatures, routes, errors."""

from __future__ import annotations

import logging
import time
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from airflow_provider_ocidist.emulator import body_models
from airflow_provider_ocidist.emulator.auth import signatures
from airflow_provider_ocidist.emulator.auth.federation import Federation
from airflow_provider_ocidist.emulator.auth.metadata import Metadata
from airflow_provider_ocidist.emulator.auth.signatures import Verifier
from airflow_provider_ocidist.emulator.auth.users import TenancyUsers
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.control import HEALTH, Control
from airflow_provider_ocidist.emulator.data_science.service import DataScience
from airflow_provider_ocidist.emulator.data_science.storage_mounts import StorageMounts
from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.faults import NOTHING, Effect, FaultRule
from airflow_provider_ocidist.emulator.faulty_app import FaultyApp, retry_after
from airflow_provider_ocidist.emulator.file_systems import FileSystems
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.kubernetes.control import ClusterControl
from airflow_provider_ocidist.emulator.kubernetes.service import Kubernetes
from airflow_provider_ocidist.emulator.logs.service import Logs
from airflow_provider_ocidist.emulator.monitoring.service import Monitoring
from airflow_provider_ocidist.emulator.networks import Networks
from airflow_provider_ocidist.emulator.nodes.addresses import AddressPool
from airflow_provider_ocidist.emulator.object_storage.service import ObjectStorageService
from airflow_provider_ocidist.emulator.pacing import Dropped
from airflow_provider_ocidist.emulator.recorded_calls import hide_par
from airflow_provider_ocidist.emulator.resource_search import ResourceSearch
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.status_page import browser
from airflow_provider_ocidist.emulator.status_page.service import StatusPage
from airflow_provider_ocidist.emulator.status_page.training import TrainingView
from airflow_provider_ocidist.emulator.store import AS_OF
from airflow_provider_ocidist.emulator.vault.service import Vault
from airflow_provider_ocidist.emulator.wire import (
    Call,
    Route,
    Router,
    error_answer,
    request_id_of,
)

logger = logging.getLogger(__name__)


class Services:
    """All services of one emulator, in the order of their dependencies."""

    def __init__(self, context: Context, pool: AddressPool, kubernetes: Kubernetes | None = None) -> None:
        self.kubernetes = kubernetes
        self.control = Control(context, self.reset)
        self.users = TenancyUsers(context)
        self.federation = Federation(context)
        self.metadata = Metadata(context)
        self.identity = Identity(context)
        file_systems = FileSystems(context)
        self.networks = Networks(context, self.identity, file_systems)
        self.retries = RetryTokens(context.store)
        self.vault = Vault(context, self.identity, self.retries)
        self.monitoring = Monitoring(context, self.identity)
        self.logs = Logs(context, self.identity, self.retries)
        self.object_storage = ObjectStorageService(context, self.identity)
        mounts = StorageMounts(context, self.object_storage.catalog)
        self.data_science = DataScience(
            context, self.identity, self.logs, self.retries, self.control.nodes, pool, mounts
        )
        self.mounts = mounts
        having = (
            self.identity,
            self.networks,
            file_systems,
            self.logs,
            self.object_storage,
            self.data_science,
        )
        self.search = ResourceSearch([service.resources for service in having])

    def routes(self) -> list[Route]:
        services = (
            self.control,
            self.users,
            self.federation,
            self.metadata,
            self.identity,
            self.networks,
            self.search,
            self.monitoring,
            self.vault,
            self.logs,
            self.data_science,
            self.object_storage,
        )
        of_cluster = ClusterControl(self.kubernetes).routes() if self.kubernetes else []
        return [*of_cluster, *(route for service in services for route in service.routes())]

    async def reset(self) -> None:
        await self.data_science.reset()
        if self.kubernetes:
            await self.kubernetes.reset()
        for part in (
            self.retries,
            self.vault,
            self.monitoring,
            self.logs,
            self.users,
            self.identity,
            self.object_storage,
            self.mounts,
        ):
            part.reset()

    async def close(self) -> None:
        if self.kubernetes:
            await self.kubernetes.close()
        await self.data_science.close()
        self.object_storage.close()
        self.logs.close()


class App(FaultyApp[Call]):
    """Answers requests to OCI and to the emulator itself."""

    def __init__(self, context: Context, services: Services) -> None:
        self._options = context.options
        self._verifier = Verifier(context.installation.issuer.public_key(), services.users.credential)
        self._control = services.control
        routes = services.routes()
        jobs, runs = services.data_science.jobs, services.data_science.job_runs
        training = TrainingView(jobs.all, runs.all, runs.nodes)
        page = StatusPage(context, services.control, training, Router(routes))
        self._router = Router([*page.routes(), *routes])

    def call_of(self, scope: Scope, receive: Receive) -> Call:
        call = Call(request=Request(scope, receive), raw_path=scope["raw_path"].decode("latin-1"))
        call.request_id = request_id_of(call)
        return call

    def effect(self, scope: Scope) -> Effect:
        """Return the faults of a request to the services; requests to the emulator itself have none."""
        path = scope["raw_path"].decode("latin-1")
        if not self._control.faults or _is_ours(path):
            return NOTHING
        return self._control.faults.decide(scope["method"], path, _host(scope))

    def record(self, call: Call, status: int, started: float) -> None:
        """Record calls to the services; calls to the control API are not recorded."""
        if not _is_ours(call.raw_path):
            self._control.record(call, status, started)

    def finish(self, call: Call, response: Response) -> None:
        response.raw_headers.append((b"opc-request-id", call.request_id.encode("latin-1")))
        browser.confine(call, response)

    def refusal(self, call: Call, fault: FaultRule) -> Response:
        refused = ApiError(fault.status or 500, fault.code, fault.message, headers=retry_after(fault))
        return error_answer(refused, head=call.method == "HEAD")

    async def answer(self, call: Call, effect: Effect) -> Response:
        stale_s = effect.end.stale_s if effect.end else None
        if stale_s is not None and call.method == "GET":
            AS_OF.set(time.time() - stale_s)
        try:
            return await self._serve(call)
        except ApiError as error:
            return error_answer(error, head=call.method == "HEAD")
        except (Dropped, ClientDisconnect):
            raise
        except Exception as error:
            logger.exception("%s %s failed", call.method, hide_par(call.raw_path))
            failure = ApiError(500, "InternalServerError", f"The emulator failed: {error}")
            return error_answer(failure, head=call.method == "HEAD")

    async def _serve(self, call: Call) -> Response:
        route, call.params = self._router.find(call.method, call.raw_path)
        call.model = body_models.model_of(route.method, route.template)
        browser.check_user(call)
        if not route.signed:
            browser.check(call)
        elif self._options.verify_signatures and not (
            route.anonymous and "authorization" not in call.headers
        ):
            await self._authenticate(call, route)
        return await route.handler(call)

    async def _authenticate(self, call: Call, route: Route) -> None:
        """Set who signed; for a body that is read at once, compare it with its signed hash as well."""
        body_signed = call.method in ("POST", "PUT", "PATCH") and not route.streams
        call.principal = self._verifier.verify(
            call.method, call.target, call.headers, body_signed=body_signed
        )
        expected = call.headers.get("x-content-sha256")
        if body_signed:
            signatures.check_body(await call.body(), expected or "")
        elif route.streams and expected:
            call.check_chunks = partial(signatures.checked, expected=expected)


def _is_ours(path: str) -> bool:
    return browser.is_ours(path) or path == HEALTH


def _host(scope: Scope) -> str:
    host: bytes = next((value for name, value in scope["headers"] if name == b"host"), b"")
    return host.decode("latin-1").partition(":")[0]
