"""SharedConnection: one backend and one poller for all triggers of a process that use a connection."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.triggers.threads import in_thread

# Imports that only a running trigger needs are made there, as in operators.py.
if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.gangs.poller import Poller
    from airflow_provider_ocidist.gangs.watch import TaskLog

log = logging.getLogger(__name__)

READ_LIMIT = 60.0
"""Seconds that Airflow has to return a connection's fields."""


class SharedConnection:
    """A connection of type `oci` for backends of one kind."""

    def __init__(self, conn_id: str, kind: str) -> None:
        self.conn_id = conn_id
        self.kind = kind
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fields: Mapping[str, Any] = {}
        self._backend: Backend | None = None
        self._poller: Poller | None = None

    async def open(self) -> Poller:
        """Return the poller of this connection, ready to follow gangs."""
        self._loop = asyncio.get_running_loop()
        if self._poller is None:
            await in_thread(self._open)
        assert self._poller is not None
        return self._poller

    @property
    def backend(self) -> Backend:
        """The backend; the connection must be open."""
        assert self._backend is not None
        return self._backend

    def connect(self) -> Backend:
        """Return the backend. Blocks."""
        with self._lock:
            if self._backend is None:
                from airflow_provider_ocidist.hooks.oci import OciHook

                hook = OciHook(self.conn_id, kind=self.kind)
                self._fields, self._backend = hook.fields, hook.backend()
            return self._backend

    def at_once(self, *, anew: bool) -> Backend:
        """Return a backend without waiting for other callers that are opening the connection; `anew`: read it again.

        Blocks while Airflow returns the connection, if it is not open yet.
        """
        from airflow_provider_ocidist.hooks.oci import OciHook

        backend = self._backend
        if backend is None:
            return OciHook(self.conn_id, kind=self.kind).backend()
        if anew:
            try:
                self.reconnect(anew=True)
            except Exception as error:  # noqa: BLE001 - Airflow's or the network's; the old connection may still do
                log.warning("the connection could not be read again: %s", error)
        return backend

    def reconnect(self, *, anew: bool) -> None:
        """Let the backend use the connection as it is now; `anew`: even if its fields are the same. Blocks."""
        from airflow_provider_ocidist.hooks.oci import OciHook

        fields = OciHook(self.conn_id, kind=self.kind).fields
        if anew or fields != self._fields:
            self._fields = fields
            self.backend.reconnect(fields)

    def refresh(self, *, anew: bool) -> None:
        """See `reconnect`; for threads in which Airflow does not return connections."""
        assert self._loop is not None
        reconnecting = in_thread(lambda: self.reconnect(anew=anew))
        asyncio.run_coroutine_threadsafe(reconnecting, self._loop).result(READ_LIMIT)

    def _open(self) -> None:
        from airflow_provider_ocidist.gangs.poller import Poller

        self.connect()
        with self._lock:
            self._poller = self._poller or Poller(self)


_connections: dict[tuple[str, ...], SharedConnection] = {}


def shared_connection(conn_id: str, kind: str, place: tuple[str, ...] = ()) -> SharedConnection:
    """Return this process's connection for gangs in one place.

    An edited connection may name another place for new gangs while triggers still wait for those in the old one.
    """
    return _connections.setdefault((conn_id, kind, *place), SharedConnection(conn_id, kind))


def location_of(job_id: str, compartment_id: str | None) -> tuple[str, ...]:
    """Return the realm, region and compartment of a gang: an OCID names its realm and region."""
    return (*job_id.split(".")[2:4], compartment_id or "")


class LogOf:
    """A logger that writes to the log of its creator's task, from any thread.

    Airflow identifies the task of a trigger by context variables. Each line is written in a copy of them, since no
    two threads can be in one context at a time.
    """

    def __init__(self, logger: TaskLog) -> None:
        self._logger = logger
        self._context = contextvars.copy_context()

    def info(self, msg: Any, /, *args: Any, **fields: Any) -> None:
        self._context.copy().run(self._logger.info, msg, *args, **fields)

    def warning(self, msg: Any, /, *args: Any, **fields: Any) -> None:
        self._context.copy().run(self._logger.warning, msg, *args, **fields)
