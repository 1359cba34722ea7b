"""Store: a folder somewhere; small things are read and written whole, large ones in ranges and parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.oci_clients import OciAccess
from airflow_provider_ocidist.storage import locations


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One file in a store."""

    name: str
    """Relative to the store, with `/` between its parts."""
    size: int | None
    """In bytes; None where the place does not say before the end of the data."""
    etag: str | None = None
    """Changes when the content does."""
    modified: float | None = None
    """Unix time, in seconds."""


class Download(ABC):
    """One file on its way out; ranges of it are read by several threads at a time."""

    part_size: int
    """Size of the ranges that should be asked for, in bytes."""
    md5: str | None = None
    """Base64 of the digest of the whole, when the place knows it and nobody has checked it yet."""

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes:
        """Return exactly this range. Raises StorageError if the file has changed since it was listed."""

    def finish(self) -> None:  # noqa: B027 - most places have nothing to add
        """Check the whole, after every range was read. Raises StorageError when a checksum is wrong."""


class Upload(ABC):
    """One file on its way in; nothing is visible under its name before `commit`."""

    ordered: bool = False
    """Whether parts must be written one after the other."""

    @abstractmethod
    def write(self, index: int, offset: int, data: bytes) -> None:
        """Take one part; `index` counts from 0."""

    @abstractmethod
    def commit(self) -> None:
        """Make the file appear, whole."""

    @abstractmethod
    def abort(self) -> None:
        """Forget everything that was written. Never raises: there is a first error to report."""


class Store(ABC):
    """A folder at one place. Safe to share between threads.

    Every method raises StorageError when the place cannot be reached, refuses, or is full.
    """

    uri: str
    ranged: bool = True
    """Whether `download` works; else only `chunks`."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the content. Raises FileNotFoundError when the store is there and the name is not."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Replace the content, whole or not at all."""

    @abstractmethod
    def list(self, prefix: str = "") -> list[Entry]:
        """Return all files, of subfolders too, whose name starts with the prefix, sorted by name."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file; it need not exist."""

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

    def place_of(self, name: str) -> str:
        return locations.join(self.uri, name)

    @abstractmethod
    def upload(self, name: str, size: int | None, part_size: int) -> Upload:
        """Start writing a large file in parts of this size, of which the last may be shorter."""

    def download(self, entry: Entry, part_size: int) -> Download:
        """Start reading a large file in ranges."""
        raise NotImplementedError

    def chunks(self, entry: Entry, size: int) -> Iterator[bytes]:
        """Yield the content in order, in pieces of this size, of which the last may be shorter."""
        download = self.download(entry, size)
        for offset in range(0, entry.size or 0, size):
            yield download.read(offset, min(size, (entry.size or 0) - offset))
        download.finish()


def open_store(uri: str, access: OciAccess | None = None) -> Store:
    """Return the store at a URI, which need not exist yet. `access` None: the credentials of this machine.

    Raises StorageError when the URI is malformed, or its credentials or fsspec driver are missing.
    """
    place = locations.parse(uri)
    if place.kind == "local":
        from airflow_provider_ocidist.storage.local_store import LocalStore

        return LocalStore(place.path)
    if place.kind == "oci":
        from airflow_provider_ocidist.storage.oci_store import OciStore

        return OciStore.connect(place, access)
    from airflow_provider_ocidist.storage.fsspec_store import FsspecStore

    return FsspecStore.connect(place)


def not_the_promised_size(place: str, expected: int | None, found: int) -> StorageError:
    return StorageError(
        f"{place}: expected {expected} bytes, got {found}: it changed while it was read", uri=place
    )
