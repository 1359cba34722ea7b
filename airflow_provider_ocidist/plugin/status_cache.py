"""Status cache: the states of watched gangs, requested once for all viewers."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import OpensById, ReplacesNodes, secrets_of_gang
from airflow_provider_ocidist.errors import Cause, OcidistError, RunNotFound
from airflow_provider_ocidist.gangs.pace import Pace
from airflow_provider_ocidist.hooks.links import JobRunLink, links_of_run
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.model.masking import masked_text
from airflow_provider_ocidist.model.run import RunKey, RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.plugin.checkpoint_list import CheckpointList, FoundCheckpoints
from airflow_provider_ocidist.plugin.log_tail import LogTail, log_tail_of
from airflow_provider_ocidist.plugin.records import in_bucket, is_below

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K")

RUNNING_FRESH = 2.0
"""Seconds for which all requests share a look."""
ENDED_FRESH = 60.0
"""Seconds for which a look at a gang that has ended is shared."""
CHECKPOINTS_FRESH = 10.0
"""Seconds for which a list of the checkpoints of a gang that runs is shared."""
PATIENCE = 10.0
"""Seconds that a browser waits for the service; then it gets the previous state."""
LIST_PATIENCE = 2.0
"""Seconds that a browser waits for the first list of the checkpoints, and for that of an ended gang."""
CONNECTION_FRESH = 600.0
"""Seconds after which a connection is read again, so that its correction needs no restart of the API server."""
THREADS = 4
"""Most threads of the API server that wait for the service of one connection, and as many for its lists of checkpoints:
where it does not answer, each keeps its thread for minutes."""
IDLE = 60.0
"""Seconds after the last request for a connection until its threads end."""
MOST_REMEMBERED = 100
"""Most gangs, most nodes with their last lines, and most connections with their threads, that are kept; the least
recently used are dropped. Threads that are dropped end with their last call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A gang as it was at one moment; times are Unix times, in seconds."""

    at: float | None = None
    """Unix time at which the status was read; None: not yet."""
    status: RunStatus | None = None
    record: RunRecord | None = None
    """Record as the service returns it, with the limits and expectations of its job."""
    remaining: float | None = None
    """Seconds until the last step, by the pace."""
    steps_per_second: float | None = None
    checkpoints: FoundCheckpoints = field(default_factory=FoundCheckpoints)
    is_listing: bool = False
    """Whether the checkpoints may have changed since they were listed: a list is under way, or due."""
    console_url: str | None = None
    """Address of the main run's page in the OCI console, or at the emulator; None where its home has none."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Secrets that its nodes got, and may print."""
    problem: str | None = None
    """Reason why there is no newer status."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """A gang as the service returns it, which a forged XCom cannot change."""

    record: RunRecord
    secrets: frozenset[str] = field(repr=False)


class _Shared(Generic[T]):
    """An answer that one request fetches for many; used from one event loop."""

    def __init__(self, value: T) -> None:
        self.value = value
        self._answered_at = float("-inf")
        self._running: asyncio.Future[T] | None = None

    async def get(self, fresh: float, threads: Executor, work: Callable[[], T]) -> T:
        """Return the answer, at most so many seconds old. Raises TimeoutError; a later answer is still kept."""
        if time.monotonic() - self._answered_at < fresh:
            return self.value
        return await asyncio.wait_for(asyncio.shield(self.begin(threads, work)), PATIENCE)

    def begin(self, threads: Executor, work: Callable[[], T]) -> asyncio.Future[T]:
        """Return the request that is under way; a new one if there is none."""
        if self._running is None:
            self._running = asyncio.get_running_loop().run_in_executor(threads, work)
            self._running.add_done_callback(self._take)
        return self._running

    async def wait(self, seconds: float) -> None:
        """Wait so long at most for the request that is under way."""
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=seconds)

    @property
    def is_under_way(self) -> bool:
        return self._running is not None

    @property
    def is_answered(self) -> bool:
        """Whether there has been an answer."""
        return self._answered_at > float("-inf")

    def _take(self, done: asyncio.Future[T]) -> None:
        self._running = None
        if not done.cancelled() and done.exception() is None:
            self.value, self._answered_at = done.result(), time.monotonic()


@dataclass(slots=True)
class _Watched:
    """A requested gang."""

    answer: _Shared[Snapshot] = field(default_factory=lambda: _Shared(Snapshot()))
    pace: Pace = field(default_factory=Pace)
    looked_at: float = float("-inf")
    """Time of the last state, by the monotonic clock."""
    checkpoints: CheckpointList = field(default_factory=CheckpointList)
    listed: _Shared[FoundCheckpoints] = field(default_factory=lambda: _Shared(FoundCheckpoints()))
    listed_at: float = float("-inf")
    """Time at which the last list was begun, by the same clock."""

    def list_is_due(self, *, ended: bool) -> bool:
        """Whether to list the checkpoints again: for a gang that has ended once after each look."""
        if ended:
            return self.listed_at < self.looked_at
        return time.monotonic() - self.listed_at >= CHECKPOINTS_FRESH


class _Threads(ThreadPoolExecutor):
    """The threads of one connection; used from one event loop."""

    def __init__(self) -> None:
        super().__init__(THREADS, "ocidist-page")
        self.used_at = time.monotonic()
        self._under_way: set[Future[Any]] = set()

    def submit(self, work: Callable[..., T], /, *args: Any, **named: Any) -> Future[T]:
        call = super().submit(work, *args, **named)
        self._under_way.add(call)
        call.add_done_callback(self._under_way.discard)
        return call

    @property
    def is_idle(self) -> bool:
        return not self._under_way and time.monotonic() - self.used_at >= IDLE


class StatusCache:
    """Requests states in threads of its own; used from one event loop."""

    def __init__(self, connect: Callable[[str], OciHook] = OciHook) -> None:
        self._connect = connect
        self._threads: OrderedDict[tuple[str, str], _Threads] = OrderedDict()
        self._listing_threads: OrderedDict[tuple[str, str], _Threads] = OrderedDict()
        self._watched: OrderedDict[tuple[str, RunKey, str], _Watched] = OrderedDict()
        self._tails: OrderedDict[tuple[str, RunKey, str, int], _Shared[LogTail]] = OrderedDict()
        self._gangs: OrderedDict[tuple[str, str, str, str], _Known] = OrderedDict()
        self._lock = threading.Lock()
        self._connected: dict[tuple[str, str, str], tuple[float, OciHook, Backend]] = {}

    async def at(self, conn_id: str, ref: RunRef) -> Snapshot:
        """Return the state of a gang, at most two seconds old if the service answers; never raises."""
        watched = _remembered(self._watched, (conn_id, ref.key, ref.job_id), _Watched)
        return await self._with_checkpoints(conn_id, await self._seen(conn_id, ref, watched), watched)

    async def _seen(self, conn_id: str, ref: RunRef, watched: _Watched) -> Snapshot:
        known = watched.answer.value
        ended = known.status is not None and known.status.ended and not known.problem
        try:
            return await watched.answer.get(
                ENDED_FRESH if ended else RUNNING_FRESH,
                self._threads_for(conn_id, ref, self._threads),
                lambda: self._look(conn_id, ref, watched),
            )
        except asyncio.TimeoutError:
            return replace(known, problem=f"the service has not answered for {PATIENCE:.0f} s")

    async def _with_checkpoints(self, conn_id: str, seen: Snapshot, watched: _Watched) -> Snapshot:
        """Add the last list of the checkpoints. A new one is made beside the looks: it may take minutes."""
        if seen.record is None or seen.status is None or seen.record.ref.checkpoints_uri is None:
            return seen
        ref, listed, ended = seen.record.ref, watched.listed, seen.status.ended
        if not listed.is_under_way and not seen.problem and watched.list_is_due(ended=ended):
            watched.listed_at = time.monotonic()
            threads = self._threads_for(conn_id, ref, self._listing_threads)
            listed.begin(threads, lambda: self._listed(conn_id, ref, watched))
        if ended or not listed.is_answered:
            await listed.wait(max(0.0, watched.listed_at + LIST_PATIENCE - time.monotonic()))
        found = listed.value
        if listed.is_under_way and time.monotonic() - watched.listed_at > PATIENCE:
            found = replace(
                found, problem=f"the place of the checkpoints has not answered for {PATIENCE:.0f} s"
            )
        is_listing = listed.is_under_way or (not seen.problem and watched.list_is_due(ended=ended))
        return replace(seen, checkpoints=found, is_listing=is_listing)

    async def tail(self, conn_id: str, ref: RunRef, rank: int, ended_at: float | None) -> LogTail:
        """Return the last lines of a node; never raises."""
        answer = _remembered(self._tails, (conn_id, ref.key, ref.job_id, rank), lambda: _Shared(LogTail()))
        try:
            return await answer.get(
                RUNNING_FRESH,
                self._threads_for(conn_id, ref, self._threads),
                lambda: self._tail(conn_id, ref, rank, ended_at),
            )
        except asyncio.TimeoutError:
            problem = f"no lines were read within {PATIENCE:.0f} s; see the log of the task"
            return replace(answer.value, problem=problem)

    def _threads_for(
        self, conn_id: str, ref: RunRef, threads: OrderedDict[tuple[str, str], _Threads]
    ) -> Executor:
        """Return the threads of a connection: who waits for another's service takes none of them."""
        place = conn_id, ref.conn_id or ""
        if place not in threads:
            asyncio.get_running_loop().call_later(IDLE, _end_if_idle, threads, place)
        found = _remembered(threads, place, _Threads)
        found.used_at = time.monotonic()
        return found

    def _look(self, conn_id: str, ref: RunRef, watched: _Watched) -> Snapshot:
        before = watched.answer.value
        try:
            hook, backend = self._backend(conn_id, ref)
            known = self._current(backend, conn_id, self._known(backend, conn_id, ref))
            ref = known.record.ref
            (status,) = backend.status([ref])
            watched.pace.add(status, time.time())
            watched.looked_at = time.monotonic()
            return Snapshot(
                at=time.time(),
                status=status,
                record=known.record,
                console_url=links_of_run(ref, hook.service_access).get(JobRunLink.xcom_key)
                if ref.complete
                else None,
                secrets=known.secrets,
                remaining=None if status.ended else watched.pace.remaining(status),
                steps_per_second=watched.pace.steps_per_second,
            )
        except Exception as error:
            log.debug("%s: %s", ref.key.name, error, exc_info=True)
            return replace(before, problem=_in_words(error, conn_id))

    def _listed(self, conn_id: str, ref: RunRef, watched: _Watched) -> FoundCheckpoints:
        assert ref.checkpoints_uri is not None
        try:
            hook, _ = self._backend(conn_id, ref)
            return watched.checkpoints.read(ref.checkpoints_uri, hook.access)
        except Exception as error:
            log.debug("%s: %s", ref.key.name, error, exc_info=True)
            problem = f"the checkpoints cannot be read now: {_in_words(error, conn_id)}"
            return replace(watched.listed.value, problem=problem)

    def _tail(self, conn_id: str, ref: RunRef, rank: int, ended_at: float | None) -> LogTail:
        try:
            _, backend = self._backend(conn_id, ref)
            known = self._known(backend, conn_id, ref)
            if rank >= known.record.ref.nodes:
                return LogTail(problem=f"there is no node {rank}")
            tail = log_tail_of(backend, known.record.ref, rank, ended_at or time.time())
            lines = (replace(line, text=masked_text(line.text, known.secrets)) for line in tail.lines)
            return replace(tail, lines=tuple(lines))
        except Exception as error:
            log.debug("%s: %s", ref.key.name, error, exc_info=True)
            return LogTail(problem=_in_words(error, conn_id))

    def _known(self, backend: Backend, conn_id: str, ref: RunRef) -> _Known:
        """Return the service's answer for the job that an XCom names.

        Raises RunNotFound for another task's, and for one whose files on this machine are not the connection's.
        """
        place = conn_id, ref.conn_id or "", ref.job_id, ref.key.task_digest
        with self._lock:
            known = self._gangs.get(place)
        if known is not None and known.record.ref.complete:
            return known
        record = OpensById.of(backend).open(ref.job_id)
        theirs, named = record.ref, ref
        if (theirs.key.task_digest, theirs.conn_id) != (named.key.task_digest, named.conn_id):
            raise RunNotFound(
                f"the XCom `run` names {ref.job_id}, which is no job of this task",
                cause=Cause.CONFIG,
            )
        _require_own_places(backend, record.ref)
        known = _Known(record=record, secrets=frozenset(secrets_of_gang(backend, record.ref)))
        with self._lock:
            self._gangs.pop(place, None)
            return _remembered(self._gangs, place, lambda: known)

    def _current(self, backend: Backend, conn_id: str, known: _Known) -> _Known:
        """Return a gang with the nodes that it has now: its task may have replaced some since it was opened."""
        ref = known.record.ref
        if not (ref.replaces and isinstance(backend, ReplacesNodes)):
            return known
        now = backend.current(ref)
        if now != ref:
            known = replace(known, record=replace(known.record, ref=now))
            with self._lock:
                self._gangs[conn_id, ref.conn_id or "", ref.job_id, ref.key.task_digest] = known
        return known

    def _backend(self, conn_id: str, ref: RunRef) -> tuple[OciHook, Backend]:
        """Return the connection at which the XCom says that a gang is; `_known` asks the service whether that is so."""
        place = conn_id, ref.backend, ref.conn_id or ""
        connected_at, hook, backend = self._connected.get(place, (float("-inf"), None, None))
        if hook is None or backend is None or time.monotonic() - connected_at > CONNECTION_FRESH:
            hook = self._connect(conn_id)
            if ref.conn_id is not None:
                hook = hook.at(ref.backend, ref.conn_id)
            backend = hook.backend(ref.backend)
            self._connected[place] = (time.monotonic(), hook, backend)
        return hook, backend


def _require_own_places(backend: Backend, ref: RunRef) -> None:
    """Raise RunNotFound where a gang's folders are on this machine, and not below the connection's `work_dir`."""
    for place in filter(None, (ref.run_dir, ref.checkpoints_uri)):
        if not in_bucket(place) and not is_below(place, backend.gangs.work_dir()):
            raise RunNotFound(
                f"{place} is not below the connection's work_dir: the page reads no other files of its machine",
                cause=Cause.CONFIG,
            )


def _end_if_idle(threads: OrderedDict[tuple[str, str], _Threads], place: tuple[str, str]) -> None:
    """End the threads of a connection that nobody asks for any more; look again later while somebody does."""
    found = threads.get(place)
    if found is None:
        return
    if found.is_idle:
        del threads[place]
        found.shutdown(wait=False)
    else:
        asyncio.get_running_loop().call_later(IDLE, _end_if_idle, threads, place)


def _in_words(error: Exception, conn_id: str) -> str:
    """Return the error's text; of a foreign error only its type, since its text may hold secrets."""
    # Of a connection that gangs cannot use (`OciHook.require_type`); foreign ones are KeyErrors and the like.
    if isinstance(error, OcidistError) or type(error) is LookupError:
        return masked_text(str(error))
    if type(error).__name__ == "AirflowNotFoundException":
        return f"the API server does not find the connection {conn_id!r}: define it there too"
    return f"{type(error).__name__}; see the API server's log"


def _remembered(known: OrderedDict[K, T], key: K, make: Callable[[], T]) -> T:
    """Return the cached value of a key, or create it; drop the least recently used ones."""
    if key not in known:
        known[key] = make()
    known.move_to_end(key)
    found = known[key]
    while len(known) > MOST_REMEMBERED:
        known.popitem(last=False)
    return found
