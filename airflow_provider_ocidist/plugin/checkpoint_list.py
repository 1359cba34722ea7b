"""CheckpointList: the complete checkpoints of a task; manifests never change, so each is read once."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_ocidist.errors import CheckpointError, OcidistError
from airflow_provider_ocidist.model.checkpoint import Order
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.locations import join
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.storage.stores.opening import open_store

SHOWN = 100
"""Most checkpoints that are read, the newest of all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One complete checkpoint."""

    uri: str
    step: int | None
    loss: float | None
    size: int
    """Bytes of all its files."""
    files: int
    created_at: float
    """Unix time, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundCheckpoints:
    """The checkpoints, the newest first."""

    items: tuple[Checkpoint, ...] = ()
    older: int = 0
    """Number of older checkpoints."""
    problem: str | None = None


_Read = tuple[Order, Checkpoint]


class CheckpointList:
    """Reads only the manifests that are new since the last call."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], _Read | None] = {}
        self._last = FoundCheckpoints()

    def read(self, uri: str, access: OciAccess) -> FoundCheckpoints:
        """Return the checkpoints below a URI; if it cannot be read now, those known before, and why."""
        try:
            store = open_store(uri, access)
            manifests = [entry for entry in store.list() if entry.name.endswith(f"/{MANIFEST}")]
            # The order is in the manifests; of very many, the last written ones are read.
            manifests.sort(key=lambda entry: entry.modified or 0.0, reverse=True)
            found = [self._checkpoint(store, entry) for entry in manifests[:SHOWN]]
        except (OcidistError, OSError) as error:
            return FoundCheckpoints(
                items=self._last.items,
                older=self._last.older,
                problem=f"the checkpoints cannot be read now: {error}",
            )
        read = sorted((each for each in found if each), key=lambda each: each[0], reverse=True)
        items = tuple(checkpoint for _, checkpoint in read)
        self._last = FoundCheckpoints(items=items, older=max(0, len(manifests) - SHOWN))
        return self._last

    def _checkpoint(self, store: Store, entry: Entry) -> _Read | None:
        key = (entry.name, entry.etag)
        if key not in self._known:
            self._known[key] = _read(store, entry.name)
        return self._known[key]


def _read(store: Store, name: str) -> _Read | None:
    try:
        manifest = Manifest.from_json(store.read(name))
    except (CheckpointError, FileNotFoundError):
        # Of another version, or just retired.
        return None
    return manifest.order, Checkpoint(
        uri=join(store.uri, name.rpartition("/")[0]),
        step=manifest.step,
        loss=manifest.loss,
        size=sum(file.size for file in manifest.files),
        files=len(manifest.files),
        created_at=manifest.created_at,
    )
