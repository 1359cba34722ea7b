"""Checkpoints at their target: a checkpoint exists when its manifest does."""

from __future__ import annotations

import errno
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_ocidist.errors import CheckpointError, Fenced, StorageError, Unpublishable
from airflow_provider_ocidist.model.amounts import names_text
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import fences
from airflow_provider_ocidist.storage.checkpoint_names import named_folder, published_folder
from airflow_provider_ocidist.storage.listing import by_folder, complete_now, fault_of, manifests_in
from airflow_provider_ocidist.storage.locations import is_partial_file, is_text, join, shown, unfinished_name
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest, ManifestFile, SaveFacts
from airflow_provider_ocidist.storage.reuse import link_known
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.local_files import local_errors
from airflow_provider_ocidist.storage.stores.opening import Stores, open_store

if TYPE_CHECKING:
    from airflow_provider_ocidist.storage.transfer import Copied

log = logging.getLogger(__name__)

__all__ = ["MANIFEST", "CheckpointRef", "Manifest", "ManifestFile", "SaveFacts"]

_GATHERED = "checkpoint"
"""Name of the hidden folders in which checkpoints are gathered, but for what makes each unique."""
_LEFT_AFTER_S = 86_400.0
"""Seconds without a change after which nobody gathers there any more: a large file that is compared takes hours."""
_REPLACE_TRIES = 100
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR, errno.ENOTDIR)
_WITHDRAWN_AGAIN_AFTER = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before each further try to delete a manifest that was written too late."""


Through = Callable[[Store, Callable[[str], Path], int], Store]
"""Function that returns the store to read a checkpoint from, given its own, where each file will lie, and its bytes."""


def publish(
    folder_or_file: Path,
    uri: str,
    save: SaveFacts,
    *,
    confirm: Callable[[], object] | None = None,
    cancel: threading.Event | None = None,
    access: OciAccess | None = None,
) -> CheckpointRef:
    """Copy a checkpoint below a URI and publish it, as the newest of its attempt.

    `confirm` is called when all files have arrived, and raises where they are not the proved ones. Once `cancel` is
    set, what is being sent is aborted. A published checkpoint is never overwritten: a program with one name for all
    its checkpoints gets a folder for each. Raises Fenced when a later attempt saves there, CheckpointError when there
    is no file or no place for it, or a file that was sent is gone, StorageError when it changes while it is read or
    cannot be sent.
    """
    path = Path(folder_or_file)
    source, entries = _local_entries(path)
    stores = Stores(access)
    root = stores.open(uri)
    _require_text(path, entries, root)
    fences.advance_fence(root, save.fence)
    folder = _free_folder(root, path.name, save)
    target = stores.open(join(uri, folder))
    with _names_that_fit(path):
        sent = _send(source, target, entries, cancel)
    manifest = Manifest.of_save(path.name, sent, save, single_file=path.is_file())
    if confirm:
        confirm()
    _offer(root, target, manifest, save.fence)
    return manifest.ref(target.uri)


def reserve(uri: str, name: str, save: SaveFacts, access: OciAccess | None = None) -> str:
    """Return the URI of an empty folder for a checkpoint that several nodes upload in parts."""
    return join(uri, _free_folder(open_store(uri, access), name, save, empty=True))


def send_part(
    folder: Path,
    uri: str,
    *,
    leave_out: Container[str] = (),
    cancel: threading.Event | None = None,
    access: OciAccess | None = None,
) -> tuple[ManifestFile, ...]:
    """Copy one node's files of a checkpoint to the reserved place, and return them; raises as `publish`.

    `seal` publishes them.
    """
    source, entries = _local_entries(folder)
    wanted = [entry for entry in entries if entry.name not in leave_out]
    target = open_store(uri, access)
    _require_text(folder, wanted, target)
    with _names_that_fit(folder):
        return _send(source, target, wanted, cancel)


def seal(
    uri: str, name: str, files: Sequence[ManifestFile], save: SaveFacts, access: OciAccess | None = None
) -> CheckpointRef:
    """Publish a checkpoint whose parts were sent.

    Raises CheckpointError unless all of them have arrived, Fenced when a later attempt or launch saves there.
    """
    stores = Stores(access)
    target = stores.open(uri)
    manifest = Manifest.of_save(name, files, save)
    _offer(stores.open(uri.rstrip("/").rpartition("/")[0]), target, manifest, save.fence)
    return manifest.ref(target.uri)


def _offer(root: Store, target: Store, manifest: Manifest, fence: Fence) -> None:
    """Write the manifest, unless a later attempt or launch saves there; withdraw it when one begins meanwhile.

    Raises CheckpointError unless all files are there.
    """
    # What was sent first may be gone by now: a person clears up, a rule of the bucket deletes, a mount loses.
    fault = fault_of(manifest, {entry.name: entry for entry in target.list()})
    if fault:
        raise CheckpointError(f"the checkpoint at {target.uri} is not complete: {fault}", uri=target.uri)
    fences.advance_fence(root, fence)
    target.write(MANIFEST, manifest.to_json())
    try:
        root.sync([f"{target.uri.rstrip('/').rpartition('/')[2]}/{MANIFEST}"])
    except StorageError:
        _withdraw(target)
        raise
    try:
        fences.advance_fence(root, fence)
    except Fenced:
        _withdraw(target)
        raise
    except StorageError as error:
        # It is published: a second try would only duplicate it.
        log.warning("%s was published, but the fence of its folder cannot be read: %s", target.uri, error)


def _withdraw(target: Store) -> None:
    """Delete the manifest of an attempt that was overtaken, with patience: nobody else knows that it is too late."""
    for pause in _WITHDRAWN_AGAIN_AFTER:
        try:
            return target.delete(MANIFEST)
        except StorageError as error:
            log.warning("%s is published too late, and cannot be withdrawn yet: %s", target.uri, error)
            time.sleep(pause)
    return target.delete(MANIFEST)


def next_sequence(uri: str, fence: Fence, access: OciAccess | None = None) -> int:
    """Return the number of an attempt's next checkpoint; an earlier process may have published some.

    One that is incomplete keeps its number: a repair may complete it later, and what was published since is newer.
    """
    store = open_store(uri, access)
    found = manifests_in(store, by_folder(store.list())).values()
    own = [manifest.sequence for manifest in found if manifest.fence == fence.of_attempt]
    return max(own, default=0) + 1


def newest(uri: str, access: OciAccess | None = None) -> CheckpointRef | None:
    """Return the newest complete checkpoint below a URI, None when there is none.

    Raises StorageError when the place cannot be read: an outage is not "no checkpoint yet".
    """
    return newest_in(open_store(uri, access))


def newest_in(store: Store) -> CheckpointRef | None:
    """Return what `newest` does, for a store that is open."""
    return next(iter(complete_of(store)), None)


def complete(uri: str, access: OciAccess | None = None) -> list[CheckpointRef]:
    """Return the complete checkpoints below a URI, the newest first; raises as `newest` does.

    The newest is the last of the latest attempt, at any step: an attempt may restart at 0.
    """
    return complete_of(open_store(uri, access))


def published(uri: str, access: OciAccess | None = None) -> list[str]:
    """Return the folders below a URI that hold a published checkpoint, whole or damaged since; raises as `newest`."""
    folders = by_folder(open_store(uri, access).list())
    return sorted(folder for folder, files in folders.items() if MANIFEST in files)


def complete_of(store: Store) -> list[CheckpointRef]:
    """Return the complete checkpoints of a store, the newest first."""
    return [item.ref(store) for item in complete_now(store)]


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
    fault = fault_of(manifest, listed)
    if fault:
        raise CheckpointError(f"the checkpoint at {place} is not complete: {fault}", uri=ref_uri)
    return manifest, listed


def fetch(
    uri: str,
    target: Path,
    access: OciAccess | None = None,
    *,
    through: Through | None = None,
    reuse: bool = True,
    on_read: Callable[[int], object] = lambda _: None,
    on_fetched: Callable[[Manifest], object] = lambda _: None,
    cancel: threading.Event | None = None,
) -> Path:
    """Fetch a checkpoint into a local folder, under its program's name for it, and return its path.

    An entry of that name is replaced, after every SHA-256 was verified; with `reuse`, its files whose content is what
    was published are not fetched again, and `on_read` gets the number of bytes of each piece that was compared.
    `on_fetched` gets the manifest of what has arrived. `through` returns the store to read from. Once `cancel` is set,
    no entry is replaced. Raises CheckpointError when the checkpoint is not complete or its content is not what was
    published, StorageError when it cannot be read, or was cancelled.
    """
    store = open_store(uri, access)
    manifest, listed = _verified(store, uri)
    final = Path(target) / manifest.name
    with staging_in(Path(target)) as staging:
        here = link_known(manifest, final, staging, on_read) if reuse else set()
        if here:
            log.info("%d of %d files of %s are here already", len(here), len(manifest.files), shown(uri))
        wanted = [item for item in manifest.files if item.path not in here]
        size = sum(item.size for item in wanted)

        def lies_at(name: str) -> Path:
            return final if manifest.single_file else final / name

        source = through(store, lies_at, size) if through else store
        arrived = copy_files(source, LocalStore(staging), [listed[item.path] for item in wanted], cancel)
        for item, copied in zip(wanted, arrived):
            if item.sha256 != copied.sha256:
                raise CheckpointError(
                    f"{join(uri, item.path)} is not what was published: its checksum differs", uri=uri
                )
        if cancel is not None and cancel.is_set():
            raise StorageError(f"the fetch of {shown(uri)} was cancelled", uri=uri)
        with local_errors(final):
            _replace(staging / manifest.files[0].path if manifest.single_file else staging, final)
    on_fetched(manifest)
    return final


def copy_files(
    source: Store, target: Store, entries: Sequence[Entry], cancel: threading.Event | None = None
) -> list[Copied]:
    """Copy these files under their own names. Once `cancel` is set, what is being sent is aborted."""
    # Late: few callers need the engine, all need the references.
    from airflow_provider_ocidist.storage.transfer import copy_entries

    return copy_entries(source, target, entries, cancel=cancel)


def _send(
    source: Store, target: Store, entries: Sequence[Entry], cancel: threading.Event | None
) -> tuple[ManifestFile, ...]:
    copied = copy_files(source, target, entries, cancel)
    # Once it is published, older ones may be deleted: a power cut must not take both.
    target.sync([item.name for item in copied])
    return tuple(ManifestFile(path=item.name, size=item.size, sha256=item.sha256 or "") for item in copied)


def _local_entries(path: Path) -> tuple[LocalStore, list[Entry]]:
    is_file = path.is_file()
    source = LocalStore(path.parent if is_file else path, strict=True, follows=True)
    try:
        entries = [source.stat(path.name)] if is_file else source.list()
    except FileNotFoundError:
        entries = []
    if not entries:
        raise CheckpointError(
            f"{path} is not a checkpoint: it does not exist, or contains no file", uri=str(path)
        )
    links = [name for name in source.skipped if (path / name).is_symlink() or (path / name).is_dir()]
    if links:
        raise Unpublishable(
            f"{path} has links that lead out of it, or nowhere: {names_text(links)}", uri=str(path)
        )
    if source.skipped:
        log.warning("left out of %s, because they are not files: %s", path, names_text(source.skipped))
    if any(entry.name == MANIFEST for entry in entries):
        raise Unpublishable(f"{path} contains a {MANIFEST} of its own: rename it", uri=str(path))
    return source, entries


def _require_text(path: Path, entries: Sequence[Entry], target: Store) -> None:
    """Raise Unpublishable for a name that the target cannot hold."""
    odd = [name for name in (path.name, *(entry.name for entry in entries)) if not is_text(name)]
    if odd and target.folder is None:
        raise Unpublishable(f"the name {odd[0]!r} in {str(path)!r} is not UTF-8: rename it", uri=str(path))


@contextmanager
def _names_that_fit(path: Path) -> Iterator[None]:
    """Raise Unpublishable where the place cannot hold so long a name: it would fail at each try."""
    try:
        yield
    except StorageError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENAMETOOLONG:
            raise Unpublishable(f"{error}: give {path.name!r} a shorter name", uri=str(path)) from error
        raise


def _free_folder(store: Store, name: str, save: SaveFacts, *, empty: bool = False) -> str:
    """Return a folder name that no published checkpoint has; `empty`: of an empty folder.

    Two attempts or launches never take the same: an upload of the earlier one may arrive while the later one publishes.
    """
    named = named_folder(name, save.step, save.sequence)
    wanted = published_folder(named, save.fence)
    places = [entry.name.partition("/") for entry in store.list(wanted)]
    taken = {folder for folder, _, name in places if empty or name == MANIFEST}
    # What is written to a link of that name would lie in another checkpoint.
    taken.update(store.skipped)
    for folder in (published_folder(named, save.fence, count) for count in range(1, 1000)):
        if folder not in taken:
            return folder
    raise Unpublishable(f"{join(store.uri, wanted)} was published a thousand times", uri=store.uri)


@contextmanager
def staging_in(target: Path) -> Iterator[Path]:
    """Yield a folder below another in which a checkpoint is gathered; it is deleted afterwards."""
    staging = target / unfinished_name(_GATHERED)
    with local_errors(target):
        staging.mkdir(parents=True)
    _remove_left_over(staging)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _remove_left_over(staging: Path) -> None:
    """Delete what killed nodes had gathered beside a folder: it stays where that outlives them, as on a mount."""
    # By the clock of the place. Another node that shares it may be gathering now.
    with suppress(OSError):
        before = staging.stat().st_mtime - _LEFT_AFTER_S
        for path in staging.parent.glob(f".{_GATHERED}.*.part"):
            if is_partial_file(path.name) and _changed_at(path) < before:
                shutil.rmtree(path, ignore_errors=True)


def _changed_at(folder: Path) -> float:
    """Return when something in a folder was last changed, as Unix time; now, where that is not known."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return math.inf


def _replace(arrived: Path, final: Path) -> None:
    """Move a file or folder to its place; what it cannot replace there is moved away, and back if that fails."""
    former = final.with_name(unfinished_name(final.name))
    for _ in range(_REPLACE_TRIES):
        try:
            # The system puts a file in the place of a file or link only, and a folder in that of an empty one.
            if arrived.is_dir() or (final.is_dir() and not final.is_symlink()):
                with suppress(FileNotFoundError):
                    final.rename(former)
            arrived.replace(final)
        except BaseException as error:
            _put_back(former, final)
            # Another node that shares this folder has just put something there.
            if not (isinstance(error, OSError) and error.errno in _IN_THE_WAY):
                raise
        else:
            _delete(former)
            return
    raise StorageError(
        f"{final} cannot be replaced: other processes keep writing to it", uri=str(final), retryable=True
    )


def _put_back(former: Path, final: Path) -> None:
    """Return what was moved away to its place, unless something else is there now."""
    try:
        former.rename(final)
    except OSError:
        if os.path.lexists(final):
            _delete(former)


def _delete(path: Path) -> None:
    """Delete a file, a link or a folder, as far as that is possible."""
    shutil.rmtree(path, ignore_errors=True)
    # That leaves a file as it is, and a link.
    with suppress(OSError):
        path.unlink()
