"""Copies by OCI Object Storage itself: a work request each, awaited and checked."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from airflow_provider_ocidist.errors import BackendError, StorageError
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.storage.stores.base import CannotTake, Entry
from airflow_provider_ocidist.storage.stores.oci_download import head_of
from airflow_provider_ocidist.storage.stores.oci_http import BucketFolder

_FIRST_LOOK_S, _LONGEST_PAUSE_S = 0.1, 3.0
HIDDEN_FOR_S = 10.0
"""Seconds of looks that do not find a copy, after which it is given up: a new one is not shown at once."""
_DIGESTS = ("content-md5", "opc-multipart-md5")


def copy_object(
    source: BucketFolder, entry: Entry, target: BucketFolder, name: str, stop: threading.Event
) -> str | None:
    """Have an object copied and return the copy's etag. Raises CannotTake when the service refuses."""
    place = target.uri_of(name)
    request = _ask(source, entry, target, name)
    _wait(target, request, place, stop)
    before, after = head_of(source, entry.name), head_of(target, name)
    if before["etag"] != entry.etag:
        raise _changed(source, entry)
    known = [digest for digest in _DIGESTS if before.get(digest) and after.get(digest)]
    if before["content-length"] != after["content-length"] or any(before[it] != after[it] for it in known):
        raise StorageError(f"{place}: the checksum of the copy is wrong", uri=place)
    return str(after["etag"])


def _ask(source: BucketFolder, entry: Entry, target: BucketFolder, name: str) -> str:
    from oci.object_storage.models import CopyObjectDetails

    namespace, bucket = target.bucket
    details = CopyObjectDetails(
        source_object_name=source.object_name(entry.name),
        source_object_if_match_e_tag=entry.etag,
        destination_region=target.region,
        destination_namespace=namespace,
        destination_bucket=bucket,
        destination_object_name=target.object_name(name),
    )
    place = target.uri_of(name)
    try:
        with oci_errors(f"copying to {place}"):
            headers = source.client.copy_object(*source.bucket, details).headers
    except BackendError as error:
        # Without a policy for the service itself it refuses, despite our own rights.
        if error.status_code and 400 <= error.status_code < 500 and error.status_code not in (401, 412, 429):
            raise CannotTake(str(error), uri=place) from error
        if error.status_code == 412:
            raise _changed(source, entry) from error
        raise StorageError(str(error), uri=place, retryable=error.retryable) from error
    return str(headers["opc-work-request-id"])


def _changed(source: BucketFolder, entry: Entry) -> StorageError:
    place = source.uri_of(entry.name)
    return StorageError(f"{place} changed while it was copied", uri=place)


def _wait(target: BucketFolder, request: str, place: str, stop: threading.Event) -> None:
    pause, hidden_for = _FIRST_LOOK_S, 0.0
    while True:
        status = _status(target, request, place)
        if status == "COMPLETED":
            return
        if status in ("FAILED", "CANCELED"):
            raise CannotTake(f"the copy to {place} is {status}: {_reason(target, request)}", uri=place)
        hidden_for = hidden_for + pause if status is None else 0.0
        if hidden_for >= HIDDEN_FOR_S:
            _cancel(target, request, place)
            raise CannotTake(f"the service does not show the copy to {place}", uri=place)
        if stop.wait(pause):
            _cancel(target, request, place)
            raise StorageError(f"the copy to {place} was cancelled", uri=place)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)


def _status(target: BucketFolder, request: str, place: str) -> str | None:
    """Return the state of a copy; None where the service does not know it yet, or does not show it to us."""
    try:
        with oci_errors(f"waiting for the copy to {place}"):
            return str(target.client.get_work_request(request).data.status)
    except BackendError as error:
        if error.status_code == 404:
            return None
        raise


def _cancel(target: BucketFolder, request: str, place: str) -> None:
    with contextlib.suppress(BackendError), oci_errors(f"giving up the copy to {place}"):
        target.client.cancel_work_request(request)


def _reason(target: BucketFolder, request: str) -> str:
    errors: list[Any] = []
    with contextlib.suppress(BackendError), oci_errors("asking why a copy failed"):
        errors = list(target.client.list_work_request_errors(request).data)
    return "; ".join(str(error.message) for error in errors) or "no reason given"
