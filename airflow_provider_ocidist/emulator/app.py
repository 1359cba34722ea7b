"""The ASGI application: in one place, for all services, request ids, faults, signatures, routes, errors."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from airflow_provider_ocidist.emulator.auth import signatures
from airflow_provider_ocidist.emulator.bodies import FileAnswer
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.control import Control, Fault
from airflow_provider_ocidist.emulator.data_science.job_runs import JobRuns
from airflow_provider_ocidist.emulator.data_science.jobs import Jobs
from airflow_provider_ocidist.emulator.data_science.projects import Projects
from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.logs.service import Logs
from airflow_provider_ocidist.emulator.nodes.addresses import AddressPool
from airflow_provider_ocidist.emulator.object_storage.multipart import Multipart
from airflow_provider_ocidist.emulator.object_storage.service import Objects, ObjectStorage
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.vault import Vault
from airflow_provider_ocidist.emulator.wire import MAX_JSON_BYTES, Call, Route, Router, error_answer

ABORT = "ocidist.abort"
"""Where `server.py` puts the function that cuts a request's connection, in the ASGI scope."""
CUT_AFTER = "ocidist.cut_after"
"""How many bytes of the answer's body are sent before the connection is cut."""

logger = logging.getLogger(__name__)


class Dropped(Exception):
    """The connection was cut on purpose."""


class Services:
    """All services of one emulator, in the order in which they need one another."""

    def __init__(self, context: Context, pool: AddressPool) -> None:
        self.control = Control(context, self.reset)
        self.identity = Identity(context)
        self.vault = Vault(context)
        self.logs = Logs(context)
        self.retries = RetryTokens(context.store)
        self.projects = Projects(context, self.identity, self.retries)
        self.jobs = Jobs(context, self.identity, self.logs, self.projects, self.retries)
        self.job_runs = JobRuns(context, self.jobs, self.logs, self.retries, self.control.nodes, pool)
        self.objects = Objects(context)
        self.multipart = Multipart(context, self.objects)
        self.object_storage = ObjectStorage(context, self.identity, self.objects)
        self.objects.files.keep_only(self.objects.files_in_use() | self.multipart.files_in_use())

    def routes(self) -> list[Route]:
        services = (
            self.control,
            self.identity,
            self.vault,
            self.logs,
            self.projects,
            self.job_runs,
            self.jobs,
            self.multipart,
            self.object_storage,
        )
        return [route for service in services for route in service.routes()]

    async def reset(self) -> None:
        await self.job_runs.reset()
        for part in (
            self.jobs,
            self.projects,
            self.retries,
            self.logs,
            self.identity,
            self.object_storage,
            self.multipart,
            self.objects,
        ):
            part.reset()

    async def close(self) -> None:
        await self.job_runs.close()
        self.logs.close()


class App:
    """Answers requests, as ASGI."""

    def __init__(self, context: Context, services: Services) -> None:
        self._options = context.options
        self._verifier = context.installation.verifier()
        self._control = services.control
        self._router = Router(services.routes())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.time()
        request = Request(scope, receive)
        call = Call(
            request=request,
            request_id=request.headers.get("opc-request-id") or secrets.token_hex(16).upper(),
            raw_path=scope["raw_path"].decode("latin-1"),
        )
        try:
            response = await self._respond(call)
        except (Dropped, ClientDisconnect):
            self._record(call, 0, started)
            scope[ABORT]()
            return
        self._record(call, response.status_code, started)
        response.headers["opc-request-id"] = call.request_id
        await self._send(response, scope, receive, send)

    def _record(self, call: Call, status: int, started: float) -> None:
        """Remember what clients of the services do; who asks about it is none of them."""
        if not call.raw_path.startswith("/_emulator"):
            self._control.record(call, status, started)

    @staticmethod
    async def _send(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        cut = scope.get(CUT_AFTER)
        try:
            await response(scope, receive, send if cut is None else cut_after(send, cut))
        except Dropped:
            scope[ABORT]()

    async def _respond(self, call: Call) -> Response:
        """Return the answer to a request, whatever happens to it."""
        try:
            route, call.params = self._router.find(call.method, call.raw_path)
            fault = self._control.faults.find(call.method, call.raw_path) if route.signed else None
            if fault is None:
                return await self._serve(call, route)
            return await self._serve_badly(call, route, fault)
        except ApiError as error:
            return error_answer(error, head=call.method == "HEAD")
        except (Dropped, ClientDisconnect):
            raise
        except Exception as error:
            logger.exception("%s %s failed", call.method, call.raw_path)
            failure = ApiError(500, "InternalServerError", f"The emulator failed: {error}")
            return error_answer(failure, head=call.method == "HEAD")

    async def _serve(self, call: Call, route: Route) -> Response:
        if not route.signed and "origin" in call.headers:
            raise ApiError(403, "Forbidden", "Pages in a browser may not control the emulator.")
        if route.signed and self._options.verify_signatures:
            await self._authenticate(call, route)
        return await route.handler(call)

    async def _authenticate(self, call: Call, route: Route) -> None:
        """Set who signed; for a body that is read at once, compare it with its signed hash as well."""
        query = call.request.scope["query_string"].decode("latin-1")
        target = f"{call.raw_path}?{query}" if query else call.raw_path
        body_signed = call.method in ("POST", "PUT", "PATCH") and not route.streams
        call.principal = self._verifier.verify(call.method, target, call.headers, body_signed=body_signed)
        expected = call.headers.get("x-content-sha256")
        if body_signed:
            signatures.check_body(await _small_body(call), expected or "")
        elif route.streams and expected:
            call.check_chunks = partial(signatures.checked, expected=expected)

    async def _serve_badly(self, call: Call, route: Route, fault: Fault) -> Response:
        if fault.latency_s:
            await asyncio.sleep(fault.latency_s)
        if fault.drop == "before":
            raise Dropped
        if fault.status is not None:
            raise ApiError(fault.status, fault.code, fault.message)
        response = await self._serve(call, route)
        if fault.drop == "after":
            _discard(response)
            raise Dropped
        if fault.drop == "body":
            call.request.scope[CUT_AFTER] = fault.body_bytes
        return response


async def _small_body(call: Call) -> bytes:
    """Return a JSON body. Raises 413 before too much of it is read."""
    if int(call.headers.get("content-length") or 0) > MAX_JSON_BYTES:
        raise ApiError(413, "RequestEntityTooLarge", f"At most {MAX_JSON_BYTES} bytes are allowed here.")
    return await call.request.body()


def _discard(response: Response) -> None:
    if isinstance(response, FileAnswer):
        response.release()


def cut_after(send: Send, limit: int) -> Send:
    """Return a `send` that passes so many bytes of the body on, then cuts the connection."""
    left = limit

    async def send_some(message: Message) -> None:
        nonlocal left
        if message["type"] == "http.response.body":
            body = message.get("body", b"")[:left]
            left -= len(body)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            if not left:
                raise Dropped
            return
        await send(message)

    return send_some
