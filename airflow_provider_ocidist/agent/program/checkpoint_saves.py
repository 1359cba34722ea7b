"""Saves: a checkpoint that the program writes with ocifs is hidden in its folder until it is whole."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import sys
import time
from pathlib import Path
from typing import IO, Any

HIDDEN = ".ocidist-{}.tmp"
"""Name of a file that is still written; no entry of the checkpoint folder with it is a checkpoint."""
BUFFER = 1 << 20
LEFT_BEHIND = 60.0
"""Seconds after which an unfinished file that no process has locked is one of a killed process."""


class Save(io.BufferedWriter):
    """A file that gets its name when it is closed, or its transaction succeeds; never if an exception ended it."""

    def __init__(self, raw: io.FileIO, unfinished: Path, final: Path, *, autocommit: bool = True) -> None:
        super().__init__(raw, BUFFER)
        self._autocommit = autocommit
        self._locked: int | None = None
        """Descriptor that keeps the closed file locked until its transaction ends."""
        self._unfinished = unfinished
        self._final = final
        self._handled = sys.exc_info()[1]
        """Exception that was being handled when the save was begun: it did not end it."""
        self._has_failed = False
        self._is_dropped = False
        """Whether the program has dropped the file without closing it."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BaseException:
            self._has_failed = True
            raise

    def commit(self) -> None:
        """Give the file its name: the transaction in which it was written has succeeded."""
        self.close()
        try:
            if not (self._autocommit or self._has_failed):
                self._finish()
        finally:
            self._end()

    def discard(self) -> None:
        """Close the file without giving it its name."""
        self._has_failed = True
        self.close()
        self._end()

    def close(self) -> None:
        if self.closed:
            return
        # fsspec closes the file after an exception, too, and does not say which it was.
        self._has_failed = self._has_failed or sys.is_finalizing() or self._is_unwinding()
        try:
            if not self._autocommit:
                self._locked = os.dup(self.fileno())
            super().close()
            if self._autocommit and not self._has_failed:
                self._finish()
        except BaseException:
            self._has_failed = True
            raise
        finally:
            self._handled = None
            if self._autocommit or self._has_failed:
                self._end()

    def __del__(self) -> None:
        self._is_dropped = True
        with contextlib.suppress(Exception):
            self.close()
            self._end()

    def _is_unwinding(self) -> bool:
        handled = sys.exc_info()[1]
        return handled is not None and handled is not self._handled

    def _finish(self) -> None:
        self._final.parent.mkdir(parents=True, exist_ok=True)
        if self._is_dropped:
            # Perhaps because of an exception. A rename would prove that the file is whole; so its format must.
            shutil.copyfile(self._unfinished, self._final)
        else:
            self._unfinished.replace(self._final)

    def _end(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._unfinished.unlink()
        if self._locked is not None:
            os.close(self._locked)
            self._locked = None


_FOLDERS: set[Path] = set()
"""Folders in which this process has begun a save before."""


def begin_save(folder: Path, final: Path, uri: str, *, autocommit: bool = True) -> Save:
    """Return the file to which a checkpoint is written before it appears in its folder as `final`.

    `autocommit`: whether closing it is enough; else it waits for `Save.commit`.
    """
    if folder not in _FOLDERS:
        _FOLDERS.add(folder)
        folder.mkdir(parents=True, exist_ok=True)
        delete_left_behind(folder)
        print(f"ocidist: {uri} is written to {final}, from where this node uploads it", file=sys.stderr)
    unfinished = folder / HIDDEN.format(os.urandom(8).hex())
    raw = io.FileIO(os.fspath(unfinished), "xb")
    _lock(raw)
    return Save(raw, unfinished, final, autocommit=autocommit)


def delete_left_behind(folder: Path) -> None:
    """Delete the unfinished files of processes that were killed; other nodes may write to the same folder."""
    for path in folder.glob(HIDDEN.format("*")):
        with contextlib.suppress(OSError), path.open("r+b") as file:
            if time.time() - path.stat().st_mtime >= LEFT_BEHIND and _lock(file):
                path.unlink()


def _lock(file: IO[bytes] | io.FileIO) -> bool:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
