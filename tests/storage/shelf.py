"""A store in memory that keeps the contract of `Store`, in each of the ways that real places keep it."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.stores.base import (
    Buffer,
    CannotTake,
    Checksum,
    Download,
    Entry,
    Origin,
    Store,
    Upload,
    not_the_promised_size,
)
from airflow_provider_ocidist.storage.stores.checksums import in_text, md5_of


class Shelf(Store):
    """What is on it is in `files`; what was done to it, in `calls`."""

    def __init__(self, uri: str = "mem://place", files: dict[str, bytes] | None = None) -> None:
        self.uri = uri
        self.files = dict(files or {})
        self.calls: list[tuple[object, ...]] = []
        self.modified: dict[str, float] = {}
        self.downloads = True
        """Whether ranges can be read; else only from front to back."""
        self.tells_size = True
        self.md5s = False
        """Whether a listing has the digest of each file."""
        self.part_md5s: dict[str, int] = {}
        """The part size of files that are known by the digests of their parts."""
        self.takes = False
        self.refuses: set[str] = set()
        """Names that the place takes by itself, it said, and then does not."""
        self.ordered = False
        self.reads_back = False
        self.before: Callable[[str, str], None] = lambda _verb, _name: None
        """Called with what is about to be done, and to which file."""
        self.uploads: list[ShelfUpload] = []
        self.kept: dict[int, bytes] = {}
        """Of an interrupted upload, by offset."""
        self.lock = threading.Lock()

    def entry(self, name: str) -> Entry:
        content = self.files[name]
        md5 = base64.b64encode(hashlib.md5(content).digest()).decode() if self.md5s else None
        return Entry(
            name=name,
            size=len(content) if self.tells_size else None,
            etag=hashlib.sha256(content).hexdigest()[:8],
            modified=self.modified.get(name),
            md5=md5,
        )

    def done(self, verb: str) -> list[object]:
        return [call[1] for call in self.calls if call[0] == verb]

    def _do(self, verb: str, name: str, *more: object) -> None:
        with self.lock:
            self.calls.append((verb, name, *more))
        self.before(verb, name)

    def read(self, name: str) -> bytes:
        self._do("read", name)
        return self._content(name)

    def _content(self, name: str) -> bytes:
        try:
            return self.files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def write(self, name: str, data: Buffer) -> str | None:
        self._do("write", name)
        self.files[name] = bytes(data)
        return self.entry(name).etag

    def list(self, prefix: str = "") -> list[Entry]:
        self._do("list", prefix)
        return [self.entry(name) for name in sorted(self.files) if name.startswith(prefix)]

    def delete(self, name: str) -> None:
        self._do("delete", name)
        self.files.pop(name, None)

    def stat(self, name: str) -> Entry:
        self._do("stat", name)
        self._content(name)
        return self.entry(name)

    def upload(self, name: str, size: int | None, part_size: int, origin: Origin | None = None) -> Upload:
        self._do("upload", name, size, part_size, origin)
        self.uploads.append(ShelfUpload(self, name, part_size))
        return self.uploads[-1]

    def download(self, entry: Entry, part_size: int) -> Download | None:
        self._do("download", entry.name, part_size)
        return ShelfDownload(self, entry, part_size) if self.downloads else None

    def chunks(self, entry: Entry, size: int) -> Iterator[bytes]:
        content = self._content(entry.name)
        for start in range(0, len(content), size):
            self._do("chunk", entry.name)
            yield content[start : start + size]

    def checksum(self, entry: Entry) -> Checksum | None:
        if step := self.part_md5s.get(entry.name):
            return checksum_of(self.files[entry.name], step)
        return super().checksum(entry)

    def takes_from(self, source: Store, entry: Entry) -> bool:
        del source, entry
        return self.takes

    def take(self, source: Store, entry: Entry, name: str, stop: threading.Event) -> str | None:
        assert isinstance(stop, threading.Event)
        self._do("take", name)
        if name in self.refuses:
            raise CannotTake(f"{name} is too much for me")
        assert isinstance(source, Shelf)
        self.files[name] = source._content(entry.name)
        return self.entry(name).etag


class LocalShelf(Shelf):
    """A shelf that says it is on this machine: its contents can be read for a checksum."""

    def __init__(self, uri: str, files: dict[str, bytes] | None = None) -> None:
        super().__init__(uri, files)
        self.folder: Path | None = Path(uri)

    def checksum_by_reading(self, entry: Entry, part_size: int | None) -> Checksum:
        self._do("checksum", entry.name, part_size)
        return checksum_of(self.files[entry.name], part_size)


def checksum_of(content: bytes, part_size: int | None) -> Checksum:
    if part_size is None:
        return Checksum(value=in_text([md5_of([content])], whole=True))
    parts = [content[start : start + part_size] for start in range(0, max(len(content), 1), part_size)]
    return Checksum(value=in_text([md5_of([part]) for part in parts], whole=False), part_size=part_size)


class ShelfDownload(Download):
    """Ranges of a file on a shelf, in pieces of a third of what is asked for."""

    def __init__(self, shelf: Shelf, entry: Entry, part_size: int) -> None:
        self.shelf, self.entry, self.part_size = shelf, entry, part_size
        self.checksum = shelf.checksum(entry)
        self.finished = 0

    def pieces(self, offset: int, length: int) -> Iterator[bytes]:
        self.shelf._do("pieces", self.entry.name, offset, length)
        content = self.shelf._content(self.entry.name)
        step = -(-length // 3)
        for start in range(offset, offset + length, step):
            piece = content[start : min(start + step, offset + length)]
            if not piece:
                raise not_the_promised_size(self.entry.name, self.entry.size, start)
            yield piece

    def finish(self) -> None:
        self.shelf._do("finish", self.entry.name)


class ShelfUpload(Upload):
    """Parts of a file that will stand on a shelf."""

    def __init__(self, shelf: Shelf, name: str, part_size: int) -> None:
        self.shelf, self.name, self.part_size = shelf, name, part_size
        self.ordered, self.streams = shelf.ordered, shelf.reads_back
        self.parts: dict[int, bytes] = dict(shelf.kept)
        self.order: list[int] = []
        self.end = ""

    def missing(self, offset: int, length: int) -> Sequence[tuple[int, int]]:
        had = self.shelf.kept.get(offset, b"")
        return [(offset + len(had), length - len(had))] if len(had) < length else []

    def write(self, index: int, offset: int, data: Buffer) -> None:
        self.shelf._do("part", self.name, index, offset, len(data))
        if not self.streams:
            assert index == offset // self.part_size
        with self.shelf.lock:
            self.parts[offset] = bytes(data)
            self.order.append(index)

    def read_back(self, offset: int, length: int) -> Iterator[bytes]:
        content = self._content()
        yield content[offset : offset + length]

    def _content(self) -> bytes:
        size = max((offset + len(data) for offset, data in self.parts.items()), default=0)
        content = bytearray(size)
        for offset, data in sorted(self.parts.items()):
            content[offset : offset + len(data)] = data
        return bytes(content)

    def commit(self) -> str | None:
        self.shelf._do("commit", self.name)
        if self.end:
            raise StorageError(f"{self.name} was {self.end} before")
        self.end = "committed"
        self.shelf.files[self.name] = self._content()
        return self.shelf.entry(self.name).etag

    def suspend(self) -> None:
        self.end = "suspended"

    def abort(self) -> None:
        self.end = "aborted"
