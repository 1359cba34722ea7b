"""Conditional writes: a small file that several processes change, none of whose changes is lost."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.stores.base import Store

TRIES = 20
"""Most writes of one change: each fails where another process has changed the file since it was looked at."""


def change(store: Store, name: str, content: Callable[[bool], bytes | None]) -> None:
    """Write what `content` makes of a file, as often as another process has changed it meanwhile.

    `content` is called with whether the file exists, and reads it; None: the file stays as it is. Raises StorageError
    when the file keeps changing, and what `content` raises.
    """
    for _ in range(TRIES):
        exists, etag = _found(store, name)
        # What is read now belongs to this etag, or is newer: then the write fails.
        wanted = content(exists)
        if wanted is None or store.write_if(name, wanted, etag):
            return
    raise StorageError(f"{store.uri_of(name)} keeps changing", uri=store.uri, retryable=True)


def _found(store: Store, name: str) -> tuple[bool, str | None]:
    """Return whether a file exists, and its etag; some places give none."""
    try:
        return True, store.stat(name).etag
    except FileNotFoundError:
        return False, None
