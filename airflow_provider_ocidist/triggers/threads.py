"""Blocking calls beside the triggerer's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

log = logging.getLogger(__name__)

THREADS = 32
"""Number of triggers of one connection that call its service or store at the same time: one that does not answer keeps
each thread for minutes."""
ENDING_THREADS = 128
"""Number of gangs of one connection that are ended at the same time, in threads of their own: no other call delays
them."""
ASKING_THREADS = 32
"""Number of questions to Airflow at the same time, but for those that the end of a gang needs, which have
`ENDING_THREADS`; while Airflow hangs, each keeps its thread."""
STORAGE_THREADS = 32
"""Number of looks for data and checkpoints at one place at the same time; while a store does not answer, each keeps its
thread for minutes."""

IDLE = 60.0
"""Seconds between the last call and the end of the threads: many triggers start at once, then none for hours."""
_unfinished: set[asyncio.Task[Any]] = set()
"""Tasks that must outlive their trigger, which Airflow stops after about a second; the event loop keeps weak
references."""


class Threads:
    """Threads that end after a while without a call. Used by one event loop at a time, so without locks.

    Separate, because Airflow writes each trigger's log through the event loop's few threads: if our calls used all
    of them, the second of Airflow's repeated cancels would hit it before it had called `on_kill`.
    """

    def __init__(self, most: int = THREADS, name: str = "ocidist-trigger") -> None:
        self._most = most
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._held = 0
        self._calls = 0
        self._elsewhere: dict[Hashable, Threads] = {}

    def of(self, place: Hashable) -> Threads:
        """Return as many threads for the calls to one place; None: these. Calls to others do not delay them."""
        if place is None:
            return self
        return self._elsewhere.setdefault(place, Threads(self._most, self._name))

    @contextlib.contextmanager
    def held(self) -> Iterator[ThreadPoolExecutor]:
        """Lend the threads for one call."""
        loop = asyncio.get_running_loop()
        self._pool = self._pool or ThreadPoolExecutor(self._most, self._name)
        self._held += 1
        self._calls += 1
        try:
            yield self._pool
        finally:
            self._held -= 1
            if self._held == 0 and loop.is_closed():
                # The call was given up with its loop, and its generator is only closed now.
                self._end_unless_used(self._calls)
            elif self._held == 0:
                loop.call_later(IDLE, self._end_unless_used, self._calls)

    def _end_unless_used(self, calls: int) -> None:
        if self._held == 0 and self._calls == calls and self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None


_threads = Threads()
_ending_threads = Threads(ENDING_THREADS, "ocidist-ending")
_asking_threads = Threads(ASKING_THREADS, "ocidist-asking")
_ending_asking_threads = Threads(ENDING_THREADS, "ocidist-asking-end")
_storage_threads = Threads(STORAGE_THREADS, "ocidist-storage")


async def in_thread(work: Callable[[], Any], *, place: Hashable = None, ends_a_gang: bool = False) -> Any:
    """Run a blocking call beside the event loop; a call that ends a gang does not wait for other calls' threads.

    `place`: the connection whose service or store it calls; it waits for no thread of another's calls.
    """
    threads = _ending_threads if ends_a_gang else _threads
    return await _run(work, threads.of(place))


async def ask_airflow(work: Callable[[], Any], *, ends_a_gang: bool = False) -> Any:
    """Run a call that Airflow has to answer: no call to a service, and no end of a gang, waits behind it.

    `ends_a_gang`: whether the end of a gang needs the answer; it waits behind questions of other ends alone.
    """
    return await _run(work, _ending_asking_threads if ends_a_gang else _asking_threads)


async def look_at_storage(work: Callable[[], Any], *, place: Hashable = None) -> Any:
    """Run a look for data or a checkpoint: the triggers of gangs, which renew leases, never wait behind it.

    `place`: where it looks; it waits for no thread of a look elsewhere.
    """
    return await _run(work, _storage_threads.of(place))


async def _run(work: Callable[[], Any], threads: Threads) -> Any:
    """Run a blocking call in one of these threads.

    Through asgiref, because up to Airflow 3.2 connections are read through `async_to_sync`, which needs its threads;
    not thread-sensitive, because those calls share one thread for the whole triggerer. Shielded, because asgiref
    replaces a CancelledError by one without its message, which Airflow needs to decide to call `on_kill`.
    """
    from asgiref.sync import sync_to_async

    async def call() -> Any:
        with threads.held() as pool:
            return await sync_to_async(work, thread_sensitive=False, executor=pool)()

    return await asyncio.shield(keep(call()))


def keep(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a coroutine that runs to its end even if its caller is cancelled."""
    task = asyncio.create_task(work)
    _unfinished.add(task)
    task.add_done_callback(_forget)
    return task


def _forget(task: asyncio.Task[Any]) -> None:
    _unfinished.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.debug("background call failed: %s", task.exception())
