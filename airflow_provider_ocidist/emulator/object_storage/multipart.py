"""Multipart uploads: parts arrive in any order and become one object at once, without being copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.errors import ApiError, invalid
from airflow_provider_ocidist.emulator.object_storage import checksums, headers
from airflow_provider_ocidist.emulator.object_storage.catalog import (
    BUCKET,
    Bucket,
    BucketCatalog,
    StoredObject,
    new_id,
)
from airflow_provider_ocidist.emulator.store import RecordStore, Table
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now, page, whole_number

UPLOADS = f"{BUCKET}/u"
UPLOAD = f"{UPLOADS}/{{object...}}"
MAX_PARTS = 10_000
HEADER_FIELDS = {
    "contentType": "content-type",
    "contentLanguage": "content-language",
    "contentEncoding": "content-encoding",
    "contentDisposition": "content-disposition",
    "cacheControl": "cache-control",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MultipartUpload:
    """An upload that has begun."""

    id: str = field(default_factory=new_id)
    bucket_id: str
    name: str
    headers: Mapping[str, str]
    storage_tier: str
    algorithm: str | None
    """Checksum that is computed of every part, beside MD5."""
    time_created: str = field(default_factory=now)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part that has arrived."""

    upload_id: str
    number: int
    file: str
    size: int
    md5: str
    digests: Mapping[str, str]
    etag: str = field(default_factory=new_id)


class Multipart:
    """The routes of multipart uploads."""

    def __init__(self, store: RecordStore, namespace: str, catalog: BucketCatalog) -> None:
        self._namespace = namespace
        self._store = store
        self._catalog = catalog
        self._uploads: Table[MultipartUpload] = Table(store, "upload", MultipartUpload)
        self._stored_parts: Table[Part] = Table(store, "part", Part)
        self._parts: dict[str, dict[int, Part]] = {upload.id: {} for upload in self._uploads.values()}
        for part in self._stored_parts.values():
            self._parts[part.upload_id][part.number] = part

    def routes(self) -> list[Route]:
        return [
            Route("POST", UPLOADS, self.create),
            Route("GET", UPLOADS, self.list_uploads),
            Route("PUT", UPLOAD, self.put_part, streams=True),
            Route("POST", UPLOAD, self.commit),
            Route("DELETE", UPLOAD, self.abort),
            Route("GET", UPLOAD, self.list_parts),
        ]

    def files_in_use(self) -> set[str]:
        return {part.file for part in self._stored_parts.values()}

    def in_use(self, bucket: Bucket) -> str | None:
        mine = any(upload.bucket_id == bucket.id for upload in self._uploads.values())
        return "multipart uploads in progress" if mine else None

    def reset(self) -> None:
        self._uploads.clear()
        self._stored_parts.clear()
        self._parts.clear()

    async def create(self, call: Call) -> Response:
        bucket = self._catalog.bucket(call)
        details = await call.json()
        upload = self.begin(call, bucket, headers.required(details, "object"), details)
        return answer(self.body(bucket, upload))

    def begin(self, call: Call, bucket: Bucket, name: str, details: Mapping[str, Any]) -> MultipartUpload:
        """Start an upload as the body of a request describes the later object."""
        headers.check_write(call.headers, self._catalog.find(bucket, headers.checked_name(name)))
        upload = MultipartUpload(
            bucket_id=bucket.id,
            name=name,
            headers=described_headers(details),
            storage_tier=headers.checked_tier(details.get("storageTier"), bucket.storage_tier),
            algorithm=checksums.algorithm(call.headers),
        )
        self._uploads.put(upload.id, upload)
        self._parts[upload.id] = {}
        return upload

    async def list_uploads(self, call: Call) -> Response:
        bucket = self._catalog.bucket(call)
        found = [upload for upload in self._uploads.values() if upload.bucket_id == bucket.id]
        chosen, more = page(call, found, lambda upload: (upload.name, upload.id), default="ASC")
        return answer([self.body(bucket, upload) for upload in chosen], headers=more)

    def body(self, bucket: Bucket, upload: MultipartUpload) -> dict[str, Any]:
        return {
            "namespace": self._namespace,
            "bucket": bucket.name,
            "object": upload.name,
            "uploadId": upload.id,
            "timeCreated": upload.time_created,
            "storageTier": upload.storage_tier,
        }

    def find(self, call: Call, upload_id: str) -> MultipartUpload:
        """Return the upload of the object that a path names. Raises 404."""
        bucket = self._catalog.bucket(call)
        upload = self._uploads.get(upload_id)
        if upload is None or (upload.bucket_id, upload.name) != (bucket.id, call.params["object"]):
            raise ApiError(404, "NoSuchUpload", "The upload does not exist; it was committed or aborted")
        return upload

    async def put_part(self, call: Call) -> Response:
        upload = self.find(call, call.required_query("uploadId"))
        return await self.receive(call, upload, part_number(call.query.get("uploadPartNum")))

    async def receive(self, call: Call, upload: MultipartUpload, number: int) -> Response:
        """Store a part. One that is sent again replaces the earlier one."""
        said = dict(call.headers)
        check_part(said, self._parts[upload.id].get(number))
        digests = checksums.wanted(said, also=upload.algorithm)
        received = await self._catalog.files.receive(call.chunks(), digests)
        try:
            checksums.check(said, received)
            # Other requests may have ended the upload, or sent the same part, while the bytes came in.
            self.find(call, upload.id)
            check_part(said, self._parts[upload.id].get(number))
        except ApiError:
            received.path.unlink()
            raise
        part = Part(
            upload_id=upload.id,
            number=number,
            file=received.path.name,
            size=received.size,
            md5=received.md5,
            digests=received.digests,
        )
        self._keep(part)
        sums = {"opc-content-md5": part.md5, **checksums.headers_of(part.digests)}
        return Response(headers={"etag": part.etag, **sums})

    def _keep(self, part: Part) -> None:
        old = self._parts[part.upload_id].get(part.number)
        self._parts[part.upload_id][part.number] = part
        self._stored_parts.put(f"{part.upload_id}/{part.number}", part)
        if old is not None:
            self._catalog.files.remove([old.file])

    async def commit(self, call: Call) -> Response:
        details = await call.json()
        upload = self.find(call, call.required_query("uploadId"))
        present = self._parts[upload.id]
        chosen = chosen_parts(
            details.get("partsToCommit") or [], set(details.get("partsToExclude") or []), present
        )
        return self.finish(call, upload, chosen)

    def all_parts(self, upload: MultipartUpload) -> list[Part]:
        return [part for _, part in sorted(self._parts[upload.id].items())]

    def finish(self, call: Call, upload: MultipartUpload, parts: Sequence[Part]) -> Response:
        """Make the parts an object. The upload and the object are never there at the same time."""
        headers.check_write(call.headers, self._catalog.find(self._catalog.bucket(call), upload.name))
        sizes = [part.size for part in parts]
        stored = StoredObject(
            bucket_id=upload.bucket_id,
            name=upload.name,
            files=[part.file for part in parts],
            sizes=sizes,
            checksums=checksums.of_parts(
                [part.md5 for part in parts], [part.digests for part in parts], sizes
            ),
            headers=upload.headers,
            storage_tier=upload.storage_tier,
        )
        excluded = {part.file for part in self._parts[upload.id].values()} - set(stored.files)
        with self._store.transaction():
            self._forget(upload)
            unused = self._catalog.record(stored)
        self._catalog.files.remove([*unused, *excluded])
        return headers.written(stored)

    async def abort(self, call: Call) -> Response:
        upload = self.find(call, call.required_query("uploadId"))
        self.give_up(upload)
        return answer()

    def give_up(self, upload: MultipartUpload) -> None:
        files = [part.file for part in self._parts[upload.id].values()]
        with self._store.transaction():
            self._forget(upload)
        self._catalog.files.remove(files)

    def _forget(self, upload: MultipartUpload) -> None:
        for number in self._parts.pop(upload.id):
            self._stored_parts.delete(f"{upload.id}/{number}")
        self._uploads.delete(upload.id)

    async def list_parts(self, call: Call) -> Response:
        upload = self.find(call, call.required_query("uploadId"))
        parts = list(self._parts[upload.id].values())
        chosen, more = page(call, parts, lambda part: (f"{part.number:05}", ""), default="ASC")
        bodies = [
            {"partNumber": part.number, "etag": part.etag, "md5": part.md5, "size": part.size}
            for part in chosen
        ]
        return answer(bodies, headers=more)


def described_headers(details: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of the later object; a multipart upload gets them in its first request's body."""
    named = {
        header: headers.sayable(details[name], name)
        for name, header in HEADER_FIELDS.items()
        if details.get(name)
    }
    return {**named, **headers.metadata(details.get("metadata") or {})}


def part_number(text: str | None) -> int:
    number = whole_number(text or "")
    if number is None or not 1 <= number <= MAX_PARTS:
        raise invalid(f"uploadPartNum must be a number from 1 to {MAX_PARTS}, not {(text or '')[:50]}.")
    return number


def check_part(said: Mapping[str, str], existing: Part | None) -> None:
    """Raise 412 unless the conditions on a part hold."""
    if "if-match" in said and (existing is None or said["if-match"] not in ("*", existing.etag)):
        raise ApiError(412, "IfMatchFailed", "The If-Match header does not match the part's etag")
    if "if-none-match" in said and existing is not None:
        raise ApiError(412, "IfNoneMatchFailed", f"Part {existing.number} already exists")


def chosen_parts(
    wanted: Sequence[Mapping[str, Any]], excluded: set[int], present: Mapping[int, Part]
) -> list[Part]:
    """Return the parts of a commit in order. Raises 400 unless each part is either named as it is or excluded."""
    named = {int(entry.get("partNum") or 0): entry.get("etag") for entry in wanted}
    if not named or len(named) < len(wanted):
        raise invalid_part("partsToCommit must name at least one part, and each once")
    for number, etag in named.items():
        if number not in present or etag != present[number].etag:
            raise invalid_part(f"part {number} with etag {etag} is unknown")
    for number in sorted(present.keys() | excluded):
        if (number in named) == (number in excluded):
            raise invalid_part(f"part {number} must be in either partsToCommit or partsToExclude")
    return [present[number] for number in sorted(named)]


def invalid_part(reason: str) -> ApiError:
    text = "There were some invalid part (partNum/etag) combination for the upload"
    return ApiError(400, "InvalidUploadPart", f"{text}: {reason}")
