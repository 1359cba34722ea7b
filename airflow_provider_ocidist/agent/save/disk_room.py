"""DiskRoom: whether a program has room on the disk for its next checkpoint while earlier ones are held for upload."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
from collections.abc import Iterable
from pathlib import Path

from airflow_provider_ocidist.agent.save.entries import Candidate

logger = logging.getLogger(__name__)

REMEDY = "a disk with room for one checkpoint more than the program keeps, or a faster link to the store"
LOOK_INTERVAL = 1.0
"""Seconds between two looks at the free space of the disk while something that is held is sent."""
SOON_WRITTEN = 4 << 30
"""Bytes that a program may write between two looks; with less free space, it is given what it deletes at once."""


class DiskRoom:
    """The free space of a checkpoint folder's disk, and what the next save needs: that comes before any upload."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._needed = 0
        """Bytes that the next checkpoint needs."""
        self._has_warned = False

    def expect(self, items: Iterable[Candidate]) -> None:
        """Expect the next checkpoint to be as large as the largest of these."""
        self._needed = max(map(_size_of, items), default=0)

    @property
    def is_lacking(self) -> bool:
        """Whether the program may fail to write another checkpoint."""
        return free_bytes(self._folder) < self._needed

    def needs(self, place: Path) -> bool:
        """Whether the space that links take is to be given to the program."""
        if not self.is_lacking:
            return False
        # What the program still has costs nothing, and its upload would begin anew.
        return _is_alone(place) or free_bytes(self._folder) < SOON_WRITTEN

    def warn(self, path: Path) -> None:
        """Warn, once, that an entry is not held."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s is not held for its upload: its disk has less free space than another checkpoint needs. If the "
                "program deletes it before all of it is sent, it is not published. Remedy: %s",
                path.name,
                REMEDY,
            )


def free_bytes(folder: Path) -> float:
    """Return the free bytes of a folder's disk; infinite where it does not show them."""
    try:
        disk = shutil.disk_usage(folder)
    except OSError:
        return math.inf
    return disk.free if disk.total else math.inf


def _size_of(item: Candidate) -> int:
    return sum(stamp.size for _, stamp in item.signature.files)


def _is_alone(place: Path) -> bool:
    """Whether an entry's links alone keep a file of it on the disk: the program has deleted or replaced it."""
    with contextlib.suppress(OSError):
        files = [place] if place.is_file() else [file for file in place.rglob("*") if file.is_file()]
        return any(file.stat().st_nlink == 1 for file in files)
    return False
