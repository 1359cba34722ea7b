"""LocalUpload: a file of this machine that appears only when it is whole, and that a later attempt completes."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.locations import unfinished_name
from airflow_provider_ocidist.storage.stores.base import Buffer, Origin, Upload
from airflow_provider_ocidist.storage.stores.journal import Journal, places_digest, this_boot
from airflow_provider_ocidist.storage.stores.local_files import READ_SIZE, etag_of, local_errors


class LocalUpload(Upload):
    """A file that is written beside its place and moved there when it is whole.

    With an origin, a later attempt finds the name beside the place again, and a journal next to it records
    what was written. Two uploads cannot share them; the second has none.
    """

    streams = True

    def __init__(self, path: Path, origin: Origin | None = None) -> None:
        self.path = path
        self.journal: Journal | None = None
        self.written: list[tuple[int, int]] = []
        with local_errors(path):
            if origin:
                self._resume(origin)
            if self.journal is None:
                self.part = path.with_name(unfinished_name(path.name))
                self.descriptor = self._create(os.O_EXCL)

    def _resume(self, origin: Origin) -> None:
        key = places_digest(origin.uri, str(self.path))
        # After a restart it is unknown which bytes had reached the disk.
        subject = {"from": origin.uri, "etag": origin.etag, "size": origin.size, "boot": this_boot()}
        journal = Journal.open(
            self.path.with_name(unfinished_name(f"{self.path.name[:32]}.journal", key)), subject
        )
        if journal is None:
            return
        self.part = self.path.with_name(unfinished_name(self.path.name, key))
        try:
            self._open_part(journal)
        except BaseException:
            journal.remove()
            raise
        self.journal = journal

    def _open_part(self, journal: Journal) -> None:
        """Open the partial file, or start over where it does not match the journal."""
        self.descriptor = self._create(0)
        self.written = merged_ranges(journal.records)
        if self.written and os.fstat(self.descriptor).st_size < self.written[-1][1]:
            self.written = []
            journal.forget()
        if not self.written:
            os.ftruncate(self.descriptor, 0)

    def _create(self, more: int) -> int:
        # The folder may vanish between the two calls, when someone deletes the last file in it.
        for _ in range(3):
            with contextlib.suppress(FileNotFoundError):
                return os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | more, 0o666)
            self.part.parent.mkdir(parents=True, exist_ok=True)
        raise StorageError(f"cannot create {self.part}: its folder keeps disappearing", uri=str(self.path))

    @property
    def written_to(self) -> Path:
        return self.part

    def missing(self, offset: int, length: int) -> Sequence[tuple[int, int]]:
        return gaps(self.written, offset, length)

    def write(self, index: int, offset: int, data: Buffer) -> None:  # noqa: ARG002 - contract
        with local_errors(self.path):
            view, start = memoryview(data), offset
            while view:
                count = os.pwrite(self.descriptor, view, start)
                view, start = view[count:], start + count
        if self.journal:
            self.journal.add([offset, offset + len(data)])

    def read_back(self, offset: int, length: int) -> Iterator[bytes]:
        with local_errors(self.path):
            while length > 0 and (piece := os.pread(self.descriptor, min(length, READ_SIZE), offset)):
                yield piece
                offset, length = offset + len(piece), length - len(piece)

    def commit(self) -> str:
        with local_errors(self.path):
            status = os.fstat(self.descriptor)
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)  # network file systems report a full disk here
            if self._is_device():
                raise StorageError(f"{self.path}: is not a file, so no file replaces it", uri=str(self.path))
            self.part.replace(self.path)
        if self.journal:
            self.journal.remove()
        return etag_of(status)

    def _is_device(self) -> bool:
        """Whether a device, socket or pipe is there: renaming a file to its name would delete it."""
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return False
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))

    def suspend(self) -> None:
        if self.journal is None:
            self.abort()
            return
        self._close()
        self.journal.close()

    def abort(self) -> None:
        self._close()
        with contextlib.suppress(OSError):
            self.part.unlink(missing_ok=True)
        if self.journal:
            self.journal.remove()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            if self.descriptor >= 0:
                os.close(self.descriptor)
        self.descriptor = -1


def merged_ranges(ranges: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Return ranges, from start to end, as few as they can be, in order."""
    found: list[tuple[int, int]] = []
    for start, end in sorted((int(start), int(end)) for start, end in ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def gaps(written: Sequence[tuple[int, int]], offset: int, length: int) -> list[tuple[int, int]]:
    """Return offsets and lengths of what is not written between two places."""
    found, place, end = [], offset, offset + length
    for start, stop in written:
        if stop <= place:
            continue
        if start >= end:
            break
        if start > place:
            found.append((place, start - place))
        place = stop
    if place < end:
        found.append((place, end - place))
    return found
