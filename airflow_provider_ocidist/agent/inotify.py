"""Inotify: the kernel's events of a folder."""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from pathlib import Path

CREATE, MODIFY = 0x100, 0x2
MOVED_FROM, MOVED_TO = 0x40, 0x80
DELETE = 0x200
OVERFLOW, IGNORED = 0x4000, 0x8000
_EVENT = struct.Struct("iIII")
"""Head of an event: watch, mask, cookie, and the length of the name that follows."""
_CHUNK = 1 << 16


class Inotify:
    """The events of one folder. Raises OSError where the kernel gives no instance."""

    def __init__(self, *, blocks: bool = False) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._queue = self._libc.inotify_init1(os.O_CLOEXEC | (0 if blocks else os.O_NONBLOCK))
        if self._queue < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        # A machine has few instances for all processes of a user: one that nobody closes goes with its last reference.
        self._end = weakref.finalize(self, os.close, self._queue)

    def watch(self, folder: Path, wanted: int) -> bool:
        """Return whether the folder is there, and is watched from now on."""
        return bool(self._libc.inotify_add_watch(self._queue, os.fsencode(folder), wanted) >= 0)

    def read(self) -> list[tuple[int, str]]:
        """Return the next events, as mask and name; where it blocks, wait for one."""
        try:
            data = os.read(self._queue, _CHUNK)
        except BlockingIOError:
            return []
        found = []
        while data:
            _, mask, _, length = _EVENT.unpack_from(data)
            name = data[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
            found.append((mask, os.fsdecode(name)))
            data = data[_EVENT.size + length :]
        return found

    def close(self) -> None:
        self._end()
