"""OpenFile: one file in transfer: its parts, digests and end."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.copying.memory import gathered
from airflow_provider_ocidist.storage.stores import checksums
from airflow_provider_ocidist.storage.stores.base import (
    Buffer,
    Download,
    Entry,
    Upload,
    not_the_promised_size,
)

_TURN_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Copied:
    """One file that arrived."""

    name: str
    size: int
    sha256: str | None = None
    etag: str | None = None
    """ETag of the copy, where the target has one."""


class OpenFile:
    """A file whose parts are moved by several threads; whole digests are taken part after part, in turn."""

    def __init__(
        self, entry: Entry, name: str, place: str, stopped: threading.Event, *, sha256: bool
    ) -> None:
        self.entry = entry
        self.name = name
        self.place = place
        self.stopped = stopped
        self.sha256 = hashlib.sha256() if sha256 else None
        self.md5: hashlib._Hash | None = None
        self.part_md5s: dict[int, bytes] | None = None
        self.download: Download | None = None
        self.upload: Upload | None = None
        self.etag: str | None = None
        self.committed = False
        self.parts_left = 1
        self.size = 0
        self._lock = threading.Condition()
        self._digested = 0
        self._written = 0

    def expect_checksum(self) -> None:
        """Start the digests to compare with the source's checksum of the whole."""
        if self.download and self.download.checksum:
            if self.download.checksum.part_size is None:
                self.md5 = hashlib.md5(usedforsecurity=False)
            else:
                self.part_md5s = {}

    def move(self, index: int, offset: int, length: int, count: Callable[[int], None]) -> int:
        """Move a part, or the rest that an earlier attempt left; return how much that had moved.

        Without a digest of a part that moves piece by piece: that is for `digest_moved`.
        """
        assert self.download is not None
        assert self.upload is not None
        missing = self.upload.missing(offset, length)
        if self.upload.streams:
            self._stream_part(index, offset, length, missing, count)
        elif missing:
            data = gathered(self.download.pieces(offset, length), length)
            self.write(index, offset, data)
            count(len(data))
            if self.part_md5s is not None:
                self.part_md5s[index] = checksums.md5_of([data])
            self._digest_whole(index, [data])
        else:
            self.md5 = self.part_md5s = None  # what is there was checked when it was sent, and cannot be read
        return length - sum(size for _, size in missing)

    def _stream_part(
        self,
        index: int,
        offset: int,
        length: int,
        missing: Iterable[tuple[int, int]],
        count: Callable[[int], None],
    ) -> None:
        upload = self.upload
        assert upload is not None
        pieces = self._moved(index, missing, count)
        if self.part_md5s is not None and list(missing) == [(offset, length)]:
            self.part_md5s[index] = checksums.md5_of(pieces)
        else:
            for _ in pieces:
                pass
            if self.part_md5s is not None:
                self.part_md5s[index] = checksums.md5_of(upload.read_back(offset, length))

    def digest_moved(self, index: int, offset: int, length: int) -> None:
        """Add a part that was moved piece by piece to the running digests, in its turn."""
        if self.upload is not None and self.upload.streams:
            self._digest_whole(index, self.upload.read_back(offset, length))

    def _moved(
        self, index: int, missing: Iterable[tuple[int, int]], count: Callable[[int], None]
    ) -> Iterator[bytes]:
        """Move the missing rest of a part, and yield it for a digest."""
        assert self.download is not None
        assert self.upload is not None
        for start, size in missing:
            place = start
            for piece in self.download.pieces(start, size):
                if self.stopped.is_set():
                    raise self._was_stopped()
                self.upload.write(index, place, piece)
                place += len(piece)
                count(len(piece))
                yield piece

    def _digest_whole(self, index: int, pieces: Iterable[Buffer]) -> None:
        """Add a part to the running digests, in its turn."""
        hashes = [running for running in (self.sha256, self.md5) if running]
        if not hashes:
            return
        self._await_turn(lambda: self._digested == index)
        for piece in pieces:
            for running in hashes:
                running.update(piece)
        with self._lock:
            self._digested += 1
            self._lock.notify_all()

    def digest(self, index: int, data: Buffer) -> None:
        self._digest_whole(index, [data])

    def write(self, index: int, offset: int, data: Buffer) -> None:
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
        """Verify the whole by the source's size and checksum, and commit it."""
        self.check_size()
        if self.download:
            self.download.finish()
            self._check_digests(self.download)
        if self.upload:
            self.etag = self.upload.commit()
        self.committed = True

    def _check_digests(self, download: Download) -> None:
        if download.checksum is None:
            return
        if self.md5:
            checksums.check_digests(self.place, download.checksum, [self.md5.digest()])
        elif self.part_md5s is not None:
            digests = [digest for _, digest in sorted(self.part_md5s.items())]
            checksums.check_digests(self.place, download.checksum, digests)

    def result(self) -> Copied:
        sha256 = self.sha256.hexdigest() if self.sha256 else None
        return Copied(name=self.name, size=self.size, sha256=sha256, etag=self.etag)

    def _await_turn(self, is_my_turn: Callable[[], bool]) -> None:
        with self._lock:
            while not self._lock.wait_for(is_my_turn, timeout=_TURN_S):
                if self.stopped.is_set():
                    raise self._was_stopped()

    def _was_stopped(self) -> StorageError:
        return StorageError(f"the copy of {self.entry.name} was stopped")
