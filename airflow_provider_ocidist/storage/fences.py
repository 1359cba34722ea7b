"""Fences: the attempt of a task that saves to a place; earlier ones must publish and delete nothing there."""

from __future__ import annotations

import json

from airflow_provider_ocidist.errors import DamagedFence, Fenced, StorageError
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage.stores.base import Store

FILE = "fence.json"
_TRIES = 20


def claimed(store: Store) -> Fence | None:
    """Return the highest attempt that has claimed a place, None without any.

    Raises StorageError when that cannot be read, DamagedFence when it names no attempt.
    """
    try:
        return _fence_in(store.read(FILE))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        place = store.uri_of(FILE)
        raise DamagedFence(
            f"{place} does not say which attempt saves there ({error}): delete it once no node is left that does",
            uri=place,
        ) from error


def _fence_in(text: bytes) -> Fence:
    """Return what `claim_place` wrote. Raises TypeError or ValueError when it is anything else."""
    found = codec.read(Fence, text)
    if not found.is_possible:
        raise ValueError("its numbers are not those of an attempt")
    return found


def claim_place(store: Store, fence: Fence) -> None:
    """Make this the highest attempt that saves to a place; one read if it is that already.

    Raises Fenced when a later attempt has claimed the place, DamagedFence when the claim names no attempt,
    StorageError when it cannot be read or written.
    """
    for _ in range(_TRIES):
        if _holds(store, fence):
            return
        etag = _etag(store)
        # Read again: the content must be that of this etag, or older.
        if _holds(store, fence):
            return
        if store.write_if(FILE, json.dumps(codec.encode(fence)).encode(), etag):
            return
    raise StorageError(f"{store.uri_of(FILE)} keeps changing", uri=store.uri, retryable=True)


def _holds(store: Store, fence: Fence) -> bool:
    found = claimed(store)
    if found is not None and found > fence:
        raise Fenced(
            f"attempt {found.attempt} has begun to save there: "
            f"attempt {fence.attempt} publishes and deletes nothing in {store.uri} any more",
            uri=store.uri,
        )
    return found == fence


def _etag(store: Store) -> str | None:
    try:
        return store.stat(FILE).etag
    except FileNotFoundError:
        return None
