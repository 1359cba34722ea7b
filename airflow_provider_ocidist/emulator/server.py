"""Emulator: start, stop, url; embedded in a test or standing alone."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import uvicorn

from airflow_provider_ocidist.emulator import private_files, temporary_folders, trees
from airflow_provider_ocidist.emulator.access import Access
from airflow_provider_ocidist.emulator.app import App, Services
from airflow_provider_ocidist.emulator.certificates import Authority
from airflow_provider_ocidist.emulator.connections import config_of, new_connection
from airflow_provider_ocidist.emulator.context import Context, Options
from airflow_provider_ocidist.emulator.errors import StartupError
from airflow_provider_ocidist.emulator.installation import Identifiers, Installation
from airflow_provider_ocidist.emulator.kubernetes.service import Kubernetes
from airflow_provider_ocidist.emulator.listening import LOOPBACK, check_host, is_loopback, listen, url_of
from airflow_provider_ocidist.emulator.loop_thread import LoopThread, until_started
from airflow_provider_ocidist.emulator.nodes.addresses import AddressPool
from airflow_provider_ocidist.emulator.proxy import Proxy
from airflow_provider_ocidist.emulator.runai.server import RunaiServer
from airflow_provider_ocidist.emulator.store import RecordStore

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class Emulator:
    """A local OCI. `with Emulator() as emulator: ... emulator.url ...`; stopping it ends all its nodes.

    `state` is the folder that survives; without one a fresh folder is used and removed at the end.
    A host that others could reach is refused unless `expose` is set, too.
    """

    def __init__(
        self,
        *,
        state: Path | None = None,
        host: str = LOOPBACK,
        port: int = 0,
        expose: bool = False,
        proxy_port: int = 0,
        options: Options | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._expose = expose
        self._proxy_port = proxy_port
        self._options = options or Options()
        self._temporary = state is None
        self.folder = (state or temporary_folders.new_place()).absolute()
        self._lock: int | None = None
        self._thread: LoopThread | None = None
        self._context: Context | None = None
        self._runai: RunaiServer | None = None
        self.kubernetes: Kubernetes | None = None
        """Cluster, if there is one; for tests that look inside."""

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
        access = Access.of(self._running())
        if self.kubernetes is None:
            return access
        return replace(
            access,
            runai=None if self._runai is None else asdict(self._runai.access),
            kubeconfig=str(self.kubernetes.kubeconfig),
            kubernetes_namespace=self.kubernetes.settings.namespace,
        )

    def _running(self) -> Context:
        if self._context is None:
            raise RuntimeError("the emulator is not running")
        return self._context

    def start(self) -> None:
        """Serve, in a thread. Returns when the first request would be answered. Raises StartupError."""
        with ExitStack() as cleanup:
            cleanup.callback(self._leave_folder)
            check_host(self._host, expose=self._expose, verify_signatures=self._options.verify_signatures)
            self._open_folder()
            listener = cleanup.enter_context(listen(self._host, self._port))
            proxy_host = self._host if is_loopback(self._host) else LOOPBACK
            proxy_listener = cleanup.enter_context(listen(proxy_host, self._proxy_port))
            cleanup.pop_all()
        thread = self._thread = LoopThread("ocidist-emulator", partial(self._serve, listener, proxy_listener))
        thread.start()
        if thread.failure is not None:
            self.stop()
            if isinstance(thread.failure, StartupError):
                raise thread.failure
            raise StartupError(
                f"the emulator cannot start in the state folder {self.folder}: {thread.failure or 'unknown'}; make"
                " room there if its disk is full, else remove the folder or give another"
            ) from thread.failure

    def stop(self) -> None:
        """End all nodes, then the server. May be called twice."""
        if self._thread is not None:
            self._thread.stop()
        self._thread = self._context = None
        self._leave_folder()

    def _open_folder(self) -> None:
        try:
            if self._temporary:
                temporary_folders.remove_abandoned()
                self._lock = temporary_folders.make(self.folder)
                return
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = temporary_folders.locked(self.folder)
        except BlockingIOError as error:
            raise StartupError(f"another emulator uses the state folder {self.folder}") from error
        except OSError as error:
            raise StartupError(f"the state folder {self.folder} cannot be used: {error.strerror}") from error

    def _leave_folder(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._temporary:
            trees.remove(self.folder)

    async def _serve(
        self,
        listener: socket.socket,
        proxy_listener: socket.socket,
        is_ready: Callable[[], None],
        ended: asyncio.Event,
    ) -> None:
        with listener, proxy_listener:
            await self._serve_on(listener, proxy_listener, is_ready, ended)

    async def _serve_on(
        self,
        listener: socket.socket,
        proxy_listener: socket.socket,
        is_ready: Callable[[], None],
        ended: asyncio.Event,
    ) -> None:
        authority = Authority.open(self.folder / "proxy")
        self._context = context = self._make_context(listener, proxy_listener, authority)
        pool, settings = AddressPool(seed=listener.getsockname()[1]), self._options.kubernetes
        kubernetes = None if settings is None else Kubernetes(context, settings, authority, pool)
        services = Services(context, pool, kubernetes)
        server = uvicorn.Server(config_of(App(context, services)))
        proxy = Proxy(authority, partial(new_connection, server), pass_through=self._options.pass_through)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            await until_started(server, serving)
            proxy.start(proxy_listener)
            if kubernetes is not None:
                await kubernetes.start()
                self.kubernetes = kubernetes
                if self._options.runai is not None:
                    # In a thread of its own, as it asks the cluster and waits for nothing here.
                    self._runai = RunaiServer(kubernetes.cluster, self._options.runai)
                    await asyncio.to_thread(self._runai.start)
            is_ready()
            await ended.wait()
        finally:
            if self._runai is not None:
                await asyncio.to_thread(self._runai.stop)
            # Nodes first: they hold connections that the server would wait for.
            await services.close()
            await proxy.close()
            server.should_exit = True
            await serving
            context.store.close()

    def _make_context(
        self, listener: socket.socket, proxy_listener: socket.socket, authority: Authority
    ) -> Context:
        return Context(
            folder=self.folder,
            url=url_of(listener),
            proxy_url=url_of(proxy_listener),
            ca_bundle=authority.bundle_file,
            ca_file=authority.bundle_file if self._options.pass_through else authority.ca_file,
            installation=Installation.open(self.folder),
            store=RecordStore(self.folder / "state.sqlite3"),
            options=self._options,
        )


def write_ready_file(path: Path, content: dict[str, Any]) -> None:
    try:
        private_files.write(path, json.dumps(content, indent=2).encode())
    except OSError as error:
        raise StartupError(f"the ready file {path} cannot be written: {error.strerror}") from error
