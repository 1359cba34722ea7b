"""The version of a job's input: a text that changes when the data at its URI does. No Airflow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_ocidist.oci_client.credentials import OciAccess
    from airflow_provider_ocidist.storage.stores.base import Entry


def data_version(uri: str, access: OciAccess | None) -> str | None:
    """Return the etag of a file, or for a folder a digest of all names, sizes and etags in it; None for no data.

    A folder takes one request for each thousand files. Raises StorageError when the place does not answer.
    """
    from airflow_provider_ocidist.storage.locations import parse
    from airflow_provider_ocidist.storage.stores.opening import open_store

    place = parse(uri)
    access = access if place.kind == "oci" else None
    if place.is_folder:
        return _digest(open_store(uri, access).as_source().list())
    try:
        entry = open_store(place.parent, access).stat(place.name)
    except FileNotFoundError:
        return None
    return entry.etag or _digest([entry])


def _digest(entries: Iterable[Entry]) -> str | None:
    lines = [f"{entry.name}\0{entry.size}\0{entry.etag or entry.modified}\n" for entry in entries]
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()[:32]}" if lines else None
