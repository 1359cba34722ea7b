"""Lost runs: what is recorded of lost nodes in a run directory, for those that their platform makes in their places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from airflow_provider_ocidist.errors import BackendError, StorageError
from airflow_provider_ocidist.model.replaced import Replaced
from airflow_provider_ocidist.model.report import NodeReport
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.model.work_dir import REPLACED_FILE, report_of
from airflow_provider_ocidist.storage import conditional_writes
from airflow_provider_ocidist.storage.replacements import read_replaced
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.work_dir.reports import report_in
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores


def read(run_dirs: RunDirStores, ref: RunRef) -> Replaced:
    """Return the lost nodes of a gang. Raises BackendError."""
    with _store_errors(ref):
        return read_replaced(*run_dirs.at(ref.run_dir))


def record(run_dirs: RunDirStores, ref: RunRef, now: Replaced) -> Replaced:
    """Record further lost nodes of a gang, unless another process has recorded some; return what is recorded then.

    Raises BackendError.
    """
    found = now

    def content(exists: bool) -> bytes | None:
        nonlocal found
        known = read_replaced(store, prefix) if exists else Replaced()
        found = now if known.replaced == ref.replaced else known
        return now.to_json() if found is now else None

    with _store_errors(ref):
        store, prefix = run_dirs.at(ref.run_dir)
        conditional_writes.change(store, prefix + REPLACED_FILE, content)
    return found


def reports(run_dirs: RunDirStores, ref: RunRef, ranks: Sequence[int]) -> dict[int, NodeReport | None]:
    """Return the last reports of some ranks; None for a rank that has none, or a damaged one. Raises BackendError."""
    with _store_errors(ref):
        store, prefix = run_dirs.at(ref.run_dir)
        return {rank: _report(store, prefix + report_of(rank)) for rank in ranks}


def _report(store: Store, name: str) -> NodeReport | None:
    try:
        return report_in(name, store.read(name))
    except FileNotFoundError:
        return None


@contextmanager
def _store_errors(ref: RunRef) -> Iterator[None]:
    try:
        yield
    except (StorageError, OSError, ValueError, TypeError) as error:
        raise BackendError(f"{ref.key.name}: {error}", retryable=True) from error
