"""Claims: which try of its task waits for a gang, in the run directory; no earlier try takes that back."""

from __future__ import annotations

from airflow_provider_ocidist.model.work_dir import CLAIM_FILE
from airflow_provider_ocidist.storage.conditional_writes import change
from airflow_provider_ocidist.storage.stores.base import Store


def claimed_by(store: Store, prefix: str) -> int:
    """Return the number of the try that has claimed a gang last; 0 where none has, or the file holds no number.

    Raises StorageError when the store cannot be read.
    """
    try:
        return int(store.read(prefix + CLAIM_FILE))
    except (FileNotFoundError, ValueError):
        return 0


def claim_gang(store: Store, prefix: str, try_number: int) -> int:
    """Claim a gang for a try unless a later one has it; return the number of the try that has it now.

    Raises StorageError when that cannot be read or written.
    """
    holder = try_number

    def content(exists: bool) -> bytes | None:
        nonlocal holder
        holder = claimed_by(store, prefix) if exists else 0
        return None if holder >= try_number else str(try_number).encode()

    change(store, prefix + CLAIM_FILE, content)
    return max(holder, try_number)
