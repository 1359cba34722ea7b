"""Objects: written, read, deleted, renamed, moved between storage tiers."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.bodies import FileAnswer, read_range
from airflow_provider_ocidist.emulator.errors import ApiError, invalid
from airflow_provider_ocidist.emulator.object_storage import checksums, headers
from airflow_provider_ocidist.emulator.object_storage.catalog import (
    BUCKET,
    BucketCatalog,
    StoredObject,
    new_id,
)
from airflow_provider_ocidist.emulator.object_storage.headers import required
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now

OBJECT = f"{BUCKET}/o/{{object...}}"
PUBLIC = ("ObjectRead", "ObjectReadWithoutList")
MAX_BATCH = 1000
RESTORED_HOURS = 24
MAX_RESTORED_HOURS = 240


class ObjectRoutes:
    """The routes of objects."""

    def __init__(self, catalog: BucketCatalog) -> None:
        self._catalog = catalog

    def routes(self) -> list[Route]:
        actions = f"{BUCKET}/actions"
        return [
            Route("PUT", OBJECT, self.put, streams=True),
            Route("GET", OBJECT, self.get, anonymous=True),
            Route("HEAD", OBJECT, self.get, anonymous=True),
            Route("DELETE", OBJECT, self.delete),
            Route("POST", f"{actions}/renameObject", self.rename),
            Route("POST", f"{actions}/batchDeleteObjects", self.batch_delete),
            Route("POST", f"{actions}/updateObjectStorageTier", self.update_tier),
            Route("POST", f"{actions}/restoreObjects", self.restore),
        ]

    async def put(self, call: Call) -> Response:
        bucket = self._catalog.bucket(call)
        name = headers.checked_name(call.params["object"])
        said = dict(call.headers)
        tier = headers.checked_tier(said.get("storage-tier"), bucket.storage_tier)
        headers.check_write(said, self._catalog.find(bucket, name))
        received = await self._catalog.files.receive(call.chunks(), checksums.wanted(said))
        try:
            checksums.check(said, received)
            # Other requests may have written the same name while the bytes came in.
            headers.check_write(said, self._catalog.find(bucket, name))
            moment = now()
            stored = StoredObject(
                bucket_id=bucket.id,
                name=name,
                files=[received.path.name],
                sizes=[received.size],
                checksums={"content-md5": received.md5, **checksums.headers_of(received.digests)},
                headers=headers.kept(said),
                storage_tier=tier,
                time_created=moment,
                time_modified=moment,
            )
            self._catalog.put(stored)
        except ApiError:
            received.path.unlink()
            raise
        return headers.written(stored)

    async def get(self, call: Call) -> Response:
        bucket = self._catalog.bucket(call, open_to_all=PUBLIC)
        stored = self._catalog.get(bucket, call.params["object"])
        said = call.headers
        headers.check_version(call.query.get("versionId"), stored)
        headers.check_etag(said.get("if-match"), stored.etag)
        if said.get("if-none-match") in ("*", stored.etag):
            return Response(status_code=304, headers={"etag": stored.etag})
        head = call.method == "HEAD"
        part = read_range(None if head else said.get("range"), stored.size)
        fields = headers.describing(stored, whole=not part.partial)
        if not head:
            check_readable(stored)
            fields.update(headers.overridden(call))
        files = self._catalog.files
        return FileAnswer(
            self._catalog.segments(stored), part, fields, head=head, release=files.hold(stored.files)
        )

    async def delete(self, call: Call) -> Response:
        bucket = self._catalog.bucket(call)
        stored = self._catalog.get(bucket, call.params["object"])
        headers.check_version(call.query.get("versionId"), stored)
        headers.check_etag(call.headers.get("if-match"), stored.etag)
        self._catalog.delete(stored)
        gone = {"last-modified": headers.http_date(now()), "version-id": stored.version_id}
        return answer(headers=gone)

    async def rename(self, call: Call) -> Response:
        bucket = self._catalog.bucket(call)
        details = await call.json()
        source = self._catalog.get(bucket, required(details, "sourceName"))
        name = headers.checked_name(required(details, "newName"))
        headers.check_etag(details.get("srcObjIfMatchETag"), source.etag)
        wanted = headers.conditions(details, "newObjIfMatchETag", "newObjIfNoneMatchETag")
        headers.check_write(wanted, self._catalog.find(bucket, name))
        if source.name == name:
            return headers.written(source)
        renamed = replace(source, name=name, etag=new_id(), time_modified=now())
        self._catalog.rename(source, renamed)
        return headers.written(renamed)

    async def batch_delete(self, call: Call) -> Response:
        bucket = self._catalog.bucket(call)
        details = await call.json()
        wanted = details.get("objects") or []
        if not 1 <= len(wanted) <= MAX_BATCH:
            raise invalid(f"objects must name 1 to {MAX_BATCH} objects, not {len(wanted)}.")
        deleted: list[dict[str, Any]] = []
        failed: list[dict[str, Any]] = []
        for each in wanted:
            name = required(each, "objectName")
            try:
                stored = self._catalog.get(bucket, name)
                headers.check_etag(each.get("ifMatch"), stored.etag)
                self._catalog.delete(stored)
                deleted.append({"objectName": name, "timeLastModified": stored.time_modified})
            except ApiError as error:
                failed.append({"objectName": name, "statusCode": error.status, "errorMessage": error.message})
        return answer({"deleted": [] if details.get("isSkipDeletedResult") else deleted, "failed": failed})

    async def update_tier(self, call: Call) -> Response:
        stored, details = await self._named_in_body(call)
        tier = headers.checked_tier(required(details, "storageTier"), stored.storage_tier)
        self._catalog.change(stored, storage_tier=tier, restored_until=None)
        return answer()

    async def restore(self, call: Call) -> Response:
        """Make an archived object readable for some hours; the service takes an hour for that, we none."""
        stored, details = await self._named_in_body(call)
        if stored.storage_tier != "Archive":
            raise ApiError(409, "NotArchived", f"The object '{stored.name}' is not archived")
        hours = details.get("hours") or RESTORED_HOURS
        if not isinstance(hours, int) or not 1 <= hours <= MAX_RESTORED_HOURS:
            raise invalid(f"hours must be a number from 1 to {MAX_RESTORED_HOURS}.")
        until = datetime.now(timezone.utc) + timedelta(hours=hours)
        self._catalog.change(stored, restored_until=until.isoformat().replace("+00:00", "Z"))
        return answer(status=202)

    async def _named_in_body(self, call: Call) -> tuple[StoredObject, dict[str, Any]]:
        bucket = self._catalog.bucket(call)
        details = await call.json()
        stored = self._catalog.get(bucket, required(details, "objectName"))
        headers.check_version(details.get("versionId"), stored)
        return stored, details


def check_readable(stored: StoredObject) -> None:
    if stored.archival_state == "Archived":
        raise ApiError(409, "NotRestored", f"The object '{stored.name}' is archived; restore it first")
