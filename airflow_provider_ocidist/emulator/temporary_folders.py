"""Temporary folders of emulators without a state; those of emulators that were killed are removed by the next one."""

from __future__ import annotations

import fcntl
import os
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

from airflow_provider_ocidist.emulator import trees

PREFIX = "ocidist-emulator-"
LOCK = "lock"


def new_place() -> Path:
    """Return where a folder is to be made."""
    return Path(tempfile.gettempdir()) / f"{PREFIX}{uuid.uuid4().hex}"


def make(folder: Path) -> int:
    """Make a folder, and return its lock. It has its name once it is locked, so that nobody takes it for abandoned."""
    draft = folder.with_name(f".{folder.name}")
    draft.mkdir(mode=0o700)
    lock = locked(draft)
    draft.rename(folder)
    return lock


def locked(folder: Path) -> int:
    """Lock a folder for as long as this process lives, or until the lock is closed. Raises BlockingIOError, OSError."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def remove_abandoned() -> None:
    """Remove the folders, with keys in them, that this user's emulators have left when they were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Another one may remove it, too.
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = locked(folder)
            try:
                trees.remove(folder)
            finally:
                os.close(lock)
