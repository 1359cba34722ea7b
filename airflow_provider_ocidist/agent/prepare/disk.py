"""Disk: whether this node has free space, and whether a failure is that of a full disk."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model.amounts import size_text

FULL = {errno.ENOSPC, errno.EDQUOT}
FULL_TEXTS = ("No space left on device", "Disk quota exceeded")


def check_room(what: str, needed: int, folder: Path) -> None:
    """Raise AgentError when so many bytes more do not fit where a folder is, or will be."""
    free = free_bytes(folder)
    if needed > free:
        raise AgentError(_full(what, folder, free, f"needs {size_text(needed)}"), cause=Cause.DATA)


def free_bytes(folder: Path) -> int:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    return shutil.disk_usage(existing).free


def is_full(error: BaseException | None) -> bool:
    """Return whether an error, or what led to it, is that of a full disk."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def full_error(what: str, folder: Path, needed: int | None = None) -> AgentError:
    """Return what to raise when the disk has filled up; `needed` is in bytes, where it is known."""
    wants = f"needs {size_text(needed)}" if needed else "does not fit"
    return AgentError(_full(what, folder, free_bytes(folder), wants), cause=Cause.DATA)


def _full(what: str, folder: Path, free: int, wants: str) -> str:
    return (
        f"{what} {wants}, and the disk that holds {folder} has {size_text(free)} free: "
        "give the nodes more disk (backend.block_storage_gb), or mount the data"
    )
