"""Journal: what an interrupted copy has finished, so that the next attempt goes on from there."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.storage.locations import shown


class Journal:
    """A file with a line of JSON for each thing that was finished; the first line says what it is about.

    It is locked while it is in use, and removed when the work is done. A line that was cut off is ignored. It holds no
    secret: web addresses stand in it as `shown` returns them, so a copy also goes on with another token.
    """

    def __init__(self, path: Path, subject: Mapping[str, object], descriptor: int) -> None:
        self.path = path
        self.subject = _without_secrets(subject)
        self.records: list[Any] = []
        """What an earlier attempt at the same has finished."""
        self.stale: list[Any] = []
        """What an earlier attempt at something else had finished under this name."""
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, subject: Mapping[str, object]) -> Journal | None:
        """Return the journal at a path. None when another process is at it, or nothing can be written there."""
        try:
            descriptor = _open_locked(path)
        except OSError:
            return None
        journal = cls(path, subject, descriptor)
        try:
            lines = _read(descriptor)
            if lines and lines[0] == journal.subject:
                journal.records = lines[1:]
            else:
                journal.stale = lines[1:]
            journal._restart()
        except OSError:
            journal.remove()
            return None
        return journal

    def _restart(self) -> None:
        # Also where it goes on: a line that was cut off would swallow the next one.
        lines = [self.subject, *self.records]
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, "".join(f"{json.dumps(line)}\n" for line in lines).encode())

    def forget(self) -> None:
        """Start anew: what was finished is not there any more."""
        self.records = []
        self._restart()

    def add(self, record: object) -> None:
        """Note something finished. One write to the end of a file needs no lock among threads."""
        with contextlib.suppress(OSError):  # a full disk costs the journal, never the copy
            os.write(self._descriptor, f"{json.dumps(record)}\n".encode())

    def close(self) -> None:
        """Leave it to a later attempt."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def remove(self) -> None:
        """The work is done, or given up."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.close()


def key_of(*uris: str) -> str:
    """Return eight hexadecimal digits that stand for these places, whatever token opens them."""
    return hashlib.sha256("\0".join(map(shown, uris)).encode(errors="surrogatepass")).hexdigest()[:8]


def _without_secrets(subject: Mapping[str, object]) -> Mapping[str, object]:
    return {name: shown(value) if isinstance(value, str) else value for name, value in subject.items()}


def cache_folder() -> Path:
    """Return where journals live whose target is not on this machine."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")  # noqa: PTH111, PTH118 - Path.home() raises without a home
    return Path(base) / "ocidist" / "transfers"


def this_boot() -> str:
    """Return what changes when this machine restarts: data that was not yet on its disk is lost then."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _open_locked(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its owner removed it between our two calls


def _read(descriptor: int) -> list[Any]:
    found = []
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        for line in file:
            try:
                found.append(json.loads(line))
            except ValueError:
                break
    return found
