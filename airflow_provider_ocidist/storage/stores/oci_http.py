"""Requests for the content of objects: signed and retried as by the SDK, without its overhead.

A call of the SDK takes three times the CPU of its signature, most of a small file's cost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import IncompleteRead
from typing import Any, Protocol
from urllib.parse import urlsplit

from airflow_provider_ocidist.errors import BackendError, StorageError
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.oci_client.request import quoted
from airflow_provider_ocidist.oci_client.rest import ObjectStorageClient, lowered
from airflow_provider_ocidist.storage.stores.base import Buffer


@dataclass
class SignedRequest:
    """The fields of a request that a signer of the SDK reads."""

    method: str
    url: str
    path_url: str
    headers: dict[str, str]
    body: Buffer | None


class ObjectHttp:
    """Requests in one bucket, on the SDK client's own connections, proxies and certificates included."""

    def __init__(self, client: Any, namespace: str, bucket: str) -> None:
        self._base = client.base_client
        self._retry = client.retry_strategy
        self._connect_timeout, self._read_timeout = self._base.timeout
        # Where the service's address has the namespace in it.
        place = {"namespaceName": namespace, "bucketName": bucket}
        endpoint = self._base.handle_service_params_in_endpoint(place, {}, [*place, "objectName"]).rstrip("/")
        self._origin = endpoint.removesuffix(urlsplit(endpoint).path)
        self._bucket = f"{urlsplit(endpoint).path}/n/{quoted(namespace)}/b/{quoted(bucket)}"
        self._pool, self._prefix = _connections(self._base.session, self._origin)

    def object_path(self, name: str) -> str:
        return f"{self._bucket}/o/{quoted(name)}"

    def part_path(self, name: str, upload_id: str, number: int) -> str:
        return f"{self._bucket}/u/{quoted(name)}?uploadId={quoted(upload_id)}&uploadPartNum={number}"

    def get(self, path: str, headers: Mapping[str, str]) -> Any:
        """Return an answer with an unread body."""
        return self._retry.make_retrying_call(self._ask, "GET", path, headers)

    def put(self, path: str, data: Buffer, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Send a body and return the answer's headers."""
        answer = self._retry.make_retrying_call(self._ask, "PUT", path, headers, data)
        answer.drain_conn()
        return dict(answer.headers.items())

    def _ask(self, method: str, path: str, headers: Mapping[str, str], body: Buffer | None = None) -> Any:
        try:
            return self._send(method, path, headers, body)
        except Exception as error:
            refreshes = self._base.is_instance_principal_or_resource_principal_signer()
            if getattr(error, "status", None) != 401 or not refreshes:
                raise
            self._base.signer.refresh_security_token()
            return self._send(method, path, headers, body)

    def _send(self, method: str, path: str, headers: Mapping[str, str], body: Buffer | None) -> Any:
        import urllib3
        from oci import exceptions

        request = SignedRequest(method, self._origin + path, path, self._headers(headers), body)
        self._base.signer.without_content_headers(request)
        try:
            answer = self._pool.urlopen(
                method,
                self._prefix + path,
                body=body,
                headers=request.headers,
                retries=False,
                redirect=False,
                preload_content=False,
                enforce_content_length=True,
                timeout=urllib3.Timeout(connect=self._connect_timeout, read=self._read_timeout),
            )
            if 200 <= answer.status < 300:
                return answer
            text = answer.read()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise exceptions.RequestException(error, request=request) from error
        raise _refusal(answer, text)

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        return {
            "content-type": "application/octet-stream",
            "user-agent": self._base.user_agent,
            **more,
        }


class RestHttp(ObjectHttp):
    """Requests in one bucket where the SDK is missing."""

    def __init__(self, client: ObjectStorageClient, namespace: str, bucket: str) -> None:
        self._caller = client.caller
        self._bucket = f"/n/{quoted(namespace)}/b/{quoted(bucket)}"

    def get(self, path: str, headers: Mapping[str, str]) -> Any:
        return Body(self._caller("GET", path, headers))

    def put(self, path: str, data: Buffer, headers: Mapping[str, str]) -> Mapping[str, str]:
        with self._caller("PUT", path, headers, data, is_content=True) as answer:
            answer.read()
            return lowered(answer.headers)


class Body:
    """An answer of the standard library that is read as one of urllib3."""

    def __init__(self, answer: Any) -> None:
        self.headers = lowered(answer.headers)
        self._answer = answer
        self._left = int(self.headers["content-length"])

    def read1(self, size: int, *, decode_content: bool) -> bytes:
        """Return the received bytes, at most `size`; none at the end. Raises IncompleteRead when truncated."""
        del decode_content
        piece: bytes = self._answer.read1(size)
        self._left -= len(piece)
        if not piece and self._left:
            raise IncompleteRead(b"", self._left)
        return piece

    def close(self) -> None:
        self._answer.close()

    release_conn = close


class BucketFolder(Protocol):
    """A folder of a bucket as uploads, downloads and copies see it."""

    client: Any
    http: ObjectHttp
    bucket: tuple[str, str]
    """Namespace and name of the bucket."""

    @property
    def region(self) -> str: ...

    def object_name(self, name: str) -> str:
        """Return the whole name of an object in the folder."""

    def uri_of(self, name: str) -> str:
        """Return its URI, for messages."""


def http_of(client: Any, namespace: str, bucket: str) -> ObjectHttp:
    """Return the requests of a client in one bucket."""
    kind = RestHttp if isinstance(client, ObjectStorageClient) else ObjectHttp
    return kind(client, namespace, bucket)


def _connections(session: Any, origin: str) -> tuple[Any, str]:
    """Return the connection pool that a session uses for an address, and what paths begin with there."""
    settings = session.merge_environment_settings(origin, {}, None, None, None)
    adapter = session.get_adapter(origin)
    pool = adapter.get_connection(origin, settings["proxies"])
    adapter.cert_verify(pool, origin, settings["verify"], settings["cert"])
    is_relayed = pool.proxy is not None and origin.startswith("http://")
    return pool, origin if is_relayed else ""


def _refusal(answer: Any, text: bytes) -> Exception:
    from oci import exceptions

    try:
        said = json.loads(text)
        code, message = said["code"], said["message"]
    except (ValueError, KeyError, TypeError):
        code, message = None, text.decode(errors="replace")
    refusal: Exception = exceptions.ServiceError(answer.status, code, answer.headers, message)
    return refusal


def storage_errors(place: str) -> _StorageErrors:
    """Turn BackendError into StorageError; the cause keeps status, code and request id."""
    return _StorageErrors(place)


class _StorageErrors:
    """Context of one request; a class, since a generator takes more of each heartbeat's time."""

    __slots__ = ("_place",)

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, BackendError):
            raise StorageError(str(error), uri=self._place, retryable=error.retryable) from error


@contextmanager
def deleting(place: str) -> Iterator[None]:
    """Ignore a missing object; a missing bucket is an error."""
    try:
        with oci_errors(f"deleting {place}"):
            yield
    except BackendError as error:
        if not _is_absent_object(error):
            raise


def reading(place: str) -> _Reading:
    """Raise absence and change as their own errors."""
    return _Reading(place)


class _Reading:
    """Context of one request; a class, since a generator takes more of each heartbeat's time."""

    __slots__ = ("_place",)

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is None:
            return
        # Most heartbeats end here, as there is no stop request: to map the error would cost more than the request.
        if getattr(error, "status", None) == 404 and _concerns_object(getattr(error, "code", None)):
            raise FileNotFoundError(self._place) from error
        try:
            oci_errors(f"reading {self._place}").__exit__(kind, error, None)
        except BackendError as mapped:
            if mapped.status_code == 412:
                raise StorageError(f"{self._place} changed while it was read", uri=self._place) from mapped
            raise


def _is_absent_object(error: BackendError) -> bool:
    return error.status_code == 404 and _concerns_object(error.code)


def _concerns_object(code: str | None) -> bool:
    # NotAuthorizedOrNotFound and BucketNotFound concern the bucket.
    return code == "ObjectNotFound"
