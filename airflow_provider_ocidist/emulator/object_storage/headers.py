"""Headers of objects: those of requests, those of answers, and conditions."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import format_datetime
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.errors import ApiError, invalid, missing
from airflow_provider_ocidist.emulator.object_storage.catalog import StoredObject
from airflow_provider_ocidist.emulator.times import parsed
from airflow_provider_ocidist.emulator.wire import Call

MAX_NAME_BYTES = 1024
STORAGE_TIERS = ("Standard", "InfrequentAccess", "Archive")
KEPT = frozenset(
    ("content-type", "content-language", "content-encoding", "content-disposition", "cache-control")
)
OVERRIDES = {
    "httpResponseContentDisposition": "content-disposition",
    "httpResponseCacheControl": "cache-control",
    "httpResponseContentType": "content-type",
    "httpResponseContentLanguage": "content-language",
    "httpResponseContentEncoding": "content-encoding",
    "httpResponseExpires": "expires",
}
"""Query parameters of a download that stand in for the object's own headers."""


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata that a client sends with an object."""
    return {name: value for name, value in headers.items() if name in KEPT or name.startswith("opc-meta-")}


def metadata(named: Mapping[str, str]) -> dict[str, str]:
    """Return metadata that came in a body as the headers it stands for. Raises 400 for an invalid header value."""
    found = {f"opc-meta-{name.removeprefix('opc-meta-').lower()}": value for name, value in named.items()}
    for name, value in found.items():
        if not isinstance(value, str) or not f"{name}{value}".isprintable() or not f"{name}{value}".isascii():
            raise ApiError(400, "InvalidMetadata", f"The metadata '{name}' is not printable ASCII")
    return found


def describing(stored: StoredObject, *, whole: bool) -> dict[str, str]:
    """Return the headers of a download; checksums come with the whole object only, as the service has it."""
    fields = {
        "content-type": "application/octet-stream",
        **stored.headers,
        **(stored.checksums if whole else {}),
        "etag": stored.etag,
        "last-modified": http_date(stored.time_modified),
        "storage-tier": stored.storage_tier,
        "version-id": stored.version_id,
        "accept-ranges": "bytes",
    }
    if stored.archival_state is not None:
        fields["archival-state"] = stored.archival_state
    return fields


def overridden(call: Call) -> dict[str, str]:
    """Return the headers that a download asks for in its query. Raises 400 for an invalid header value."""
    query = call.query
    return (
        {header: sayable(query[name], name) for name, header in OVERRIDES.items() if name in query}
        if query
        else {}
    )


def sayable(text: Any, name: str) -> str:
    """Return what becomes the value of a header. Raises 400 for a text that would end it, or is none."""
    if not isinstance(text, str) or not text.isprintable() or not text.isascii():
        raise invalid(f"{name} must be printable ASCII.")
    return text


def written(stored: StoredObject) -> Response:
    """Return the answer to the writer of the object: 200 without a body."""
    fields = {
        "etag": stored.etag,
        "last-modified": http_date(stored.time_modified),
        "version-id": stored.version_id,
    }
    for name, value in stored.checksums.items():
        fields["opc-content-md5" if name == "content-md5" else name] = value
    return Response(headers=fields)


def http_date(moment: str) -> str:
    return format_datetime(parsed(moment), usegmt=True)


def check_write(headers: Mapping[str, str], existing: StoredObject | None) -> None:
    """Raise 412 unless the conditions of a write hold."""
    if_match, if_none_match = headers.get("if-match"), headers.get("if-none-match")
    if if_match and (existing is None or if_match not in ("*", existing.etag)):
        raise ApiError(412, "IfMatchFailed", "The If-Match header does not match the object's etag")
    if if_none_match and existing is not None and if_none_match in ("*", existing.etag):
        raise ApiError(412, "IfNoneMatchFailed", f"The object '{existing.name}' already exists")


def check_etag(wanted: str | None, etag: str) -> None:
    """Raise 412 unless the etag is the wanted one, or none is wanted."""
    if wanted not in (None, "*", etag):
        raise ApiError(412, "IfMatchFailed", f"The etag is {etag}, not {wanted}")


def check_version(wanted: str | None, stored: StoredObject) -> None:
    """Raise 404 for another version than the only one there is."""
    if wanted not in (None, stored.version_id):
        raise ApiError(
            404, "ObjectNotFound", f"The object '{stored.name}' has no version '{wanted}' in this bucket"
        )


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


def checked_tier(tier: str | None, default: str) -> str:
    """Return where an object is stored. Raises 400 for an unknown storage tier."""
    if tier is not None and tier not in STORAGE_TIERS:
        raise invalid(f"storageTier must be one of {', '.join(STORAGE_TIERS)}, not '{tier}'.")
    return tier or default
