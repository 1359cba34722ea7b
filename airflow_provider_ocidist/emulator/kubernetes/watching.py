"""Watches: the changes of a kind as they come, each a line of JSON."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster, Event
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError
from airflow_provider_ocidist.emulator.wire import encode_json

INITIAL_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchRequest:
    """What a client wants to hear of, and for how long."""

    kind: str
    namespace: str
    version: int | None
    """Version after which changes are sent; None: all that is there first."""
    fits: Callable[[Obj], bool]
    bookmarks: bool
    marks_initial: bool
    """Whether a bookmark ends what was there first."""
    timeout_s: float
    bookmark_s: float
    shown: Callable[[Obj], Obj]
    """Function that returns an object as the client wants it: as it is, or as a table."""


async def lines(cluster: Cluster, watch: WatchRequest, cut: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield the changes until the time is over, or the watch is cut."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Event]()

    def put(event: Event) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, event)

    try:
        # In this order: what changes in between is found in both, and sent once.
        begins = cluster.version if watch.version is None else watch.version
        initial = [] if watch.version is not None else _initial(cluster, watch)
        end = _subscribe(cluster, watch, begins, put, initial)
    except KubernetesError as error:
        yield _line("ERROR", error.status())
        return
    try:
        for obj in initial:
            yield _line("ADDED", watch.shown(obj))
        if watch.marks_initial:
            yield _bookmark(cluster, watch, begins, {INITIAL_END: "true"})
        async for line in _follow(cluster, watch, queue, cut, begins):
            yield line
    finally:
        end()


def _initial(cluster: Cluster, watch: WatchRequest) -> list[Obj]:
    return [obj for obj in cluster.stored(watch.kind, watch.namespace) if watch.fits(obj)]


def _subscribe(
    cluster: Cluster, watch: WatchRequest, begins: int, put: Callable[[Event], object], initial: list[Obj]
) -> Callable[[], None]:
    """Subscribe from the state on that the client knows. What came between a list and this is in the history."""
    seen = {obj["metadata"]["uid"]: int(obj["metadata"]["resourceVersion"]) for obj in initial}

    def note(event: Event) -> None:
        if event.type == "DELETED" or event.version > seen.get(event.object["metadata"]["uid"], 0):
            put(event)

    return cluster.subscribe_from(watch.kind, begins, note)


async def _follow(
    cluster: Cluster, watch: WatchRequest, queue: asyncio.Queue[Event], cut: asyncio.Event, version: int
) -> AsyncIterator[bytes]:
    ends, marks = time.monotonic() + watch.timeout_s, time.monotonic() + watch.bookmark_s
    cutting: asyncio.Future[Any] = asyncio.ensure_future(cut.wait())
    try:
        while (left := ends - time.monotonic()) > 0 and not cutting.done():
            event = await _next(queue, cutting, min(left, max(0.0, marks - time.monotonic())))
            if event is not None:
                version = max(version, event.version)
                if line := _seen_by_client(watch, event):
                    yield line
            elif watch.bookmarks and time.monotonic() >= marks:
                yield _bookmark(cluster, watch, version, {})
            if time.monotonic() >= marks:
                marks = time.monotonic() + watch.bookmark_s
        if watch.bookmarks and not cutting.done():
            # From here the client goes on with its next watch.
            yield _bookmark(cluster, watch, version, {})
    finally:
        cutting.cancel()


async def _next(queue: asyncio.Queue[Event], cutting: asyncio.Future[Any], seconds: float) -> Event | None:
    getting = asyncio.ensure_future(queue.get())
    waits: set[asyncio.Future[Any]] = {getting, cutting}
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return getting.result() if getting.done() else None
    finally:
        # Not awaited: a cancel of this very task would end that wait, and be lost. An event stays in the queue.
        getting.cancel()


def _seen_by_client(watch: WatchRequest, event: Event) -> bytes | None:
    """Return an event as the client sees it: an object that no longer fits is one that was deleted."""
    if watch.namespace and event.object["metadata"].get("namespace") != watch.namespace:
        return None
    fits = watch.fits(event.object)
    fitted = event.old is not None and watch.fits(event.old)
    if event.type == "DELETED":
        return _line("DELETED", watch.shown(event.object)) if fits or fitted else None
    if fits:
        return _line("MODIFIED" if fitted else "ADDED", watch.shown(event.object))
    return _line("DELETED", watch.shown(event.object)) if fitted else None


def _bookmark(cluster: Cluster, watch: WatchRequest, version: int, annotations: dict[str, str]) -> bytes:
    metadata: Obj = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations:
        metadata["annotations"] = annotations
    kind = cluster.kind(watch.kind)
    return _line("BOOKMARK", {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata})


def _line(type_: str, obj: Obj) -> bytes:
    return encode_json({"type": type_, "object": obj}).encode() + b"\n"
