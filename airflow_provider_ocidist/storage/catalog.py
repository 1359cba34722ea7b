"""Catalog: all that lies in a place for checkpoints, for the commands that look after it."""

from __future__ import annotations

import concurrent.futures
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import lru_cache

from airflow_provider_ocidist.backports import StrEnum, dataclass
from airflow_provider_ocidist.errors import CheckpointError
from airflow_provider_ocidist.model.work_dir import WHEELS
from airflow_provider_ocidist.storage.checkpoint_names import UNPROVED
from airflow_provider_ocidist.storage.listing import (
    fault_of,
    holds_checkpoints,
    manifests_in,
    without_needed,
)
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest, is_another_programs
from airflow_provider_ocidist.storage.retention import ABANDONED_AFTER_S, Retention, superfluous
from airflow_provider_ocidist.storage.stores.base import Entry, Store

PIECE = 8 << 20
"""Bytes that are read at a time."""
READERS = 8


class FolderState(StrEnum):
    """What a folder in a place for checkpoints is."""

    WHOLE = "whole"
    """All files of the checkpoint's manifest are there, in their sizes."""
    DAMAGED = "damaged"
    """The checkpoint was published, and has lost a file since."""
    UNFINISHED = "unfinished"
    """The folder has no manifest: its upload goes on, or was interrupted."""
    UNPROVED = "unproved"
    """The agent has set the folder aside, because it could not prove that it is whole."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One folder in a place for checkpoints."""

    folder: str
    """Folder, relative to the place."""
    state: FolderState
    files: Mapping[str, Entry] = field(repr=False)
    """Files by their names relative to the folder."""
    manifest: Manifest | None = None
    fault: str | None = None
    """Reason why the checkpoint is not whole."""

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(entry.size or 0 for entry in self.files.values())

    @property
    def saved_at(self) -> float | None:
        """Unix time of its publication, else of its last change; None where the place keeps no times."""
        if self.manifest is not None:
            return self.manifest.created_at
        return max((entry.modified for entry in self.files.values() if entry.modified), default=None)


@dataclass(frozen=True, kw_only=True)
class PruneRule:
    """Which whole checkpoints a person wants to delete: those that `rule` does not keep and that are old enough."""

    rule: Retention
    older_than: float = 0.0
    """Least seconds since the publication."""
    remains: bool = False
    """Whether to delete damaged, unfinished and unproved folders too, if they are as old, and at least an hour:
    uploads go on."""


def places(store: Store) -> list[str]:
    """Return the folders, relative to the store, that hold checkpoints: a work directory has one for each task.

    The empty text is the store itself. A program's own `manifest.json`, within a checkpoint or above checkpoints, and
    the list of a run's packages make no place. Raises StorageError when the store cannot be read.
    """
    found: set[str] = set()
    named = {
        entry.name.rpartition("/")[0] for entry in store.list() if f"/{entry.name}".endswith(f"/{MANIFEST}")
    }
    is_checkpoint = lru_cache(maxsize=None)(lambda folder: _is_checkpoint(store, folder, named))
    for folder in sorted(named, key=lambda name: name.count("/")):
        place, _, name = folder.rpartition("/")
        above = _above(folder)
        if not folder or place in found or any(is_checkpoint(each) for each in named.intersection(above)):
            continue
        # Below a folder of a place, or beside a run's packages, lies what need not be a checkpoint.
        is_certain = name != WHEELS and found.isdisjoint(above)
        if is_checkpoint(folder) if is_certain else _manifests_of(store, [folder]):
            found.add(place)
    return sorted(found)


def _is_checkpoint(store: Store, folder: str, named: Iterable[str]) -> bool:
    """Whether a folder's `manifest.json` is a checkpoint's, whole or damaged; `named`: all folders that have one."""
    try:
        text = store.read(f"{folder}/{MANIFEST}".lstrip("/"))
        Manifest.from_json(text)
    except FileNotFoundError:
        # Retention has just deleted it.
        return False
    except CheckpointError:
        below = [each for each in named if each and folder in _above(each)]
        return not is_another_programs(text) and not _manifests_of(store, below)
    return True


def _manifests_of(store: Store, folders: Iterable[str]) -> dict[str, Manifest]:
    """Return the manifests of folders that have a file of this name; not those that are none."""
    return manifests_in(store, {each: {MANIFEST: Entry(name="", size=None)} for each in folders})


def _above(folder: str) -> set[str]:
    """Return the folders above one, with the store itself."""
    parts = folder.split("/")
    return {"/".join(parts[:count]) for count in range(len(parts))}


def own_item(store: Store) -> Item | None:
    """Return the published checkpoint whose own folder a store is; None where it is none. Raises StorageError."""
    files = {entry.name: entry for entry in store.list()}
    return _item(store, "", files) if MANIFEST in files else None


def items(store: Store) -> list[Item]:
    """Return all that lies in a place: whole checkpoints, the newest first, then the rest by name.

    Raises StorageError when the place cannot be read.
    """
    folders = _folders(store.list())
    with concurrent.futures.ThreadPoolExecutor(READERS, "manifest") as pool:
        found = [item for item in pool.map(lambda each: _item(store, *each), folders.items()) if item]
    whole = [item for item in found if item.state is FolderState.WHOLE]
    rest = [item for item in found if item.state is not FolderState.WHOLE]
    whole.sort(key=lambda item: item.manifest.order if item.manifest else (), reverse=True)
    return whole + sorted(rest, key=lambda item: item.folder)


def _folders(entries: Sequence[Entry]) -> dict[str, dict[str, Entry]]:
    """Return the files of each folder directly below the store; what was kept aside is below `unproved/`."""
    folders: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        folder, _, name = entry.name.partition("/")
        if folder == UNPROVED:
            inner, _, name = name.partition("/")
            folder, name = f"{UNPROVED}/{inner}", name or inner
        if name:
            folders.setdefault(folder, {})[name] = entry
    return folders


def _item(store: Store, folder: str, files: Mapping[str, Entry]) -> Item | None:
    if folder.startswith(f"{UNPROVED}/"):
        return Item(
            folder=folder, state=FolderState.UNPROVED, files=files, fault="nothing proved that it is whole"
        )
    if MANIFEST not in files and holds_checkpoints(store, files):
        # A place of its own, below this one.
        return None
    if MANIFEST not in files:
        return Item(folder=folder, state=FolderState.UNFINISHED, files=files, fault=f"it has no {MANIFEST}")
    try:
        manifest = Manifest.from_json(store.read(files[MANIFEST].name))
    except CheckpointError as error:
        if holds_checkpoints(store, files):
            # The same, and what it has is another program's.
            return None
        return Item(folder=folder, state=FolderState.DAMAGED, files=files, fault=str(error))
    except FileNotFoundError:
        # Retention has just deleted it.
        return None
    fault = fault_of(manifest, files)
    state = FolderState.DAMAGED if fault else FolderState.WHOLE
    return Item(folder=folder, state=state, files=files, manifest=manifest, fault=fault)


def selected(found: Sequence[Item], selection: PruneRule, now: float) -> list[Item]:
    """Return what a person may delete; never the newest whole checkpoint, nor what its program needs beside it.

    `now` is a Unix time, in seconds. Where no whole checkpoint is left, remains stay too: they are all there is.
    """
    whole = [item for item in found if item.state is FolderState.WHOLE]
    manifests = [item.manifest for item in whole if item.manifest is not None]
    if not manifests:
        return []
    latest = max(each.fence for each in manifests)
    gone = superfluous(manifests, selection.rule, latest, [item.folder for item in whole])
    unkept = [item for item in whole if any(item.manifest is each for each in gone)]
    rest = [item for item in found if item.state is not FolderState.WHOLE] if selection.remains else []
    chosen = [
        *_older(unkept, now - selection.older_than),
        *_older(rest, now - max(selection.older_than, ABANDONED_AFTER_S)),
    ]
    doomed = without_needed([item.folder for item in chosen], {item.folder: item.files for item in found})
    return [item for item in chosen if item.folder in doomed]


def _older(found: Sequence[Item], than: float) -> list[Item]:
    return [item for item in found if item.saved_at is not None and item.saved_at <= than]


def what_differs(store: Store, item: Item) -> str | None:
    """Read every file of a published checkpoint, and return what differs from its manifest; None: nothing.

    Raises StorageError when the place cannot be read, FileNotFoundError when a file was deleted since it was listed.
    """
    if item.manifest is None or item.fault is not None:
        return item.fault or f"it has no {MANIFEST}"
    for file in item.manifest.files:
        digest = hashlib.sha256()
        for piece in content(store, item.files[file.path]):
            digest.update(piece)
        if digest.hexdigest() != file.sha256:
            return f"{item.files[file.path].name} is not what was published: its SHA-256 differs"
    return None


def content(store: Store, entry: Entry) -> Iterator[bytes]:
    """Yield the content of a file, in order. Raises StorageError."""
    download = store.download(entry, PIECE)
    if download is None:
        yield from store.chunks(entry, PIECE)
        return
    for offset in range(0, entry.size or 0, PIECE):
        yield from download.pieces(offset, min(PIECE, (entry.size or 0) - offset))
    download.finish()
