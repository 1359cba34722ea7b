"""copy: files and trees from any place to any other, in parallel, whole or not at all."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import fnmatch
import hashlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.oci_clients import OciAccess
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.local_store import LocalStore, local_errors
from airflow_provider_ocidist.storage.oci_store import part_size_for
from airflow_provider_ocidist.storage.stores import (
    Download,
    Entry,
    Store,
    Upload,
    not_the_promised_size,
    open_store,
)

PART_SIZE = 16 << 20
"""Bytes. Larger gained nothing where it was measured, and memory grows with it."""
THREADS = 24
_PARTS_IN_MEMORY = 8
_LEAST_CHARGE = 256 << 10
"""What the smallest file counts for in the memory budget; bounds how many wait in the queue."""
_TICK_S = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferProgress:
    """How far a copy has come."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    """Of the files whose size is known beforehand."""
    seconds: float
    """Since the copy began."""

    @property
    def rate(self) -> float:
        """Bytes per second, on average since the start."""
        return self.bytes_done / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta(self) -> float | None:
        """Seconds until the end at this rate; None while nobody can tell."""
        return max(self.bytes_total - self.bytes_done, 0) / self.rate if self.rate else None


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyReport:
    """What a copy has done."""

    files: int
    bytes: int
    seconds: float
    skipped: tuple[str, ...] = ()
    """Names in the source that cannot be copied: links that lead out of the tree, sockets, pipes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Copied:
    """One file that arrived."""

    name: str
    size: int
    sha256: str | None = None


def copy(
    source: str,
    target: str,
    *,
    access: OciAccess | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    on_progress: Callable[[TransferProgress], None] | None = None,
    cancel: threading.Event | None = None,
    part_size: int = PART_SIZE,
    threads: int = THREADS,
) -> CopyReport:
    """Copy a file or a tree; the target appears whole or not at all, the source stays as it is.

    A source that is a folder, or ends in `/`, is a tree: what it holds comes to lie under `target`. A file
    becomes `target`, or goes into it when that ends in `/` or is a local folder. `include` and `exclude` are
    shell patterns for names relative to the tree, or for any part of them; `include` empty means everything.
    A tree that goes to a local folder which exists already replaces its files one by one, each whole. Empty
    folders are not copied. `part_size` is in bytes. Raises StorageError, also when `cancel` was set.
    """
    started = time.monotonic()
    reader, entries, is_tree = _find(source, access)
    wanted = [entry for entry in entries if _is_wanted(entry.name, include, exclude)]
    engine = _Engine(reader, on_progress=on_progress, cancel=cancel, part_size=part_size, threads=threads)
    with _target(target, is_tree=is_tree, name=entries[0].name if entries else "", access=access) as (
        writer,
        rename,
    ):
        copied = engine.run(writer, wanted, rename)
    return CopyReport(
        files=len(copied),
        bytes=sum(item.size for item in copied),
        seconds=time.monotonic() - started,
        skipped=reader.skipped if isinstance(reader, LocalStore) else (),
    )


def copy_entries(
    source: Store,
    target: Store,
    entries: Sequence[Entry],
    *,
    on_progress: Callable[[TransferProgress], None] | None = None,
    cancel: threading.Event | None = None,
    part_size: int = PART_SIZE,
    threads: int = THREADS,
) -> list[Copied]:
    """Copy these files under their own names and return their SHA-256, taken from the bytes on their way."""
    engine = _Engine(
        source, on_progress=on_progress, cancel=cancel, part_size=part_size, threads=threads, sha256=True
    )
    return engine.run(target, entries)


def _find(source: str, access: OciAccess | None) -> tuple[Store, list[Entry], bool]:
    """Return a store, what to copy from it, and whether that is a tree. Raises StorageError for nothing."""
    place = locations.parse(source)
    if not place.is_folder and place.name and not place.is_local_folder:
        parent = open_store(place.parent, access)
        with contextlib.suppress(FileNotFoundError):
            return parent, [parent.stat(place.name)], False
    store = open_store(source, access)
    entries = store.list()
    if not entries and not place.is_local_folder:
        raise StorageError(f"there is nothing at {source}", uri=source)
    return store, entries, True


def _is_wanted(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    return (not include or _matches(name, include)) and not _matches(name, exclude)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the name, a folder that it lies in, or a single part of it fits one of the patterns."""
    parts = name.split("/")
    candidates = {*parts, *("/".join(parts[: count + 1]) for count in range(len(parts)))}
    return any(fnmatch.fnmatchcase(text, pattern.rstrip("/")) for pattern in patterns for text in candidates)


@contextmanager
def _target(
    target: str, *, is_tree: bool, name: str, access: OciAccess | None
) -> Iterator[tuple[Store, str | None]]:
    """Yield the store to write to, and the name that a single file gets there."""
    place = locations.parse(target)
    if not is_tree:
        into = place.is_folder or not place.name or place.is_local_folder
        yield open_store(target if into else place.parent, access), name if into else place.name
    elif place.kind == "local" and not os.path.lexists(place.path):
        with _staged(Path(place.path)) as staging:
            yield LocalStore(staging), None
    else:
        yield open_store(target, access), None


@contextmanager
def _staged(final: Path) -> Iterator[Path]:
    """Yield a new folder beside the final one; rename it at the end, or remove it after an error."""
    staging = final.with_name(locations.unfinished_name(final.name))
    try:
        with local_errors(final):
            staging.mkdir(parents=True)
        yield staging
        with local_errors(final):
            _move_into_place(staging, final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move_into_place(staging: Path, final: Path) -> None:
    try:
        staging.rename(final)
    except OSError:
        # Another process has made the folder meanwhile: hand over file by file, each whole.
        if not final.is_dir():
            raise
        for entry in LocalStore(staging).list():
            (final / entry.name).parent.mkdir(parents=True, exist_ok=True)
            (staging / entry.name).replace(final / entry.name)


class _Engine:
    """Moves files in parts through one pool of threads, within a budget of memory.

    The calling thread takes budget for each part in order, and the pool starts parts in order. So whoever
    waits for an earlier part (a running digest, an ordered upload) waits for one with memory and a thread.
    """

    def __init__(
        self,
        source: Store,
        *,
        on_progress: Callable[[TransferProgress], None] | None,
        cancel: threading.Event | None,
        part_size: int,
        threads: int,
        sha256: bool = False,
    ) -> None:
        self.source = source
        self.part_size = part_size
        self.threads = threads
        self.sha256 = sha256
        self.cancel = cancel or threading.Event()
        self.stopped = threading.Event()
        self.budget = _Budget(part_size * _PARTS_IN_MEMORY)
        self.meter = _Meter(on_progress)
        self.pending = 0
        self.ended: queue.SimpleQueue[concurrent.futures.Future[None]] = queue.SimpleQueue()
        self.open_uploads: set[_File] = set()

    def run(self, target: Store, entries: Sequence[Entry], rename: str | None = None) -> list[Copied]:
        """Copy all entries. Raises the first error, after everything unfinished was given up."""
        for entry in entries:
            locations.safe_name(entry.name)
        self.meter.begin(entries)
        with concurrent.futures.ThreadPoolExecutor(self.threads, "copy") as pool:
            try:
                files = [self._start(pool, target, entry, rename or entry.name) for entry in entries]
                while self.pending:
                    self._tick()
            except BaseException:
                self._stop(pool)
                raise
        self.meter.report(force=True)
        return [file.result() for file in files]

    def _start(
        self, pool: concurrent.futures.ThreadPoolExecutor, target: Store, entry: Entry, name: str
    ) -> _File:
        part_size = part_size_for(entry.size, self.part_size)
        file = _File(entry, target, name, self.stopped, sha256=self.sha256)
        if not self.source.ranged or entry.size is None:
            self._submit(pool, part_size, self._stream, file, part_size)
            return file
        with _absence_is_an_error(self.source, entry):
            file.download = download = self.source.download(entry, part_size)
        size, step = entry.size, download.part_size
        if size > step:
            file.md5 = hashlib.md5(usedforsecurity=False) if download.md5 else None
            file.upload = target.upload(name, size, step)
            self.open_uploads.add(file)
        offsets = range(0, max(size, 1), step)
        file.parts_left = len(offsets)
        for index, offset in enumerate(offsets):
            length = min(step, size - offset)
            self._submit(pool, length, self._part, file, index, offset, length)
        return file

    def _submit(
        self,
        pool: concurrent.futures.ThreadPoolExecutor,
        memory: int,
        work: Callable[..., None],
        *args: object,
    ) -> None:
        charge = max(memory, min(_LEAST_CHARGE, self.part_size))
        while not self.budget.take(charge, timeout=_TICK_S):
            self._tick(wait=False)
        self.pending += 1
        future = pool.submit(work, *args)
        future.add_done_callback(lambda _: self.budget.give(charge))
        future.add_done_callback(self.ended.put)
        self._tick(wait=False)

    def _tick(self, *, wait: bool = True) -> None:
        """Look for an error, an end, or a wish to stop; tell how far we are."""
        if self.cancel.is_set():
            raise StorageError(f"the copy from {self.source.uri} was cancelled", uri=self.source.uri)
        with contextlib.suppress(queue.Empty):
            self.ended.get(block=wait, timeout=_TICK_S).result()
            self.pending -= 1
            while True:
                self.ended.get_nowait().result()
                self.pending -= 1
        self.meter.report()

    def _stop(self, pool: concurrent.futures.ThreadPoolExecutor) -> None:
        self.stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
        for file in self.open_uploads:
            if file.upload and not file.committed:
                file.upload.abort()

    def _part(self, file: _File, index: int, offset: int, length: int) -> None:
        if self.stopped.is_set():
            return
        assert file.download is not None
        with _absence_is_an_error(self.source, file.entry):
            data = file.download.read(offset, length) if length else b""
        file.digest(index, data)
        if file.upload is None:
            file.target.write(file.name, data)
        else:
            file.write(index, offset, data)
        self.meter.add(len(data))
        if file.part_done(len(data)):
            self._finish(file)

    def _stream(self, file: _File, part_size: int) -> None:
        """Copy a source that can only be read from front to back."""
        try:
            with _absence_is_an_error(self.source, file.entry):
                self._stream_parts(file, part_size)
        except BaseException:
            if file.upload and not file.committed:
                file.upload.abort()
            raise

    def _stream_parts(self, file: _File, part_size: int) -> None:
        data = b""
        for index, data in enumerate(self.source.chunks(file.entry, part_size)):
            if self.stopped.is_set() or self.cancel.is_set():
                raise StorageError(f"the copy from {self.source.uri} was cancelled", uri=self.source.uri)
            if file.upload is None and len(data) == part_size:
                file.upload = file.target.upload(file.name, file.entry.size, part_size)
            file.digest(index, data)
            if file.upload:
                file.write(index, file.size, data)
            file.size += len(data)
            self.meter.add(len(data))
        if file.upload is None:
            if not file.size:
                file.digest(0, b"")
            file.check_size()
            file.target.write(file.name, data)
        self._finish(file)

    def _finish(self, file: _File) -> None:
        if self.stopped.is_set():
            return
        file.finish()
        self.meter.add_file()


class _File:
    """One file on its way: its parts, its digests, its end."""

    def __init__(
        self, entry: Entry, target: Store, name: str, stopped: threading.Event, *, sha256: bool
    ) -> None:
        self.entry = entry
        self.target = target
        self.name = name
        self.stopped = stopped
        self.sha256 = hashlib.sha256() if sha256 else None
        self.md5: hashlib._Hash | None = None
        self.download: Download | None = None
        self.upload: Upload | None = None
        self.committed = False
        self.parts_left = 1
        self.size = 0
        self._lock = threading.Condition()
        self._digested = 0
        self._written = 0

    def digest(self, index: int, data: bytes) -> None:
        """Add a part to the running digests, in its turn."""
        hashes = [running for running in (self.sha256, self.md5) if running]
        if not hashes:
            return
        self._await_turn(lambda: self._digested == index)
        for running in hashes:
            running.update(data)
        with self._lock:
            self._digested += 1
            self._lock.notify_all()

    def write(self, index: int, offset: int, data: bytes) -> None:
        assert self.upload is not None
        if self.upload.ordered:
            self._await_turn(lambda: self._written == index)
        self.upload.write(index, offset, data)
        with self._lock:
            self._written += 1
            self._lock.notify_all()

    def part_done(self, length: int) -> bool:
        """Count a part and return whether it was the last."""
        with self._lock:
            self.parts_left -= 1
            self.size += length
            return not self.parts_left

    def check_size(self) -> None:
        if self.entry.size is not None and self.size != self.entry.size:
            raise not_the_promised_size(self.entry.name, self.entry.size, self.size)

    def finish(self) -> None:
        """Check the whole against what its source knows, and make it appear."""
        self.check_size()
        if self.download:
            self.download.finish()
            expected = self.download.md5
            if self.md5 and expected and base64.b64encode(self.md5.digest()).decode() != expected:
                raise StorageError(f"{self.entry.name}: the checksum of what arrived is wrong")
        if self.upload:
            self.upload.commit()
        self.committed = True

    def result(self) -> Copied:
        return Copied(name=self.name, size=self.size, sha256=self.sha256.hexdigest() if self.sha256 else None)

    def _await_turn(self, is_my_turn: Callable[[], bool]) -> None:
        with self._lock:
            while not self._lock.wait_for(is_my_turn, timeout=_TICK_S):
                if self.stopped.is_set():
                    raise StorageError(f"the copy of {self.entry.name} was stopped")


class _Budget:
    """Bytes that may be in memory at a time; one request larger than all of it may run alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._changed = threading.Condition()

    def take(self, amount: int, timeout: float) -> bool:
        with self._changed:
            fits = self._changed.wait_for(lambda: not self.used or self.used + amount <= self.limit, timeout)
            if fits:
                self.used += amount
            return fits

    def give(self, amount: int) -> None:
        with self._changed:
            self.used -= amount
            self._changed.notify_all()


class _Meter:
    """Counts what has been moved and tells the caller, at most four times a second."""

    def __init__(self, on_progress: Callable[[TransferProgress], None] | None) -> None:
        self.on_progress = on_progress
        self.started = time.monotonic()
        self.reported = 0.0
        self.files_done = self.files_total = self.bytes_done = self.bytes_total = 0
        self._lock = threading.Lock()

    def begin(self, entries: Sequence[Entry]) -> None:
        self.files_total = len(entries)
        self.bytes_total = sum(entry.size or 0 for entry in entries)

    def add(self, size: int) -> None:
        with self._lock:
            self.bytes_done += size

    def add_file(self) -> None:
        with self._lock:
            self.files_done += 1

    def report(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if not self.on_progress or (now - self.reported < _TICK_S and not force):
            return
        self.reported = now
        self.on_progress(
            TransferProgress(
                files_done=self.files_done,
                files_total=self.files_total,
                bytes_done=self.bytes_done,
                bytes_total=self.bytes_total,
                seconds=now - self.started,
            )
        )


@contextmanager
def _absence_is_an_error(store: Store, entry: Entry) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        place = store.place_of(entry.name)
        raise StorageError(f"{place} vanished while it was copied", uri=place) from error
