"""The calls of the SDK's clients that a node makes, for images that lack it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

from airflow_provider_ocidist.backports import moment
from airflow_provider_ocidist.oci_client.request import Caller, quoted


@dataclass(frozen=True)
class Answer:
    """What the SDK answers, as far as storage looks at it."""

    headers: Mapping[str, str]
    """Headers, with names in lower case."""
    data: Any = None

    @property
    def next_page(self) -> str | None:
        return self.headers.get("opc-next-page")


class RestClient:
    """Safe to share between threads. Every method raises RequestError, which `oci_errors` turns into ours.

    It keeps no connection open: each request costs a handshake more than with the SDK.
    """

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def _ask(self, method: str, path: str, details: Mapping[str, Any] | None = None) -> Answer:
        body = None if details is None else json.dumps(details).encode()
        headers, text = self.caller(method, path, body=body, whole=True)
        return Answer(lowered(headers), json.loads(text) if text else None)


class SecretsClient(RestClient):
    """Reads secrets of Vault."""

    def get_secret_bundle(self, secret_id: str) -> Answer:
        answer = self._ask("GET", f"/20190301/secretbundles/{quoted(secret_id)}")
        content = SimpleNamespace(content=answer.data["secretBundleContent"]["content"])
        return Answer(answer.headers, SimpleNamespace(secret_bundle_content=content))


class ObjectStorageClient(RestClient):
    """Reads and writes objects, small ones whole, large ones in parts; it does not copy between buckets."""

    def get_namespace(self) -> Answer:
        return self._ask("GET", "/n/")

    def list_objects(self, namespace: str, bucket: str, **query: Any) -> Answer:
        answer = self._ask("GET", f"{_bucket(namespace, bucket)}/o?{urlencode(query)}")
        objects = [_object(item) for item in answer.data["objects"]]
        page = SimpleNamespace(objects=objects, next_start_with=answer.data.get("nextStartWith"))
        return Answer(answer.headers, page)

    def head_object(self, namespace: str, bucket: str, name: str) -> Answer:
        return self._ask("HEAD", f"{_bucket(namespace, bucket)}/o/{quoted(name)}")

    def delete_object(self, namespace: str, bucket: str, name: str) -> Answer:
        return self._ask("DELETE", f"{_bucket(namespace, bucket)}/o/{quoted(name)}")

    def create_multipart_upload(self, namespace: str, bucket: str, details: Mapping[str, Any]) -> Answer:
        answer = self._ask("POST", f"{_bucket(namespace, bucket)}/u", details)
        return Answer(answer.headers, SimpleNamespace(upload_id=answer.data["uploadId"]))

    def list_multipart_uploads(self, namespace: str, bucket: str, **query: Any) -> Answer:
        answer = self._ask("GET", f"{_bucket(namespace, bucket)}/u?{urlencode(query)}")
        return Answer(answer.headers, [_open_upload(item) for item in answer.data])

    def list_multipart_upload_parts(
        self, namespace: str, bucket: str, name: str, upload_id: str, **page: str
    ) -> Answer:
        answer = self._ask("GET", _upload(namespace, bucket, name, upload_id, **page))
        return Answer(answer.headers, [_part(item) for item in answer.data])

    def commit_multipart_upload(
        self, namespace: str, bucket: str, name: str, upload_id: str, details: Mapping[str, Any]
    ) -> Answer:
        return self._ask("POST", _upload(namespace, bucket, name, upload_id), details)

    def abort_multipart_upload(self, namespace: str, bucket: str, name: str, upload_id: str) -> Answer:
        return self._ask("DELETE", _upload(namespace, bucket, name, upload_id))


CLIENTS: Mapping[str, type[RestClient]] = {"object_storage": ObjectStorageClient, "secrets": SecretsClient}


def lowered(headers: Any) -> dict[str, str]:
    """Return an answer's headers, their names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def _bucket(namespace: str, bucket: str) -> str:
    return f"/n/{quoted(namespace)}/b/{quoted(bucket)}"


def _upload(namespace: str, bucket: str, name: str, upload_id: str, **more: str) -> str:
    return f"{_bucket(namespace, bucket)}/u/{quoted(name)}?{urlencode({'uploadId': upload_id, **more})}"


def _object(item: Mapping[str, Any]) -> SimpleNamespace:
    modified = item.get("timeModified")
    return SimpleNamespace(
        name=item["name"],
        size=item.get("size"),
        etag=item.get("etag"),
        md5=item.get("md5"),
        time_modified=moment(modified) if modified else None,
    )


def _open_upload(item: Mapping[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(
        object=item["object"],
        upload_id=item["uploadId"],
        time_created=moment(item["timeCreated"]),
    )


def _part(item: Mapping[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(part_number=item["partNumber"], etag=item["etag"], md5=item["md5"])
