"""Store: a folder at any place; small files are read and written whole, large ones in ranges and parts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Union

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage import locations

Buffer = Union[bytes, memoryview]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file in a store."""

    name: str
    """Name relative to the store, with `/` between its parts."""
    size: int | None
    """Size in bytes; None if it is unknown before the end of the data."""
    etag: str | None = None
    """Mark that changes when the content does."""
    modified: float | None = None
    """Unix time, in seconds."""
    md5: str | None = None
    """Base64 of the content's MD5 digest, where a listing has it."""
    behind: str | None = None
    """Name, relative to the store, of the file that a symbolic link of this name leads to; None where it is no link."""


@dataclass(frozen=True, kw_only=True)
class OpenUpload:
    """An unfinished upload; it may still be running, or its sender be gone."""

    name: str
    """Name relative to the store."""
    id: str
    begun_at: float
    """Unix time of the begin, in seconds, by the clock of the place; of the last write, if only that is recorded."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The source of a file's content; a later attempt resumes only from the same."""

    uri: str
    etag: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Checksum:
    """MD5 of a content, or of the digests of its parts, as OCI writes it."""

    value: str
    part_size: int | None = None
    """Size of the parts in bytes; None: `value` is the digest of the whole."""


class Download(ABC):
    """One file being read; several threads read ranges of it at a time."""

    part_size: int
    """Size of the ranges to request, in bytes."""
    checksum: Checksum | None = None
    """Checksum of the whole, if the place has it and it is not verified yet."""

    @abstractmethod
    def pieces(self, offset: int, length: int) -> Iterator[bytes]:
        """Yield exactly this range. Raises StorageError if the file has changed since it was listed."""

    def finish(self) -> None:  # noqa: B027 - most places have nothing to add
        """Check the whole again, after every range was read. Raises StorageError when it has changed."""

    def landed(self, path: Path, offset: int, length: int) -> None:  # noqa: B027 - few have a use for it
        """Take note that a range, or the whole file, is in a file of this machine now."""


class Upload(ABC):
    """One file being written; nothing is visible under its name before `commit`."""

    ordered: bool = False
    """Whether parts must be written one after the other."""
    streams: bool = False
    """Whether a part may come in pieces of any size, and can be read back."""
    upload_id: str | None = None
    """Id of the upload, at a place that keeps, and bills, its parts until it is committed or aborted."""

    def missing(self, offset: int, length: int) -> Sequence[tuple[int, int]]:
        """Return offsets and lengths of what an earlier attempt has not written of this part."""
        return [(offset, length)]

    @property
    def written_to(self) -> Path | None:
        """The file of this machine that holds what was written so far; None where there is none."""
        return None

    @abstractmethod
    def write(self, index: int, offset: int, data: Buffer) -> None:
        """Take one part, or a piece of it; `index` is that of the part, from 0. The data is good until the return."""

    def read_back(self, offset: int, length: int) -> Iterator[bytes]:
        """Yield the bytes of this range that were written already."""
        raise NotImplementedError

    @abstractmethod
    def commit(self) -> str | None:
        """Make the file appear, whole; return its etag where it is known."""

    def suspend(self) -> None:
        """Keep what was written for a later attempt, where that can resume it. Never raises."""
        self.abort()

    @abstractmethod
    def abort(self) -> None:
        """Discard everything that was written. Never raises: the first error is to be reported."""


class Store(ABC):
    """A folder at one place. Safe to share between threads.

    Every method raises StorageError when the place cannot be reached, refuses, or is full.
    """

    uri: str
    streams: bool = False
    """Whether its uploads take a part in pieces."""
    skipped: Sequence[str] = ()
    """Files that the last `list` left out, since they cannot be copied."""
    folder: Path | None = None
    """Folder of the files, for a store on this machine."""

    def as_source(self) -> Store:
        """Return the store as one to copy from: it then lists what is behind its links to folders, too."""
        return self

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the content. Raises FileNotFoundError when the store is there and the name is not."""

    def write(self, name: str, data: Buffer) -> str | None:
        """Replace the content, whole or not at all; return its new etag where it is known."""
        upload = self.upload(name, len(data), len(data))
        try:
            upload.write(0, 0, data)
            return upload.commit()
        except BaseException:
            upload.abort()
            raise

    def write_if(self, name: str, data: Buffer, etag: str | None) -> bool:
        """Replace the content with this etag, None: create the file; return False for another content.

        Here two writers may both succeed; places with a conditional write use it.
        """
        try:
            found = self.stat(name).etag
        except FileNotFoundError:
            found = None
        if found != etag:
            return False
        self.write(name, data)
        return True

    @abstractmethod
    def list(self, prefix: str = "") -> list[Entry]:
        """Return all files, of subfolders too, whose name starts with the prefix, sorted by name."""

    def list_each(self, prefixes: Sequence[str]) -> Mapping[str, Sequence[Entry]]:
        """Return what `list` does for each of many prefixes, none of which begins another, in few requests."""
        return {prefix: self.list(prefix) for prefix in prefixes}

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file; it need not exist."""

    def sync(self, names: Sequence[str]) -> None:  # noqa: B027 - most places promise it of each upload
        """Wait until these files outlive a power cut. Raises StorageError where the place has lost what was written."""

    @abstractmethod
    def stat(self, name: str) -> Entry:
        """Return one entry. Raises FileNotFoundError as `read` does."""

    def exists(self, name: str) -> bool:
        """Return whether the file is there; an outage raises, it is never taken for absence."""
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True

    def uri_of(self, name: str) -> str:
        """Return the URI of a file, without secrets, for messages."""
        return _shown_place(self.uri, name)

    @abstractmethod
    def upload(self, name: str, size: int | None, part_size: int, origin: Origin | None = None) -> Upload:
        """Start writing a large file in parts of this size, of which the last may be shorter.

        With an origin, resume an interrupted upload from the same.
        """

    def open_uploads(self, prefix: str = "") -> Sequence[OpenUpload]:
        """Return the uploads to names with this prefix that have not ended, as far as the place lists them."""
        del prefix
        return []

    def abort_upload(self, upload: OpenUpload) -> None:
        """Discard an upload's parts; it may have ended by itself."""
        raise NotImplementedError

    def download(self, entry: Entry, part_size: int) -> Download | None:
        """Start reading a large file in ranges; None where it can only be read from front to back."""
        del entry, part_size
        return None

    def chunks(self, entry: Entry, size: int) -> Iterator[bytes]:
        """Yield the content in order, in pieces of this size, of which the last may be shorter."""
        raise NotImplementedError

    def checksum(self, entry: Entry) -> Checksum | None:
        """Return what the place knows of a content without reading it."""
        return Checksum(value=entry.md5) if entry.md5 else None

    def checksum_by_reading(self, entry: Entry, part_size: int | None) -> Checksum:
        """Read a content that is on this machine and return its checksum, cut in parts of this size."""
        raise NotImplementedError

    def part_size_for(self, size: int | None, part_size: int) -> int:
        """Return the size of the parts, at least as asked, in which the place takes a file of this size; in bytes."""
        del size
        return part_size

    def takes_from(self, source: Store, entry: Entry) -> bool:
        """Return whether the place itself can fetch this file from the source."""
        del source, entry
        return False

    def take(self, source: Store, entry: Entry, name: str, stop: threading.Event) -> str | None:
        """Have the place fetch a file by itself, and return its etag. Raises CannotTake when it refuses."""
        del stop
        raise CannotTake(f"{self.uri} cannot copy {source.uri_of(entry.name)} to {name}")


@lru_cache(maxsize=64)
def _shown_place(uri: str, name: str) -> str:
    """Return the URI of a file, without secrets.

    Every request names its place, should it fail. Kept for a node, which asks for the same few files at each beat; the
    files of a thousand gangs are too many for it.
    """
    return locations.shown(locations.join(uri, name))


class CannotTake(StorageError):
    """A place refuses to fetch a file by itself: the caller must copy it."""


def not_the_promised_size(place: str, expected: int | None, found: int) -> StorageError:
    return StorageError(
        f"{place}: expected {expected} bytes, got {found}: it changed while it was read", uri=place
    )
