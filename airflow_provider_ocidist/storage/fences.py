"""Fences: the launch of a task's attempt that saves to a place; earlier ones must publish and delete nothing there."""

from __future__ import annotations

import json

from airflow_provider_ocidist.errors import DamagedFence, Fenced
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage.conditional_writes import change
from airflow_provider_ocidist.storage.stores.base import Store

FENCE_FILE = "fence.json"


def current_fence(store: Store) -> Fence | None:
    """Return the highest attempt that saves to a place, and its launch; None without any.

    Raises StorageError when that cannot be read, DamagedFence when it names no attempt.
    """
    try:
        return _fence_in(store.read(FENCE_FILE))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        place = store.uri_of(FENCE_FILE)
        raise DamagedFence(
            f"{place} does not say which attempt saves there ({error}): delete it once no node is left that does",
            uri=place,
        ) from error


def _fence_in(text: bytes) -> Fence:
    """Return what `advance_fence` wrote. Raises TypeError or ValueError when it is anything else."""
    found = codec.read(Fence, text)
    if not found.is_possible:
        raise ValueError("its numbers are not those of an attempt")
    return found


def advance_fence(store: Store, fence: Fence) -> None:
    """Make this the highest attempt and launch that saves to a place; one read if it is that already.

    Raises Fenced when a later one saves there, DamagedFence when the fence names no attempt,
    StorageError when it cannot be read or written.
    """
    if _holds(store, fence):
        return
    text = json.dumps(codec.encode(fence)).encode()
    change(store, FENCE_FILE, lambda _: None if _holds(store, fence) else text)


def _holds(store: Store, fence: Fence) -> bool:
    found = current_fence(store)
    if found is not None and found > fence:
        later, earlier = _names(found, fence)
        raise Fenced(
            f"{later} has begun to save there: {earlier} publishes and deletes nothing in {store.uri} any more",
            uri=store.uri,
        )
    return found == fence


def _names(later: Fence, earlier: Fence) -> tuple[str, str]:
    if later.of_attempt == earlier.of_attempt:
        return f"launch {later.launch} of attempt {later.attempt}", f"launch {earlier.launch}"
    return f"attempt {later.attempt}", f"attempt {earlier.attempt}"
