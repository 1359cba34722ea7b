"""CheckpointList: the complete checkpoints of a task; manifests never change, so that each is read once."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_ocidist.errors import CheckpointError, OcidistError
from airflow_provider_ocidist.oci_credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoints import MANIFEST, Manifest, step_of
from airflow_provider_ocidist.storage.locations import join
from airflow_provider_ocidist.storage.stores import Store, open_store

SHOWN = 100
"""Checkpoints that are read at the most: the newest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """One complete checkpoint."""

    uri: str
    step: int
    loss: float | None
    size: int
    """Bytes, of all its files."""
    files: int
    created_at: float
    """Unix time, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoints:
    """What is there, the newest first."""

    items: tuple[Checkpoint, ...] = ()
    older: int = 0
    """How many more there are."""
    problem: str | None = None


class CheckpointList:
    """Reads the manifests that are new since the last call."""

    def __init__(self) -> None:
        self._known: dict[str, Checkpoint | None] = {}
        self._last = Checkpoints()

    def read(self, uri: str, access: OciAccess) -> Checkpoints:
        """Return the checkpoints below a URI; where it cannot be read now, those known before, and why."""
        try:
            store = open_store(uri, access)
            names = [entry.name for entry in store.list() if entry.name.endswith(f"/{MANIFEST}")]
            names.sort(key=lambda name: step_of(name.partition("/")[0]) or 0, reverse=True)
            found = [self._checkpoint(store, name) for name in names[:SHOWN]]
        except (OcidistError, OSError) as error:
            return Checkpoints(
                items=self._last.items, older=self._last.older, problem=f"they cannot be read now: {error}"
            )
        items = sorted((each for each in found if each), key=lambda each: each.step, reverse=True)
        self._last = Checkpoints(items=tuple(items), older=max(0, len(names) - SHOWN))
        return self._last

    def _checkpoint(self, store: Store, name: str) -> Checkpoint | None:
        if name not in self._known:
            self._known[name] = _read(store, name)
        return self._known[name]


def _read(store: Store, name: str) -> Checkpoint | None:
    try:
        manifest = Manifest.from_json(store.read(name))
    except (CheckpointError, FileNotFoundError):
        # Of another version, or just retired.
        return None
    return Checkpoint(
        uri=join(store.uri, name.rpartition("/")[0]),
        step=manifest.step,
        loss=manifest.loss,
        size=sum(file.size for file in manifest.files),
        files=len(manifest.files),
        created_at=manifest.created_at,
    )
