"""A folder at any other place that fsspec knows: s3, gs, az, http, memory. Correct rather than fast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from airflow_provider_ocidist.errors import OcidistError, StorageError, Unopenable
from airflow_provider_ocidist.storage.locations import (
    Location,
    is_partial_file,
    join,
    safe_name,
    shown_in,
    unfinished_name,
)
from airflow_provider_ocidist.storage.stores.base import Buffer, Entry, Origin, Store, Upload

_BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"}
"""Drivers of object stores: they have no folders, and to make one asks for the bucket, or creates it."""
_WHOLE_WRITES = {*_BUCKETS, "memory"}
"""Drivers whose single write appears whole or not at all."""
_ONE_CONNECTION = {"ftp"}
"""Drivers that threads must not share: they would mix up their answers."""


class FsspecStore(Store):
    """Files below one fsspec URI; each is read as one stream."""

    def __init__(self, uri: str, file_system: Any, root: str) -> None:
        self.uri = uri
        self._shared = file_system
        self.root = root.rstrip("/")

    @classmethod
    def connect(cls, place: Location) -> FsspecStore:
        with fsspec_errors(place.uri):
            import fsspec

            try:
                file_system, root = fsspec.core.url_to_fs(place.path)
            except ValueError as error:
                # A scheme that nobody knows, or an address that its driver cannot take apart.
                raise Unopenable(str(library_error(place.uri, error)), uri=place.uri) from error
            return cls(place.uri, file_system, root)

    def read(self, name: str) -> bytes:
        with fsspec_errors(self.uri_of(name)):
            return bytes(self.file_system.cat_file(self._path(name)))

    def write(self, name: str, data: Buffer) -> str | None:
        with _write_errors(self.uri_of(name)):
            self._make_folder(name)
            if self._protocols & _WHOLE_WRITES:
                self.file_system.pipe_file(self._path(name), bytes(data))
                return None
        return super().write(name, data)

    def list(self, prefix: str = "") -> list[Entry]:
        with fsspec_errors(self.uri):
            # fsspec caches listings for the life of the process, without other processes' new files.
            self.file_system.invalidate_cache()
            entries = [
                self._entry(path, info)
                for path, info in self._found(self.root)
                if path.startswith(f"{self.root}/")
            ]
        wanted = [
            entry for entry in entries if entry.name.startswith(prefix) and not is_partial_file(entry.name)
        ]
        return sorted(wanted, key=lambda entry: entry.name)

    def delete(self, name: str) -> None:
        with fsspec_errors(self.uri_of(name)), contextlib.suppress(FileNotFoundError):
            self.file_system.rm_file(self._path(name))

    def stat(self, name: str) -> Entry:
        with fsspec_errors(self.uri_of(name)):
            self.file_system.invalidate_cache()
            info = self.file_system.info(self._path(name))
        if info.get("type") == "directory":
            raise FileNotFoundError(self.uri_of(name))
        return self._entry(self._path(name), info)

    def chunks(self, entry: Entry, size: int) -> Iterator[bytes]:
        options = {"block_size": size, "cache_type": "none"}  # large reads in order need no cache
        with (
            fsspec_errors(self.uri_of(entry.name)),
            self.file_system.open(self._path(entry.name), "rb", **options) as stream,
        ):
            while data := _read_fully(stream, size):
                yield data

    def upload(self, name: str, size: int | None, part_size: int, origin: Origin | None = None) -> Upload:  # noqa: ARG002 - contract
        with _write_errors(self.uri_of(name)):
            self._make_folder(name)
            return FsspecUpload(self.file_system, self._path(name), self.uri_of(name))

    def _found(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield all files below a folder that is there."""
        driver = self.file_system
        try:
            if _finds_by_itself(driver):
                yield from driver.find(folder, detail=True).items()
                return
            # fsspec's own walk treats a folder that cannot be listed as empty.
            listed = driver.ls(folder, detail=True)
        except FileNotFoundError as error:
            if _is_outage(error.__cause__):
                raise
            return
        for info in listed:
            path = info["name"].rstrip("/")
            if info["type"] != "directory":
                yield path, info
            elif path.startswith(f"{folder}/"):
                yield from self._found(path)

    @property
    def file_system(self) -> Any:
        """The driver; where it cannot be shared, this thread's own."""
        if not self._protocols & _ONE_CONNECTION:
            return self._shared
        import fsspec

        # fsspec itself keeps one of them for each thread.
        return fsspec.core.url_to_fs(self.uri)[0]

    @property
    def _protocols(self) -> set[str]:
        protocol = self._shared.protocol
        return {protocol} if isinstance(protocol, str) else set(protocol)

    def _path(self, name: str) -> str:
        return f"{self.root}/{safe_name(name)}"

    def _make_folder(self, name: str) -> None:
        if not self._protocols & _BUCKETS:
            self.file_system.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)

    def _entry(self, path: str, info: dict[str, Any]) -> Entry:
        tag = info.get("ETag") or info.get("etag")
        return Entry(
            name=path[len(self.root) + 1 :],
            size=info.get("size"),
            etag=str(tag) if tag else None,
            modified=_changed_at(info),
        )


def _changed_at(info: dict[str, Any]) -> float | None:
    """Return the Unix time of a file's last change, in seconds; each driver lists it in its own form."""
    for key in ("mtime", "LastModified", "last_modified"):
        if info.get(key):
            return _unix_time(info[key])
    if info.get("modificationTime"):
        # Of webhdfs, in milliseconds.
        return float(info["modificationTime"]) / 1000
    return _unix_time(info.get("modify") or info.get("created"))


def _unix_time(value: object) -> float | None:
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, str):
        return _ftp_time(value)
    return float(value) if isinstance(value, (int, float)) else None


def _ftp_time(text: str) -> float | None:
    """Return the time in an answer to MLSD (RFC 3659); a server without that command gives a text for people."""
    whole, _, fraction = text.partition(".")
    try:
        at = datetime.strptime(whole, "%Y%m%d%H%M%S").replace(tzinfo=timezone.utc)
        return at.timestamp() + float(f"0.{fraction or 0}")
    except ValueError:
        return None


class FsspecUpload(Upload):
    """A file that is written under another name and moved when it is whole."""

    ordered = True

    def __init__(self, file_system: Any, path: str, place: str) -> None:
        self.file_system = file_system
        self.path = path
        self.place = place
        folder, _, name = path.rpartition("/")
        # Closing the stream publishes the data even after an error: so not under the final name.
        self.part = join(folder, unfinished_name(name))
        self.stream = file_system.open(self.part, "wb")

    def write(self, index: int, offset: int, data: Buffer) -> None:  # noqa: ARG002 - contract
        with _write_errors(self.place):
            self.stream.write(data)

    def commit(self) -> None:
        with _write_errors(self.place):
            self.stream.close()
            _move(self.file_system, self.part, self.path)

    def abort(self) -> None:
        with contextlib.suppress(Exception):
            self.stream.close()
        with contextlib.suppress(Exception):
            self.file_system.rm_file(self.part)


def _move(driver: Any, old: str, new: str) -> None:
    """Give a file its name, by what a driver has for it: fsspec's own `mv` takes `[1]` in a name for a pattern."""
    from fsspec.spec import AbstractFileSystem

    if type(driver).mv is not AbstractFileSystem.mv:
        driver.mv(old, new)
        return
    driver.cp_file(old, new)
    driver.rm_file(old)


def _finds_by_itself(driver: Any) -> bool:
    """Whether a driver lists a whole tree at once, as those of object stores do."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    own = (kind for kind in type(driver).__mro__ if kind not in (AbstractFileSystem, AsyncFileSystem))
    return any(vars(kind).keys() & {"find", "_find"} for kind in own)


@contextmanager
def fsspec_errors(place: str) -> Iterator[None]:
    """Turn whatever a driver raises into one StorageError; absence stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError as error:
        if not _is_outage(error.__cause__):
            raise
        raise library_error(place, error.__cause__) from error
    except (OcidistError, GeneratorExit):
        raise
    except ImportError as error:
        raise Unopenable(f"{shown_in(place)}: its driver is not installed: {error}", uri=place) from error
    except Exception as error:  # drivers share no base class for their errors
        raise library_error(place, error, retryable=_is_outage(error)) from error


@contextmanager
def _write_errors(place: str) -> Iterator[None]:
    """As `fsspec_errors`, for a write: a missing bucket is a StorageError, as callers take absence for a file's."""
    with fsspec_errors(place):
        try:
            yield
        except FileNotFoundError as error:
            if _is_outage(error.__cause__):
                raise
            text = f"{library_error(place, error)}; there is no such bucket or folder: create it"
            raise StorageError(text, uri=place) from error


def library_error(place: str, error: BaseException | None, *, retryable: bool = False) -> StorageError:
    """Return a library's error, in one line."""
    first = (str(error).strip().splitlines() or [""])[0]
    text = shown_in(f"{place}: {type(error).__name__}: {first}")
    return StorageError(text, uri=place, retryable=retryable)


def _is_outage(cause: BaseException | None) -> bool:
    """Whether this is an outage: the http driver raises FileNotFoundError for an unreachable server, too."""
    if cause is None or getattr(cause, "status", None) in (404, 410):
        return False
    import asyncio

    # Before Python 3.11 a time-out of asyncio is no TimeoutError.
    kinds = (TimeoutError, asyncio.TimeoutError, ConnectionError)
    return type(cause).__module__.startswith("aiohttp") or isinstance(cause, kinds)


def _read_fully(stream: Any, size: int) -> bytes:
    pieces = []
    while size > 0 and (piece := stream.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
