"""Object Storage: buckets and objects."""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from email.utils import format_datetime
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.bodies import (
    Digest,
    FileAnswer,
    Files,
    Received,
    Segment,
    read_range,
    receive_file,
)
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import ApiError, invalid, missing, not_found
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.object_storage.index import Listing, NameIndex
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, check_if_match, new_etag, now, page

BUCKETS = "/n/{namespace}/b"
BUCKET = f"{BUCKETS}/{{bucket}}"
OBJECT = f"{BUCKET}/o/{{object...}}"
BUCKET_NAME = re.compile(r"[A-Za-z0-9._-]{1,256}")
MAX_NAME_BYTES = 1024
KEPT_HEADERS = (
    "content-type",
    "content-language",
    "content-encoding",
    "content-disposition",
    "cache-control",
)
FIELDS = ("name", "size", "md5", "etag", "timeCreated", "timeModified", "storageTier", "archivalState")
SUMMARY = (
    "namespace",
    "name",
    "compartmentId",
    "createdBy",
    "timeCreated",
    "etag",
    "freeformTags",
    "definedTags",
)
CHECKSUMS = ("crc32c", "sha256", "sha384")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """A bucket, as stored."""

    name: str
    id: str = field(default_factory=lambda: new_ocid("bucket"))
    compartment_id: str
    details: Mapping[str, Any]
    created_by: str
    time_created: str = field(default_factory=now)
    etag: str = field(default_factory=new_etag)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredObject:
    """An object, as stored. Its bytes are those of its files, one after the other."""

    bucket: str
    name: str
    files: Sequence[str]
    sizes: Sequence[int]
    checksums: Mapping[str, str]
    """Answered as headers: content-md5 or opc-multipart-md5, opc-content-crc32c..."""
    headers: Mapping[str, str]
    """What the client said about it: content-type, opc-meta-*..."""
    storage_tier: str = "Standard"
    etag: str = field(default_factory=lambda: str(uuid.uuid4()))
    version_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    time_created: str = field(default_factory=now)
    time_modified: str = field(default_factory=now)

    @property
    def size(self) -> int:
        return sum(self.sizes)


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyRequest:
    """An accepted copy: the service carries it out after it has answered."""

    id: str
    source: str
    status: str = "ACCEPTED"
    error: str | None = None
    time_accepted: str = field(default_factory=now)
    time_finished: str | None = None


class Objects:
    """All buckets and objects: kept in memory and in the store, their bodies as files."""

    def __init__(self, context: Context) -> None:
        self.files = Files(context.folder / "objects")
        self._context = context
        self.buckets: Table[Bucket] = Table(context.store, "bucket", Bucket)
        self._objects: Table[StoredObject] = Table(context.store, "object", StoredObject)
        self._indexes: dict[str, NameIndex] = {}
        self._seed()

    def _seed(self) -> None:
        ids = self._context.ids
        if self.buckets.get(ids.bucket) is None:
            bucket = Bucket(
                name=ids.bucket, compartment_id=ids.compartment_id, details={}, created_by=ids.user_id
            )
            self.buckets.put(bucket.name, bucket)
        names: dict[str, list[str]] = {bucket.name: [] for bucket in self.buckets.values()}
        for each in self._objects.values():
            names[each.bucket].append(each.name)
        self._indexes = {bucket: NameIndex(found) for bucket, found in names.items()}

    def files_in_use(self) -> set[str]:
        return {file for each in self._objects.values() for file in each.files}

    def bucket(self, call: Call) -> Bucket:
        """Return the bucket that a path names. Raises 404."""
        self.check_namespace(call)
        return self.named_bucket(call.params["bucket"])

    def named_bucket(self, name: str) -> Bucket:
        bucket = self.buckets.get(name)
        if bucket is None:
            namespace = self._context.ids.namespace
            raise ApiError(
                404,
                "BucketNotFound",
                f"Either the bucket named '{name}' does not exist in the namespace '{namespace}'"
                " or you are not authorized to access it",
            )
        return bucket

    def check_namespace(self, call: Call) -> None:
        if call.params["namespace"] != self._context.ids.namespace:
            raise ApiError(
                404, "NamespaceNotFound", f"The namespace '{call.params['namespace']}' was not found"
            )

    def index(self, bucket: str) -> NameIndex:
        return self._indexes[bucket]

    def add_bucket(self, bucket: Bucket) -> None:
        self.buckets.put(bucket.name, bucket)
        self._indexes.setdefault(bucket.name, NameIndex())

    def remove_bucket(self, bucket: Bucket) -> None:
        self.buckets.delete(bucket.name)
        del self._indexes[bucket.name]

    def find(self, bucket: str, name: str) -> StoredObject | None:
        return self._objects.get(f"{bucket}/{name}")

    def get(self, bucket: str, name: str) -> StoredObject:
        found = self.find(bucket, name)
        if found is None:
            raise ApiError(
                404, "ObjectNotFound", f"The object '{name}' was not found in the bucket '{bucket}'"
            )
        return found

    def put(self, new: StoredObject) -> None:
        """Make an object visible, all of it at once; one of the same name is gone."""
        self.named_bucket(new.bucket)
        old = self.find(new.bucket, new.name)
        self._objects.put(f"{new.bucket}/{new.name}", new)
        if old is None:
            self._indexes[new.bucket].add(new.name)
        else:
            self.files.remove([file for file in old.files if file not in new.files])

    def delete(self, old: StoredObject, *, keep_files: bool = False) -> None:
        self._objects.delete(f"{old.bucket}/{old.name}")
        self._indexes[old.bucket].remove(old.name)
        if not keep_files:
            self.files.remove(old.files)

    def reset(self) -> None:
        self._objects.clear()
        self.buckets.clear()
        self.files.clear()
        self._seed()


class ObjectStorage:
    """The routes of buckets and objects."""

    def __init__(self, context: Context, identity: Identity, objects: Objects) -> None:
        self._context = context
        self._identity = identity
        self._objects = objects
        self._copies: Table[CopyRequest] = Table(context.store, "copy", CopyRequest)
        self._copying: set[asyncio.Task[None]] = set()

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/n", self.get_namespace),
            Route("GET", "/n/{namespace}", self.get_namespace_metadata),
            Route("POST", BUCKETS, self.create_bucket),
            Route("GET", BUCKETS, self.list_buckets),
            Route("GET", BUCKET, self.get_bucket),
            Route("HEAD", BUCKET, self.get_bucket),
            Route("POST", BUCKET, self.update_bucket),
            Route("DELETE", BUCKET, self.delete_bucket),
            Route("POST", f"{BUCKET}/actions/renameObject", self.rename),
            Route("POST", f"{BUCKET}/actions/copyObject", self.copy),
            Route("POST", f"{BUCKET}/actions/batchDeleteObjects", self.batch_delete),
            Route("GET", f"{BUCKET}/o", self.list),
            Route("PUT", OBJECT, self.put, streams=True),
            Route("GET", OBJECT, self.get),
            Route("HEAD", OBJECT, self.get),
            Route("DELETE", OBJECT, self.delete),
            Route("GET", "/workRequests/{id}", self.get_copy),
            Route("GET", "/workRequests/{id}/errors", self.list_copy_errors),
            Route("GET", "/workRequests/{id}/logs", self.list_copy_logs),
        ]

    def reset(self) -> None:
        for task in self._copying:
            task.cancel()
        self._copies.clear()

    async def get_namespace(self, _: Call) -> Response:
        return answer(self._context.ids.namespace)

    async def get_namespace_metadata(self, call: Call) -> Response:
        self._objects.check_namespace(call)
        tenancy_id = self._context.ids.tenancy_id
        return answer(
            {
                "namespace": self._context.ids.namespace,
                "defaultS3CompartmentId": tenancy_id,
                "defaultSwiftCompartmentId": tenancy_id,
            }
        )

    async def create_bucket(self, call: Call) -> Response:
        self._objects.check_namespace(call)
        details = await call.json()
        for name in ("name", "compartmentId"):
            if not details.get(name):
                raise missing(name)
        check_bucket_name(details["name"])
        self._identity.check_compartment(details["compartmentId"])
        if self._objects.buckets.get(details["name"]):
            raise ApiError(409, "BucketAlreadyExists", f"The bucket '{details['name']}' already exists")
        bucket = Bucket(
            name=details["name"],
            compartment_id=details["compartmentId"],
            details=details,
            created_by=call.actor,
        )
        self._objects.add_bucket(bucket)
        return answer(self._bucket_body(bucket), etag=bucket.etag)

    async def list_buckets(self, call: Call) -> Response:
        self._objects.check_namespace(call)
        compartment_id = call.required_query("compartmentId")
        self._identity.check_compartment(compartment_id)
        found = [each for each in self._objects.buckets.values() if each.compartment_id == compartment_id]
        chosen, headers = page(call, found, lambda bucket: (bucket.name, ""), default="ASC")
        bodies = [self._bucket_body(bucket) for bucket in chosen]
        return answer([{name: body[name] for name in SUMMARY} for body in bodies], headers=headers)

    async def get_bucket(self, call: Call) -> Response:
        bucket = self._objects.bucket(call)
        if call.headers.get("if-none-match") == bucket.etag:
            return Response(status_code=304, headers={"etag": bucket.etag})
        if call.method == "HEAD":
            return Response(headers={"etag": bucket.etag})
        return answer(self._bucket_body(bucket), etag=bucket.etag)

    async def update_bucket(self, call: Call) -> Response:
        bucket = self._objects.bucket(call)
        check_if_match(call, bucket.etag)
        details = await call.json()
        changes = {name: value for name, value in details.items() if name not in ("name", "namespace")}
        bucket = replace(bucket, details={**bucket.details, **changes}, etag=new_etag())
        self._objects.buckets.put(bucket.name, bucket)
        return answer(self._bucket_body(bucket), etag=bucket.etag)

    async def delete_bucket(self, call: Call) -> Response:
        bucket = self._objects.bucket(call)
        check_if_match(call, bucket.etag)
        if len(self._objects.index(bucket.name)):
            raise ApiError(
                409, "BucketNotEmpty", f"Bucket named '{bucket.name}' is not empty. Delete all objects first."
            )
        self._objects.remove_bucket(bucket)
        return answer()

    def _bucket_body(self, bucket: Bucket) -> dict[str, Any]:
        details = bucket.details
        return {
            "id": bucket.id,
            "namespace": self._context.ids.namespace,
            "name": bucket.name,
            "compartmentId": bucket.compartment_id,
            "createdBy": bucket.created_by,
            "timeCreated": bucket.time_created,
            "etag": bucket.etag,
            "metadata": details.get("metadata") or {},
            "publicAccessType": details.get("publicAccessType") or "NoPublicAccess",
            "storageTier": details.get("storageTier") or "Standard",
            "versioning": "Disabled",
            "freeformTags": details.get("freeformTags") or {},
            "definedTags": details.get("definedTags") or {},
        }

    async def list(self, call: Call) -> Response:
        bucket = self._objects.bucket(call)
        fields = list_fields(call.query.get("fields"))
        found = self._objects.index(bucket.name).list(read_listing(call))
        bodies = [self._list_entry(self._objects.get(bucket.name, name), fields) for name in found.names]
        body = {"objects": bodies, "prefixes": found.prefixes, "nextStartWith": found.next_start}
        return answer({name: value for name, value in body.items() if value is not None})

    @staticmethod
    def _list_entry(each: StoredObject, fields: Sequence[str]) -> dict[str, Any]:
        values = {
            "name": each.name,
            "size": each.size,
            "md5": each.checksums.get("content-md5") or each.checksums.get("opc-multipart-md5"),
            "etag": each.etag,
            "timeCreated": each.time_created,
            "timeModified": each.time_modified,
            "storageTier": each.storage_tier,
            "archivalState": None,
        }
        return {name: values[name] for name in fields}

    async def put(self, call: Call) -> Response:
        bucket = self._objects.bucket(call).name
        name = checked_name(call.params["object"])
        check_write(call.headers, self._objects.find(bucket, name))
        received = await receive_file(call.chunks(), self._objects.files.folder, digests=wanted_digests(call))
        try:
            checksums = checked_sums(call, received)
            # Others may have written the same name while the bytes came in.
            self._objects.named_bucket(bucket)
            check_write(call.headers, self._objects.find(bucket, name))
        except ApiError:
            received.path.unlink()
            raise
        stored = StoredObject(
            bucket=bucket,
            name=name,
            files=[self._objects.files.adopt(received)],
            sizes=[received.size],
            checksums={"content-md5": received.md5, **checksums},
            headers=kept_headers(call.headers),
            storage_tier=call.headers.get("storage-tier", "Standard"),
        )
        self._objects.put(stored)
        return written(stored)

    async def get(self, call: Call) -> Response:
        bucket = self._objects.bucket(call).name
        stored = self._objects.get(bucket, call.params["object"])
        if call.headers.get("if-match", stored.etag) not in ("*", stored.etag):
            raise ApiError(412, "IfMatchFailed", "The If-Match header does not match the object's etag")
        headers = object_headers(stored)
        if call.headers.get("if-none-match") in ("*", stored.etag):
            return Response(status_code=304, headers={"etag": stored.etag})
        head = call.method == "HEAD"
        part = read_range(None if head else call.headers.get("range"), stored.size)
        return FileAnswer(
            self._segments(stored), part, headers, head=head, release=self._objects.files.hold(stored.files)
        )

    def _segments(self, stored: StoredObject) -> Sequence[Segment]:
        paths = map(self._objects.files.path, stored.files)
        return [Segment(path, size) for path, size in zip(paths, stored.sizes, strict=True)]

    async def delete(self, call: Call) -> Response:
        bucket = self._objects.bucket(call).name
        stored = self._objects.get(bucket, call.params["object"])
        if call.headers.get("if-match", stored.etag) not in ("*", stored.etag):
            raise ApiError(412, "IfMatchFailed", "The If-Match header does not match the object's etag")
        self._objects.delete(stored)
        return answer(headers={"last-modified": http_date(now()), "version-id": stored.version_id})

    async def rename(self, call: Call) -> Response:
        bucket = self._objects.bucket(call).name
        details = await call.json()
        source = self._objects.get(bucket, required(details, "sourceName"))
        name = checked_name(required(details, "newName"))
        target = self._objects.find(bucket, name)
        check_etag(details.get("srcObjIfMatchETag"), source)
        check_write(conditions(details, "newObjIfMatchETag", "newObjIfNoneMatchETag"), target)
        if source.name == name:
            return written(source)
        renamed = replace(source, name=name, etag=str(uuid.uuid4()), time_modified=now())
        self._objects.put(renamed)
        self._objects.delete(source, keep_files=True)
        return written(renamed)

    async def batch_delete(self, call: Call) -> Response:
        bucket = self._objects.bucket(call).name
        details = await call.json()
        deleted, failed = [], []
        for wanted in details.get("objects") or []:
            name = required(wanted, "objectName")
            try:
                stored = self._objects.get(bucket, name)
                check_etag(wanted.get("ifMatch"), stored)
                self._objects.delete(stored)
                deleted.append({"objectName": name, "timeLastModified": stored.time_modified})
            except ApiError as error:
                failed.append({"objectName": name, "statusCode": error.status, "errorMessage": error.message})
        return answer({"deleted": deleted, "failed": failed})

    async def copy(self, call: Call) -> Response:
        """Accept a copy; it is carried out later, and the source is only read then."""
        bucket = self._objects.bucket(call).name
        details = await call.json()
        source = self._objects.get(bucket, required(details, "sourceObjectName"))
        check_etag(details.get("sourceObjectIfMatchETag"), source)
        target = required(details, "destinationBucket")
        self._objects.named_bucket(target)
        required(details, "destinationObjectName")
        request = CopyRequest(id=str(uuid.uuid4()), source=f"{bucket}/{source.name}")
        self._copies.put(request.id, request)
        task = asyncio.create_task(self._carry_out(request, bucket, details))
        self._copying.add(task)
        task.add_done_callback(self._copying.discard)
        return answer(status=202, headers={"opc-work-request-id": request.id})

    async def _carry_out(self, request: CopyRequest, bucket: str, details: Mapping[str, Any]) -> None:
        await asyncio.sleep(self._context.options.copy_s)
        try:
            self._copy_now(bucket, details)
            done = replace(request, status="COMPLETED", time_finished=now())
        except (ApiError, OSError) as error:
            done = replace(request, status="FAILED", error=str(error), time_finished=now())
        self._copies.put(request.id, done)

    def _copy_now(self, bucket: str, details: Mapping[str, Any]) -> None:
        source = self._objects.get(bucket, details["sourceObjectName"])
        name, target = details["destinationObjectName"], details["destinationBucket"]
        wanted = conditions(details, "destinationObjectIfMatchETag", "destinationObjectIfNoneMatchETag")
        check_write(wanted, self._objects.find(target, name))
        copied = replace(
            source,
            bucket=target,
            name=checked_name(name),
            files=[self._objects.files.link(file) for file in source.files],
            etag=str(uuid.uuid4()),
            version_id=str(uuid.uuid4()),
            time_created=now(),
            time_modified=now(),
        )
        self._objects.put(copied)

    def _copy_request(self, call: Call) -> CopyRequest:
        request = self._copies.get(call.params["id"])
        if request is None:
            raise not_found()
        return request

    async def get_copy(self, call: Call) -> Response:
        request = self._copy_request(call)
        ended = request.time_finished is not None
        return answer(
            {
                "id": request.id,
                "operationType": "COPY_OBJECT",
                "status": request.status,
                "compartmentId": self._context.ids.compartment_id,
                "resources": [],
                "percentComplete": 100.0 if ended else 0.0,
                "timeAccepted": request.time_accepted,
                "timeStarted": request.time_accepted,
                "timeFinished": request.time_finished,
            }
        )

    async def list_copy_errors(self, call: Call) -> Response:
        request = self._copy_request(call)
        error = {"code": "CopyFailed", "message": request.error, "timestamp": request.time_finished}
        return answer([error] if request.error else [])

    async def list_copy_logs(self, call: Call) -> Response:
        request = self._copy_request(call)
        return answer([{"message": f"Copy of {request.source}", "timestamp": request.time_accepted}])


def written(stored: StoredObject) -> Response:
    """Return the answer to whoever wrote the object: 200 without a body."""
    headers = object_headers(stored)
    md5 = {"opc-content-md5": headers["content-md5"]} if "content-md5" in headers else {}
    names = (
        "etag",
        "last-modified",
        "version-id",
        "opc-multipart-md5",
        *(f"opc-content-{name}" for name in CHECKSUMS),
    )
    return Response(headers={**{name: headers[name] for name in names if name in headers}, **md5})


def object_headers(stored: StoredObject) -> dict[str, str]:
    return {
        "content-type": "application/octet-stream",
        **stored.headers,
        **stored.checksums,
        "etag": stored.etag,
        "last-modified": http_date(stored.time_modified),
        "storage-tier": stored.storage_tier,
        "version-id": stored.version_id,
        "accept-ranges": "bytes",
    }


def http_date(moment: str) -> str:
    return format_datetime(datetime.fromisoformat(moment), usegmt=True)


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what a client says about an object when it writes it."""
    return {
        name: value for name, value in headers.items() if name in KEPT_HEADERS or name.startswith("opc-meta-")
    }


def check_write(headers: Mapping[str, str], existing: StoredObject | None) -> None:
    """Raise 412 unless the conditions of a write hold."""
    if_match, if_none_match = headers.get("if-match"), headers.get("if-none-match")
    if if_match and (existing is None or if_match not in ("*", existing.etag)):
        raise ApiError(412, "IfMatchFailed", "The If-Match header does not match the object's etag")
    if if_none_match and existing is not None and if_none_match in ("*", existing.etag):
        raise ApiError(412, "IfNoneMatchFailed", f"The object '{existing.name}' already exists")


def check_etag(wanted: str | None, stored: StoredObject) -> None:
    if wanted not in (None, "*", stored.etag):
        raise ApiError(412, "IfMatchFailed", f"The etag of '{stored.name}' is another one")


def conditions(details: Mapping[str, Any], if_match: str, if_none_match: str) -> dict[str, str]:
    """Return conditions that came in a body as the headers they stand for."""
    found = {"if-match": details.get(if_match), "if-none-match": details.get(if_none_match)}
    return {name: value for name, value in found.items() if value}


def required(details: Mapping[str, Any], name: str) -> str:
    value = details.get(name)
    if not value or not isinstance(value, str):
        raise missing(name)
    return value


def checked_name(name: str) -> str:
    if not 1 <= len(name.encode()) <= MAX_NAME_BYTES or set(name) & {"\n", "\r", "\0"}:
        raise ApiError(400, "InvalidObjectName", f"The object name '{name}' is invalid")
    return name


def check_bucket_name(name: str) -> None:
    if not isinstance(name, str) or not BUCKET_NAME.fullmatch(name):
        raise ApiError(400, "InvalidBucketName", f"The bucket name '{name}' is invalid")


def wanted_digests(call: Call) -> dict[str, Digest]:
    """Return the checksums to compute, because the client sent them or asked for them."""
    asked = call.headers.get("opc-checksum-algorithm", "").lower()
    names = [name for name in CHECKSUMS if name == asked or f"opc-content-{name}" in call.headers]
    return {name: _digest(name) for name in names}


def _digest(name: str) -> Digest:
    if name != "crc32c":
        return hashlib.new(name)
    try:
        from crc32c import CRC32CHash
    except ImportError as error:
        raise invalid("opc-content-crc32c needs the Python package crc32c beside the emulator.") from error
    digest: Digest = CRC32CHash()
    return digest


def checked_sums(call: Call, received: Received) -> dict[str, str]:
    """Return the checksum headers to keep. Raises 400 when the body is not what the client meant to send."""
    md5 = call.headers.get("content-md5")
    if md5 is not None and md5 != received.md5:
        raise ApiError(
            400,
            "UnmatchedContentMD5",
            f"The computed MD5 of the request body ({received.md5}) does not match Content-MD5 ({md5})",
        )
    for name, value in received.digests.items():
        if call.headers.get(f"opc-content-{name}", value) != value:
            raise ApiError(
                400, f"UnmatchedContent{name.upper()}", f"The {name} of the request body is {value}"
            )
    return {f"opc-content-{name}": value for name, value in received.digests.items()}


def list_fields(text: str | None) -> tuple[str, ...]:
    """Return the fields of each entry; the service gives the name only, unless asked."""
    names = {"name", *filter(None, (text or "").split(","))}
    unknown = names - set(FIELDS)
    if unknown:
        raise invalid(f"Invalid fields: {', '.join(sorted(unknown))}")
    return tuple(name for name in FIELDS if name in names)


def read_listing(call: Call) -> Listing:
    query = call.query
    if query.get("delimiter") not in (None, "/"):
        raise invalid("Only '/' is supported as delimiter")
    return Listing(
        prefix=query.get("prefix", ""),
        start=query.get("start", ""),
        end=query.get("end"),
        start_after=query.get("startAfter"),
        delimiter=query.get("delimiter"),
        limit=call.number("limit", 1000, 1, 1000),
    )
