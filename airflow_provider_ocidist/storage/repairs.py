"""Repairs: files of published checkpoints are stored once more, from a local folder that has them whole."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_ocidist.errors import CheckpointError, StorageError
from airflow_provider_ocidist.model.amounts import names_text
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoints import copy_files
from airflow_provider_ocidist.storage.listing import by_folder, complete_in
from airflow_provider_ocidist.storage.locations import join
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest, ManifestFile
from airflow_provider_ocidist.storage.reuse import THREADS, is_known
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.opening import open_store

if TYPE_CHECKING:
    from airflow_provider_ocidist.storage.transfer import Copied

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
    copy = _LocalCopy(manifest, Path(folder), cancel)
    here = copy.known(manifest.files)
    if len(here) < len(manifest.files):
        log.info("%s is not whole on this node: %s", uri, _not_among(here, manifest.files))
        return False
    return len(copy.send(here, manifest.files, target)) == len(manifest.files)


def store_missing(
    uri: str, folder: Path, access: OciAccess | None = None, *, cancel: threading.Event | None = None
) -> list[str]:
    """Store what the published checkpoints below a URI lack, and a local folder has; return their folders' names.

    Only those that are newer than each complete one: from an older one nobody goes on. A file counts by its SHA-256,
    as above. Raises StorageError.
    """
    store = open_store(uri, access)
    stored = []
    for name, manifest, lacking in _incomplete(store, by_folder(store.list())):
        copy = _LocalCopy(manifest, Path(folder), cancel)
        here = copy.known(lacking)
        if not here:
            log.info("%s lacks %s: not whole on this node", join(uri, name), _not_among(here, lacking))
        elif copy.send(here, lacking, open_store(join(uri, name), access)):
            stored.append(name)
    return stored


def _incomplete(
    store: Store, folders: Mapping[str, Files]
) -> list[tuple[str, Manifest, Sequence[ManifestFile]]]:
    """Return the folder of each incomplete checkpoint that is newer than the complete ones, and what it lacks."""
    complete = complete_in(store, folders)
    newest = max((item.manifest.order for item in complete), default=None)
    whole = {item.folder for item in complete}
    found = []
    for name, files in folders.items():
        manifest = _manifest_in(store, name) if MANIFEST in files and name not in whole else None
        if manifest is not None and (newest is None or manifest.order > newest):
            lacking = _lacking(manifest, files)
            if lacking:
                found.append((name, manifest, lacking))
    return found


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


def _not_among(here: Mapping[str, Entry], files: Iterable[ManifestFile]) -> str:
    return names_text([item.path for item in files if item.path not in here])


class _LocalCopy:
    """A published checkpoint as it lies in a local folder, where a program may still write to it."""

    def __init__(self, manifest: Manifest, folder: Path, cancel: threading.Event | None) -> None:
        self.source = LocalStore(folder if manifest.single_file else folder / manifest.name, strict=True)
        self._cancel = cancel

    def known(self, files: Sequence[ManifestFile]) -> dict[str, Entry]:
        """Return those of the files whose content is what was published, by their paths."""
        with ThreadPoolExecutor(THREADS, "repair") as pool:
            found = pool.map(self._known, files)
            return {entry.name: entry for entry in found if entry}

    def send(self, here: Mapping[str, Entry], files: Iterable[ManifestFile], target: Store) -> list[str]:
        """Store those of the files that are here; return the names of those that are stored as they were published.

        What is written to meanwhile is left out.
        """
        digests = {item.path: item.sha256 for item in files if item.path in here}
        copied = self._copied([here[name] for name in digests], target)
        for each in copied:
            if each.sha256 != digests[each.name]:
                _withdraw(target, each)
        return [each.name for each in copied if each.sha256 == digests[each.name]]

    def _copied(self, entries: Sequence[Entry], target: Store) -> list[Copied]:
        """Copy what stays as it is; raises StorageError for any other reason."""
        while entries:
            try:
                return copy_files(self.source, target, entries, self._cancel)
            except StorageError:
                same = [entry for entry in entries if self._is_as_before(entry)]
                if len(same) == len(entries):
                    raise
                entries = same
        return []

    def _known(self, item: ManifestFile) -> Entry | None:
        # Looked at before it is read: what is written to from now on is not sent.
        try:
            entry = self.source.stat(item.path)
        except (StorageError, OSError):
            return None
        try:
            is_whole = is_known(item, self.source.folder / item.path, self._heed_cancel)
        except OSError:
            return None
        return entry if is_whole else None

    def _is_as_before(self, entry: Entry) -> bool:
        try:
            return self.source.stat(entry.name).etag == entry.etag
        except (StorageError, OSError):
            return False

    def _heed_cancel(self, _: int) -> None:
        if self._cancel is not None and self._cancel.is_set():
            raise StorageError("the repair was cancelled")


def _withdraw(target: Store, copied: Copied) -> None:
    """Delete what was written to while it was sent, unless another node has replaced it: then it is only missing."""
    log.warning(
        "%s is not what was published: it was written to while it was sent", target.uri_of(copied.name)
    )
    try:
        if copied.etag in (None, target.stat(copied.name).etag):
            target.delete(copied.name)
    except FileNotFoundError:
        pass
