"""Emulator: start, stop, url; embedded in a test or standing alone."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import shutil
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from airflow_provider_ocidist.emulator.app import ABORT, App, Services
from airflow_provider_ocidist.emulator.context import Context, Options
from airflow_provider_ocidist.emulator.errors import StartupError
from airflow_provider_ocidist.emulator.installation import PROFILE, Identifiers, Installation
from airflow_provider_ocidist.emulator.nodes.addresses import AddressPool, is_loopback
from airflow_provider_ocidist.emulator.store import Store

KEEP_ALIVE_S = 75
"""Longer than clients pause between polls: a connection that closes under a request costs them a retry."""
SHUTDOWN_S = 1

logger = logging.getLogger(__name__)


class Connection(HttpToolsProtocol):
    """A connection that can be cut by the application, for injected faults."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Whatever logging this process has: `/_emulator/calls` tells what was asked.
        self.access_log = False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[ABORT] = self.transport.abort


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """All that a client needs to know of a running emulator; what `--ready` writes."""

    url: str
    config_file: str
    profile: str
    region: str
    tenancy_id: str
    namespace: str
    bucket: str
    compartment_id: str
    project_id: str
    subnet_id: str
    log_group_id: str
    log_id: str
    secret_id: str
    secret_value: str


class Emulator:
    """A local OCI. `with Emulator() as emulator: ... emulator.url ...`; stopping it ends all its nodes.

    `state` is the folder that survives; without one a fresh folder is used and removed at the end.
    """

    def __init__(
        self,
        *,
        state: Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        options: Options | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._options = options or Options()
        self._temporary = state is None
        self.folder = (
            state or Path(tempfile.gettempdir()) / f"ocidist-emulator-{uuid.uuid4().hex}"
        ).absolute()
        self._lock: int | None = None
        self._end: Callable[[], object] | None = None
        self._thread: threading.Thread | None = None
        self._context: Context | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return self._running().url

    @property
    def ids(self) -> Identifiers:
        return self._running().ids

    @property
    def config_file(self) -> Path:
        return self._running().installation.config_file

    @property
    def access(self) -> Access:
        ids = self.ids
        return Access(
            url=self.url,
            config_file=str(self.config_file),
            profile=PROFILE,
            region=ids.region,
            tenancy_id=ids.tenancy_id,
            namespace=ids.namespace,
            bucket=ids.bucket,
            compartment_id=ids.compartment_id,
            project_id=ids.project_id,
            subnet_id=ids.subnet_id,
            log_group_id=ids.log_group_id,
            log_id=ids.log_id,
            secret_id=ids.secret_id,
            secret_value=ids.secret_value,
        )

    def _running(self) -> Context:
        if self._context is None:
            raise RuntimeError("the emulator is not running")
        return self._context

    def start(self) -> None:
        """Serve, in a thread. Returns when the first request would be answered. Raises StartupError."""
        try:
            self._open_folder()
            listener = listen(self._host, self._port)
        except BaseException:
            self._leave_folder()
            raise
        ready = threading.Event()
        # A daemon, so that a program which forgets stop() ends; its nodes then end with it.
        self._thread = threading.Thread(
            target=self._run, args=(listener, ready), name="ocidist-emulator", daemon=True
        )
        self._thread.start()
        ready.wait()
        if self._failure is not None:
            self.stop()
            raise StartupError(f"the emulator cannot start: {self._failure}") from self._failure

    def stop(self) -> None:
        """End all nodes, then the server. May be called twice."""
        if self._end is not None:
            # The loop is closed already when the server failed.
            with suppress(RuntimeError):
                self._end()
        if self._thread is not None:
            self._thread.join()
        self._thread = self._end = self._context = None
        self._leave_folder()

    def _open_folder(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StartupError(f"another emulator uses the state folder {self.folder}") from error
        except OSError as error:
            raise StartupError(f"the state folder {self.folder} cannot be used: {error.strerror}") from error

    def _leave_folder(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, listener: socket.socket, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(listener, ready))
        except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits in start()
            self._failure = error
        finally:
            listener.close()
            ready.set()

    async def _serve(self, listener: socket.socket, ready: threading.Event) -> None:
        self._context = context = self._make_context(listener)
        services = Services(context, AddressPool(seed=listener.getsockname()[1]))
        server = uvicorn.Server(config_of(App(context, services)))
        ended = asyncio.Event()
        self._end = partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            await _until_started(server, serving)
            ready.set()
            await ended.wait()
        finally:
            # Nodes first: they hold connections that the server would wait for.
            await services.close()
            server.should_exit = True
            await serving
            context.store.close()

    def _make_context(self, listener: socket.socket) -> Context:
        host, port = listener.getsockname()
        return Context(
            folder=self.folder,
            url=f"http://{host}:{port}",
            installation=Installation.open(self.folder),
            store=Store(self.folder / "state.sqlite3"),
            options=self._options,
        )


async def _until_started(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn offers no event
        await asyncio.sleep(0.005)


def config_of(app: App) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
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
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket on loopback. Raises StartupError, also for a host that others could reach."""
    if not is_loopback(host):
        raise StartupError(f"{host} is not a loopback address, and the emulator serves this machine only")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit it: answers are small, and waiting to fill a packet only delays them.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise StartupError(f"port {port} on {host} cannot be used: {error}") from error
    return listener


def write_ready_file(path: Path, content: dict[str, Any]) -> None:
    """Write the file at once: who waits for it never sees half of it, nor one that others may read."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(content, file, indent=2)
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink()
        raise StartupError(f"the ready file {path} cannot be written: {error.strerror}") from error
