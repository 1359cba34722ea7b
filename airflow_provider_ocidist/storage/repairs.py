"""Repairs: files of published checkpoints are stored once more, from a local folder that has them whole."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.model.amounts import names_text
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoints import copy_files
from airflow_provider_ocidist.storage.copying.changes import Verdict, verdicts
from airflow_provider_ocidist.storage.listing import by_folder, complete_in, manifests_in
from airflow_provider_ocidist.storage.locations import join
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest, ManifestFile
from airflow_provider_ocidist.storage.reuse import THREADS, is_known
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.opening import open_store

if TYPE_CHECKING:
    from airflow_provider_ocidist.storage.transfer import Copied

log = logging.getLogger(__name__)

BATCH = 64 << 20
"""Bytes of the small files that are sent together."""


def store_again(
    uri: str, folder: Path, access: OciAccess | None = None, *, cancel: threading.Event | None = None
) -> bool:
    """Write what differs of a published checkpoint once more, if a local folder has it whole; return whether it did.

    A file counts by its SHA-256: only what was published gets there, over what has been damaged since. What is stored
    as it is here, by the store's checksum, stays. Raises CheckpointError, StorageError, FileNotFoundError when there is
    no such checkpoint any more.
    """
    target = open_store(uri, access)
    manifest = Manifest.from_json(target.read(MANIFEST))
    copy = _LocalCopy(manifest, Path(folder), cancel)
    here = copy.known(manifest.files)
    if len(here) < len(manifest.files):
        log.info("%s is not whole on this node: %s", uri, _not_among(here, manifest.files))
        return False
    found = copy.verdicts(here, target)
    if found is None:
        log.info("%s was written to on this node while it was compared", uri)
        return False
    differing = [item for item in manifest.files if found[item.path] != "same"]
    if not differing:
        log.info("%s is stored as it is on this node", uri)
    return bool(differing) and len(copy.send(here, differing, target)) == len(differing)


def store_missing(
    uri: str,
    folder: Path,
    access: OciAccess | None = None,
    *,
    begin_at: float = 0.0,
    alone: bool = False,
    cancel: threading.Event | None = None,
) -> list[str]:
    """Store what the published checkpoints below a URI lack, and a local folder has; return their folders' names.

    Only those that are newer than each complete one, the newest first, until one is whole: from an older one nobody
    goes on. A file counts by its SHA-256, as above. `begin_at`: the share of the files after which to begin, so that
    nodes that have the same begin with different ones. `alone`: whether no other node has files of them; then one that
    cannot become whole is left as it is. Raises StorageError.
    """
    store = open_store(uri, access)
    stored = []
    for name, manifest in _incomplete(store):
        copy = _LocalCopy(manifest, Path(folder), cancel)
        target = open_store(join(uri, name), access)
        if _send_missing(manifest, copy, target, begin_at, alone=alone):
            stored.append(name)
        if _lacking_now(manifest, target) == []:
            break
    return stored


def _send_missing(
    manifest: Manifest, copy: _LocalCopy, target: Store, begin_at: float, *, alone: bool
) -> list[str]:
    """Store what a checkpoint lacks as far as it is here; return the names of what was stored."""
    lacking = _lacking_now(manifest, target) or []
    if alone:
        here = copy.known(lacking)
        is_enough = len(here) == len(lacking)
        sent = copy.send(here, lacking, target) if is_enough else []
    else:
        begin = int(begin_at * len(lacking))
        sent = []
        for batch in _batches([*lacking[begin:], *lacking[:begin]]):
            # Another node may have sent some of it meanwhile.
            still = set(_lacking_now(manifest, target) or ())
            wanted = [item for item in batch if item in still]
            sent += copy.send(copy.known(wanted), wanted, target)
    if lacking and not sent:
        log.info("%s lacks files that are not whole on this node either", target.uri)
    return sent


def _batches(files: Iterable[ManifestFile]) -> Iterator[list[ManifestFile]]:
    """Yield these files in groups: small ones together, as each group costs a listing."""
    batch: list[ManifestFile] = []
    for item in files:
        if batch and sum(each.size for each in batch) + item.size > BATCH:
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _incomplete(store: Store) -> list[tuple[str, Manifest]]:
    """Return the incomplete checkpoints that are newer than the complete ones, the newest first, by their folders."""
    folders = by_folder(store.list())
    complete = complete_in(store, folders)
    newest = max((item.manifest.order for item in complete), default=None)
    whole = {item.folder for item in complete}
    read = manifests_in(store, {name: files for name, files in folders.items() if name not in whole})
    found = [(name, each) for name, each in read.items() if newest is None or each.order > newest]
    return sorted(found, key=lambda each: each[1].order, reverse=True)


def _lacking_now(manifest: Manifest, target: Store) -> list[ManifestFile] | None:
    """Return the files of a manifest that are missing, or have another size; None if the checkpoint was deleted."""
    sizes = {entry.name: entry.size for entry in target.list()}
    if MANIFEST not in sizes:
        return None
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

    def verdicts(self, here: Mapping[str, Entry], target: Store) -> Mapping[str, Verdict] | None:
        """Compare files with the stored ones; None where one is written to meanwhile. Raises StorageError."""
        try:
            return verdicts(self.source, [*here.values()], target, None)
        except StorageError:
            if all(map(self._is_as_before, here.values())):
                raise
            return None

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
                copied = copy_files(self.source, target, entries, self._cancel)
                target.sync([each.name for each in copied])
                return copied
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
