"""SharedConnection: one client, one backend and one poller for all triggers of a process that use a connection."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_provider_ocidist.backports import cached_property
from airflow_provider_ocidist.errors import BackendError, StorageError, service_error_in
from airflow_provider_ocidist.gangs.reconnection import RENEW_EVERY, read_again
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.model.homes import place_in
from airflow_provider_ocidist.triggers.threads import ask_airflow, in_thread, keep

# DAG files load this module with the triggers: what only a running trigger needs is imported where it is used.
if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.gangs.poller import Poller
    from airflow_provider_ocidist.gangs.task_log import TaskLog
    from airflow_provider_ocidist.storage.stores.base import Store
    from airflow_provider_ocidist.storage.stores.opening import Stores

log = logging.getLogger(__name__)

READ_LIMIT = 3.0
"""Seconds for which the looks at all gangs of a connection wait for its present fields: what was read before may do."""
READ_AGAIN_WITHIN = 10.0
"""Seconds for which a cancel that was refused waits for the connection's present fields, before it is repeated."""
FORGOTTEN_AFTER = 300.0
"""Seconds after which a question that Airflow has not answered is asked again, twice as many each time: an answer may
be lost, and each question that is left keeps a thread."""
KEPT_FOR = 300.0
"""Seconds after which a connection for storage is read again: it may have been edited."""

Found = TypeVar("Found")
Answer = TypeVar("Answer", "concurrent.futures.Future[None]", "asyncio.Task[None]")


@dataclass(frozen=True, slots=True)
class Question(Generic[Answer]):
    """A refresh, or a renewal, that Airflow was asked for."""

    answer: Answer
    asked_at: float
    """Time by the monotonic clock."""
    forgotten_after: float = FORGOTTEN_AFTER
    """Seconds after which it is asked again."""

    @property
    def is_forgotten(self) -> bool:
        """Whether it is asked again though it may still be answered."""
        return time.monotonic() - self.asked_at >= self.forgotten_after


class OpenedConnection:
    """A connection as it was at one moment; Object Storage is reached through one client."""

    def __init__(self, conn_id: str, kind: str | None = None, gangs_conn_id: str | None = None) -> None:
        self.hook = OciHook(conn_id, kind=kind, gangs_conn_id=gangs_conn_id)
        self.made_at = time.monotonic()

    def store(self, uri: str) -> Store:
        """Return the store at a URI. Raises StorageError."""
        from airflow_provider_ocidist.storage.stores.opening import open_store

        return self._stores.open(uri) if uri.startswith("oci://") else open_store(uri)

    @cached_property
    def _stores(self) -> Stores:
        from airflow_provider_ocidist.storage.stores.opening import Stores

        return Stores(self.hook.access)


class SharedConnection:
    """A connection for all triggers of a process that name it: for storage, or for gangs of one kind of backend.

    Creating a client at every look would cost 0.9 MB, a handshake, and a key check that blocks the triggerer.
    """

    def __init__(self, conn_id: str, kind: str | None = None, gangs_conn_id: str | None = None) -> None:
        """`kind`: of the backend; None: for storage alone. `gangs_conn_id`: as for `OciHook`."""
        self.conn_id = conn_id
        self.kind = kind
        self.gangs_conn_id = gangs_conn_id
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened: OpenedConnection | None = None
        self._backend: Backend | None = None
        self._poller: Poller | None = None
        self._renewal: Question[asyncio.Task[None]] | None = None
        self._questions: dict[bool, Question[concurrent.futures.Future[None]]] = {}
        """The last refresh, by whether it was anew: while Airflow hangs, there is one."""

    # for storage

    def use(self, work: Callable[[OpenedConnection], Found]) -> Found:
        """Return the result of `work`; after a refusal, retry once with the connection as it is now. Blocks."""
        opened = self._kept()
        try:
            return work(opened)
        except (BackendError, StorageError) as error:
            if not is_refusal(error) or time.monotonic() - opened.made_at < RENEW_EVERY:
                raise
        return work(self._instead_of(opened))

    def _kept(self) -> OpenedConnection:
        with self._lock:
            if self._opened is None or time.monotonic() - self._opened.made_at >= KEPT_FOR:
                self._opened = self._anew()
            return self._opened

    def _instead_of(self, refused: OpenedConnection) -> OpenedConnection:
        with self._lock:
            if self._opened is None or self._opened is refused:
                self._opened = self._anew()
            return self._opened

    def _anew(self) -> OpenedConnection:
        return OpenedConnection(self.conn_id, self.kind, self.gangs_conn_id)

    # for gangs

    async def open(self) -> Poller:
        """Return the poller of this connection, ready to follow gangs."""
        self._loop = asyncio.get_running_loop()
        if self._poller is None:
            await in_thread(self._open, place=self)
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
                opened = self._anew()
                self._backend, self._opened = opened.hook.backend(), opened
            return self._backend

    async def at_once(self, *, anew: bool) -> Backend:
        """Return a backend without waiting for other callers that are opening the connection; `anew`: read it again.

        A connection that is open is not waited for longer than `READ_AGAIN_WITHIN`: what was read before may do.
        """
        backend = self._backend
        if backend is None:
            made: Backend = await ask_airflow(self._made_at_once, ends_a_gang=True)
            return made
        if anew:
            await asyncio.wait({self._renewing()}, timeout=READ_AGAIN_WITHIN)
        return backend

    def _made_at_once(self) -> Backend:
        return self._anew().hook.backend()

    def _renewing(self) -> asyncio.Task[None]:
        """Return the one renewal that is under way, for all whose cancels were refused; another where it is lost."""
        last = self._renewal
        if last is None or last.answer.done():
            self._renewal = Question(self._asked_anew(), time.monotonic())
        elif last.is_forgotten:
            self._renewal = Question(self._asked_anew(), time.monotonic(), 2 * last.forgotten_after)
        assert self._renewal is not None
        return self._renewal.answer

    def _asked_anew(self) -> asyncio.Task[None]:
        # A cancel waits for it, which was refused.
        return keep(ask_airflow(self._renew, ends_a_gang=True))

    def _renew(self) -> None:
        read_again(lambda: self.reconnect(anew=True), log.warning)

    def reconnect(self, *, anew: bool) -> None:
        """Let the backend use the connection as it is now; `anew`: even if its fields are the same. Blocks."""
        opened = self._anew()
        fields = opened.hook.fields
        # Only now: what was not read is not the connection that the backend uses.
        before = self._opened
        if before is not None and opened.made_at < before.made_at:
            # Another question was asked after this one, and answered before it.
            return
        if anew or before is None or fields != before.hook.fields:
            self._opened = opened
            self.backend.reconnect(fields)

    def refresh(self, *, anew: bool) -> None:
        """See `reconnect`; for the one thread that looks at the gangs, in which Airflow does not return connections.

        What Airflow does not answer in `READ_LIMIT` counts once it is answered. Raises BackendError until then.
        """
        question, patience = self._questions.get(anew), 0.0
        if question is None or question.answer.done():
            question, patience = self._ask(anew=anew), READ_LIMIT
        elif question.is_forgotten:
            again = 2 * question.forgotten_after
            question, patience = self._ask(anew=anew, forgotten_after=again), READ_LIMIT
        self._questions[anew] = question
        done, _ = concurrent.futures.wait({question.answer}, patience)
        if not done:
            raise BackendError(
                f"Airflow does not answer when it is asked for the connection {self.conn_id}", retryable=True
            )
        question.answer.result()

    def _ask(
        self, *, anew: bool, forgotten_after: float = FORGOTTEN_AFTER
    ) -> Question[concurrent.futures.Future[None]]:
        assert self._loop is not None
        reading = ask_airflow(lambda: self.reconnect(anew=anew))
        answer = asyncio.run_coroutine_threadsafe(reading, self._loop)
        return Question(answer, time.monotonic(), forgotten_after)

    def _open(self) -> None:
        from airflow_provider_ocidist.gangs.poller import Poller

        self.connect()
        with self._lock:
            self._poller = self._poller or Poller(self)


def is_refusal(error: BaseException) -> bool:
    """Whether OCI has refused so that asking again cannot help."""
    refusal = service_error_in(error)
    return refusal is not None and not refusal.retryable


_connections: dict[tuple[str, ...], SharedConnection] = {}


def shared_storage(conn_id: str) -> SharedConnection:
    """Return this process's connection for storage."""
    return _connections.setdefault((conn_id,), SharedConnection(conn_id))


def shared_connection(
    conn_id: str, kind: str, place: tuple[str, ...] = (), gangs_conn_id: str | None = None
) -> SharedConnection:
    """Return this process's connection for gangs in one place; `gangs_conn_id`: as for `OciHook`.

    An edited connection may name another place for new gangs while triggers still wait for those in the old one.
    """
    made = SharedConnection(conn_id, kind, gangs_conn_id)
    return _connections.setdefault((conn_id, kind, gangs_conn_id or "", *place), made)


def location_of(kind: str, job_id: str, compartment_id: str | None) -> tuple[str, ...]:
    """Return the compartment of a gang, after the realm and the region if ids of its home name them."""
    return (*place_in(kind, job_id), compartment_id or "")


class LogOf:
    """A logger that writes to the log of its creator's task, from any thread.

    Airflow identifies the task of a trigger by context variables. Each line is written in a copy of them, since no
    two threads can be in one context at a time.
    """

    __slots__ = ("_context", "_logger")

    def __init__(self, logger: TaskLog) -> None:
        self._logger = logger
        self._context = contextvars.copy_context()

    def info(self, msg: Any, /, *args: Any, **fields: Any) -> None:
        self._context.copy().run(self._logger.info, msg, *args, **fields)

    def warning(self, msg: Any, /, *args: Any, **fields: Any) -> None:
        self._context.copy().run(self._logger.warning, msg, *args, **fields)

    def error(self, msg: Any, /, *args: Any, **fields: Any) -> None:
        self._context.copy().run(self._logger.error, msg, *args, **fields)
