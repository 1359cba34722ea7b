"""SharedStore: a store of which each piece is read by one node, and taken from it by the others."""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from airflow_provider_ocidist.agent.share.exchange import Exchange
from airflow_provider_ocidist.agent.share.peer import new_digest
from airflow_provider_ocidist.agent.share.shelf import FilePlace
from airflow_provider_ocidist.agent.share.turns import Piece
from airflow_provider_ocidist.storage.stores.base import Buffer, Download, Entry, Store
from airflow_provider_ocidist.storage.stores.checksums import in_text, md5_of
from airflow_provider_ocidist.storage.stores.forwarding import ForwardingStore

_YIELDED = 512 << 10
"""Most bytes of a piece from another node that are written at a time."""


class SharedStore(ForwardingStore):
    """A store that is read together with other nodes; all else it leaves to the store itself."""

    def __init__(
        self,
        store: Store,
        exchange: Exchange,
        place_of: Callable[[str], Path],
        cancel: threading.Event,
        *,
        number: int,
    ) -> None:
        """`place_of`: returns where a file will lie; `number`: of the input, the same on all nodes."""
        super().__init__(store)
        self.exchange = exchange
        self.cancel = cancel
        self.number = number
        self.borrowed_bytes = 0
        """Bytes that came from other nodes."""
        self._place_of = place_of
        self._lock = threading.Lock()

    def download(self, entry: Entry, part_size: int) -> Download | None:
        download = self._store.download(entry, part_size)
        if download is None or not entry.etag or not entry.size:
            return download
        return SharedDownload(self, download, entry, FilePlace(self._place_of(entry.name)))

    def count(self, borrowed: int) -> None:
        with self._lock:
            self.borrowed_bytes += borrowed


class SharedDownload(Download):
    """One file, of which this node reads its own pieces, and takes the others from the nodes that have them."""

    def __init__(self, store: SharedStore, download: Download, entry: Entry, place: FilePlace) -> None:
        self.part_size = download.part_size
        self.checksum = download.checksum
        self._store = store
        self._download = download
        self._size = entry.size or 0
        self._md5 = entry.md5
        self._place = place
        version = f"{store.number}\0{entry.name}\0{entry.etag}\0{entry.size}"
        self._key = hashlib.blake2b(version.encode(), digest_size=10).hexdigest()
        self._digests: dict[int, tuple[Piece, str]] = {}
        """Pieces that were moved, and their digests, by offset."""

    def pieces(self, offset: int, length: int) -> Iterator[bytes]:
        piece = self._piece(offset)
        if piece.length != length or offset % self.part_size:
            # The rest of a piece that an interrupted copy has left.
            yield from self._download.pieces(offset, length)
            return
        digest = new_digest()
        exchange = self._store.exchange
        with exchange.borrowed(piece, self._is_right, self._store.cancel) as data:
            if data is not None:
                self._store.count(length)
                for start in range(0, length, _YIELDED):
                    part = bytes(data[start : start + _YIELDED])
                    digest.update(part)
                    yield part
        if data is None:
            with exchange.reading(piece):
                for part in self._download.pieces(offset, length):
                    digest.update(part)
                    yield part
        self._digests[offset] = piece, digest.hexdigest()

    def landed(self, path: Path, offset: int, length: int) -> None:
        self._place.now = path
        piece, digest = self._digests.get(offset, (None, ""))
        if piece is not None and piece.length == length:
            self._store.exchange.has(piece, self._place, offset, digest)

    def finish(self) -> None:
        self._download.finish()

    def _piece(self, offset: int) -> Piece:
        return Piece(
            id=f"{self._key}-{offset}",
            number=zlib.crc32(self._key.encode()) + offset // self.part_size,
            length=min(self.part_size, self._size - offset),
        )

    def _is_right(self, data: Buffer) -> bool:
        """Whether bytes are those of a small file, as far as its listing shows; a large one is checked as a whole."""
        if self._md5 is None or len(data) != self._size:
            return True
        return in_text([md5_of([data])], whole=True) == self._md5
