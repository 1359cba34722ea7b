"""Suspensions: forgets what nodes reported before one; resumed ones would take it for each other's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from airflow_provider_ocidist.backends.runai.phases import Workload
from airflow_provider_ocidist.errors import BackendError, StorageError
from airflow_provider_ocidist.model.report import StopRequest
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.model.work_dir import NODES_FOLDER, STOP_FILE
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores

QUIET = 30.0
"""Seconds without a change after which a file is no live node's, whatever the clocks of store and platform say: a node
reports every two seconds."""
NEVER = -1.0


@dataclass(frozen=True, slots=True)
class _Sight:
    """A file as it was when it was first seen, and when that was, by this machine's monotonic clock."""

    mark: tuple[str | None, float | None, int | None]
    at: float


class Suspensions:
    """Deletes what was written before a pause, and nothing that resumed nodes may have written since.

    An answer that a gang is suspended may be from before it was resumed, and any process that looks may be the first to
    see it.
    """

    def __init__(self, run_dirs: RunDirStores, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dirs = run_dirs
        self._clock = clock
        self._cleared: dict[str, float | None] = {}
        """Begins of pauses before which nothing is left, by the gang's id."""
        self._sights: dict[str, dict[str, _Sight]] = {}
        """Files that may be live nodes', by their names, by the gang's id."""

    def seen(self, ref: RunRef, workload: Workload, look: Callable[[], Workload | None]) -> None:
        """Take note of a workload, and forget what its nodes reported before a pause. Raises nothing.

        `look`: asks for the workload alone, since a list may be older.
        """
        if not workload.is_paused:
            self.forget(ref)
        elif self._cleared.get(ref.job_id, NEVER) != workload.phase_since:
            # What cannot be deleted now is tried again at the next look.
            with suppress(StorageError, BackendError, OSError):
                self._clear(ref, workload, look)

    def forget(self, ref: RunRef) -> None:
        self._cleared.pop(ref.job_id, None)
        self._sights.pop(ref.job_id, None)

    def _clear(self, ref: RunRef, workload: Workload, look: Callable[[], Workload | None]) -> None:
        store, prefix = self._run_dirs.at(ref.run_dir)
        found = list(_files(store, prefix))
        old = [entry for entry in found if self._is_old(ref, entry, workload.phase_since)]
        if old and not _is_same_pause(look(), workload):
            return
        for entry in old:
            store.delete(entry.name)
        if len(old) == len(found):
            self._cleared[ref.job_id] = workload.phase_since

    def _is_old(self, ref: RunRef, entry: Entry, since: float | None) -> bool:
        """Whether a file was written before the pause, by its time or since nobody has written it for long."""
        if since is not None and entry.modified is not None and entry.modified <= since:
            return True
        sights, mark = self._sights.setdefault(ref.job_id, {}), (entry.etag, entry.modified, entry.size)
        now, before = self._clock(), sights.get(entry.name)
        if before is None or before.mark != mark:
            before = sights[entry.name] = _Sight(mark, now)
        return now - before.at >= QUIET


def _is_same_pause(now: Workload | None, seen: Workload) -> bool:
    return now is not None and now.is_paused and now.phase_since == seen.phase_since


def _files(store: Store, prefix: str) -> Iterator[Entry]:
    """Yield what the nodes of a run directory have reported, and have asked of one another."""
    yield from store.list(f"{prefix}{NODES_FOLDER}/")
    with suppress(FileNotFoundError):
        if not _ends_run(store, f"{prefix}{STOP_FILE}"):
            yield store.stat(f"{prefix}{STOP_FILE}")


def _ends_run(store: Store, name: str) -> bool:
    """Whether a stop request is that of a cancel: resumed nodes have to find it."""
    try:
        request = StopRequest.from_json(store.read(name))
    except (ValueError, TypeError):
        return False
    return request.rank is None and request.ends_run
