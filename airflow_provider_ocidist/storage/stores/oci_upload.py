"""A multipart upload to OCI Object Storage: committed last, aborted, or left to a later attempt."""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Sequence
from typing import Any

from airflow_provider_ocidist.errors import BackendError, StorageError
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.storage.stores import checksums
from airflow_provider_ocidist.storage.stores.base import Buffer, Origin, Upload
from airflow_provider_ocidist.storage.stores.journal import Journal, cache_folder, places_digest
from airflow_provider_ocidist.storage.stores.oci_download import PART_SIZE_KEY
from airflow_provider_ocidist.storage.stores.oci_http import BucketFolder, storage_errors

log = logging.getLogger(__name__)

_MOST_PARTS = 10_000
"""Most parts of one object: https://docs.oracle.com/iaas/Content/Object/Tasks/usingmultipartuploads.htm."""
_MIB = 1 << 20


class OciUpload(Upload):
    """One object being written.

    With an origin, a journal in the user's cache folder keeps the upload's id; the service lists its parts.
    """

    upload_id: str

    def __init__(self, store: BucketFolder, name: str, part_size: int, origin: Origin | None = None) -> None:
        self.store = store
        self.object_name = store.object_name(name)
        self.place = store.uri_of(name)
        self.part_size = part_size
        self.etags: dict[int, str] = {}
        self.digests: dict[int, bytes] = {}
        self.journal = self._journal_of(origin) if origin else None
        self._lock = threading.Lock()
        try:
            self.upload_id = self._left_open() or self._begin()
        except BaseException:
            # Left open it would stay locked, and a later attempt in this process could not resume.
            if self.journal:
                self.journal.close()
            raise

    def _begin(self) -> str:
        details = {"object": self.object_name, "metadata": {PART_SIZE_KEY: str(self.part_size)}}
        with oci_errors(f"writing {self.place}"):
            answer = self.store.client.create_multipart_upload(*self.store.bucket, details)
        upload_id = str(answer.data.upload_id)
        if self.journal:
            self.journal.add(upload_id)
        return upload_id

    def _journal_of(self, origin: Origin) -> Journal | None:
        subject = {
            "from": origin.uri,
            "etag": origin.etag,
            "size": origin.size,
            "to": self.place,
            "part_size": self.part_size,
        }
        key = places_digest(origin.uri, self.place)
        return Journal.open(cache_folder() / f"upload-{key}", subject)

    def _left_open(self) -> str | None:
        """Return the id of the upload that an earlier attempt has left open, None when there is none."""
        if self.journal is None:
            return None
        for abandoned in self.journal.stale:
            self._abort(str(abandoned))
        for upload_id in self.journal.records:
            if self._find_parts(str(upload_id)):
                return str(upload_id)
        self.journal.forget()
        return None

    def _find_parts(self, upload_id: str) -> bool:
        """List the uploaded parts; return whether the upload is still open."""
        page: str | None = None
        while True:
            try:
                with oci_errors(f"looking at the upload of {self.place}"):
                    answer = self.store.client.list_multipart_upload_parts(
                        *self.store.bucket, self.object_name, upload_id, **({"page": page} if page else {})
                    )
            except BackendError as error:
                if error.status_code == 404:
                    return False
                raise
            for part in answer.data:
                self.etags[part.part_number - 1] = part.etag
                self.digests[part.part_number - 1] = base64.b64decode(part.md5)
            page = answer.next_page
            if not page:
                return True

    def missing(self, offset: int, length: int) -> Sequence[tuple[int, int]]:
        return [] if offset // self.part_size in self.etags else [(offset, length)]

    def write(self, index: int, offset: int, data: Buffer) -> None:  # noqa: ARG002 - contract
        digest = checksums.md5_of([data])
        http = self.store.http
        path = http.part_path(self.object_name, self.upload_id, index + 1)
        with storage_errors(self.place), oci_errors(f"writing {self.place}"):
            answer = http.put(path, data, {"content-md5": base64.b64encode(digest).decode()})
        with self._lock:
            self.etags[index] = answer["etag"]
            self.digests[index] = digest

    def commit(self) -> str | None:
        with storage_errors(self.place):
            try:
                with oci_errors(f"writing {self.place}"):
                    headers = self._commit().headers
            except BackendError as error:
                # A repeated commit, after a lost answer, is refused: the upload is gone.
                if error.status_code not in (404, 409):
                    raise
                headers = self._found()
                if headers.get("opc-multipart-md5") != self._md5():
                    raise
            if headers.get("opc-multipart-md5") not in (None, self._md5()):
                raise StorageError(f"{self.place}: the checksum of what was stored is wrong", uri=self.place)
        if self.journal:
            self.journal.remove()
        etag = headers.get("etag")
        return str(etag) if etag else None

    def suspend(self) -> None:
        if self.journal is None:
            self.abort()
        else:
            self.journal.close()

    def abort(self) -> None:
        self._abort(self.upload_id)
        if self.journal:
            self.journal.remove()

    def _abort(self, upload_id: str) -> None:
        try:
            with oci_errors(f"giving up the upload of {self.place}"):
                self.store.client.abort_multipart_upload(*self.store.bucket, self.object_name, upload_id)
        except BackendError as error:
            if error.status_code != 404:
                log.warning("%s; its parts stay in the bucket until someone deletes them", error)

    def _commit(self) -> Any:
        parts = [{"partNum": index + 1, "etag": etag} for index, etag in sorted(self.etags.items())]
        details = {"partsToCommit": parts}
        return self.store.client.commit_multipart_upload(
            *self.store.bucket, self.object_name, self.upload_id, details
        )

    def _found(self) -> Any:
        """Return the headers of what is there. Raises BackendError where that cannot be seen: it may pass."""
        try:
            with oci_errors(f"looking for {self.place}"):
                return self.store.client.head_object(*self.store.bucket, self.object_name).headers
        except BackendError as error:
            if error.status_code != 404:
                raise
            return {}

    def _md5(self) -> str:
        return checksums.in_text([digest for _, digest in sorted(self.digests.items())], whole=False)


def part_size_for(size: int | None, part_size: int) -> int:
    """Return a part size, in bytes, at least as asked, that makes no more parts than OCI takes."""
    least = -(-(size or 0) // _MOST_PARTS)
    return part_size if least <= part_size else -(-least // _MIB) * _MIB
