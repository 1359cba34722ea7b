"""Connections: the backends of all connections at which gangs of one task may be; they share its work directory."""

from __future__ import annotations

import threading
from collections.abc import Callable

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.errors import BackendError, Cause


class Connections:
    """The backend of a task's own connection, and those of others, each connected when it is needed first."""

    def __init__(
        self, first: Backend, connect: Callable[[str | None], Backend], named: str | None = None
    ) -> None:
        """`connect` returns the backend of another connection, by the task's work directory (`fields_beside`); of None,
        that of the task's own.

        Raises LookupError where there is no such connection, or one that gangs of this kind cannot use; BackendError
        where that may pass. `named`: the connection of `first`; None: the usual one.
        """
        self.named = named
        self._connect = connect
        self._lock = threading.Lock()
        self._found: dict[str | None, Backend] = {}
        self._join(first)

    def at(self, conn_id: str | None) -> Backend:
        """Return the backend of a connection; None: of the task's own. Raises BackendError."""
        if conn_id not in self._found:
            made = self._made(conn_id)
            with self._lock:
                # Two threads may have connected it.
                if conn_id not in self._found:
                    self._join(made)
        return self._found[conn_id]

    def connected(self) -> list[Backend]:
        """Return the backends that are connected now."""
        with self._lock:
            return list(self._found.values())

    def _made(self, conn_id: str | None) -> Backend:
        try:
            return self._connect(conn_id)
        except BackendError:
            raise
        except LookupError as error:
            raise BackendError(str(error.args[0]), cause=Cause.CONFIG) from error
        except Exception as error:
            raise BackendError(
                f"connection {conn_id or 'of the task'!r} cannot be read: {type(error).__name__}: {error}",
                retryable=True,
            ) from error

    def _join(self, backend: Backend) -> None:
        backend.connections = self
        # Records are written by the finder itself, whose tasks know no backend.
        backend.gangs.join(backend.conn_id, lambda conn_id: self.at(conn_id).gangs)
        self._found[backend.conn_id] = backend


def beside(backend: Backend, conn_id: str | None) -> Backend:
    """Return the backend of another connection of the same task. Raises BackendError where it cannot be had."""
    if conn_id == backend.conn_id:
        return backend
    if backend.connections is None:
        raise BackendError(
            f"connection {conn_id or 'of the task'!r} cannot be reached from here: name it as the connection of this "
            "command",
            cause=Cause.CONFIG,
        )
    return backend.connections.at(conn_id)


def named_for(backend: Backend) -> str | None:
    """Return the connection of the task, which a command has to name; None: the usual one, or it is not known."""
    return backend.connections.named if backend.connections else None


def is_connected(backend: Backend, conn_id: str | None) -> bool:
    """Whether `beside` returns the backend of a connection without reading that first."""
    others = backend.connections.connected() if backend.connections else []
    return any(each.conn_id == conn_id for each in (backend, *others))
