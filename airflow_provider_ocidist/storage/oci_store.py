"""A folder in OCI Object Storage: small objects in one request, large ones in ranges and parts."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist import oci_clients
from airflow_provider_ocidist.errors import BackendError, StorageError
from airflow_provider_ocidist.oci_clients import OciAccess, oci_errors
from airflow_provider_ocidist.storage.locations import Location, join, safe_name
from airflow_provider_ocidist.storage.stores import Download, Entry, Store, Upload, not_the_promised_size

log = logging.getLogger(__name__)

_PART_SIZE_KEY = "opc-meta-ocidist-part-size"
"""Tells a reader where the parts were cut, so that it can check the digest of the digests."""
_MOST_PARTS = 10_000
"""Of one object: https://docs.oracle.com/iaas/Content/Object/Tasks/usingmultipartuploads.htm."""
_LARGEST_RANGE = 64 << 20
_BODY_ATTEMPTS = 5
_CHUNK = 1 << 20


class OciStore(Store):
    """Objects below one prefix of one bucket."""

    def __init__(self, client: Any, namespace: str, bucket: str, prefix: str) -> None:
        self.client = client
        self.bucket = (namespace, bucket)
        self.prefix = f"{prefix}/" if prefix else ""
        self.uri = join(f"oci://{bucket}@{namespace}", prefix)

    @classmethod
    def connect(cls, place: Location, access: OciAccess | None = None) -> OciStore:
        access = access or OciAccess.from_environment(os.environ)
        with storage_errors(place.uri):
            client = oci_clients.client(access, "object_storage")
            namespace = place.namespace
            if namespace is None:
                with oci_errors("looking up the Object Storage namespace"):
                    namespace = str(client.get_namespace().data)
            return cls(client, namespace, place.bucket, place.path)

    def read(self, name: str) -> bytes:
        with storage_errors(self.place_of(name)):
            return OciDownload(self, Entry(name=name, size=None), _LARGEST_RANGE).read_whole()

    def write(self, name: str, data: bytes) -> None:
        with storage_errors(self.place_of(name)), oci_errors(f"writing {self.place_of(name)}"):
            self.client.put_object(*self.bucket, self.object_name(name), data, content_md5=_md5(data))

    def list(self, prefix: str = "") -> list[Entry]:
        found: list[Entry] = []
        start: str | None = None
        with storage_errors(self.uri), oci_errors(f"listing {self.uri}"):
            while True:
                page = self.client.list_objects(
                    *self.bucket,
                    prefix=self.prefix + prefix,
                    fields="name,size,etag,timeModified",
                    limit=1000,
                    **({"start": start} if start else {}),
                ).data
                found.extend(self._entry(item) for item in page.objects)
                start = page.next_start_with
                if not start:
                    break
        # Consoles make empty objects that end in a slash, to show folders.
        return [entry for entry in found if entry.name and not entry.name.endswith("/")]

    def delete(self, name: str) -> None:
        with storage_errors(self.place_of(name)), _absence(self, name):
            self.client.delete_object(*self.bucket, self.object_name(name))

    def stat(self, name: str) -> Entry:
        # Not HEAD: its 404 has no body, so a missing bucket would look like a missing object.
        with storage_errors(self.place_of(name)), oci_errors(f"looking for {self.place_of(name)}"):
            wanted = self.object_name(name)
            page = self.client.list_objects(
                *self.bucket, prefix=wanted, limit=1, fields="name,size,etag,timeModified"
            )
            for item in page.data.objects:
                if item.name == wanted:
                    return self._entry(item)
        raise FileNotFoundError(self.place_of(name))

    def upload(self, name: str, size: int | None, part_size: int) -> Upload:  # noqa: ARG002 - contract
        with storage_errors(self.place_of(name)):
            return OciUpload(self, name, part_size)

    def download(self, entry: Entry, part_size: int) -> Download:
        with storage_errors(self.place_of(entry.name)):
            return OciDownload.begin(self, entry, part_size)

    def object_name(self, name: str) -> str:
        return self.prefix + safe_name(name)

    def _entry(self, item: Any) -> Entry:
        return Entry(
            name=item.name[len(self.prefix) :],
            size=item.size,
            etag=item.etag,
            modified=item.time_modified.timestamp() if item.time_modified else None,
        )


class OciDownload(Download):
    """Ranges of one object, all of the same version of it."""

    def __init__(self, store: OciStore, entry: Entry, part_size: int) -> None:
        self.store = store
        self.entry = entry
        self.place = store.place_of(entry.name)
        self.part_size = part_size
        self.multipart_md5: str | None = None
        self.part_digests: dict[int, bytes] = {}

    @classmethod
    def begin(cls, store: OciStore, entry: Entry, part_size: int) -> OciDownload:
        """Ask once for the checksums of an object that will be read in several ranges."""
        made = cls(store, entry, min(part_size, _LARGEST_RANGE))
        if entry.size is None or entry.size <= made.part_size:
            return made
        with oci_errors(f"reading {made.place}"):
            head = store.client.head_object(*store.bucket, store.object_name(entry.name)).headers
        made.entry = replace(entry, etag=head["etag"])
        made.md5 = head.get("content-md5")
        cut = int(head.get(_PART_SIZE_KEY) or 0)
        if not made.md5 and 0 < cut <= _LARGEST_RANGE:
            made.part_size = cut
            made.multipart_md5 = head.get("opc-multipart-md5")
        return made

    def read(self, offset: int, length: int) -> bytes:
        with storage_errors(self.place):
            if length == self.entry.size:
                return self.read_whole()
            data, _ = self._fetch(offset, length)
            if self.multipart_md5:
                self.part_digests[offset] = _md5_bytes(data)
            return data

    def read_whole(self) -> bytes:
        """Return the whole object, checked against its checksum where it has one."""
        data, headers = self._fetch(0, None)
        if self.entry.size is not None and len(data) != self.entry.size:
            raise not_the_promised_size(self.place, self.entry.size, len(data))
        expected = headers.get("content-md5")
        if expected and expected != _md5(data):
            raise StorageError(f"{self.place}: the checksum of what arrived is wrong", uri=self.place)
        return data

    def finish(self) -> None:
        if self.multipart_md5 and self.multipart_md5 != _md5_of_parts(self.part_digests):
            raise StorageError(f"{self.place}: the checksum of what arrived is wrong", uri=self.place)

    def _fetch(self, offset: int, length: int | None) -> tuple[bytes, Any]:
        """Return a range (length None: the whole) and the answer's headers; go on where a body was cut."""
        pieces: list[bytes] = []
        got = failures = 0
        etag, headers = self.entry.etag, None
        while length is None or got < length:
            before = got
            try:
                with _absence_or_change(self.store, self.entry.name):
                    answer = self._ask(offset + got, None if length is None else length - got, etag)
                    headers, etag = headers or answer.headers, answer.headers["etag"]
                    length = int(headers["content-length"]) if length is None else length
                    for piece in answer.data.raw.stream(_CHUNK, decode_content=False):
                        pieces.append(piece)
                        got += len(piece)
                break
            except BackendError as error:
                # The SDK has retried what failed before the body; where an answer had begun, its body broke.
                failures = 1 if got > before else failures + 1
                if error.status_code is not None or not headers or failures == _BODY_ATTEMPTS:
                    raise
                log.info("%s; going on at byte %s", error, offset + got)
                time.sleep(0.2 * failures)
        if got != length:
            raise not_the_promised_size(self.place, length, got)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), headers

    def _ask(self, start: int, length: int | None, etag: str | None) -> Any:
        options: dict[str, Any] = {"if_match": etag} if etag else {}
        if length is not None:
            options["range"] = f"bytes={start}-{start + length - 1}"
        return self.store.client.get_object(
            *self.store.bucket, self.store.object_name(self.entry.name), **options
        )


class OciUpload(Upload):
    """A multipart upload, committed last or aborted."""

    def __init__(self, store: OciStore, name: str, part_size: int) -> None:
        self.store = store
        self.object_name = store.object_name(name)
        self.place = store.place_of(name)
        self.etags: dict[int, str] = {}
        self.part_digests: dict[int, bytes] = {}
        self._lock = threading.Lock()
        with oci_errors(f"writing {self.place}"):
            from oci.object_storage.models import CreateMultipartUploadDetails

            details = CreateMultipartUploadDetails(
                object=self.object_name, metadata={_PART_SIZE_KEY: str(part_size)}
            )
            self.upload_id = store.client.create_multipart_upload(*store.bucket, details).data.upload_id

    def write(self, index: int, offset: int, data: bytes) -> None:  # noqa: ARG002 - contract
        digest = _md5_bytes(data)
        with storage_errors(self.place), oci_errors(f"writing {self.place}"):
            answer = self.store.client.upload_part(
                *self.store.bucket,
                self.object_name,
                self.upload_id,
                index + 1,
                data,
                content_md5=base64.b64encode(digest).decode(),
            )
        with self._lock:
            self.etags[index] = answer.headers["etag"]
            self.part_digests[index] = digest

    def commit(self) -> None:
        with storage_errors(self.place):
            try:
                with oci_errors(f"writing {self.place}"):
                    found = self._commit().headers.get("opc-multipart-md5")
            except BackendError as error:
                # A commit whose answer was lost is refused when it is repeated, for the upload is gone.
                if error.status_code not in (404, 409) or not self._is_there():
                    raise
                return
            if found and found != _md5_of_parts(self.part_digests):
                raise StorageError(f"{self.place}: the checksum of what was stored is wrong", uri=self.place)

    def abort(self) -> None:
        try:
            with oci_errors(f"giving up the upload of {self.place}"):
                self.store.client.abort_multipart_upload(*self.store.bucket, self.object_name, self.upload_id)
        except BackendError as error:
            if error.status_code != 404:
                log.warning("%s; its parts stay in the bucket until someone deletes them", error)

    def _commit(self) -> Any:
        from oci.object_storage.models import CommitMultipartUploadDetails, CommitMultipartUploadPartDetails

        parts = [
            CommitMultipartUploadPartDetails(part_num=index + 1, etag=etag)
            for index, etag in sorted(self.etags.items())
        ]
        details = CommitMultipartUploadDetails(parts_to_commit=parts)
        return self.store.client.commit_multipart_upload(
            *self.store.bucket, self.object_name, self.upload_id, details
        )

    def _is_there(self) -> bool:
        try:
            with oci_errors(f"looking for {self.place}"):
                head = self.store.client.head_object(*self.store.bucket, self.object_name)
        except BackendError:
            return False
        return bool(head.headers.get("opc-multipart-md5") == _md5_of_parts(self.part_digests))


def part_size_for(size: int | None, part_size: int) -> int:
    """Return a part size, in bytes, at least as asked, that makes no more parts than OCI takes."""
    least = -(-(size or 0) // _MOST_PARTS)
    return part_size if least <= part_size else -(-least // _CHUNK) * _CHUNK


@contextmanager
def storage_errors(place: str) -> Iterator[None]:
    """Turn BackendError into StorageError; the cause keeps status, code and request id."""
    try:
        yield
    except BackendError as error:
        raise StorageError(str(error), uri=place) from error


@contextmanager
def _absence(store: OciStore, name: str) -> Iterator[None]:
    """Let a missing object be; a missing bucket is an error."""
    try:
        with oci_errors(f"deleting {store.place_of(name)}"):
            yield
    except BackendError as error:
        if not _is_absent_object(error):
            raise


@contextmanager
def _absence_or_change(store: OciStore, name: str) -> Iterator[None]:
    place = store.place_of(name)
    try:
        with oci_errors(f"reading {place}"):
            yield
    except BackendError as error:
        if _is_absent_object(error):
            raise FileNotFoundError(place) from error
        if error.status_code == 412:
            raise StorageError(f"{place} changed while it was read", uri=place) from error
        raise


def _is_absent_object(error: BackendError) -> bool:
    # NotAuthorizedOrNotFound and BucketNotFound speak of the bucket: absence proves nothing there.
    return error.status_code == 404 and error.code == "ObjectNotFound"


def _md5_bytes(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _md5(data: bytes) -> str:
    return base64.b64encode(_md5_bytes(data)).decode()


def _md5_of_parts(digests: dict[int, bytes]) -> str:
    """Return what OCI calls `opc-multipart-md5`: the digest of the parts' digests, and how many there are."""
    joined = b"".join(digest for _, digest in sorted(digests.items()))
    return f"{_md5(joined)}-{len(digests)}"
