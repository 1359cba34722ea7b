"""Ranges of one object of OCI Object Storage, all of the same version of it."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_provider_ocidist.errors import BackendError, StorageError
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.storage.stores import checksums
from airflow_provider_ocidist.storage.stores.base import Checksum, Download, Entry, not_the_promised_size
from airflow_provider_ocidist.storage.stores.oci_http import BucketFolder, reading, storage_errors

log = logging.getLogger(__name__)

PART_SIZE_KEY = "opc-meta-ocidist-part-size"
"""Header with the size of the parts, with which a reader can check the digest of the digests."""
LARGEST_RANGE = 64 << 20
_BODY_ATTEMPTS = 5
_PIECE_WAITED_FOR = 64 << 10
"""Fewest bytes that a read returns before the end; a broken connection loses less than that."""
_PIECE = 512 << 10
"""Most bytes written at a time; on a slow link only those received, so that a kill loses little."""


class OciDownload(Download):
    """One object being read."""

    def __init__(self, store: BucketFolder, entry: Entry, part_size: int) -> None:
        self.store = store
        self.entry = entry
        self._etag = entry.etag
        """Tag of the version that is read; None before the first answer."""
        self.place = store.uri_of(entry.name)
        self.part_size = part_size
        self.headers: Mapping[str, str] = {}

    @classmethod
    def begin(cls, store: BucketFolder, entry: Entry, part_size: int) -> OciDownload:
        """Ask once for the checksums of an object that will be read in several ranges.

        Raises StorageError where it is not the listed one any more.
        """
        made = cls(store, entry, min(part_size, LARGEST_RANGE))
        if entry.size is None or entry.size <= made.part_size:
            return made
        head = head_of(store, entry.name)
        # The ranges are those of the listed version: of a longer one, they would be its beginning.
        if (entry.etag or head["etag"], str(entry.size)) != (head["etag"], head["content-length"]):
            raise StorageError(f"{made.place} changed since it was listed", uri=made.place)
        made._etag = head["etag"]
        made.checksum = checksum_in(head)
        if made.checksum and made.checksum.part_size:
            made.part_size = made.checksum.part_size
        return made

    def pieces(self, offset: int, length: int) -> Iterator[bytes]:
        with storage_errors(self.place):
            yield from self.all_pieces() if length == self.entry.size else self._fetch(offset, length)

    def whole(self) -> bytes:
        """Return the whole object, verified as by `all_pieces`, for what is small: a body that breaks is read again."""
        try:
            with reading(self.place):
                answer = self._ask(0, None)
                data = b"".join(_body(answer))
        except BackendError as error:
            if error.status_code is not None or not self.headers:
                raise
            log.info("%s; reading it again", error)
            return b"".join(self.all_pieces())
        self._verify(len(data), int(self.headers["content-length"]), lambda: checksums.md5_of([data]))
        return data

    def all_pieces(self) -> Iterator[bytes]:
        """Yield the whole object; at the end, verify its checksum where it has one."""
        got, running = 0, hashlib.md5(usedforsecurity=False)
        for piece in self._fetch(0, None):
            got += len(piece)
            running.update(piece)
            yield piece
        self._verify(got, self.entry.size, running.digest)

    def _verify(self, got: int, promised: int | None, digest: Callable[[], bytes]) -> None:
        """Raise StorageError where size or checksum of what has arrived are not those that the service names."""
        if promised is not None and got != promised:
            raise not_the_promised_size(self.place, promised, got)
        expected = self.headers.get("content-md5")
        if expected:
            checksums.check_digests(self.place, Checksum(value=expected), [digest()])

    def _fetch(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Yield a range (length None: the whole); resume a truncated body."""
        got = failures = 0
        begun = False
        while length is None or got < length or not begun:
            before = got
            try:
                with reading(self.place):
                    answer = self._ask(offset + got, None if length is None else length - got)
                    begun = True
                    length = int(answer.headers["content-length"]) if length is None else length
                    for piece in _body(answer):
                        got += len(piece)
                        if got > length:
                            break
                        yield piece
                break
            except BackendError as error:
                # Failures before the body were retried already; once an answer had begun, its body broke.
                failures = 1 if got > before else failures + 1
                if error.status_code is not None or not begun or failures == _BODY_ATTEMPTS:
                    raise
                log.info("%s; resuming at byte %s", error, offset + got)
                time.sleep(0.2 * failures)
        if got != length:
            raise not_the_promised_size(self.place, length, got)

    def _ask(self, start: int, length: int | None) -> Any:
        wanted = {"if-match": self._etag} if self._etag else {}
        if length is not None:
            wanted["range"] = f"bytes={start}-{start + length - 1}"
        http = self.store.http
        answer = http.get(http.object_path(self.store.object_name(self.entry.name)), wanted)
        self._etag = self._etag or answer.headers["etag"]
        self.headers = self.headers or answer.headers
        return answer


def head_of(store: BucketFolder, name: str) -> Mapping[str, str]:
    """Return the headers of an object. Raises FileNotFoundError when it is not there."""
    place = store.uri_of(name)
    try:
        with oci_errors(f"reading {place}"):
            headers: Mapping[str, str] = store.client.head_object(
                *store.bucket, store.object_name(name)
            ).headers
    except BackendError as error:
        if error.status_code == 404:
            raise FileNotFoundError(place) from error
        raise StorageError(str(error), uri=place, retryable=error.retryable) from error
    return headers


def checksum_in(headers: Mapping[str, str]) -> Checksum | None:
    """Return the checksum in an answer, None when it cannot be checked."""
    if headers.get("content-md5"):
        return Checksum(value=headers["content-md5"])
    cut = int(headers.get(PART_SIZE_KEY) or 0)
    if 0 < cut <= LARGEST_RANGE and headers.get("opc-multipart-md5"):
        return Checksum(value=headers["opc-multipart-md5"], part_size=cut)
    return None


def _body(answer: Any) -> Iterator[bytes]:
    # urllib3 has read1 since 2.0, and the SDK brings 1.26 for Python 3.9.
    read, size = (answer.read1, _PIECE) if hasattr(answer, "read1") else (answer.read, _PIECE_WAITED_FOR)
    try:
        while piece := read(size, decode_content=False):
            yield piece
    except GeneratorExit:
        answer.close()
        raise
    answer.release_conn()
