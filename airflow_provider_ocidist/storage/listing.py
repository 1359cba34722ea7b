"""Listing: the folders of a place for checkpoints, and which of them are complete."""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Mapping, Sequence

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import CheckpointError
from airflow_provider_ocidist.storage.checkpoint_names import UNPROVED
from airflow_provider_ocidist.storage.locations import join
from airflow_provider_ocidist.storage.manifests import MANIFEST, CheckpointRef, Manifest
from airflow_provider_ocidist.storage.stores import Entry, Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Complete:
    """A folder whose manifest names nothing but what is there."""

    folder: str
    manifest: Manifest
    modified: float

    def ref(self, store: Store) -> CheckpointRef:
        return self.manifest.ref(join(store.uri, self.folder))


def by_folder(entries: Sequence[Entry]) -> dict[str, dict[str, Entry]]:
    """Return the files of each folder directly below the store, under their names relative to it.

    What nothing proves to be whole is left out.
    """
    folders: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        folder, _, name = entry.name.partition("/")
        if name and folder != UNPROVED:
            folders.setdefault(folder, {})[name] = entry
    return folders


def complete_in(store: Store, folders: Mapping[str, Mapping[str, Entry]]) -> list[Complete]:
    """Return the complete checkpoints, the newest first; log why the others were skipped."""
    with concurrent.futures.ThreadPoolExecutor(8, "manifest") as pool:
        judged = pool.map(lambda item: _judge(store, *item), folders.items())
        found = [item for item in judged if item]
    return sorted(found, key=lambda item: item.manifest.order, reverse=True)


def _judge(store: Store, folder: str, files: Mapping[str, Entry]) -> Complete | None:
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
        fault = "its manifest was just deleted"
    if fault:
        log.warning("skipped %s: %s", place, fault)
        return None
    return Complete(
        folder=folder, manifest=manifest, modified=files[MANIFEST].modified or manifest.created_at
    )


def fault_of(manifest: Manifest, files: Mapping[str, Entry]) -> str | None:
    """Return what is wrong with the files that a manifest names, None when nothing is."""
    for item in manifest.files:
        found = files.get(item.path)
        if found is None:
            return f"{item.path} is missing"
        if found.size != item.size:
            return f"{item.path} has {found.size} bytes instead of {item.size}"
    return None
