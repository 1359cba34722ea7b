"""Blocking calls beside the triggerer's event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

log = logging.getLogger(__name__)

THREADS = 32
"""How many triggers of one triggerer talk to a service at the same time."""

_threads = ThreadPoolExecutor(THREADS, "ocidist-trigger")
"""Our own, because Airflow writes each trigger's log through the event loop's few threads: were those all busy with
us, the second of its repeated cancels would hit it before it had called `on_kill`."""
_unfinished: set[asyncio.Task[Any]] = set()
"""Strong references: a cancel must outlive its trigger, which Airflow cuts short after about a second."""


async def in_thread(work: Callable[[], Any]) -> Any:
    """Run a blocking call beside the event loop.

    Through asgiref, because up to Airflow 3.2 connections are read through `async_to_sync`, which wants its threads;
    not thread-sensitive, because those calls share one thread for the whole triggerer. Shielded, because asgiref
    replaces a CancelledError by one without its message, and by that message Airflow knows to call `on_kill`.
    """
    from asgiref.sync import sync_to_async

    return await asyncio.shield(keep(sync_to_async(work, thread_sensitive=False, executor=_threads)()))


def keep(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a coroutine that ends in its own time, whatever becomes of whoever started it."""
    task = asyncio.create_task(work)
    _unfinished.add(task)
    task.add_done_callback(_forget)
    return task


def _forget(task: asyncio.Task[Any]) -> None:
    _unfinished.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.debug("after its trigger had gone: %s", task.exception())
