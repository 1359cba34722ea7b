"""A folder in OCI Object Storage: small objects in one request, large ones in ranges and parts."""

from __future__ import annotations

import base64
import os
import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.storage.locations import Location, join, safe_name, text_name
from airflow_provider_ocidist.storage.stores import checksums
from airflow_provider_ocidist.storage.stores.base import (
    Buffer,
    Checksum,
    Download,
    Entry,
    OpenUpload,
    Origin,
    Store,
    Upload,
)
from airflow_provider_ocidist.storage.stores.oci_copy import copy_object
from airflow_provider_ocidist.storage.stores.oci_download import (
    LARGEST_RANGE,
    OciDownload,
    checksum_in,
    head_of,
)
from airflow_provider_ocidist.storage.stores.oci_http import RestHttp, deleting, http_of, storage_errors
from airflow_provider_ocidist.storage.stores.oci_upload import OciUpload, part_size_for

CONNECTIONS = 64
"""Connections that a store keeps open: as many as a copy may use at a time. The SDK's own pool keeps 10."""
_FIELDS = "name,size,etag,timeModified,md5"
_WORTH_A_WORK_REQUEST = 1 << 20
"""Fewest bytes that the service copies itself. A smaller file takes two requests to read and write; a copy by the
service takes two as well, and waits in its queue."""
UPLOADS_A_PAGE = 1000
"""Most open uploads in one answer."""

_Found = dict[str, list[Entry]]


class OciStore(Store):
    """Objects below one prefix of one bucket."""

    def __init__(self, client: Any, namespace: str, bucket: str, prefix: str) -> None:
        self.client = client
        self.http = http_of(client, namespace, bucket)
        self.bucket = (namespace, bucket)
        self.prefix = f"{prefix}/" if prefix else ""
        self.uri = join(f"oci://{bucket}@{namespace}", prefix)

    @classmethod
    def connect(cls, place: Location, access: OciAccess | None = None) -> OciStore:
        access = access or OciAccess.from_environment(os.environ)
        with storage_errors(place.uri):
            access = replace(access, pool_size=max(access.pool_size, CONNECTIONS))
            return cls.reached_by(clients.client(access, "object_storage"), place)

    @classmethod
    def reached_by(cls, client: Any, place: Location) -> OciStore:
        """Return the store at a place for an existing client; a new one takes 50 ms of processor time."""
        with storage_errors(place.uri):
            namespace = place.namespace
            if namespace is None:
                with oci_errors("looking up the Object Storage namespace"):
                    namespace = str(client.get_namespace().data)
            return cls(client, namespace, place.bucket, place.path)

    def read(self, name: str) -> bytes:
        with storage_errors(self.uri_of(name)):
            return OciDownload(self, Entry(name=name, size=None), LARGEST_RANGE).whole()

    def write(self, name: str, data: Buffer) -> str | None:
        with storage_errors(self.uri_of(name)):
            return self._put(name, data, {})

    def write_if(self, name: str, data: Buffer, etag: str | None) -> bool:
        condition = {"if-none-match": "*"} if etag is None else {"if-match": etag}
        with storage_errors(self.uri_of(name)):
            try:
                self._put(name, data, condition)
            except BackendError as error:
                # Also if this write succeeded and its answer was lost: the caller reads again.
                if error.status_code == 412:
                    return False
                raise
        return True

    def _put(self, name: str, data: Buffer, headers: Mapping[str, str]) -> str | None:
        place, path = self.uri_of(name), self.http.object_path(self.object_name(name))
        md5 = base64.b64encode(checksums.md5_of([data])).decode()
        with oci_errors(f"writing {place}"):
            return self.http.put(path, data, {"content-md5": md5, **headers}).get("etag")

    def list(self, prefix: str = "") -> list[Entry]:
        found: list[Entry] = []
        start: str | None = None
        with storage_errors(self.uri), oci_errors(f"listing {self.uri}"):
            while True:
                entries, start = self._page(prefix, start)
                found += entries
                if not start:
                    return found

    def list_each(self, prefixes: Sequence[str]) -> Mapping[str, Sequence[Entry]]:
        """See Store. A page holds a thousand names: those of many prefixes, where few others lie between them."""
        found: _Found = {prefix: [] for prefix in prefixes}
        left = sorted(found)
        start = self.prefix + left[0] if left else None
        with storage_errors(self.uri), oci_errors(f"listing {self.uri}"):
            while start is not None:
                entries, following = self._page("", start)
                for entry in entries:
                    at = bisect_right(left, entry.name) - 1
                    if at >= 0 and entry.name.startswith(left[at]):
                        found[left[at]].append(entry)
                start = _next_start(following, self.prefix, left)
        return found

    def _page(self, prefix: str, start: str | None) -> tuple[Sequence[Entry], str | None]:
        """Return the entries of one page, and where the next one begins."""
        page = self.client.list_objects(
            *self.bucket,
            prefix=self.prefix + prefix,
            fields=_FIELDS,
            limit=1000,
            **({"start": start} if start else {}),
        ).data
        entries = [self._entry(item) for item in page.objects]
        # Consoles create empty objects that end in a slash, to show folders.
        return [each for each in entries if each.name and not each.name.endswith("/")], page.next_start_with

    def delete(self, name: str) -> None:
        with storage_errors(self.uri_of(name)), deleting(self.uri_of(name)):
            self.client.delete_object(*self.bucket, self.object_name(name))

    def stat(self, name: str) -> Entry:
        # Not HEAD: its 404 has no body, so a missing bucket would look like a missing object.
        with storage_errors(self.uri_of(name)), oci_errors(f"looking for {self.uri_of(name)}"):
            wanted = self.object_name(name)
            page = self.client.list_objects(*self.bucket, prefix=wanted, limit=1, fields=_FIELDS)
            for item in page.data.objects:
                if item.name == wanted:
                    return self._entry(item)
        raise FileNotFoundError(self.uri_of(name))

    def upload(self, name: str, size: int | None, part_size: int, origin: Origin | None = None) -> Upload:  # noqa: ARG002 - contract
        with storage_errors(self.uri_of(name)):
            return OciUpload(self, name, part_size, origin)

    def open_uploads(self, prefix: str = "") -> Sequence[OpenUpload]:
        # The service lists all of a bucket; it takes no prefix.
        found: list[OpenUpload] = []
        page: str | None = None
        with storage_errors(self.uri), oci_errors(f"listing the open uploads of {self.uri}"):
            while True:
                answer = self.client.list_multipart_uploads(
                    *self.bucket, limit=UPLOADS_A_PAGE, **({"page": page} if page else {})
                )
                found += [
                    OpenUpload(
                        name=item.object[len(self.prefix) :],
                        id=item.upload_id,
                        begun_at=item.time_created.timestamp(),
                    )
                    for item in answer.data
                    if item.object.startswith(self.prefix + prefix)
                ]
                page = answer.next_page
                if not page:
                    return found

    def abort_upload(self, upload: OpenUpload) -> None:
        place = self.uri_of(upload.name)
        with storage_errors(place):
            try:
                with oci_errors(f"giving up an upload of {place}"):
                    self.client.abort_multipart_upload(*self.bucket, self.object_name(upload.name), upload.id)
            except BackendError as error:
                if error.status_code != 404:
                    raise

    def download(self, entry: Entry, part_size: int) -> Download:
        with storage_errors(self.uri_of(entry.name)):
            return OciDownload.begin(self, entry, part_size)

    def checksum(self, entry: Entry) -> Checksum | None:
        return super().checksum(entry) or checksum_in(head_of(self, entry.name))

    def part_size_for(self, size: int | None, part_size: int) -> int:
        return part_size_for(size, part_size)

    def takes_from(self, source: Store, entry: Entry) -> bool:
        # Another endpoint is another region, named only in its credentials.
        return (
            isinstance(source, OciStore)
            and (entry.size or 0) > _WORTH_A_WORK_REQUEST
            and source.bucket[0] == self.bucket[0]
            and not isinstance(self.http, RestHttp)
            and source.client.base_client.endpoint == self.client.base_client.endpoint
        )

    def take(self, source: Store, entry: Entry, name: str, stop: threading.Event) -> str | None:
        assert isinstance(source, OciStore)
        with storage_errors(self.uri_of(name)):
            return copy_object(source, entry, self, name, stop)

    @property
    def region(self) -> str:
        return str(self.client.base_client.config["region"])

    def object_name(self, name: str) -> str:
        return self.prefix + text_name(safe_name(name))

    def _entry(self, item: Any) -> Entry:
        return Entry(
            name=item.name[len(self.prefix) :],
            size=item.size,
            etag=item.etag,
            modified=item.time_modified.timestamp() if item.time_modified else None,
            md5=item.md5 if item.md5 and "-" not in item.md5 else None,
        )


def _next_start(following: str | None, folder: str, prefixes: list[str]) -> str | None:
    """Return where to continue a listing of which only these sorted prefixes are wanted."""
    if following is None:
        return None
    at = bisect_right(prefixes, following[len(folder) :])
    if at and following.startswith(folder + prefixes[at - 1]):
        return following
    return folder + prefixes[at] if at < len(prefixes) else None
