"""Lists of objects and of their versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.object_storage.catalog import BUCKET, BucketCatalog, StoredObject
from airflow_provider_ocidist.emulator.object_storage.index import ListParameters
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, page_token, read_page_token

Field = Callable[[StoredObject], Any]
FIELDS: dict[str, Field] = {
    "name": lambda each: each.name,
    "size": lambda each: each.size,
    "md5": lambda each: each.checksums.get("content-md5") or each.checksums.get("opc-multipart-md5"),
    "etag": lambda each: each.etag,
    "timeCreated": lambda each: each.time_created,
    "timeModified": lambda each: each.time_modified,
    "storageTier": lambda each: each.storage_tier,
    "archivalState": lambda each: each.archival_state,
}


class ListRoutes:
    """The routes that list."""

    def __init__(self, catalog: BucketCatalog) -> None:
        self._catalog = catalog

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{BUCKET}/o", self.list, anonymous=True),
            Route("GET", f"{BUCKET}/objectversions", self.list_versions),
        ]

    async def list(self, call: Call) -> Response:
        return self.answer(call, read_listing(call))

    def answer(self, call: Call, wanted: ListParameters) -> Response:
        bucket = self._catalog.bucket(call, open_to_all=("ObjectRead",))
        fields = read_fields(call.query.get("fields"))
        found = self._catalog.index(bucket).list(wanted)
        bodies = [
            {name: value for name, read in fields if (value := read(each)) is not None}
            for each in self._catalog.listed(bucket, found.names)
        ]
        body: dict[str, Any] = {"objects": bodies, "prefixes": found.prefixes}
        if found.next_start is not None:
            body["nextStartWith"] = found.next_start
        return answer(body)

    async def list_versions(self, call: Call) -> Response:
        """Objects have one version each, so versions are listed like objects, but paged as other resources are."""
        bucket = self._catalog.bucket(call)
        fields = read_fields(call.query.get("fields"))
        token = call.query.get("page")
        known = {"start": str(read_page_token(token))} if token else {}
        found = self._catalog.index(bucket).list(read_listing(call, **known))
        items = [
            {
                **{name: read(each) for name, read in fields},
                "timeModified": each.time_modified,
                "versionId": each.version_id,
                "isDeleteMarker": False,
            }
            for each in self._catalog.listed(bucket, found.names)
        ]
        more = {} if found.next_start is None else {"opc-next-page": page_token(found.next_start)}
        return answer({"items": items, "prefixes": found.prefixes}, headers=more)


def read_fields(text: str | None) -> Sequence[tuple[str, Field]]:
    """Return the fields of each entry; the service gives the name only, unless asked."""
    asked = {"name", *(name.strip().lower() for name in (text or "").split(",") if name.strip())}
    unknown = asked - {name.lower() for name in FIELDS}
    if unknown:
        raise invalid(f"Unknown fields: {', '.join(sorted(unknown))}; known: {', '.join(FIELDS)}.")
    return [(name, read) for name, read in FIELDS.items() if name.lower() in asked]


def read_listing(call: Call, **known: str) -> ListParameters:
    """Return what the query asks for, but for what is known already."""
    query = call.query
    if query.get("delimiter") not in (None, "", "/"):
        raise invalid("Only '/' is supported as delimiter.")
    asked = {"prefix": query.get("prefix", ""), "start": query.get("start", ""), **known}
    return ListParameters(
        **asked,
        end=query.get("end"),
        start_after=query.get("startAfter"),
        delimiter=query.get("delimiter") or None,
        limit=call.number("limit", 1000, 1, 1000),
    )
