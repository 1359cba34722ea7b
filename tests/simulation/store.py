"""Object Storage as a model: one bucket, strongly consistent, with multipart uploads; and a client's face for it."""

from __future__ import annotations

import base64
import datetime as dt
import functools
import hashlib
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.simulation.faults import Network, refusal
from tests.simulation.runtime import EPOCH, World

BUCKET, NAMESPACE = "bucket", "space"
LISTS_LAG = 90.0
"""Most seconds for which stale lists lack a report: less than for which it has to be missing to count so."""


@dataclass
class Stored:
    """One object."""

    data: bytes
    etag: str
    modified: float
    writer: str
    """The process that wrote it."""
    meta: Mapping[str, str] = field(default_factory=dict)
    _listed: SimpleNamespace | None = None

    @functools.cached_property
    def md5(self) -> str:
        return base64.b64encode(hashlib.md5(self.data).digest()).decode()

    def listed(self, name: str) -> SimpleNamespace:
        """Return it as lists show it."""
        if self._listed is None:
            when = moment(self.modified)
            self._listed = SimpleNamespace(
                name=name,
                size=len(self.data),
                etag=self.etag,
                md5=self.meta.get("opc-multipart-md5", self.md5),
                time_modified=when,
                time_created=when,
            )
        return self._listed


@dataclass
class Parts:
    """A multipart upload that is open."""

    name: str
    begun: float
    writer: str
    meta: Mapping[str, str]
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)


class Bucket:
    """What is stored. Every change passes `on_write` and `on_delete`, where the rules look at it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, Parts] = {}
        self.on_write: list[Callable[[str, Stored], None]] = []
        self.on_delete: list[Callable[[str, Stored], None]] = []
        self._names: list[str] = []

    def put(self, name: str, data: bytes, headers: Mapping[str, str] | None = None) -> dict[str, str]:
        conditions = {key.lower(): value for key, value in (headers or {}).items()}
        there = self.objects.get(name)
        if conditions.get("if-none-match") == "*" and there is not None:
            raise refusal(412, "IfNoneMatchFailed", f"{name} exists", self.world)
        if "if-match" in conditions and (there is None or there.etag != conditions["if-match"]):
            raise refusal(412, "IfMatchFailed", f"{name} has changed", self.world)
        return self._keep(name, bytes(data), {})

    def _keep(self, name: str, data: bytes, meta: Mapping[str, str]) -> dict[str, str]:
        task = self.world.current
        writer = task.process.name if task else "world"
        stored = Stored(data, f"e{self.world.next_id()}", self.world.now, writer, meta)
        if name not in self.objects:
            self._names.insert(bisect_left(self._names, name), name)
        self.objects[name] = stored
        for look in self.on_write:
            look(name, stored)
        # The service names the MD5 too, which nothing here reads.
        return {"etag": stored.etag}

    def get(self, name: str, headers: Mapping[str, str] | None = None) -> Body:
        found = self.objects.get(name)
        if found is None:
            raise refusal(404, "ObjectNotFound", f"{name} is not there", self.world)
        conditions = {key.lower(): value for key, value in (headers or {}).items()}
        if "if-match" in conditions and conditions["if-match"] != found.etag:
            raise refusal(412, "IfMatchFailed", f"{name} has changed", self.world)
        data = found.data
        if "range" in conditions:
            first, _, last = conditions["range"].removeprefix("bytes=").partition("-")
            data = data[int(first) : int(last) + 1]
            return Body(data, {"etag": found.etag, "content-length": str(len(data))})
        return Body(data, self._headers(found))

    def head(self, name: str) -> dict[str, str]:
        if name not in self.objects:
            raise refusal(404, "ObjectNotFound", f"{name} is not there", self.world)
        return self._headers(self.objects[name])

    def _headers(self, found: Stored) -> dict[str, str]:
        sums = found.meta if "opc-multipart-md5" in found.meta else {"content-md5": found.md5}
        return {"etag": found.etag, "content-length": str(len(found.data)), **found.meta, **sums}

    def delete(self, name: str) -> None:
        found = self.objects.pop(name, None)
        if found is None:
            raise refusal(404, "ObjectNotFound", f"{name} is not there", self.world)
        self._names.remove(name)
        for look in self.on_delete:
            look(name, found)

    def list(
        self,
        prefix: str = "",
        start: str | None = None,
        end: str | None = None,
        limit: int = 1000,
        *,
        stale: bool = False,
        **_: Any,
    ) -> Any:
        """Return a page of objects; a stale one lacks some nodes' reports."""
        number = self.world.next_id() if stale else 0
        names = self._names
        at = bisect_left(names, max(prefix, start or ""))
        page: list[Any] = []
        following = None
        while at < len(names) and names[at].startswith(prefix) and (end is None or names[at] < end):
            if len(page) == limit:
                following = names[at]
                break
            if stale and self._is_unlisted(names[at], number):
                at += 1
                continue
            page.append(self.objects[names[at]].listed(names[at]))
            at += 1
        return SimpleNamespace(objects=page, next_start_with=following, prefixes=[])

    def _is_unlisted(self, name: str, number: int) -> bool:
        """Whether a stale list lacks a report: one that was written shortly before."""
        is_new = self.world.now - self.objects[name].modified < LISTS_LAG
        return is_new and "/nodes/" in name and self.world.chance("unlisted", name, number) < 0.5

    def begin_parts(self, name: str, meta: Mapping[str, str]) -> str:
        task = self.world.current
        upload_id = f"upload{self.world.next_id()}"
        self.uploads[upload_id] = Parts(name, self.world.now, task.process.name if task else "world", meta)
        return upload_id

    def put_part(self, upload_id: str, number: int, data: bytes) -> dict[str, str]:
        etag = f"p{self.world.next_id()}"
        self._open(upload_id).parts[number] = (etag, bytes(data))
        return {"etag": etag}

    def commit(self, upload_id: str, wanted: list[Any]) -> dict[str, str]:
        upload = self._open(upload_id)
        numbers = sorted(int(_field(part, "partNum", "part_num")) for part in wanted)
        if any(number not in upload.parts for number in numbers):
            raise refusal(400, "InvalidUploadPart", "a part is missing", self.world)
        parts = [upload.parts[number][1] for number in numbers]
        digests = b"".join(hashlib.md5(part).digest() for part in parts)
        total = f"{base64.b64encode(hashlib.md5(digests).digest()).decode()}-{len(parts)}"
        del self.uploads[upload_id]
        meta = {
            **{
                f"opc-meta-{key}".replace("opc-meta-opc-meta", "opc-meta"): value
                for key, value in upload.meta.items()
            },
            "opc-multipart-md5": total,
        }
        return {**self._keep(upload.name, b"".join(parts), meta), "opc-multipart-md5": total}

    def abort(self, upload_id: str) -> None:
        self._open(upload_id)
        del self.uploads[upload_id]

    def _open(self, upload_id: str) -> Parts:
        if upload_id not in self.uploads:
            raise refusal(404, "NoSuchUpload", f"{upload_id} is not open", self.world)
        return self.uploads[upload_id]


class Body:
    """An answer whose body waits to be read."""

    def __init__(self, data: bytes, headers: Mapping[str, str]) -> None:
        self.headers = dict(headers)
        self._data = data
        self.status = 200

    def read1(self, size: int = -1, **_: Any) -> bytes:
        piece, self._data = (self._data[:size], self._data[size:]) if size >= 0 else (self._data, b"")
        return piece

    read = read1

    def close(self) -> None:
        pass

    release_conn = drain_conn = close


def moment(now: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(EPOCH + now, dt.timezone.utc)


def _digest(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def _field(item: Any, *names: str) -> Any:
    for name in names:
        found = item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)
        if found is not None:
            return found
    raise LookupError(names)


class Place:
    """Where the current schedule's bucket and network are; clients find them here."""

    bucket: Bucket
    network: Network


class ObjectStorageClient:
    """The calls of the SDK's client that storage makes, with the SDK's own retry strategy around each."""

    def __init__(self, config: Any, *, retry_strategy: Any = None, timeout: Any = (10, 60), **_: Any) -> None:
        self.retry_strategy = retry_strategy
        self.timeout = timeout
        self.base_client = SimpleNamespace(
            config=config,
            endpoint="simulated",
            timeout=timeout,
            session=SimpleNamespace(mount=lambda *_: None, hooks={"response": []}),
            is_instance_principal_or_resource_principal_signer=lambda: False,
        )

    def ask(self, operation: str, work: Any, *args: Any) -> Any:
        limit = self.timeout[1] if isinstance(self.timeout, tuple) else 60.0
        one = Place.network.call

        def request() -> Any:
            return one("store", operation, work, *args, read_timeout=limit)

        return self.retry_strategy.make_retrying_call(request) if self.retry_strategy else request()

    def get_namespace(self, **_: Any) -> Any:
        return _answer(self.ask("get_namespace", lambda: NAMESPACE))

    def list_objects(self, _namespace: str, _bucket: str, **query: Any) -> Any:
        return _answer(self.ask("list_objects", lambda **more: Place.bucket.list(**query, **more)))

    def head_object(self, _namespace: str, _bucket: str, name: str, **_: Any) -> Any:
        headers = self.ask("head_object", Place.bucket.head, name)
        return SimpleNamespace(headers=headers, data=None)

    def delete_object(self, _namespace: str, _bucket: str, name: str, **_: Any) -> Any:
        return _answer(self.ask("delete_object", Place.bucket.delete, name))

    def put_object(self, _namespace: str, _bucket: str, name: str, data: Any, **more: Any) -> Any:
        headers = {key.replace("_", "-"): value for key, value in more.items() if value is not None}
        content = data if isinstance(data, bytes) else bytes(data)
        answer = self.ask("put", lambda name: Place.bucket.put(name, content, headers), name)
        return SimpleNamespace(headers=answer, data=None)

    def create_multipart_upload(self, _namespace: str, _bucket: str, details: Any, **_: Any) -> Any:
        name, meta = _field(details, "object"), _field(details, "metadata")
        upload_id = self.ask("begin_parts", lambda name: Place.bucket.begin_parts(name, meta), name)
        return _answer(SimpleNamespace(upload_id=upload_id, object=name))

    def list_multipart_upload_parts(
        self, _namespace: str, _bucket: str, name: str, upload_id: str, **_: Any
    ) -> Any:
        def parts(_name: str) -> Any:
            found = Place.bucket._open(upload_id).parts
            return [
                SimpleNamespace(part_number=number, etag=etag, md5=_digest(data), size=len(data))
                for number, (etag, data) in sorted(found.items())
            ]

        return _answer(self.ask("list_parts", parts, name))

    def list_multipart_uploads(self, _namespace: str, _bucket: str, **_: Any) -> Any:
        def uploads() -> Any:
            return [
                SimpleNamespace(
                    upload_id=upload_id,
                    object=parts.name,
                    time_created=moment(parts.begun),
                    bucket=BUCKET,
                    namespace=NAMESPACE,
                )
                for upload_id, parts in Place.bucket.uploads.items()
            ]

        return _answer(self.ask("list_uploads", uploads))

    def commit_multipart_upload(
        self, _namespace: str, _bucket: str, name: str, upload_id: str, details: Any, **_: Any
    ) -> Any:
        wanted = _field(details, "partsToCommit", "parts_to_commit")
        headers = self.ask("commit", lambda name: Place.bucket.commit(upload_id, wanted), name)
        return SimpleNamespace(headers=headers, data=None)

    def abort_multipart_upload(
        self, _namespace: str, _bucket: str, name: str, upload_id: str, **_: Any
    ) -> Any:
        return _answer(self.ask("abort", lambda name: Place.bucket.abort(upload_id), name))


class Http:
    """Requests for content: what `storage.stores.oci_http.ObjectHttp` offers."""

    def __init__(self, client: ObjectStorageClient, _namespace: str, _bucket: str) -> None:
        self.client = client

    def object_path(self, name: str) -> str:
        return f"o\0{name}"

    def part_path(self, name: str, upload_id: str, number: int) -> str:
        return f"u\0{name}\0{upload_id}\0{number}"

    def get(self, path: str, headers: Mapping[str, str]) -> Any:
        name = path.split("\0")[1]
        return self.client.ask("get", lambda name: Place.bucket.get(name, headers), name)

    def put(self, path: str, data: Any, headers: Mapping[str, str]) -> Mapping[str, str]:
        kind, name, *part = path.split("\0")
        content = bytes(data)
        if kind == "o":
            answer = self.client.ask("put", lambda name: Place.bucket.put(name, content, headers), name)
        else:
            upload_id, number = part
            answer = self.client.ask(
                "put_part", lambda name: Place.bucket.put_part(upload_id, int(number), content), name
            )
        return dict(answer)


def _answer(data: Any) -> Any:
    return SimpleNamespace(data=data, headers={}, next_page=None, has_next_page=False)
