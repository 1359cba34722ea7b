"""Buckets and objects, as the page shows them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.installation import Identifiers
from airflow_provider_ocidist.emulator.status_page.browser import OBJECT_HEADERS
from airflow_provider_ocidist.emulator.status_page.inside import Inside, segment

MAX_LISTED = 1000
FIELDS = "name,size,md5,etag,timeModified"
IMAGE_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
}
OF_THE_CLIENT = ("content-disposition", "content-encoding", "content-language", "cache-control")
"""Headers that the writer of the object has chosen."""


class Storage:
    """Asks Object Storage, as any client would."""

    def __init__(self, inside: Inside, ids: Identifiers) -> None:
        self._inside = inside
        self._ids = ids

    async def buckets(self) -> list[dict[str, Any]]:
        """Return the buckets of all compartments."""
        path, found = f"/n/{self._ids.namespace}/b", []
        for compartment_id in await self._compartments():
            found += await self._inside.items(path, MAX_LISTED, compartmentId=compartment_id)
        return [{"name": bucket["name"], "created": bucket["timeCreated"]} for bucket in found]

    async def _compartments(self) -> list[str]:
        """Return the tenancy and all compartments, however deep."""
        found = [self._ids.tenancy_id]
        for each in found:
            children = await self._inside.items("/20160918/compartments", MAX_LISTED, compartmentId=each)
            found += [child["id"] for child in children if child["id"] not in found]
        return found

    async def objects(self, bucket: str, *, limit: int, **query: str) -> dict[str, Any]:
        """Return a page of a bucket: what lies below a `prefix` up to the next slash, from `start` on."""
        found = await self._inside.get(self._path(bucket), delimiter="/", fields=FIELDS, limit=limit, **query)
        return {
            "prefixes": found.get("prefixes") or [],
            "objects": found["objects"],
            "next": found.get("nextStartWith"),
        }

    async def object(self, bucket: str, name: str, headers: Mapping[str, str], *, keep: bool) -> Response:
        """Return an object's bytes: a picture as one, unless it is to be kept; all else as a file."""
        response = await self._inside.send("GET", f"{self._path(bucket)}/{segment(name)}", headers=headers)
        for header in OF_THE_CLIENT:
            if header in response.headers:
                del response.headers[header]
        response.headers.update(OBJECT_HEADERS)
        kind = IMAGE_TYPES.get(PurePosixPath(name).suffix.lower())
        response.headers["content-type"] = kind or "application/octet-stream"
        if keep or kind is None:
            response.headers["content-disposition"] = f"attachment; filename*=UTF-8''{_file_name(name)}"
        return response

    def _path(self, bucket: str) -> str:
        return f"/n/{self._ids.namespace}/b/{segment(bucket)}/o"


def _file_name(name: str) -> str:
    return segment(name.rstrip("/").rpartition("/")[2] or "object")
