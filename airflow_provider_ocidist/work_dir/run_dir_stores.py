"""RunDirStores: the stores of the run directories of many gangs, through as few clients as they have places."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_ocidist.errors import BackendError, Cause, StorageError, service_error_in
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.work_dir.bounded_store import UnansweredCalls, bounded, usual_patience


class RunDirStores:
    """Opens a place once for all run directories in it, and keeps its store. Safe to share between threads.

    A place that does not answer holds up no caller for longer than `bounded_store` says.
    """

    def __init__(self, open_store: Callable[[str], Store], *, urgent: bool = False) -> None:
        """`urgent`: whether its callers wait seconds at most."""
        self._open_store = open_store
        self._urgent = urgent
        self._stores: dict[str, Store] = {}
        self._left_open: dict[str, UnansweredCalls] = {}
        """Calls that were not answered, by the folder above the store: mostly the work directory."""

    def at(self, run_dir: str) -> tuple[Store, str]:
        """Return the store that holds a run directory, and the prefix of its names there.

        In a bucket, one store for all of them allows one listing; in another store a listing would walk through
        everything beside them.
        Raises StorageError or BackendError.
        """
        place, name = _place_of(run_dir)
        return self._store(place), name

    def below(self, work_dir: str, folder: str) -> tuple[Store, str]:
        """Return the store that holds a folder of a work directory, and the prefix of its names there.

        Raises StorageError or BackendError.
        """
        place = locations.parse(work_dir)
        if place.kind == "oci":
            return self._store(place.uri), f"{folder}/"
        return self._store(locations.join(work_dir, folder)), ""

    def _store(self, place: str) -> Store:
        store = self._stores.get(place)
        if store is None:
            # Another thread may clear meanwhile.
            store = self._stores[place] = self._opened(place)
        return store

    def _opened(self, uri: str) -> Store:
        place = locations.parse(uri)
        if place.kind == "oci":
            return self._open_store(uri)
        left_open = self._left_open.setdefault(place.parent, UnansweredCalls())
        # Some drivers connect at once.
        patience = usual_patience(urgent=self._urgent)
        store = left_open.answer(uri, lambda: self._open_store(uri), patience, opens=True)
        return bounded(store, left_open, urgent=self._urgent)

    def write(self, run_dir: str, name: str, data: bytes) -> None:
        """Replace a file in a run directory. Raises StorageError or BackendError."""
        store, prefix = self.at(run_dir)
        store.write(prefix + name, data)

    def forget(self, run_dir: str) -> None:
        """Drop the store of a gang that is no longer watched, unless other run directories share it."""
        place, name = _place_of(run_dir)
        if not name:
            self._stores.pop(place, None)
            if (left_open := self._left_open.get(locations.parse(place).parent)) is not None:
                left_open.forget(place)

    def clear(self) -> None:
        """Open every place again when it is needed next."""
        self._stores.clear()


def _place_of(run_dir: str) -> tuple[str, str]:
    place = locations.parse(run_dir)
    if place.kind == "oci" and locations.parse(place.parent).path:
        return place.parent.rstrip("/"), f"{place.name}/"
    return run_dir, ""


def unusable(error: StorageError | OSError, doing: str = "") -> BackendError:
    """Return the error for a work directory that cannot be written or read, with what to do where that helps."""
    passes = isinstance(error, StorageError) and error.retryable
    remedy = "" if passes else "; create its bucket, or name another work_dir"
    refused = service_error_in(error)
    return BackendError(
        f"work_dir cannot be used{doing and ', '}{doing}: {error}{remedy}",
        status_code=refused.status_code if refused else None,
        retryable=passes,
        cause=Cause.SERVICE if passes else Cause.CONFIG,
    )
