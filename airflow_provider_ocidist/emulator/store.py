"""What survives a restart: records in SQLite, written through from tables that live in memory."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from airflow_provider_ocidist.emulator.errors import StartupError

VERSION = 1
"""Version of the format of the whole state folder: to be raised when what is stored there no longer fits the
records."""
Record = TypeVar("Record")
_encode = json.JSONEncoder(separators=(",", ":")).encode
AS_OF: ContextVar[float | None] = ContextVar("AS_OF", default=None)
"""Unix time of the state that a request sees in lists; None: the present."""


@dataclass(frozen=True, slots=True)
class RecordChange:
    """What a record was before it was written, or None before it was new."""

    time: float
    kind: str
    key: str
    before: Any


class RecordStore:
    """One SQLite file. Used by the server's thread alone, after `open` on any."""

    def __init__(self, path: Path) -> None:
        # Values of secrets are in it, and the folder may have been there before, open to others.
        path.touch(0o600)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        # The file must survive a killed process, not a power cut: without fsync a write takes microseconds.
        # The folder's lock excludes other processes, so the file need not be locked for each write.
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._check_version(path.parent)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS records"
            " (kind TEXT, id TEXT, body TEXT, PRIMARY KEY (kind, id)) WITHOUT ROWID"
        )
        self._history_s = 0.0
        self._changes: deque[RecordChange] = deque()

    def _check_version(self, folder: Path) -> None:
        """Mark a new store; refuse one of another format. Raises StartupError."""
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        is_new = self._db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
        if not is_new and version != VERSION:
            self._db.close()
            raise StartupError(
                f"the state folder {folder} is of another version of the emulator (its format is {version}, this"
                f" version's {VERSION}): remove it, or give another folder"
            )
        self._db.execute(f"PRAGMA user_version={VERSION}")

    def keep_history(self, seconds: float) -> None:
        """Keep changes for at least so long, from now on; 0 drops them."""
        self._history_s = max(seconds, self._history_s) if seconds else 0.0
        if not seconds:
            self._changes.clear()

    def remember(self, kind: str, key: str, before: Any) -> None:
        if self._history_s:
            now = time.time()
            self._changes.append(RecordChange(now, kind, key, before))
            while self._changes[0].time < now - self._history_s:
                self._changes.popleft()

    def changes_since(self, moment: float, kind: str) -> Iterator[RecordChange]:
        """Yield what happened to records of a kind, the newest first."""
        for change in reversed(self._changes):
            if change.time <= moment:
                return
            if change.kind == kind:
                yield change

    def load(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        rows = self._db.execute("SELECT id, body FROM records WHERE kind = ?", (kind,))
        return ((key, json.loads(body)) for key, body in rows)

    def put(self, kind: str, key: str, body: Mapping[str, Any]) -> None:
        text = _encode(body)
        self._db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (kind, key, text))

    def delete(self, kind: str, key: str) -> None:
        self._db.execute("DELETE FROM records WHERE kind = ? AND id = ?", (kind, key))

    def clear(self, kind: str) -> None:
        self._db.execute("DELETE FROM records WHERE kind = ?", (kind,))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written inside survives a killed process together, or none of it does."""
        self._db.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


class Table(Generic[Record]):
    """All records of one kind: read from memory, written to memory and disk.

    `decode` rebuilds a record, a dataclass of JSON values, from its fields.
    """

    def __init__(self, store: RecordStore, kind: str, decode: Callable[..., Record]) -> None:
        self._store = store
        self._kind = kind
        self._records = {key: decode(**body) for key, body in store.load(kind)}

    def get(self, key: str) -> Record | None:
        return self._records.get(key)

    def values(self) -> list[Record]:
        return list(self._seen().values())

    def items(self) -> list[tuple[str, Record]]:
        return list(self._seen().items())

    def _seen(self) -> dict[str, Record]:
        """Return what the request at hand may see."""
        moment = AS_OF.get()
        if moment is None:
            return self._records
        seen = dict(self._records)
        for change in self._store.changes_since(moment, self._kind):
            if change.before is None:
                seen.pop(change.key, None)
            else:
                seen[change.key] = change.before
        return seen

    def put(self, key: str, record: Record) -> None:
        self._store.remember(self._kind, key, self._records.get(key))
        self._records[key] = record
        self._store.put(self._kind, key, _fields(record))

    def delete(self, key: str) -> None:
        record = self._records.pop(key, None)
        if record is not None:
            self._store.remember(self._kind, key, record)
            self._store.delete(self._kind, key)

    def clear(self) -> None:
        self._records.clear()
        self._store.clear(self._kind)


def _fields(record: Any) -> dict[str, Any]:
    # What dataclasses.fields() looks at, without the time it takes.
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
