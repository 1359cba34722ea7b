"""From a URI to its store; each kind is imported when the first of it is opened."""

from __future__ import annotations

import threading
from typing import Any

from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.stores.base import Store


def open_store(uri: str, access: OciAccess | None = None) -> Store:
    """Return the store at a URI, which need not exist yet. `access` None: the credentials of this machine.

    Raises StorageError when the URI is malformed, or its credentials or fsspec driver are missing.
    """
    place = locations.parse(uri)
    if place.kind == "local":
        from airflow_provider_ocidist.storage.stores.local import LocalStore

        return LocalStore(place.path)
    if place.kind == "oci":
        from airflow_provider_ocidist.storage.stores.oci import OciStore

        return OciStore.connect(place, access)
    if place.is_web:
        from airflow_provider_ocidist.storage.stores.http import HttpStore

        return HttpStore(place.uri, place.query)
    from airflow_provider_ocidist.storage.stores.fsspec import FsspecStore

    return FsspecStore.connect(place)


class Stores:
    """Opens stores with one set of credentials; those in Object Storage share a client. Safe between threads."""

    def __init__(self, access: OciAccess | None = None) -> None:
        """`access` None: the credentials of this machine."""
        self._access = access
        self._client: Any = None
        self._lock = threading.Lock()

    def open(self, uri: str) -> Store:
        """Return the store at a URI. Raises StorageError as `open_store` does."""
        place = locations.parse(uri)
        if place.kind != "oci":
            return open_store(uri)
        from airflow_provider_ocidist.storage.stores.oci import OciStore

        with self._lock:
            if self._client is None:
                store = OciStore.connect(place, self._access)
                self._client = store.client
                return store
        return OciStore.reached_by(self._client, place)
