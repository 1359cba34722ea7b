"""ForwardingStore: a store that leaves everything to another, and of which a subclass changes a part."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

from airflow_provider_ocidist.storage.stores.base import (
    Buffer,
    Checksum,
    Download,
    Entry,
    OpenUpload,
    Origin,
    Store,
    Upload,
)


class ForwardingStore(Store):
    """Forwards each call, also those for which `Store` has an answer: the other store may have a better one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.uri = store.uri
        self.streams = store.streams
        self.skipped = store.skipped
        self.folder = store.folder

    def read(self, name: str) -> bytes:
        return self._store.read(name)

    def write(self, name: str, data: Buffer) -> str | None:
        return self._store.write(name, data)

    def write_if(self, name: str, data: Buffer, etag: str | None) -> bool:
        return self._store.write_if(name, data, etag)

    def list(self, prefix: str = "") -> list[Entry]:
        found = self._store.list(prefix)
        self.skipped = self._store.skipped
        return found

    def list_each(self, prefixes: Sequence[str]) -> Mapping[str, Sequence[Entry]]:
        return self._store.list_each(prefixes)

    def delete(self, name: str) -> None:
        self._store.delete(name)

    def sync(self, names: Sequence[str]) -> None:
        self._store.sync(names)

    def stat(self, name: str) -> Entry:
        return self._store.stat(name)

    def exists(self, name: str) -> bool:
        return self._store.exists(name)

    def uri_of(self, name: str) -> str:
        return self._store.uri_of(name)

    def upload(self, name: str, size: int | None, part_size: int, origin: Origin | None = None) -> Upload:
        return self._store.upload(name, size, part_size, origin)

    def open_uploads(self, prefix: str = "") -> Sequence[OpenUpload]:
        return self._store.open_uploads(prefix)

    def abort_upload(self, upload: OpenUpload) -> None:
        self._store.abort_upload(upload)

    def download(self, entry: Entry, part_size: int) -> Download | None:
        return self._store.download(entry, part_size)

    def chunks(self, entry: Entry, size: int) -> Iterator[bytes]:
        return self._store.chunks(entry, size)

    def checksum(self, entry: Entry) -> Checksum | None:
        return self._store.checksum(entry)

    def checksum_by_reading(self, entry: Entry, part_size: int | None) -> Checksum:
        return self._store.checksum_by_reading(entry, part_size)

    def part_size_for(self, size: int | None, part_size: int) -> int:
        return self._store.part_size_for(size, part_size)

    def takes_from(self, source: Store, entry: Entry) -> bool:
        return self._store.takes_from(source, entry)

    def take(self, source: Store, entry: Entry, name: str, stop: threading.Event) -> str | None:
        return self._store.take(source, entry, name, stop)
