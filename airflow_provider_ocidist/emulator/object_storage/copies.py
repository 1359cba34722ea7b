"""Work that is done later: copies between buckets, and re-encryption."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.object_storage import headers
from airflow_provider_ocidist.emulator.object_storage.catalog import BUCKET, BucketCatalog
from airflow_provider_ocidist.emulator.object_storage.headers import required
from airflow_provider_ocidist.emulator.object_storage.objects import check_readable
from airflow_provider_ocidist.emulator.object_storage.work_requests import (
    StorageWorkRequests,
    TouchedResource,
)
from airflow_provider_ocidist.emulator.wire import Call, Route, answer
from airflow_provider_ocidist.emulator.work_requests import Work

COPY = "COPY_OBJECT"
REENCRYPT = "REENCRYPT"


class Copies:
    """The routes that are answered with a work request. One emulator is every region, so regions do not matter."""

    def __init__(self, namespace: str, catalog: BucketCatalog, requests: StorageWorkRequests) -> None:
        self._namespace = namespace
        self._catalog = catalog
        self._requests = requests
        requests.serve(COPY, Work(self._copy_now))
        requests.serve(REENCRYPT, Work(lambda _: None))

    def routes(self) -> list[Route]:
        return [
            Route("POST", f"{BUCKET}/actions/copyObject", self.copy),
            Route("POST", f"{BUCKET}/actions/reencrypt", self.reencrypt_bucket),
            Route("POST", f"{BUCKET}/actions/reencrypt/{{object...}}", self.reencrypt_object),
        ]

    async def copy(self, call: Call) -> Response:
        """Accept a copy; the source is only read when it is carried out."""
        bucket = self._catalog.bucket(call)
        details = await call.json()
        source = self._catalog.get(bucket, required(details, "sourceObjectName"))
        headers.check_etag(details.get("sourceObjectIfMatchETag"), source.etag)
        headers.check_version(details.get("sourceVersionId"), source)
        check_readable(source)
        required(details, "destinationRegion")
        self._catalog.check_namespace(required(details, "destinationNamespace"))
        target = self._catalog.named_bucket(required(details, "destinationBucket"))
        name = headers.checked_name(required(details, "destinationObjectName"))
        headers.checked_tier(details.get("destinationObjectStorageTier"), target.storage_tier)
        headers.metadata(details.get("destinationObjectMetadata") or {})
        read = TouchedResource(action="READ", entity_type="object", uri=self._uri(bucket.name, source.name))
        written = TouchedResource(action="WRITTEN", entity_type="object", uri=self._uri(target.name, name))
        return self._requests.accept(
            COPY, bucket.compartment_id, [read, written], {**details, "sourceBucket": bucket.name}
        )

    def _uri(self, bucket: str, name: str) -> str:
        return f"/n/{self._namespace}/b/{bucket}/o/{name}"

    def _copy_now(self, details: Mapping[str, Any]) -> None:
        bucket = self._catalog.named_bucket(details["sourceBucket"])
        source = self._catalog.get(bucket, details["sourceObjectName"])
        target, name = (
            self._catalog.named_bucket(details["destinationBucket"]),
            details["destinationObjectName"],
        )
        headers.check_etag(details.get("sourceObjectIfMatchETag"), source.etag)
        wanted = headers.conditions(
            details, "destinationObjectIfMatchETag", "destinationObjectIfNoneMatchETag"
        )
        headers.check_write(wanted, self._catalog.find(target, name))
        tier = headers.checked_tier(details.get("destinationObjectStorageTier"), target.storage_tier)
        said = source.headers
        if details.get("destinationObjectMetadata") is not None:
            plain = {name: value for name, value in said.items() if not name.startswith("opc-meta-")}
            said = {**plain, **headers.metadata(details["destinationObjectMetadata"])}
        copied = source.copied(
            bucket_id=target.id,
            name=name,
            files=[self._catalog.files.link(file) for file in source.files],
            headers=said,
            storage_tier=tier,
            restored_until=None,
        )
        self._catalog.put(copied)

    async def reencrypt_bucket(self, call: Call) -> Response:
        bucket = self._catalog.bucket(call)
        written = TouchedResource(
            action="WRITTEN", entity_type="bucket", uri=f"/n/{self._namespace}/b/{bucket.name}"
        )
        return self._requests.accept(REENCRYPT, bucket.compartment_id, [written], {})

    async def reencrypt_object(self, call: Call) -> Response:
        stored = self._catalog.get(self._catalog.bucket(call), call.params["object"])
        headers.check_version(call.query.get("versionId"), stored)
        return answer()
