"""Pre-authenticated requests: addresses that let anyone read or write, until they expire."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import ApiError, invalid, not_found
from airflow_provider_ocidist.emulator.object_storage import headers
from airflow_provider_ocidist.emulator.object_storage.catalog import BUCKET, Bucket, BucketCatalog
from airflow_provider_ocidist.emulator.object_storage.listing import ListRoutes, read_listing
from airflow_provider_ocidist.emulator.object_storage.multipart import Multipart, MultipartUpload, part_number
from airflow_provider_ocidist.emulator.object_storage.objects import OBJECT, ObjectRoutes
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.times import read_time, rfc3339
from airflow_provider_ocidist.emulator.wire import Call, Principal, Route, answer, now, page

REQUESTS = f"{BUCKET}/p"
UPLOAD = f"/p/{{token}}{BUCKET}/u/{{object...}}/id/{{upload}}"
ONE_OBJECT = ("ObjectRead", "ObjectWrite", "ObjectReadWrite")
ANY_OBJECT = ("AnyObjectRead", "AnyObjectWrite", "AnyObjectReadWrite")


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """A pre-authenticated request, as stored."""

    id: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    token: str = field(default_factory=lambda: secrets.token_urlsafe(48))
    """Secret in the address; shown once, when it is made."""
    bucket_id: str
    name: str
    object_name: str | None
    """Name of the object, or for access to any object the prefix of their names."""
    access_type: str
    lists: bool
    time_expires: str
    created_by: str
    tenancy_id: str
    time_created: str = field(default_factory=now)

    @property
    def reads(self) -> bool:
        return "Read" in self.access_type

    @property
    def writes(self) -> bool:
        return "Write" in self.access_type

    def covers(self, name: str) -> bool:
        if self.access_type in ONE_OBJECT:
            return name == self.object_name
        return name.startswith(self.object_name or "")


class Preauthenticated:
    """The routes of pre-authenticated requests, and those that they open."""

    def __init__(
        self,
        context: Context,
        catalog: BucketCatalog,
        objects: ObjectRoutes,
        lists: ListRoutes,
        multipart: Multipart,
    ) -> None:
        self._context = context
        self._catalog = catalog
        self._objects = objects
        self._lists = lists
        self._multipart = multipart
        self._grants: Table[Grant] = Table(context.store, "preauthenticated", Grant)

    def routes(self) -> list[Route]:
        opened = f"/p/{{token}}{OBJECT}"
        return [
            Route("POST", REQUESTS, self.create),
            Route("GET", REQUESTS, self.list),
            Route("GET", f"{REQUESTS}/{{id}}", self.get),
            Route("DELETE", f"{REQUESTS}/{{id}}", self.delete),
            Route("GET", f"/p/{{token}}{BUCKET}/o", self.list_objects, anonymous=True),
            Route("GET", opened, self.read, anonymous=True),
            Route("HEAD", opened, self.read, anonymous=True),
            Route("PUT", opened, self.write, streams=True, anonymous=True),
            Route("PUT", f"{UPLOAD}/{{part}}", self.put_part, streams=True, anonymous=True),
            Route("POST", UPLOAD, self.commit, anonymous=True),
            Route("DELETE", UPLOAD, self.abort, anonymous=True),
        ]

    def in_use(self, bucket: Bucket) -> str | None:
        return "pre-authenticated requests" if self._of(bucket) else None

    def reset(self) -> None:
        self._grants.clear()

    def _of(self, bucket: Bucket) -> list[Grant]:
        return [grant for grant in self._grants.values() if grant.bucket_id == bucket.id]

    async def create(self, call: Call) -> Response:
        bucket = self._catalog.bucket(call)
        details = await call.json()
        ids = self._context.ids
        grant = Grant(
            bucket_id=bucket.id,
            name=headers.required(details, "name"),
            object_name=details.get("objectName") or None,
            access_type=headers.required(details, "accessType"),
            lists=details.get("bucketListingAction") == "ListObjects",
            time_expires=_in_future(headers.required(details, "timeExpires")),
            created_by=call.actor,
            tenancy_id=call.principal.tenancy_id if call.principal else ids.tenancy_id,
        )
        check_grant(grant, details.get("bucketListingAction"))
        self._grants.put(grant.token, grant)
        named = grant.object_name if grant.access_type in ONE_OBJECT else None
        uri = f"/p/{grant.token}/n/{ids.namespace}/b/{bucket.name}/o/{quote(named or '')}"
        return answer({**_body(grant), "accessUri": uri, "fullPath": f"{self._context.url}{uri}"})

    async def list(self, call: Call) -> Response:
        bucket = self._catalog.bucket(call)
        prefix = call.query.get("objectNamePrefix", "")
        found = [grant for grant in self._of(bucket) if (grant.object_name or "").startswith(prefix)]
        chosen, more = page(call, found, lambda grant: (grant.time_created, grant.id), default="ASC")
        return answer([_body(grant) for grant in chosen], headers=more)

    def _find(self, call: Call) -> Grant:
        bucket = self._catalog.bucket(call)
        for grant in self._of(bucket):
            if grant.id == call.params["id"]:
                return grant
        raise not_found()

    async def get(self, call: Call) -> Response:
        return answer(_body(self._find(call)))

    async def delete(self, call: Call) -> Response:
        self._grants.delete(self._find(call).token)
        return answer()

    def _enter(self, call: Call) -> Grant:
        """Authenticate a caller with the token as its creator. Raises 401 for a token that opens nothing."""
        grant = self._grants.get(call.params["token"])
        if grant is None or grant.time_expires <= now():
            raise ApiError(401, "NotAuthenticated", "PAR does not exist")
        call.principal = Principal(id=grant.created_by, tenancy_id=grant.tenancy_id)
        if self._catalog.bucket(call).id != grant.bucket_id:
            raise ApiError(401, "NotAuthenticated", "PAR does not exist")
        return grant

    async def list_objects(self, call: Call) -> Response:
        grant = self._enter(call)
        wanted = read_listing(call)
        prefix = grant.object_name or ""
        if not grant.lists or not (wanted.prefix or prefix).startswith(prefix):
            raise not_found()
        return self._lists.answer(call, replace(wanted, prefix=wanted.prefix or prefix))

    async def read(self, call: Call) -> Response:
        grant = self._enter(call)
        if not grant.reads or not grant.covers(call.params["object"]):
            raise not_found()
        return await self._objects.get(call)

    def _enter_to_write(self, call: Call) -> Grant:
        grant = self._enter(call)
        if not grant.writes or not grant.covers(call.params["object"]):
            raise not_found()
        return grant

    async def write(self, call: Call) -> Response:
        """Store an object; with opc-multipart, begin one whose parts come later."""
        grant = self._enter_to_write(call)
        if call.headers.get("opc-multipart", "").lower() != "true":
            return await self._objects.put(call)
        bucket, name = self._catalog.bucket(call), call.params["object"]
        said = {
            "contentType": call.headers.get("content-type"),
            "metadata": {
                header: value for header, value in call.headers.items() if header.startswith("opc-meta-")
            },
        }
        upload = self._multipart.begin(call, bucket, name, said)
        place = f"/n/{self._context.ids.namespace}/b/{bucket.name}/u/{quote(name, safe='')}/id/{upload.id}/"
        body = self._multipart.body(bucket, upload)
        return answer({**body, "accessUri": f"/p/{grant.token}{place}"})

    def _upload(self, call: Call) -> MultipartUpload:
        self._enter_to_write(call)
        return self._multipart.find(call, call.params["upload"])

    async def put_part(self, call: Call) -> Response:
        return await self._multipart.receive(call, self._upload(call), part_number(call.params["part"]))

    async def commit(self, call: Call) -> Response:
        upload = self._upload(call)
        parts = self._multipart.all_parts(upload)
        if not parts:
            raise ApiError(400, "InvalidUploadPart", "No part of the upload has arrived")
        return self._multipart.finish(call, upload, parts)

    async def abort(self, call: Call) -> Response:
        self._multipart.give_up(self._upload(call))
        return answer()


def check_grant(grant: Grant, listing: str | None) -> None:
    """Raise 400 for what cannot be granted."""
    if grant.access_type not in ONE_OBJECT + ANY_OBJECT:
        raise invalid(f"accessType must be one of {', '.join(ONE_OBJECT + ANY_OBJECT)}.")
    if grant.access_type in ONE_OBJECT and not grant.object_name:
        raise invalid(f"{grant.access_type} needs objectName.")
    if listing not in (None, "Deny", "ListObjects"):
        raise invalid("bucketListingAction must be Deny or ListObjects.")
    if grant.lists and grant.access_type not in ("AnyObjectRead", "AnyObjectReadWrite"):
        raise invalid("bucketListingAction ListObjects needs AnyObjectRead or AnyObjectReadWrite.")


def _in_future(text: str) -> str:
    time_ms = read_time(text, "timeExpires")
    if time_ms <= time.time() * 1000:
        raise invalid("timeExpires must be in the future.")
    return rfc3339(time_ms)


def _body(grant: Grant) -> dict[str, Any]:
    values = {
        "id": grant.id,
        "name": grant.name,
        "objectName": grant.object_name,
        "bucketListingAction": "ListObjects" if grant.lists else "Deny",
        "accessType": grant.access_type,
        "timeExpires": grant.time_expires,
        "timeCreated": grant.time_created,
    }
    return {name: value for name, value in values.items() if value is not None}
