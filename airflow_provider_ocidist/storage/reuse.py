"""Reuse: the files of a published checkpoint that lie in a local folder already, with the published checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from airflow_provider_ocidist.storage.manifests import Manifest, ManifestFile

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
    if not os.path.lexists(local):
        return set()
    with ThreadPoolExecutor(THREADS, "reuse") as pool:
        linked = pool.map(
            lambda item: _link(item, local if manifest.single_file else local / item.path, target, on_read),
            manifest.files,
        )
        return {item.path for item, is_linked in zip(manifest.files, linked) if is_linked}


def is_known(item: ManifestFile, path: Path, on_read: Callable[[int], object] = lambda _: None) -> bool:
    """Whether a local file is the published one. Raises OSError where it cannot be read, and what `on_read` raises."""
    if path.is_symlink() or path.stat().st_size != item.size:
        return False
    return _sha256_of(path, on_read) == item.sha256


def _link(item: ManifestFile, path: Path, target: Path, on_read: Callable[[int], object]) -> bool:
    place = target / item.path
    try:
        if not is_known(item, path, on_read):
            return False
        place.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, place)
    except OSError:
        # It is not here, or the file system has no links: it is fetched.
        return False
    return True


def _sha256_of(path: Path, on_read: Callable[[int], object]) -> str:
    running, piece = hashlib.sha256(), bytearray(PIECE)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            running.update(memoryview(piece)[:count])
            on_read(count)
    return running.hexdigest()
