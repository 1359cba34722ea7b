"""Repairs: files of published checkpoints are stored once more, from a local folder that has them whole."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from airflow_provider_ocidist.errors import CheckpointError
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoints import copy_files, staging_in
from airflow_provider_ocidist.storage.listing import by_folder, complete_in
from airflow_provider_ocidist.storage.locations import join
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest, ManifestFile
from airflow_provider_ocidist.storage.reuse import link_known
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.opening import open_store

log = logging.getLogger(__name__)

Files = Mapping[str, Entry]
"""Files of one folder, by their names relative to it."""


def store_again(
    uri: str, folder: Path, access: OciAccess | None = None, *, cancel: threading.Event | None = None
) -> bool:
    """Write the files of a published checkpoint once more, where a local folder has all of them; return whether it has.

    A file counts by its SHA-256: only what was published gets there, over what has been damaged since. Raises
    CheckpointError, StorageError, FileNotFoundError when there is no such checkpoint any more.
    """
    target = open_store(uri, access)
    manifest = Manifest.from_json(target.read(MANIFEST))
    return _stored(manifest, Path(folder), target, cancel) == len(manifest.files)


def store_missing(
    uri: str, folder: Path, access: OciAccess | None = None, *, cancel: threading.Event | None = None
) -> list[str]:
    """Store what the published checkpoints below a URI lack, and a local folder has; return their folders' names.

    Only those that are newer than each complete one: from an older one nobody goes on. A file counts by its SHA-256,
    as above. Raises StorageError.
    """
    store = open_store(uri, access)
    stored = []
    for name, part in _incomplete(store, by_folder(store.list())):
        if _stored(part, Path(folder), open_store(join(uri, name), access), cancel, all_or_none=False):
            stored.append(name)
    return stored


def _incomplete(store: Store, folders: Mapping[str, Files]) -> Iterator[tuple[str, Manifest]]:
    """Yield the folder of each incomplete checkpoint that is newer than the complete ones, and what it lacks."""
    complete = complete_in(store, folders)
    newest = max((item.manifest.order for item in complete), default=None)
    whole = {item.folder for item in complete}
    for name, files in folders.items():
        manifest = _manifest_in(store, name) if MANIFEST in files and name not in whole else None
        if manifest is not None and (newest is None or manifest.order > newest):
            lacking = _lacking(manifest, files)
            if lacking:
                yield name, replace(manifest, files=tuple(lacking))


def _manifest_in(store: Store, folder: str) -> Manifest | None:
    """Return the manifest of a listed folder; None if it is damaged, or was deleted since."""
    try:
        return Manifest.from_json(store.read(f"{folder}/{MANIFEST}"))
    except (CheckpointError, FileNotFoundError):
        return None


def _lacking(manifest: Manifest, files: Files) -> Sequence[ManifestFile]:
    """Return the files of a manifest that are missing, or have another size."""
    sizes = {name: entry.size for name, entry in files.items()}
    return [item for item in manifest.files if sizes.get(item.path, -1) != item.size]


def _stored(
    wanted: Manifest,
    folder: Path,
    target: Store,
    cancel: threading.Event | None,
    *,
    all_or_none: bool = True,
) -> int:
    """Store these files as far as a local folder has them; return their number."""
    with staging_in(folder) as staging:
        here = link_known(wanted, folder / wanted.name, staging)
        if all_or_none and len(here) < len(wanted.files):
            return 0
        source = LocalStore(staging)
        copy_files(
            source, target, [source.stat(item.path) for item in wanted.files if item.path in here], cancel
        )
    return len(here)
