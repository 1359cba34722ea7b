"""Connections: uvicorn's handling of each, with our limits and error answers."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from airflow_provider_ocidist.emulator.listening import HEAD_S
from airflow_provider_ocidist.emulator.wire import encode_json, new_request_id

ABORT = "ocidist.abort"
"""Key in the ASGI scope of the function that cuts a request's connection."""
KEEP_ALIVE_S = 75
"""Seconds that an idle connection stays open, longer than clients pause between polls: one that closes under a request
costs them a retry."""
SHUTDOWN_S = 1
MAX_HEAD_BYTES = 256 * 1024
"""Most bytes in a row, besides bodies, from a client: a request's head, trailers, the lengths of chunks."""
MAX_JOINED_BYTES = 64 * 1024
"""Bytes up to which copying is cheaper than another system call."""


class Corked:
    """A transport that sends the head of an answer together with its body: one packet, one call of the system."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.abort = transport.abort

    def write(self, data: bytes) -> None:
        joins = len(data) < MAX_JOINED_BYTES
        if joins and not self._held:
            self._held = data
            # When nothing follows at once, as after "100 Continue".
            self._loop.call_soon(self.flush)
            return
        if joins:
            data = b"".join((self._held, data))
            self._held = b""
        else:
            self.flush()
        self._transport.write(data)

    def flush(self) -> None:
        if self._held:
            self._transport.write(self._held)
            self._held = b""

    def close(self) -> None:
        self.flush()
        self._transport.close()


class RefusalMaker(Protocol):
    """Makes the body of an answer to what is no request, in the form of a door's API."""

    def __call__(self, status: int, message: str) -> dict[str, Any]: ...


def _as_oci(status: int, message: str) -> dict[str, Any]:
    return {"code": "InvalidRequest" if status == 400 else "RequestHeaderFieldsTooLarge", "message": message}


class Connection(HttpToolsProtocol):
    """A connection that can be cut by the application, for injected faults."""

    def __init__(self, *args: Any, refusal: RefusalMaker = _as_oci, **options: Any) -> None:
        super().__init__(*args, **options)
        self._refusal = refusal
        # Whatever logging this process has: `/_emulator/calls` lists the calls.
        self.access_log = False
        self._head_limit: asyncio.TimerHandle | None = None
        self._bytes_without_body = 0
        self._in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(cast("asyncio.Transport", Corked(transport, self.loop)))
        # A silent new connection is treated as an idle one.
        self.timeout_keep_alive_task = self.loop.call_later(KEEP_ALIVE_S, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._bytes_without_body += len(data)
        super().data_received(data)
        if self._bytes_without_body > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"At most {MAX_HEAD_BYTES} bytes of headers are read.")

    def on_body(self, body: bytes) -> None:
        self._bytes_without_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_without_body = 0
        self._in_body = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, f"{msg} The bytes sent are not HTTP/1.1.")

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is no request, or breaks off in its body, as the API of this door answers, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or self.pipeline:
                self.transport.abort()
                return
            # The application has not answered yet; its later answer is dropped.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        elif self._in_body:
            self.transport.close()  # it was answered before its body broke off
            return
        body = encode_json(self._refusal(status, message))
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"opc-request-id: {new_request_id()}",
            "connection: close",
        )
        self.transport.write("\r\n".join([*head, "", body]).encode())
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[ABORT] = self.transport.abort
        self._head_limit = self.loop.call_later(HEAD_S, self.transport.abort)

    def on_headers_complete(self) -> None:
        self._head_is_here()
        super().on_headers_complete()  # raises where the head cannot be used
        self._in_body = True

    def _head_is_here(self) -> None:
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None


def config_of(
    app: ASGIApp, tls: ssl.SSLContext | None = None, *, refusal: RefusalMaker = _as_oci
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=cast("type[Connection]", partial(Connection, refusal=refusal)),
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        ssl_context_factory=None if tls is None else lambda *_: tls,
    )


def new_connection(server: uvicorn.Server) -> Connection:
    """Return what uvicorn makes for each connection, for one that came another way."""
    return Connection(config=server.config, server_state=server.server_state, app_state=server.lifespan.state)
