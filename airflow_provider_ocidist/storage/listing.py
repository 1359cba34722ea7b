"""Listing: the folders of a place for checkpoints, and which of them are complete."""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Mapping, Sequence

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import CheckpointError
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.storage.checkpoint_names import UNPROVED
from airflow_provider_ocidist.storage.locations import join
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest
from airflow_provider_ocidist.storage.stores.base import Entry, Store

log = logging.getLogger(__name__)

_LISTINGS = 20
"""Most listings; if manifests vanish during each, the last one's result is returned."""
_VANISHED = "vanished"


@dataclass(frozen=True, kw_only=True)
class Complete:
    """A folder that holds all files of its manifest."""

    folder: str
    manifest: Manifest
    modified: float

    def ref(self, store: Store) -> CheckpointRef:
        return self.manifest.ref(join(store.uri, self.folder))


def by_folder(entries: Sequence[Entry]) -> dict[str, dict[str, Entry]]:
    """Return the files of each folder directly below the store, under their names relative to it.

    Unproved entries are left out.
    """
    folders: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        folder, _, name = entry.name.partition("/")
        if name and folder != UNPROVED:
            folders.setdefault(folder, {})[name] = entry
    return folders


def complete_now(store: Store) -> list[Complete]:
    """List a place and return its complete checkpoints, the newest first.

    Lists again when a manifest is deleted between the listing and its reading: the listing lacks what was saved since,
    and an older checkpoint would count as the newest.
    """
    found: list[Complete] = []
    for _ in range(_LISTINGS):
        found, has_vanished = _judged(store, by_folder(store.list()))
        if not has_vanished:
            break
    return found


def complete_in(store: Store, folders: Mapping[str, Mapping[str, Entry]]) -> list[Complete]:
    """Return the complete checkpoints among listed folders, the newest first; log why the others were skipped."""
    return _judged(store, folders)[0]


def _judged(store: Store, folders: Mapping[str, Mapping[str, Entry]]) -> tuple[list[Complete], bool]:
    """Return what is complete, the newest first, and whether a listed manifest is gone."""
    with concurrent.futures.ThreadPoolExecutor(8, "manifest") as pool:
        judged = list(pool.map(lambda item: _judge(store, *item), folders.items()))
    found = [item for item in judged if isinstance(item, Complete)]
    return sorted(found, key=lambda item: item.manifest.order, reverse=True), _VANISHED in judged


def _judge(store: Store, folder: str, files: Mapping[str, Entry]) -> Complete | str | None:
    """Return what a folder holds: a complete checkpoint, none, or one that was deleted since it was listed."""
    place = join(store.uri, folder)
    if MANIFEST not in files:
        log.info("skipped %s: it has no manifest, so it is not complete", place)
        return None
    try:
        manifest = Manifest.from_json(store.read(f"{folder}/{MANIFEST}"))
        fault = fault_of(manifest, files)
    except CheckpointError as error:
        fault = str(error)
    except FileNotFoundError:
        log.info("skipped %s: its manifest was just deleted", place)
        return _VANISHED
    if fault:
        log.warning("skipped %s: %s", place, fault)
        return None
    return Complete(
        folder=folder, manifest=manifest, modified=files[MANIFEST].modified or manifest.created_at
    )


def manifests_in(store: Store, folders: Mapping[str, Mapping[str, Entry]]) -> dict[str, Manifest]:
    """Return the manifests of listed folders, also of incomplete ones; not those that are damaged, or deleted since."""
    published = [folder for folder, files in folders.items() if MANIFEST in files]
    with concurrent.futures.ThreadPoolExecutor(8, "manifest") as pool:
        found = list(pool.map(lambda folder: _manifest_in(store, folder), published))
    return {folder: manifest for folder, manifest in zip(published, found) if manifest}


def _manifest_in(store: Store, folder: str) -> Manifest | None:
    try:
        return Manifest.from_json(store.read(f"{folder}/{MANIFEST}"))
    except (CheckpointError, FileNotFoundError):
        return None


def fault_of(manifest: Manifest, files: Mapping[str, Entry]) -> str | None:
    """Return what is wrong with the files that a manifest names, None when nothing is."""
    for item in manifest.files:
        found = files.get(item.path)
        if found is None:
            return f"{item.path} is missing"
        if found.size != item.size:
            return f"{item.path} has {found.size} bytes instead of {item.size}"
        if found.behind and not found.behind.startswith(found.name.removesuffix(item.path)):
            # Who fetches the checkpoint sees its own folder alone.
            return f"{item.path} is a link that leads out of the checkpoint"
    return None


def holds_checkpoints(store: Store, files: Mapping[str, Entry]) -> bool:
    """Whether a folder without a manifest of its own is no remains, but has published checkpoints below it."""
    inner = {
        entry.name.removesuffix(f"/{MANIFEST}"): {MANIFEST: entry}
        for name, entry in files.items()
        if name.endswith(f"/{MANIFEST}")
    }
    return bool(manifests_in(store, inner))


def without_needed(doomed: Sequence[str], folders: Mapping[str, Mapping[str, Entry]]) -> list[str]:
    """Return those of the folders into which no file of a folder that stays is a link."""
    staying = [files for folder, files in folders.items() if folder not in doomed]
    links = [f"{entry.behind}" for files in staying for entry in files.values() if entry.behind]
    spared = {folder for folder in doomed if any(link.startswith(f"{folder}/") for link in links)}
    left = [folder for folder in doomed if folder not in spared]
    # What stays for a link may have links of its own.
    return without_needed(left, folders) if spared else left


def delete_folder(store: Store, files: Mapping[str, Entry]) -> None:
    """Delete the files of one folder, its manifest first, so that no half of it passes for whole. Raises StorageError.

    `files`: by their names relative to the folder.
    """
    for name in sorted(files, key=lambda name: name != MANIFEST):
        store.delete(files[name].name)
