"""Renames: which entries of a folder were renamed into place."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from pathlib import Path

from airflow_provider_ocidist.agent.inotify import (
    CREATE,
    DELETE,
    IGNORED,
    MODIFY,
    MOVED_FROM,
    MOVED_TO,
    OVERFLOW,
    Inotify,
)
from airflow_provider_ocidist.agent.save.file_clocks import TICK_NS

logger = logging.getLogger(__name__)

LIMITS = " (fs.inotify.max_user_instances, or ulimit -n)"
"""Limits that may be used up after EMFILE."""


class Renames:
    """Watches the entries of one folder, which may be created or replaced later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._moved: dict[str, int | None] = {}
        """Time at which each folder was moved, by its name: its ctime, in ns; None for a file."""
        self._queue: Inotify | None = None
        self._is_watching = self._is_closed = self._was_refused = False
        self._watch()

    def names(self) -> frozenset[str]:
        """Return the entries that were renamed into place, and not written to since, as far as is known."""
        if not self._is_watching:
            self._watch()
        while self._queue is not None and (events := self._queue.read()):
            for mask, name in events:
                self._note(mask, name)
        return frozenset(name for name, at in self._moved.items() if at is None or self._is_as_moved(name))

    def close(self) -> None:
        self._is_closed = True
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def _watch(self) -> None:
        if self._queue is None and not self._is_closed:
            self._open()
        if self._queue is not None:
            wanted = CREATE | MODIFY | MOVED_FROM | MOVED_TO | DELETE
            self._is_watching = self._queue.watch(self.folder, wanted)

    def _open(self) -> None:
        """Take an instance of inotify; the kernel may give none now."""
        try:
            self._queue = Inotify()
        except OSError as error:
            if not self._was_refused:
                logger.warning("%s", why_none_is_seen(error))
            self._was_refused = True

    def _note(self, mask: int, name: str) -> None:
        if mask & (OVERFLOW | IGNORED):
            self._moved.clear()
            self._is_watching = self._is_watching and not mask & IGNORED
            return
        self._moved.pop(name, None)
        if mask & MOVED_TO:
            with contextlib.suppress(OSError):
                self._note_move(name)

    def _note_move(self, name: str) -> None:
        its = (self.folder / name).lstat()
        if stat.S_ISDIR(its.st_mode):
            # A move sets a folder's ctime alone, and its parent's times; what is created, replaced or deleted in it
            # since sets its mtime too, and a change of its mode leaves the parent as it was.
            if its.st_mtime_ns < its.st_ctime_ns <= self.folder.stat().st_mtime_ns + TICK_NS:
                self._moved[name] = its.st_ctime_ns
        elif stat.S_ISREG(its.st_mode) and its.st_nlink == 1:
            # What a link leads to, or what has another name too, may still be written there.
            self._moved[name] = None

    def _is_as_moved(self, name: str) -> bool:
        try:
            return (self.folder / name).stat().st_ctime_ns == self._moved[name]
        except OSError:
            return False


def why_none_is_seen(error: OSError) -> str:
    """Return the warning for an error of the kernel, which gives no instance of inotify."""
    number = error.errno or 0
    limits = LIMITS if number == errno.EMFILE else ""
    return f"no rename of a checkpoint into its place is seen without inotify: {os.strerror(number)}{limits}"
