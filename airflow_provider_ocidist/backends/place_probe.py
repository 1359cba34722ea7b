"""Whether a place can be written, read and cleaned: one check of every preflight."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from airflow_provider_ocidist.backends.capabilities import Finding
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.stores.base import Store


def writable(subject: str, uri: str, open_store: Callable[[str], Store], fix: str) -> Finding:
    """Write a small file, read it back and remove it."""
    name, content = f"ocidist-preflight-{secrets.token_hex(8)}", b"ocidist preflight"
    try:
        store = open_store(uri)
        store.write(name, content)
        try:
            found = store.read(name)
        finally:
            store.delete(name)
    except (StorageError, OSError) as error:
        return Finding.failed(subject, str(error), fix)
    if found != content:
        return Finding.failed(subject, f"{uri}: what was written is not what is read", "name another place")
    return Finding.passed(subject, f"{uri} can be written, read and cleaned from here")
