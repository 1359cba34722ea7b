"""What survives a restart: records in SQLite, written through from tables that live in memory."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

Record = TypeVar("Record")


class Store:
    """One SQLite file. Used by the server's thread alone, after `open` on any."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        # The file must survive a killed process, not a power cut: without fsync a write takes microseconds.
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS records"
            " (kind TEXT, id TEXT, body TEXT, PRIMARY KEY (kind, id)) WITHOUT ROWID"
        )

    def load(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        rows = self._db.execute("SELECT id, body FROM records WHERE kind = ?", (kind,))
        return ((key, json.loads(body)) for key, body in rows)

    def put(self, kind: str, key: str, body: Mapping[str, Any]) -> None:
        text = json.dumps(body, separators=(",", ":"))
        self._db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (kind, key, text))

    def delete(self, kind: str, key: str) -> None:
        self._db.execute("DELETE FROM records WHERE kind = ? AND id = ?", (kind, key))

    def clear(self, kind: str) -> None:
        self._db.execute("DELETE FROM records WHERE kind = ?", (kind,))

    def close(self) -> None:
        self._db.close()


class Table(Generic[Record]):
    """All records of one kind: read from memory, written to memory and disk.

    `decode` rebuilds a record, a dataclass of JSON values, from its fields.
    """

    def __init__(self, store: Store, kind: str, decode: Callable[..., Record]) -> None:
        self._store = store
        self._kind = kind
        self._records = {key: decode(**body) for key, body in store.load(kind)}

    def get(self, key: str) -> Record | None:
        return self._records.get(key)

    def values(self) -> list[Record]:
        return list(self._records.values())

    def items(self) -> list[tuple[str, Record]]:
        return list(self._records.items())

    def put(self, key: str, record: Record) -> None:
        self._records[key] = record
        self._store.put(self._kind, key, _fields(record))

    def delete(self, key: str) -> None:
        if self._records.pop(key, None) is not None:
            self._store.delete(self._kind, key)

    def clear(self) -> None:
        self._records.clear()
        self._store.clear(self._kind)


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
