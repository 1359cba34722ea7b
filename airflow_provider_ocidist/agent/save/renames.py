"""Renames: which entries of a folder were renamed into place, by the kernel's inotify."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

CREATE, MODIFY = 0x100, 0x2
MOVED_FROM, MOVED_TO = 0x40, 0x80
DELETE = 0x200
OVERFLOW, IGNORED = 0x4000, 0x8000
EVENT = struct.Struct("iIII")
"""Watch, mask, cookie, and how long the name is that follows."""
CHUNK = 1 << 16


class Renames:
    """Watches the entries of one folder, which may be created or replaced later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: set[str] = set()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._queue: int | None = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._queue is not None and self._queue < 0:
            # The machine has no inotify instance left: no rename is seen.
            self._queue = None
        self._is_watching = False
        self._watch()

    def names(self) -> frozenset[str]:
        """Return the entries that were renamed into place, and not written to since, as far as is known."""
        if not self._is_watching:
            self._watch()
        for mask, name in self._events():
            self._note(mask, name)
        return frozenset(self._names)

    def close(self) -> None:
        if self._queue is not None:
            os.close(self._queue)
            self._queue = None

    def _watch(self) -> None:
        if self._queue is not None:
            wanted = CREATE | MODIFY | MOVED_FROM | MOVED_TO | DELETE
            watch = self._libc.inotify_add_watch(self._queue, os.fsencode(self.folder), wanted)
            self._is_watching = watch >= 0

    def _events(self) -> list[tuple[int, str]]:
        found = []
        while data := self._read():
            while data:
                _, mask, _, length = EVENT.unpack_from(data)
                name = data[EVENT.size : EVENT.size + length].rstrip(b"\0")
                found.append((mask, os.fsdecode(name)))
                data = data[EVENT.size + length :]
        return found

    def _read(self) -> bytes:
        if self._queue is None:
            return b""
        try:
            return os.read(self._queue, CHUNK)
        except BlockingIOError:
            return b""

    def _note(self, mask: int, name: str) -> None:
        if mask & (OVERFLOW | IGNORED):
            self._names.clear()
            self._is_watching = self._is_watching and not mask & IGNORED
        elif mask & MOVED_TO:
            self._names.add(name)
        else:
            self._names.discard(name)
