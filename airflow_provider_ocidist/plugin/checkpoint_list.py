"""CheckpointList: the published checkpoints of a task; manifests never change, so each is read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_ocidist.errors import CheckpointError, OcidistError
from airflow_provider_ocidist.model.checkpoint import Order
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.listing import by_folder, fault_of
from airflow_provider_ocidist.storage.locations import join
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.bounded_store import UnansweredCalls, bounded

LISTED_WITHIN = 300.0
"""Seconds for a list of a place, which may hold very many files; the page shows meanwhile what it knows."""
OPENED_WITHIN = 30.0
"""Seconds for opening a place, for which the driver of some connects."""
SHOWN = 100
"""Most checkpoints that are read, the newest of all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One published checkpoint."""

    uri: str
    step: int | None
    loss: float | None
    size: int
    """Bytes of all its files."""
    files: int
    created_at: float
    """Unix time, in seconds."""
    fault: str | None = None
    """Reason why it is not whole any more, by the sizes of its files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundCheckpoints:
    """The checkpoints: the whole ones, the newest first, then the damaged ones."""

    items: tuple[Checkpoint, ...] = ()
    older: int = 0
    """Number of older checkpoints."""
    problem: str | None = None


_Read = tuple[Order, Checkpoint]


class CheckpointList:
    """Reads only the manifests that are new since the last call."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], Manifest | None] = {}
        self._last = FoundCheckpoints()
        self._left_open = UnansweredCalls()
        # By itself: the one call after a silence is not spent on an opening that asks nothing.
        self._left_opening = UnansweredCalls()

    def read(self, uri: str, access: OciAccess) -> FoundCheckpoints:
        """Return the checkpoints below a URI; if it cannot be read now, those known before, and why."""
        try:
            store = self._opened(uri, access)
            published = [files for files in by_folder(store.list()).values() if MANIFEST in files]
            # The order is in the manifests; of very many, the last written ones are read.
            published.sort(key=lambda files: files[MANIFEST].modified or 0.0, reverse=True)
            found = [self._checkpoint(store, files) for files in published[:SHOWN]]
        except (OcidistError, OSError) as error:
            return FoundCheckpoints(
                items=self._last.items,
                older=self._last.older,
                problem=f"the checkpoints cannot be read now: {error}",
            )
        read = sorted((each for each in found if each), key=_rank, reverse=True)
        items = tuple(checkpoint for _, checkpoint in read)
        self._last = FoundCheckpoints(items=items, older=max(0, len(published) - SHOWN))
        return self._last

    def _opened(self, uri: str, access: OciAccess) -> Store:
        if uri.startswith("oci://"):
            store = open_store(uri, access)
        else:
            store = self._left_opening.answer(uri, lambda: open_store(uri, access), OPENED_WITHIN)
        return bounded(store, self._left_open, within=LISTED_WITHIN)

    def _checkpoint(self, store: Store, files: Mapping[str, Entry]) -> _Read | None:
        entry = files[MANIFEST]
        key = (entry.name, entry.etag)
        if key not in self._known:
            self._known[key] = _read(store, entry.name)
        manifest = self._known[key]
        if manifest is None:
            return None
        return manifest.order, Checkpoint(
            uri=join(store.uri, entry.name.rpartition("/")[0]),
            step=manifest.step,
            loss=manifest.loss,
            size=sum(file.size for file in manifest.files),
            files=len(manifest.files),
            created_at=manifest.created_at,
            fault=fault_of(manifest, files),
        )


def _rank(read: _Read) -> tuple[bool, Order]:
    order, checkpoint = read
    return checkpoint.fault is None, order


def _read(store: Store, name: str) -> Manifest | None:
    try:
        return Manifest.from_json(store.read(name))
    except (CheckpointError, FileNotFoundError):
        # Of another version, or just retired.
        return None
