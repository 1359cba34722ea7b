"""Multipart uploads: parts arrive in any order and become one object at once, without being copied."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.bodies import receive_file
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import ApiError, invalid
from airflow_provider_ocidist.emulator.object_storage.service import (
    BUCKET,
    Objects,
    StoredObject,
    check_write,
    checked_name,
    checked_sums,
    required,
    wanted_digests,
    written,
)
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now, page

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
class Upload:
    """An upload that has begun."""

    id: str
    bucket: str
    name: str
    headers: Mapping[str, str]
    storage_tier: str
    time_created: str = field(default_factory=now)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part that has arrived."""

    upload_id: str
    number: int
    file: str
    size: int
    md5: str
    etag: str = field(default_factory=lambda: str(uuid.uuid4()))


class Multipart:
    """The routes of multipart uploads."""

    def __init__(self, context: Context, objects: Objects) -> None:
        self._namespace = context.ids.namespace
        self._objects = objects
        self._uploads: Table[Upload] = Table(context.store, "upload", Upload)
        self._stored_parts: Table[Part] = Table(context.store, "part", Part)
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

    def reset(self) -> None:
        self._uploads.clear()
        self._stored_parts.clear()
        self._parts.clear()

    async def create(self, call: Call) -> Response:
        bucket = self._objects.bucket(call).name
        details = await call.json()
        name = checked_name(required(details, "object"))
        check_write(call.headers, self._objects.find(bucket, name))
        upload = Upload(
            id=str(uuid.uuid4()),
            bucket=bucket,
            name=name,
            headers=upload_headers(details),
            storage_tier=details.get("storageTier") or "Standard",
        )
        self._uploads.put(upload.id, upload)
        self._parts[upload.id] = {}
        return answer(self._upload_body(upload))

    async def list_uploads(self, call: Call) -> Response:
        bucket = self._objects.bucket(call).name
        found = [upload for upload in self._uploads.values() if upload.bucket == bucket]
        chosen, headers = page(call, found, lambda upload: (upload.name, upload.id), default="ASC")
        return answer([self._upload_body(upload) for upload in chosen], headers=headers)

    def _upload_body(self, upload: Upload) -> dict[str, Any]:
        return {
            "namespace": self._namespace,
            "bucket": upload.bucket,
            "object": upload.name,
            "uploadId": upload.id,
            "timeCreated": upload.time_created,
            "storageTier": upload.storage_tier,
        }

    def _find(self, call: Call) -> Upload:
        bucket = self._objects.bucket(call).name
        upload = self._uploads.get(call.required_query("uploadId"))
        if upload is None or (upload.bucket, upload.name) != (bucket, call.params["object"]):
            raise ApiError(404, "NoSuchUpload", "The upload does not exist; it was committed or aborted")
        return upload

    async def put_part(self, call: Call) -> Response:
        upload = self._find(call)
        number = part_number(call)
        received = await receive_file(call.chunks(), self._objects.files.folder, digests=wanted_digests(call))
        try:
            sums = checked_sums(call, received)
            self._find(call)
        except ApiError:
            received.path.unlink()
            raise
        file = self._objects.files.adopt(received)
        part = Part(upload_id=upload.id, number=number, file=file, size=received.size, md5=received.md5)
        self._keep(part)
        return Response(headers={"etag": part.etag, "opc-content-md5": part.md5, **sums})

    def _keep(self, part: Part) -> None:
        """A part that is sent again replaces the earlier one."""
        old = self._parts[part.upload_id].get(part.number)
        self._parts[part.upload_id][part.number] = part
        self._stored_parts.put(f"{part.upload_id}/{part.number}", part)
        if old is not None:
            self._objects.files.remove([old.file])

    async def commit(self, call: Call) -> Response:
        details = await call.json()
        upload = self._find(call)
        check_write(call.headers, self._objects.find(upload.bucket, upload.name))
        parts = chosen_parts(details.get("partsToCommit") or [], self._parts[upload.id])
        stored = StoredObject(
            bucket=upload.bucket,
            name=upload.name,
            files=[part.file for part in parts],
            sizes=[part.size for part in parts],
            checksums={"opc-multipart-md5": multipart_md5(parts)},
            headers=upload.headers,
            storage_tier=upload.storage_tier,
        )
        self._objects.put(stored)
        self._forget(upload, keep=stored.files)
        return written(stored)

    async def abort(self, call: Call) -> Response:
        self._forget(self._find(call), keep=())
        return answer()

    def _forget(self, upload: Upload, *, keep: Sequence[str]) -> None:
        parts = self._parts.pop(upload.id)
        self._uploads.delete(upload.id)
        for part in parts.values():
            self._stored_parts.delete(f"{upload.id}/{part.number}")
        kept = set(keep)
        self._objects.files.remove([part.file for part in parts.values() if part.file not in kept])

    async def list_parts(self, call: Call) -> Response:
        parts = self._parts[self._find(call).id]
        chosen, headers = page(
            call, list(parts.values()), lambda part: (f"{part.number:05}", ""), default="ASC"
        )
        bodies = [
            {"partNumber": part.number, "etag": part.etag, "md5": part.md5, "size": part.size}
            for part in chosen
        ]
        return answer(bodies, headers=headers)


def upload_headers(details: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of the later object; a multipart upload gets them in its first request's body."""
    named = {header: details[name] for name, header in HEADER_FIELDS.items() if details.get(name)}
    metadata = details.get("metadata") or {}
    return {
        **named,
        **{f"opc-meta-{name.removeprefix('opc-meta-')}": value for name, value in metadata.items()},
    }


def part_number(call: Call) -> int:
    number = call.number("uploadPartNum", 0, 1, MAX_PARTS)
    if not number:
        raise invalid("uploadPartNum is required.")
    return number


def chosen_parts(wanted: Sequence[Mapping[str, Any]], present: Mapping[int, Part]) -> list[Part]:
    """Return the parts of a commit in order. Raises 400 for one that is not there as the client says."""
    if not wanted:
        raise ApiError(400, "InvalidUploadPart", "partsToCommit may not be empty")
    parts = []
    for entry in sorted(wanted, key=lambda entry: int(entry.get("partNum", 0))):
        part = present.get(int(entry.get("partNum", 0)))
        if part is None or entry.get("etag") != part.etag:
            raise ApiError(
                400,
                "InvalidUploadPart",
                f"Part {entry.get('partNum')} with etag {entry.get('etag')} is unknown",
            )
        parts.append(part)
    return parts


def multipart_md5(parts: Sequence[Part]) -> str:
    joined = b"".join(base64.b64decode(part.md5) for part in parts)
    digest = hashlib.md5(joined, usedforsecurity=False).digest()
    return f"{base64.b64encode(digest).decode()}-{len(parts)}"
