"""Namespaces and buckets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import ApiError, invalid, missing
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.object_storage.catalog import (
    BUCKET,
    BUCKETS,
    NAMESPACE,
    Bucket,
    BucketCatalog,
)
from airflow_provider_ocidist.emulator.object_storage.headers import check_etag
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, new_etag, page

BUCKET_NAME = re.compile(r"[A-Za-z0-9._-]{1,256}")
CHOICES = {
    "publicAccessType": ("NoPublicAccess", "ObjectRead", "ObjectReadWithoutList"),
    "storageTier": ("Standard", "Archive"),
    "autoTiering": ("Disabled", "InfrequentAccess"),
    "versioning": ("Enabled", "Suspended", "Disabled"),
}
SUMMARY = ("namespace", "name", "compartmentId", "createdBy", "timeCreated", "etag")
TAGS = ("freeformTags", "definedTags")
InUse = Callable[[Bucket], str | None]
"""Function that returns what prevents the deletion of a bucket."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketDefaults:
    """The compartments of buckets made through the S3 and Swift interfaces."""

    s3: str
    swift: str


class Buckets:
    """The routes of namespaces and buckets."""

    def __init__(
        self, context: Context, identity: Identity, catalog: BucketCatalog, in_use: Sequence[InUse]
    ) -> None:
        self._ids = context.ids
        self._identity = identity
        self._catalog = catalog
        self._in_use = in_use
        self._defaults: Table[BucketDefaults] = Table(context.store, "namespace", BucketDefaults)

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/n", self.get_namespace),
            Route("GET", NAMESPACE, self.get_metadata),
            Route("PUT", NAMESPACE, self.update_metadata),
            Route("POST", BUCKETS, self.create),
            Route("GET", BUCKETS, self.list),
            Route("GET", BUCKET, self.get),
            Route("HEAD", BUCKET, self.get),
            Route("POST", BUCKET, self.update),
            Route("DELETE", BUCKET, self.delete),
            Route("POST", f"{BUCKET}/actions/makeBucketWritable", self.touch),
            Route("GET", f"{BUCKET}/l", self.get_lifecycle_policy),
            Route("GET", f"{BUCKET}/retentionRules", self.list_retention_rules),
            Route("GET", f"{BUCKET}/replicationPolicies", self.list_replications),
            Route("GET", f"{BUCKET}/replicationSources", self.list_replications),
        ]

    def reset(self) -> None:
        self._defaults.clear()

    async def get_namespace(self, _: Call) -> Response:
        return answer(self._ids.namespace)

    def _metadata(self) -> BucketDefaults:
        tenancy_id = self._ids.tenancy_id
        return self._defaults.get(self._ids.namespace) or BucketDefaults(s3=tenancy_id, swift=tenancy_id)

    async def get_metadata(self, call: Call) -> Response:
        self._catalog.check_namespace(call.params["namespace"])
        return answer(self._metadata_body(self._metadata()))

    def _metadata_body(self, defaults: BucketDefaults) -> dict[str, str]:
        named = {f"default{name}CompartmentId": asdict(defaults)[name.lower()] for name in ("S3", "Swift")}
        return {"namespace": self._ids.namespace, **named}

    async def update_metadata(self, call: Call) -> Response:
        self._catalog.check_namespace(call.params["namespace"])
        details = await call.json()
        given = {
            name: details.get(f"default{label}CompartmentId")
            for name, label in (("s3", "S3"), ("swift", "Swift"))
        }
        changes = {name: value for name, value in given.items() if value}
        for compartment_id in changes.values():
            self._identity.check_compartment(compartment_id)
        defaults = replace(self._metadata(), **changes)
        self._defaults.put(self._ids.namespace, defaults)
        return answer(self._metadata_body(defaults))

    async def create(self, call: Call) -> Response:
        self._catalog.check_namespace(call.params["namespace"])
        details = await call.json()
        for name in ("name", "compartmentId"):
            if not details.get(name):
                raise missing(name)
        self._check_name(details["name"])
        check_details(details)
        self._identity.check_compartment(details["compartmentId"])
        bucket = Bucket(
            name=details["name"],
            compartment_id=details["compartmentId"],
            details=details,
            created_by=call.actor,
        )
        self._catalog.put_bucket(bucket)
        place = f"/n/{self._ids.namespace}/b/{bucket.name}"
        return answer(self._body(bucket), etag=bucket.etag, headers={"location": place})

    def _check_name(self, name: Any) -> None:
        if not isinstance(name, str) or not BUCKET_NAME.fullmatch(name):
            raise ApiError(400, "InvalidBucketName", f"The bucket name '{name}' is invalid")
        if self._catalog.find_bucket(name) is not None:
            raise ApiError(409, "BucketAlreadyExists", f"The bucket '{name}' already exists")

    async def list(self, call: Call) -> Response:
        self._catalog.check_namespace(call.params["namespace"])
        compartment_id = self._identity.compartment_in(call)
        found = [each for each in self._catalog.buckets() if each.compartment_id == compartment_id]
        chosen, headers = page(call, found, lambda bucket: (bucket.name, ""), default="ASC")
        names = SUMMARY + TAGS if call.query.get("fields") == "tags" else SUMMARY
        bodies = [self._body(bucket) for bucket in chosen]
        return answer([{name: body[name] for name in names} for body in bodies], headers=headers)

    async def get(self, call: Call) -> Response:
        bucket = self._catalog.bucket(call)
        check_etag(call.headers.get("if-match"), bucket.etag)
        if call.headers.get("if-none-match") in ("*", bucket.etag):
            return Response(status_code=304, headers={"etag": bucket.etag})
        if call.method == "HEAD":
            return Response(headers={"etag": bucket.etag})
        asked = call.query.get("fields", "").split(",")
        return answer({**self._body(bucket), **self._estimates(bucket, asked)}, etag=bucket.etag)

    def _estimates(self, bucket: Bucket, asked: Sequence[str]) -> dict[str, int]:
        counts: dict[str, Callable[[], int]] = {
            "approximateCount": lambda: len(self._catalog.index(bucket)),
            "approximateSize": lambda: self._catalog.size(bucket),
        }
        return {name: count() for name, count in counts.items() if name in asked}

    async def update(self, call: Call) -> Response:
        old = self._catalog.bucket(call)
        check_etag(call.headers.get("if-match"), old.etag)
        details = await call.json()
        check_details(details)
        name = details.get("name") or old.name
        if name != old.name:
            self._check_name(name)
        compartment_id = details.get("compartmentId") or old.compartment_id
        self._identity.check_compartment(compartment_id)
        changes = {field: value for field, value in details.items() if field not in ("name", "namespace")}
        new = replace(
            old,
            name=name,
            compartment_id=compartment_id,
            details={**old.details, **changes},
            etag=new_etag(),
        )
        self._catalog.replace_bucket(old, new)
        return answer(self._body(new), etag=new.etag)

    async def delete(self, call: Call) -> Response:
        bucket = self._catalog.bucket(call)
        check_etag(call.headers.get("if-match"), bucket.etag)
        reasons = ["objects"] if len(self._catalog.index(bucket)) else []
        reasons += [reason for in_use in self._in_use if (reason := in_use(bucket))]
        if reasons:
            raise ApiError(
                409,
                "BucketNotEmpty",
                f"Bucket named '{bucket.name}' is not empty. Delete all {' and '.join(reasons)} first.",
            )
        self._catalog.remove_bucket(bucket)
        return answer()

    async def touch(self, call: Call) -> Response:
        """Answer the request to make a bucket writable after replication: it always is."""
        self._catalog.bucket(call)
        return answer()

    async def get_lifecycle_policy(self, call: Call) -> Response:
        bucket = self._catalog.bucket(call)
        raise ApiError(404, "LifecyclePolicyNotFound", f"The bucket '{bucket.name}' has no lifecycle policy")

    async def list_retention_rules(self, call: Call) -> Response:
        self._catalog.bucket(call)
        return answer({"items": []})

    async def list_replications(self, call: Call) -> Response:
        self._catalog.bucket(call)
        return answer([])

    def _body(self, bucket: Bucket) -> dict[str, Any]:
        details = bucket.details
        return {
            "id": bucket.id,
            "namespace": self._ids.namespace,
            "name": bucket.name,
            "compartmentId": bucket.compartment_id,
            "createdBy": bucket.created_by,
            "timeCreated": bucket.time_created,
            "etag": bucket.etag,
            "metadata": details.get("metadata") or {},
            "publicAccessType": bucket.public_access,
            "storageTier": bucket.storage_tier,
            "objectEventsEnabled": bool(details.get("objectEventsEnabled")),
            "kmsKeyId": details.get("kmsKeyId"),
            "versioning": "Disabled",
            "autoTiering": details.get("autoTiering") or "Disabled",
            "replicationEnabled": False,
            "isReadOnly": False,
            "freeformTags": details.get("freeformTags") or {},
            "definedTags": details.get("definedTags") or {},
        }


def check_details(details: Mapping[str, Any]) -> None:
    """Raise 400 for a value that the service does not know, 501 for what only the service can do."""
    for name, allowed in CHOICES.items():
        value = details.get(name)
        if value is not None and value not in allowed:
            raise invalid(f"{name} must be one of {', '.join(allowed)}, not '{value}'.")
    if details.get("versioning") == "Enabled":
        raise ApiError(501, "NotImplemented", "The emulator keeps one version of each object only")
