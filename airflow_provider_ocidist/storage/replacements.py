"""What a run directory has of lost nodes where the platform itself makes others in their places."""

from __future__ import annotations

from airflow_provider_ocidist.model.replaced import Replaced
from airflow_provider_ocidist.model.work_dir import REPLACED_FILE
from airflow_provider_ocidist.storage.stores.base import Store


def read_replaced(store: Store, run_dir: str = "") -> Replaced:
    """Return the lost nodes of a gang; `run_dir`: prefix of its names in the store.

    Raises StorageError, OSError, ValueError or TypeError when that cannot be read now.
    """
    try:
        return Replaced.from_json(store.read(run_dir + REPLACED_FILE))
    except FileNotFoundError:
        return Replaced()
