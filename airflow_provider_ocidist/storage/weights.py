"""Weights: whether two checkpoints hold the same numbers, though their files differ."""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from pathlib import PurePosixPath
from typing import IO

from airflow_provider_ocidist.model import dcp
from airflow_provider_ocidist.storage.catalog import content
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest
from airflow_provider_ocidist.storage.stores.base import Store


def weights_digest(store: Store, prefix: str) -> str:
    """Return a SHA-256 of the numbers in a checkpoint's files, in hexadecimal digits; `prefix`: of its names.

    Of a file of `torch.save`, a zip archive, only the tensors count: the pickle beside them is another one where
    states were loaded once, with equal content (Python's pickle refers to an object that it has written before by its
    identity). Files of torch.distributed.checkpoint count whole, since each has many such archives, and without their
    description, which names the save. Any other file counts whole, by its manifest. Raises StorageError, and
    CheckpointError.
    """
    manifest = Manifest.from_json(store.read(prefix + MANIFEST))
    parts = []
    for item in sorted(manifest.files, key=lambda item: item.path):
        if item.path.endswith(dcp.ENDING):
            parts.append((item.path, [item.sha256]))
            continue
        if _describes_a_save(item.path, manifest):
            continue
        with tempfile.TemporaryFile() as file:
            for piece in content(store, store.stat(prefix + item.path)):
                file.write(piece)
            parts.append((item.path, _tensors(file) or [item.sha256]))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _describes_a_save(path: str, manifest: Manifest) -> bool:
    pure = PurePosixPath(path)
    return pure.name == dcp.METADATA and any(
        other.path.endswith(dcp.ENDING) and PurePosixPath(other.path).parent == pure.parent
        for other in manifest.files
    )


def _tensors(file: IO[bytes]) -> list[str]:
    """Return the digest of each tensor's storage in a file of `torch.save`; none where it is no such file."""
    if not zipfile.is_zipfile(file):
        return []
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if PurePosixPath(name).parent.name == "data"]
        return [hashlib.sha256(archive.read(name)).hexdigest() for name in sorted(names)]
