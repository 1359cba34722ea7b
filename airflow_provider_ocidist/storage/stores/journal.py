"""Journal: what an interrupted copy has finished, so that the next attempt resumes there."""

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
    """A file with a line of JSON for each finished item; the first line names its subject.

    It is locked while in use, and removed when the work is done. A truncated line is ignored. It holds no secret: web
    addresses are written as `shown` returns them, so a copy also resumes with another token.
    """

    def __init__(self, path: Path, subject: Mapping[str, object], descriptor: int) -> None:
        self.path = path
        self.subject = _without_secrets(subject)
        self.records: list[Any] = []
        """Records of what an earlier attempt at the same has finished."""
        self.stale: list[Any] = []
        """Records of what an earlier attempt at something else has finished under this name."""
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, subject: Mapping[str, object]) -> Journal | None:
        """Return the journal at a path. None when another process uses it, or nothing can be written there."""
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
        # Also on resuming: a truncated line would merge with the next.
        lines = [self.subject, *self.records]
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, "".join(f"{json.dumps(line)}\n" for line in lines).encode())

    def forget(self) -> None:
        """Start over: what was finished is gone."""
        self.records = []
        self._restart()

    def add(self, record: object) -> None:
        """Record something finished. A single append needs no lock among threads."""
        with contextlib.suppress(OSError):  # a full disk costs the journal, never the copy
            os.write(self._descriptor, f"{json.dumps(record)}\n".encode())

    def close(self) -> None:
        """Keep it for a later attempt."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def remove(self) -> None:
        """Delete it: work done or aborted."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.close()


def places_digest(*uris: str) -> str:
    """Return eight hexadecimal digits that identify these places, with any token."""
    return hashlib.sha256("\0".join(map(shown, uris)).encode(errors="surrogatepass")).hexdigest()[:8]


def _without_secrets(subject: Mapping[str, object]) -> Mapping[str, object]:
    return {name: shown(value) if isinstance(value, str) else value for name, value in subject.items()}


def cache_folder() -> Path:
    """Return the folder of journals for targets off this machine."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")  # noqa: PTH111, PTH118 - Path.home() raises without a home
    return Path(base) / "ocidist" / "transfers"


def this_boot() -> str:
    """Return an id of this boot: a restart loses data that was not yet on disk."""
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
