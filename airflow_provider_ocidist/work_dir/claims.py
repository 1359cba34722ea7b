"""Claims: which try of its task waits for a gang, in the run directory; no earlier try takes that back."""

from __future__ import annotations

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.model.work_dir import CLAIM
from airflow_provider_ocidist.storage.stores.base import Store

_TRIES = 20
"""Most writes of one claim: each fails where another process has changed the file since it was read."""


def claimed_by(store: Store, prefix: str) -> int:
    """Return the number of the try that has claimed a gang last; 0 where none has, or the file holds no number.

    Raises StorageError when the store cannot be read.
    """
    try:
        return int(store.read(prefix + CLAIM))
    except (FileNotFoundError, ValueError):
        return 0


def claim_gang(store: Store, prefix: str, try_number: int) -> int:
    """Claim a gang for a try unless a later one has it; return the number of the try that has it now.

    Raises StorageError when that cannot be read or written.
    """
    for _ in range(_TRIES):
        etag = _etag(store, prefix)
        # The content read must belong to this etag, or be newer.
        if etag is not None and (holder := claimed_by(store, prefix)) >= try_number:
            return holder
        if store.write_if(prefix + CLAIM, str(try_number).encode(), etag):
            return try_number
    raise StorageError(f"{store.uri_of(prefix + CLAIM)} keeps changing", uri=store.uri, retryable=True)


def _etag(store: Store, prefix: str) -> str | None:
    try:
        return store.stat(prefix + CLAIM).etag
    except FileNotFoundError:
        return None
