"""Engine: moves files in parts through lanes, within a budget of memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.copying.budget import CopyBudget
from airflow_provider_ocidist.storage.copying.in_flight import InFlight
from airflow_provider_ocidist.storage.copying.lanes import Lanes
from airflow_provider_ocidist.storage.copying.memory import SMALL, gathered
from airflow_provider_ocidist.storage.copying.meter import Meter
from airflow_provider_ocidist.storage.copying.open_file import Copied, OpenFile
from airflow_provider_ocidist.storage.stores.base import CannotTake, Entry, Origin, Store

log = logging.getLogger(__name__)

_LEAST_CHARGE = 16 << 10
"""Bytes that the smallest file is charged to the memory budget, which bounds the queue."""
_STREAM_CHARGE = 1 << 20
"""Bytes that a part which is written piece by piece is charged."""
_TICK_S = 0.1


class Engine:
    """One copy.

    The calling thread takes budget for each part in order, and the lanes start parts in order. So the
    earlier part that a thread waits for (a running digest, an ordered upload) has memory and a thread.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        meter: Meter,
        *,
        cancel: threading.Event | None,
        part_size: int,
        budget: CopyBudget,
        sha256: bool = False,
        resume: bool = False,
        on_arrival: Callable[[Entry, Copied], None] | None = None,
        in_flight: InFlight | None = None,
        left_after: float | None = None,
    ) -> None:
        """`left_after`: seconds for which who cancels a copy to a store waits for what is under way; None: for all."""
        self.source = source
        self.target = target
        self.meter = meter
        self.part_size = part_size
        self.sha256 = sha256
        self.resume = resume
        self.on_arrival = on_arrival
        self.in_flight = in_flight or InFlight(lambda _: None)
        self.cancel = cancel or threading.Event()
        self.left_after = left_after
        self.stopped = threading.Event()
        self.budget = budget
        self.memory = budget.memory
        self.lanes = Lanes(budget.share)
        self.open_files: set[OpenFile] = set()
        self.copied: dict[str, Copied] = {}
        self.declined: list[OpenFile] | None = []
        """Files that the target did not fetch by itself; None once they are copied."""

    def run(self, entries: Sequence[Entry], rename: str | None = None) -> list[Copied]:
        """Copy all entries. Raises the first error, after unfinished files were aborted or suspended."""
        for entry in entries:
            locations.safe_name(entry.name)
        self.meter.begin(entries)
        try:
            for entry in entries:
                self._start(self._opened(entry, rename or entry.name))
            self._drain()
            declined, self.declined = self.declined or [], None
            for file in declined:
                self._start(file)
            self._drain()
        except BaseException as error:
            self._stop(is_interruption(error))
            raise
        finally:
            self.meter.report(force=True)
        self.lanes.close()
        return [self.copied[entry.name] for entry in entries]

    def _opened(self, entry: Entry, name: str) -> OpenFile:
        return OpenFile(entry, name, self.source.uri_of(entry.name), self.stopped, sha256=self.sha256)

    def _start(self, file: OpenFile) -> None:
        entry = file.entry
        if self.declined is not None and not self.sha256 and self.target.takes_from(self.source, entry):
            self._submit(_LEAST_CHARGE, self._take, file)
            return
        part_size = self.target.part_size_for(entry.size, self.part_size)
        with _absence_is_an_error(self.source, entry):
            file.download = self.source.download(entry, part_size)
        if file.download is None or entry.size is None:
            file.download = None
            self._submit(part_size, self._stream, file, part_size)
        elif entry.size <= min(SMALL if self.target.streams else entry.size, file.download.part_size):
            self._submit(entry.size, self._move_whole, file)
        else:
            self._start_parts(file, entry.size, file.download.part_size)

    def _start_parts(self, file: OpenFile, size: int, step: int) -> None:
        file.expect_checksum()
        origin = self._origin(file.entry) if size > step else None
        file.upload = upload = self.target.upload(file.name, size, step, origin)
        self.open_files.add(file)
        self.in_flight.begun(self.target.uri, file.name, upload.upload_id)
        offsets = range(0, size, step)
        file.parts_left = len(offsets)
        for index, offset in enumerate(offsets):
            length = min(step, size - offset)
            memory = min(length, _STREAM_CHARGE) if upload.streams else length
            self._submit(memory, self._move_part, file, index, offset, length)

    def _origin(self, entry: Entry) -> Origin | None:
        if not self.resume or not entry.etag or entry.size is None:
            return None
        return Origin(uri=self.source.uri_of(entry.name), etag=entry.etag, size=entry.size)

    def _submit(self, memory: int, work: Callable[..., None], *args: object) -> None:
        charge = max(memory, min(_LEAST_CHARGE, self.part_size))
        while not self.memory.take(charge, timeout=_TICK_S):
            self._tick(wait=False)
        self.lanes.put(partial(self._charged, charge, work, *args))
        self._tick(wait=False)

    def _charged(self, charge: int, work: Callable[..., None], *args: object) -> None:
        try:
            if not self.stopped.is_set():
                work(*args)
        finally:
            self.memory.give(charge)

    def _drain(self) -> None:
        while self.lanes.pending:
            self._tick()

    def _tick(self, *, wait: bool = True) -> None:
        """Check for an error, an end, or a stop request; report progress."""
        if self.cancel.is_set():
            raise self._cancelled()
        if self.budget.interrupted.is_set():
            raise StorageError(
                f"the copy from {locations.shown(self.source.uri)} was interrupted", retryable=True
            )
        self.lanes.reap(_TICK_S if wait else 0)
        self.lanes.adapt(self.meter.moved, self.budget.share)
        self.meter.report()

    def _cancelled(self) -> StorageError:
        return StorageError(
            f"the copy from {locations.shown(self.source.uri)} was cancelled", uri=self.source.uri
        )

    def _stop(self, is_interruption: bool) -> None:
        self.stopped.set()
        if self.left_after is None or self.target.folder is not None or not self.cancel.is_set():
            self._clear_up(is_interruption)
            return
        # The store may never answer. What is left behind clears up by itself: the lanes end first, so that no part
        # follows what is aborted.
        thread = threading.Thread(
            target=self._clear_up, args=(is_interruption,), name="copy-end", daemon=True
        )
        thread.start()
        thread.join(self.left_after)

    def _clear_up(self, is_interruption: bool) -> None:
        self.lanes.close()
        for file in self.open_files:
            if not file.upload or file.committed:
                continue
            if is_interruption:
                file.upload.suspend()
            else:
                file.upload.abort()
                self.in_flight.ended(file.upload.upload_id)

    def _take(self, file: OpenFile) -> None:
        entry = file.entry
        try:
            with _absence_is_an_error(self.source, entry):
                file.etag = self.target.take(self.source, entry, file.name, self.stopped)
        except CannotTake as refusal:
            log.info("%s; it is copied through this machine", refusal)
            assert self.declined is not None
            self.declined.append(file)
            return
        file.size = entry.size or 0
        self.meter.add(file.size)
        self._arrived(file)

    def _move_whole(self, file: OpenFile) -> None:
        assert file.download is not None
        size = file.entry.size or 0
        with _absence_is_an_error(self.source, file.entry):
            data = gathered(file.download.pieces(0, size) if size else (), size)
            file.download.finish()
        file.digest(0, data)
        file.part_done(len(data))
        file.check_size()
        file.etag = self.target.write(file.name, data)
        self.meter.add(size)
        self._arrived(file)

    def _move_part(self, file: OpenFile, index: int, offset: int, length: int) -> None:
        with _absence_is_an_error(self.source, file.entry):
            self.meter.add_resumed(file.move(index, offset, length, self.meter.add))
        if file.upload and file.download and (path := file.upload.written_to):
            # Before it waits for its turn in the digest of the whole: other nodes wait for this part.
            file.download.landed(path, offset, length)
        file.digest_moved(index, offset, length)
        if file.part_done(length):
            self._finish(file)

    def _stream(self, file: OpenFile, part_size: int) -> None:
        """Copy a source that can only be read from front to back."""
        try:
            with _absence_is_an_error(self.source, file.entry):
                self._stream_parts(file, part_size)
        except BaseException:
            if file.upload and not file.committed:
                file.upload.abort()
            raise

    def _stream_parts(self, file: OpenFile, part_size: int) -> None:
        data = b""
        for index, data in enumerate(self.source.chunks(file.entry, part_size)):
            if self.stopped.is_set() or self.cancel.is_set():
                raise self._cancelled()
            if file.upload is None and len(data) == part_size:
                file.upload = self.target.upload(file.name, file.entry.size, part_size)
            file.digest(index, data)
            if file.upload:
                file.write(index, file.size, data)
            file.size += len(data)
            self.meter.add(len(data))
        if file.upload is None:
            if not file.size:
                file.digest(0, b"")
            file.check_size()
            file.etag = self.target.write(file.name, data)
        self._finish(file)

    def _finish(self, file: OpenFile) -> None:
        if self.stopped.is_set():
            return
        file.finish()
        self.open_files.discard(file)
        if file.upload:
            self.in_flight.ended(file.upload.upload_id)
        self._arrived(file)

    def _arrived(self, file: OpenFile) -> None:
        copied = self.copied[file.entry.name] = file.result()
        if file.download and self.target.folder:
            file.download.landed(self.target.folder / file.name, 0, copied.size)
        if self.on_arrival:
            self.on_arrival(file.entry, copied)
        self.meter.add_file()


def is_interruption(error: BaseException) -> bool:
    """Whether a retry of the same copy may succeed, and should find this one's results."""
    if isinstance(error, StorageError):
        return error.retryable
    return not isinstance(error, Exception)


@contextmanager
def _absence_is_an_error(store: Store, entry: Entry) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        place = store.uri_of(entry.name)
        raise StorageError(f"{place} disappeared while it was copied", uri=place) from error
