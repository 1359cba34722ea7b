"""Reuse: the files of a published checkpoint that lie in a local folder already, with the published checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.manifests import Manifest, ManifestFile
from airflow_provider_ocidist.storage.stores.local_files import refuse_links_above

THREADS = 4
PIECE = 1 << 20
"""Bytes that are read at a time."""


def link_known(
    manifest: Manifest, local: Path, target: Path, on_read: Callable[[int], object] = lambda _: None
) -> set[str]:
    """Link what is whole of a local checkpoint into another folder; return the paths of these files.

    A file counts by its SHA-256, as one that was fetched: its name, size and age prove nothing. `on_read` is called
    with the number of bytes of each piece that was read, by several threads.
    """
    if not os.path.lexists(local) or local.is_symlink():
        # What is written to a linked file later would change the one behind the link.
        return set()
    with ThreadPoolExecutor(THREADS, "reuse") as pool:
        linked = pool.map(
            lambda item: _link(item, local, None if manifest.single_file else item.path, target, on_read),
            manifest.files,
        )
        return {item.path for item, is_linked in zip(manifest.files, linked) if is_linked}


def foreign_in(manifest: Manifest, local: Path) -> str | None:
    """Return what is at a checkpoint's local place that is not of the checkpoint; None: nothing is.

    Raises OSError where it cannot be read.
    """
    if local.is_symlink():
        return "it is a link"
    files = {("" if manifest.single_file else item.path): item for item in manifest.files}
    for path in _all_in(local):
        name = "" if path == local else path.relative_to(local).as_posix()
        if name not in files:
            return f"{name or 'it'} is not of the checkpoint"
        if not is_known(files[name], path):
            return f"{name or 'it'} is not as it was published"
    return None


def _all_in(local: Path) -> Iterator[Path]:
    """Yield all below a folder but the folders, or the one file; nothing where nothing is."""
    if not local.is_dir():
        yield from [local] if os.path.lexists(local) else []
        return
    for folder, folders, names in os.walk(local):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        yield from (Path(folder) / name for name in sorted([*links, *names]))


def is_known(item: ManifestFile, path: Path, on_read: Callable[[int], object] = lambda _: None) -> bool:
    """Whether a local file is the published one. Raises OSError where it cannot be read, and what `on_read` raises."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != item.size:
        return False
    return _sha256_of(path, on_read) == item.sha256


def _link(
    item: ManifestFile, local: Path, name: str | None, target: Path, on_read: Callable[[int], object]
) -> bool:
    """Link one file; `name` None: `local` is that file."""
    path, place = local / name if name else local, target / item.path
    try:
        refuse_links_above(local, name or "")
        if not is_known(item, path, on_read):
            return False
        place.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, place)
    except (OSError, StorageError):
        # It is not here, or behind a link, or the file system has no links: it is fetched.
        return False
    return True


def _sha256_of(path: Path, on_read: Callable[[int], object]) -> str:
    running, piece = hashlib.sha256(), bytearray(PIECE)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            running.update(memoryview(piece)[:count])
            on_read(count)
    return running.hexdigest()
