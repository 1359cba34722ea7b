"""Manifests: a checkpoint's files, and its position among its task's checkpoints."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import field

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import CheckpointError, StorageError
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.checkpoint import CheckpointRef, Order, order_of
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage.locations import safe_name

MANIFEST = "manifest.json"
VERSION = 2
_ALWAYS = ("version", "created_at", "files")
"""Keys that a manifest of any version has."""


@dataclass(frozen=True, kw_only=True)
class ManifestFile:
    """One file of a checkpoint."""

    path: str
    """Path relative to the folder that holds the manifest."""
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SaveFacts:
    """What is known of one save of the program, beside its files."""

    step: int | None
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    fence: Fence
    """Fence of the launch whose program saved it."""
    sequence: int
    """Number among the attempt's checkpoints, from 1, in the order of saving."""
    proof: str
    """Proof that the checkpoint is whole."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A checkpoint's files; written last, so that its presence means completeness."""

    version: int
    name: str
    """Name of the file or folder, as the program called it."""
    step: int | None = None
    loss: float | None = None
    created_at: float
    """Unix time, in seconds."""
    files: tuple[ManifestFile, ...]
    single_file: bool = False
    """Whether `name` was a file; else it was a folder, and the paths are relative to it."""
    generation: int = 0
    attempt: int = 0
    """Number of the attempt; 0 in version 1."""
    sequence: int = 0
    """Number among the attempt's checkpoints, from 1; 0 in version 1."""
    proof: str = ""
    """Proof that the checkpoint is whole; empty in version 1."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_save(
        cls, name: str, files: Iterable[ManifestFile], save: SaveFacts, *, single_file: bool = False
    ) -> Manifest:
        """Return the manifest of a checkpoint that is published now."""
        return cls(
            version=VERSION,
            name=name,
            step=save.step,
            loss=save.loss,
            created_at=time.time(),
            files=tuple(files),
            single_file=single_file,
            generation=save.fence.generation,
            attempt=save.fence.attempt,
            sequence=save.sequence,
            proof=save.proof,
            metrics=save.metrics,
        )

    @property
    def fence(self) -> Fence:
        return Fence(generation=self.generation, attempt=self.attempt)

    @property
    def order(self) -> Order:
        return order_of(self.fence, self.sequence, self.step, self.created_at)

    @property
    def digest(self) -> str:
        """SHA-256 of the name and of the path, size and SHA-256 of each file, in hexadecimal digits."""
        files = sorted((item.path, item.size, item.sha256) for item in self.files)
        return hashlib.sha256(json.dumps([self.name, self.single_file, files]).encode()).hexdigest()

    def ref(self, uri: str) -> CheckpointRef:
        """Return the reference to the checkpoint whose folder this is in."""
        return CheckpointRef(
            uri=uri,
            step=self.step,
            loss=self.loss,
            fence=self.fence,
            sequence=self.sequence,
            digest=self.digest,
        )

    def metric(self, name: str) -> float | None:
        """Return a value recorded with the checkpoint; its loss is one."""
        return self.metrics.get(name, self.loss if name == "loss" else None)

    def to_json(self) -> bytes:
        return json.dumps(codec.encode(self), indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Return the manifest in a text. Raises CheckpointError when it is none that this version can read."""
        try:
            manifest = codec.read(cls, text)
            if not manifest.files or manifest.version > VERSION:
                raise CheckpointError(f"it is of version {manifest.version} with {len(manifest.files)} files")
            for item in manifest.files:
                safe_name(item.path)
            safe_name(manifest.name)
            if not (
                manifest.fence.is_possible and manifest.sequence >= 0 and math.isfinite(manifest.created_at)
            ):
                raise CheckpointError("its number in the order of checkpoints is not valid")
        except (ValueError, TypeError, KeyError, AttributeError, StorageError) as error:
            raise CheckpointError(f"the manifest is corrupt: {error}") from error
        return manifest


def is_another_programs(text: bytes) -> bool:
    """Whether a file of a manifest's name is one of another program, as dbt and web applications have, and whole."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return not (isinstance(found, dict) and all(key in found for key in _ALWAYS))
