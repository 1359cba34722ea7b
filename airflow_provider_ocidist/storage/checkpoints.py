"""Checkpoints at their target: a checkpoint exists when its manifest does."""

from __future__ import annotations

import concurrent.futures
import errno
import json
import logging
import re
import shutil
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_ocidist import codec
from airflow_provider_ocidist.errors import CheckpointError, StorageError
from airflow_provider_ocidist.oci_credentials import OciAccess
from airflow_provider_ocidist.storage.local_store import LocalStore, local_errors
from airflow_provider_ocidist.storage.locations import join, safe_name, shown, unfinished_name
from airflow_provider_ocidist.storage.stores import Entry, Store, Stores, open_store

if TYPE_CHECKING:
    from airflow_provider_ocidist.storage.transfer import Copied

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_VERSION = 1
_ABANDONED_AFTER_S = 3600.0
"""Files without a manifest that are this much older than the newest checkpoint belong to nobody any more."""
_REPLACE_TRIES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRef:
    """A complete checkpoint: its manifest was written."""

    uri: str
    """The folder that holds `manifest.json` and the files that it names."""
    step: int
    loss: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestFile:
    """One file of a checkpoint."""

    path: str
    """Relative to the folder that holds the manifest."""
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a checkpoint consists of; written last, so that its presence means completeness."""

    version: int
    name: str
    """Of the file or folder, as the program called it."""
    step: int
    loss: float | None = None
    created_at: float
    """Unix time, in seconds."""
    files: tuple[ManifestFile, ...]
    single_file: bool = False
    """Whether `name` was a file; else it was a folder, and the paths are relative to it."""

    def to_json(self) -> bytes:
        return json.dumps(codec.encode(self), indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Raises CheckpointError when the text is no manifest that this version can read."""
        try:
            manifest = codec.decode(cls, json.loads(text))
            if not manifest.files or manifest.version > _VERSION:
                raise CheckpointError(f"it is of version {manifest.version} with {len(manifest.files)} files")
            for item in manifest.files:
                safe_name(item.path)
            safe_name(manifest.name)
        except (ValueError, TypeError, KeyError, AttributeError, StorageError) as error:
            raise CheckpointError(f"the manifest is corrupt: {error}") from error
        return manifest


def step_of(name: str) -> int | None:
    """Return the last whole number in the name of a checkpoint, None where there is none.

    `step-000100.pt` is 100, `epoch=3-step=200.ckpt` is 200, `snapshot.pt` is None.
    """
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else None


def publish(
    folder_or_file: Path, uri: str, *, step: int, loss: float | None = None, access: OciAccess | None = None
) -> CheckpointRef:
    """Copy a checkpoint below a URI and make it exist.

    What was published once is never overwritten: a program that keeps one name for all its checkpoints gets a
    folder for each. Raises CheckpointError when there is no file or no place for it, StorageError when it
    changes while it is read or cannot be sent.
    """
    path = Path(folder_or_file)
    source, entries = _local_entries(path)
    stores = Stores(access)
    folder = _free_folder(stores.open(uri), path.name, step)
    target = stores.open(join(uri, folder))
    files = _send(source, target, entries)
    manifest = _manifest(path.name, files, step=step, loss=loss, single_file=path.is_file())
    target.write(MANIFEST, manifest.to_json())
    return CheckpointRef(uri=target.uri, step=step, loss=loss)


def reserve(uri: str, name: str, *, step: int, access: OciAccess | None = None) -> str:
    """Return the URI of a folder for a checkpoint that several nodes send in parts; nobody has written to it yet."""
    return join(uri, _free_folder(open_store(uri, access), name, step, empty=True))


def send_part(
    folder: Path, uri: str, *, leave_out: Container[str] = (), access: OciAccess | None = None
) -> tuple[ManifestFile, ...]:
    """Copy what one node has of a checkpoint to the reserved place, and return what was sent; raises as `publish`.

    Nothing of it is offered before `seal`.
    """
    source, entries = _local_entries(folder)
    wanted = [entry for entry in entries if entry.name not in leave_out]
    return _send(source, open_store(uri, access), wanted)


def seal(
    uri: str,
    name: str,
    files: Sequence[ManifestFile],
    *,
    step: int,
    loss: float | None = None,
    access: OciAccess | None = None,
) -> CheckpointRef:
    """Make a checkpoint exist whose parts were sent. Raises CheckpointError unless all of them have arrived."""
    target = open_store(uri, access)
    manifest = _manifest(name, files, step=step, loss=loss)
    fault = _fault(manifest, {entry.name: entry for entry in target.list()})
    if fault:
        raise CheckpointError(f"the checkpoint at {uri} is not complete: {fault}", uri=uri)
    target.write(MANIFEST, manifest.to_json())
    return CheckpointRef(uri=target.uri, step=step, loss=loss)


def newest(uri: str, access: OciAccess | None = None) -> CheckpointRef | None:
    """Return the complete checkpoint with the highest step below a URI, None when there is none.

    Raises StorageError when the place cannot be read: an outage is not "no checkpoint yet".
    """
    return newest_in(open_store(uri, access))


def newest_in(store: Store) -> CheckpointRef | None:
    """Do the same in a store that is open."""
    return next(iter(_complete_in(store)), None)


def complete(uri: str, access: OciAccess | None = None) -> list[CheckpointRef]:
    """Return the complete checkpoints below a URI, the highest step first; raises as `newest` does."""
    return _complete_in(open_store(uri, access))


def _complete_in(store: Store) -> list[CheckpointRef]:
    for _ in range(3):
        folders = _by_folder(store.list())
        found = _complete(store, folders)
        if found:
            return [item.ref(store) for item in found]
        if not any(MANIFEST in files for files in folders.values()):
            break
        # All that were listed may have been retired before they were read; then newer ones are there.
    return []


def verify(ref_uri: str, access: OciAccess | None = None) -> Manifest:
    """Return the manifest of a checkpoint. Raises CheckpointError unless its files are there, whole."""
    return _verified(open_store(ref_uri, access), ref_uri)[0]


def _verified(store: Store, ref_uri: str) -> tuple[Manifest, Mapping[str, Entry]]:
    """Return the manifest of a checkpoint, and the files of its folder."""
    place = shown(ref_uri)
    try:
        manifest = Manifest.from_json(store.read(MANIFEST))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"there is no checkpoint at {place}: it has no {MANIFEST}", uri=ref_uri
        ) from error
    except CheckpointError as error:
        raise CheckpointError(f"{place}: {error}", uri=ref_uri) from error
    listed = {entry.name: entry for entry in store.list()}
    fault = _fault(manifest, listed)
    if fault:
        raise CheckpointError(f"the checkpoint at {place} is not complete: {fault}", uri=ref_uri)
    return manifest, listed


def fetch(uri: str, target: Path, access: OciAccess | None = None) -> Path:
    """Bring a checkpoint into a local folder, under the name that its program gave it, and return its path.

    What bears that name there already is replaced, after every SHA-256 was found right. Raises
    CheckpointError when the checkpoint is not complete or its content is not what was published.
    """
    store = open_store(uri, access)
    manifest, listed = _verified(store, uri)
    with _staging(Path(target)) as staging:
        arrived = _copy(store, LocalStore(staging), [listed[item.path] for item in manifest.files])
        for item, copied in zip(manifest.files, arrived, strict=True):
            if item.sha256 != copied.sha256:
                raise CheckpointError(
                    f"{join(uri, item.path)} is not what was published: its checksum differs", uri=uri
                )
        final = Path(target) / manifest.name
        with local_errors(final):
            _replace(staging / manifest.files[0].path if manifest.single_file else staging, final)
    return final


def retain(uri: str, keep: int, access: OciAccess | None = None) -> tuple[str, ...]:
    """Delete all but the newest complete checkpoints, and remains of older ones; return their folders.

    The newest complete one stays whatever `keep` says. Manifests go first: nothing half deleted is offered.
    """
    store = open_store(uri, access)
    folders = _by_folder(store.list())
    complete = _complete(store, folders)
    if not complete:
        return ()
    kept = complete[: max(1, keep)]
    doomed = [item.folder for item in complete[len(kept) :]]
    doomed += _remains(folders, {item.folder for item in complete}, kept)
    for folder in doomed:
        _delete(store, folder, folders[folder])
    return tuple(doomed)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Complete:
    folder: str
    manifest: Manifest
    modified: float

    def ref(self, store: Store) -> CheckpointRef:
        return CheckpointRef(
            uri=join(store.uri, self.folder), step=self.manifest.step, loss=self.manifest.loss
        )


def _copy(source: Store, target: Store, entries: Sequence[Entry]) -> list[Copied]:
    # Late, because the references above are wanted by all, the engine by few.
    from airflow_provider_ocidist.storage.transfer import copy_entries

    return copy_entries(source, target, entries)


def _send(source: Store, target: Store, entries: Sequence[Entry]) -> tuple[ManifestFile, ...]:
    copied = _copy(source, target, entries)
    return tuple(ManifestFile(path=item.name, size=item.size, sha256=item.sha256 or "") for item in copied)


def _manifest(
    name: str, files: Sequence[ManifestFile], *, step: int, loss: float | None, single_file: bool = False
) -> Manifest:
    return Manifest(
        version=_VERSION,
        name=name,
        step=step,
        loss=loss,
        created_at=time.time(),
        files=tuple(files),
        single_file=single_file,
    )


def _local_entries(path: Path) -> tuple[LocalStore, list[Entry]]:
    is_file = path.is_file()
    source = LocalStore(path.parent if is_file else path, strict=True)
    try:
        entries = [source.stat(path.name)] if is_file else source.list()
    except FileNotFoundError:
        entries = []
    if not entries:
        raise CheckpointError(f"{path} is no checkpoint: it is not there, or holds no file", uri=str(path))
    if source.skipped:
        raise CheckpointError(
            f"{path} has links that lead out of it: {', '.join(source.skipped[:3])}", uri=str(path)
        )
    if any(entry.name == MANIFEST for entry in entries):
        raise CheckpointError(f"{path} holds a {MANIFEST} of its own: rename it", uri=str(path))
    return source, entries


def _free_folder(store: Store, name: str, step: int, *, empty: bool = False) -> str:
    """Return a folder name that no published checkpoint has; `empty`: in which nothing at all lies."""
    wanted = name if step_of(name) == step else f"{name}.step-{step}"
    places = (entry.name.partition("/") for entry in store.list(wanted))
    taken = {folder for folder, _, name in places if empty or name == MANIFEST}
    candidates = (wanted, *(f"{wanted}.again-{count}" for count in range(2, 1000)))
    for folder in candidates:
        if folder not in taken:
            return folder
    raise CheckpointError(f"{join(store.uri, wanted)} was published a thousand times", uri=store.uri)


def _by_folder(entries: Sequence[Entry]) -> dict[str, dict[str, Entry]]:
    """Return the files of each folder directly below the store, under their names relative to it."""
    folders: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        folder, _, name = entry.name.partition("/")
        if name:
            folders.setdefault(folder, {})[name] = entry
    return folders


def _complete(store: Store, folders: Mapping[str, Mapping[str, Entry]]) -> list[_Complete]:
    """Return the complete checkpoints, the newest first; log why the others were skipped."""
    with concurrent.futures.ThreadPoolExecutor(8, "manifest") as pool:
        judged = pool.map(lambda item: _judge(store, *item), folders.items())
        found = [item for item in judged if item]
    return sorted(found, key=lambda item: (item.manifest.step, item.manifest.created_at), reverse=True)


def _judge(store: Store, folder: str, files: Mapping[str, Entry]) -> _Complete | None:
    place = join(store.uri, folder)
    if MANIFEST not in files:
        log.info("skipped %s: it has no manifest, so it is not complete", place)
        return None
    try:
        manifest = Manifest.from_json(store.read(f"{folder}/{MANIFEST}"))
        fault = _fault(manifest, files)
    except CheckpointError as error:
        fault = str(error)
    except FileNotFoundError:
        fault = "its manifest was just deleted"
    if fault:
        log.warning("skipped %s: %s", place, fault)
        return None
    return _Complete(
        folder=folder, manifest=manifest, modified=files[MANIFEST].modified or manifest.created_at
    )


def _fault(manifest: Manifest, files: Mapping[str, Entry]) -> str | None:
    """Return what is wrong with the files that a manifest names, None when nothing is."""
    for item in manifest.files:
        found = files.get(item.path)
        if found is None:
            return f"{item.path} is missing"
        if found.size != item.size:
            return f"{item.path} has {found.size} bytes instead of {item.size}"
    return None


def _remains(
    folders: Mapping[str, Mapping[str, Entry]], complete: set[str], kept: Sequence[_Complete]
) -> Iterator[str]:
    """Yield the folders of old checkpoints that are not, or no longer, complete; nobody is writing them."""
    newest_kept, oldest_kept = kept[0], kept[-1]
    for folder, files in folders.items():
        changed = max(entry.modified or float("inf") for entry in files.values())
        is_older = (step_of(folder) or 0) < oldest_kept.manifest.step
        is_abandoned = changed < newest_kept.modified - _ABANDONED_AFTER_S
        if folder not in complete and step_of(folder) is not None and is_older and is_abandoned:
            yield folder


def _delete(store: Store, folder: str, files: Mapping[str, Entry]) -> None:
    for name in sorted(files, key=lambda name: name != MANIFEST):
        store.delete(f"{folder}/{name}")


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    staging = target / unfinished_name("checkpoint")
    with local_errors(target):
        staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace(arrived: Path, final: Path) -> None:
    """Move a file or folder to its place; a folder that is there leaves when its successor is at hand."""
    former = final.with_name(unfinished_name(final.name))
    for _ in range(_REPLACE_TRIES):
        if final.is_dir():
            with suppress(FileNotFoundError):
                final.rename(former)
        try:
            arrived.replace(final)
            return
        except OSError as error:
            # Another node that shares this folder has brought the same a moment before.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR):
                raise
        finally:
            shutil.rmtree(former, ignore_errors=True)
    raise CheckpointError(f"{final} cannot be replaced: others write to it all the time", uri=str(final))
