"""What is written into a run directory before a gang is created: its code, and the first renewal of its lease."""

from __future__ import annotations

import tarfile
import zipfile
import zlib

from airflow_provider_ocidist.backends.bundle import code_bundle
from airflow_provider_ocidist.errors import BackendError, Cause, StorageError
from airflow_provider_ocidist.model.report import Renewal
from airflow_provider_ocidist.model.run import Plan
from airflow_provider_ocidist.model.work_dir import CODE_ARCHIVE, LEASE_FILE, NODES_FOLDER
from airflow_provider_ocidist.storage.stores.base import Store

UNREADABLE = (OSError, zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError)


def hand_over(plan: Plan, store: Store, prefix: str) -> None:
    """Write what nodes fetch; raise BackendError where they could not get it, since they could not report that."""
    files = {} if plan.code is None else {CODE_ARCHIVE: _code(plan.code)}
    if plan.lease:
        # Precedes every node, and proves that later renewals can be written.
        files[LEASE_FILE] = Renewal.now().to_json()
    try:
        for name, content in files.items():
            store.write(prefix + name, content)
        if not files:
            store.list(f"{prefix}{NODES_FOLDER}/")
    except (StorageError, OSError) as error:
        passes = isinstance(error, StorageError) and error.retryable
        remedy = "" if passes else "; create its bucket, or name another work_dir"
        raise BackendError(
            f"work_dir cannot be used: {error}{remedy}",
            retryable=passes,
            cause=Cause.SERVICE if passes else Cause.CONFIG,
        ) from error


def _code(place: str) -> bytes:
    try:
        return code_bundle(place)
    except UNREADABLE as error:
        raise BackendError(f"program.source cannot be read: {place}: {error}", cause=Cause.CONFIG) from error
