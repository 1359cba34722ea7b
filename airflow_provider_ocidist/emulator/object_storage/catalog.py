"""Catalog: which buckets and objects there are; kept in memory and in the store, the bytes as files."""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_ocidist.emulator.bodies import Files, Segment
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.object_storage.index import NameIndex
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.wire import Call, new_etag, now

NAMESPACE = "/n/{namespace}"
BUCKETS = f"{NAMESPACE}/b"
BUCKET = f"{BUCKETS}/{{bucket}}"


def new_id() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """A bucket, as stored."""

    name: str
    id: str = field(default_factory=lambda: new_ocid("bucket"))
    compartment_id: str
    details: Mapping[str, Any]
    """Details that the client set, under the names of the API."""
    created_by: str
    time_created: str = field(default_factory=now)
    etag: str = field(default_factory=new_etag)

    @property
    def public_access(self) -> str:
        return self.details.get("publicAccessType") or "NoPublicAccess"

    @property
    def storage_tier(self) -> str:
        return self.details.get("storageTier") or "Standard"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredObject:
    """An object, as stored. Its bytes are those of its files, one after the other."""

    bucket_id: str
    name: str
    files: Sequence[str]
    sizes: Sequence[int]
    checksums: Mapping[str, str]
    """Checksums as headers of the answer: content-md5 or opc-multipart-md5, opc-content-crc32c..."""
    headers: Mapping[str, str]
    """Headers that the client set for it: content-type, opc-meta-*..."""
    storage_tier: str
    restored_until: str | None = None
    """Time until which an archived object can be read."""
    etag: str = field(default_factory=new_id)
    version_id: str = field(default_factory=new_id)
    time_created: str = field(default_factory=now)
    time_modified: str = field(default_factory=now)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def archival_state(self) -> str | None:
        if self.storage_tier != "Archive":
            return None
        return "Restored" if self.restored_until and self.restored_until > now() else "Archived"

    def copied(self, **changes: Any) -> StoredObject:
        """Return its copy: another object, made now."""
        moment = now()
        fresh = {"etag": new_id(), "version_id": new_id(), "time_created": moment, "time_modified": moment}
        return replace(self, **{**fresh, **changes})


class BucketCatalog:
    """All buckets and objects. Changes become visible at once and whole, also after a crash."""

    def __init__(self, context: Context) -> None:
        self.files = Files(context.folder / "objects")
        self._context = context
        self._store = context.store
        self._buckets: Table[Bucket] = Table(context.store, "bucket", Bucket)
        self._objects: Table[StoredObject] = Table(context.store, "object", StoredObject)
        self._indexes: dict[str, NameIndex] = {}
        self._seed()

    def _seed(self) -> None:
        ids = self._context.ids
        if self._buckets.get(ids.bucket) is None:
            bucket = Bucket(
                name=ids.bucket, compartment_id=ids.compartment_id, details={}, created_by=ids.user_id
            )
            self._buckets.put(bucket.name, bucket)
        names: dict[str, list[str]] = {bucket.id: [] for bucket in self._buckets.values()}
        for each in self._objects.values():
            names[each.bucket_id].append(each.name)
        self._indexes = {bucket_id: NameIndex(found) for bucket_id, found in names.items()}

    def keep_only_files(self, others: Iterable[str]) -> None:
        """Remove the files of a killed emulator that neither objects nor `others` need."""
        used = {file for each in self._objects.values() for file in each.files}
        self.files.keep_only(used.union(others))

    def reset(self) -> None:
        self._objects.clear()
        self._buckets.clear()
        self.files.clear()
        self._seed()

    def check_namespace(self, name: str) -> None:
        if name != self._context.ids.namespace:
            raise ApiError(404, "NamespaceNotFound", f"The namespace '{name}' was not found")

    def buckets(self) -> list[Bucket]:
        return self._buckets.values()

    def bucket(self, call: Call, *, open_to_all: Container[str] = ()) -> Bucket:
        """Return the bucket that a path names. Raises 404, also to unsigned requests unless it is open to all."""
        self.check_namespace(call.params["namespace"])
        bucket = self.named_bucket(call.params["bucket"])
        anonymous = call.principal is None and self._context.options.verify_signatures
        if anonymous and bucket.public_access not in open_to_all:
            raise self._no_bucket(bucket.name)
        return bucket

    def find_bucket(self, name: str) -> Bucket | None:
        return self._buckets.get(name)

    def named_bucket(self, name: str) -> Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            raise self._no_bucket(name)
        return bucket

    def _no_bucket(self, name: str) -> ApiError:
        return ApiError(
            404,
            "BucketNotFound",
            f"Either the bucket named '{name}' does not exist in the namespace"
            f" '{self._context.ids.namespace}' or you are not authorized to access it",
        )

    def has(self, bucket: Bucket) -> bool:
        """Return whether a bucket is still there, under whatever name."""
        return bucket.id in self._indexes

    def index(self, bucket: Bucket) -> NameIndex:
        return self._indexes[bucket.id]

    def listed(self, bucket: Bucket, names: Iterable[str]) -> list[StoredObject]:
        return [self.get(bucket, name) for name in names]

    def size(self, bucket: Bucket) -> int:
        return sum(each.size for each in self.listed(bucket, self._indexes[bucket.id]))

    def put_bucket(self, bucket: Bucket) -> None:
        self._buckets.put(bucket.name, bucket)
        self._indexes.setdefault(bucket.id, NameIndex())

    def replace_bucket(self, old: Bucket, new: Bucket) -> None:
        """Change a bucket, maybe its name; its objects belong to its id."""
        with self._store.transaction():
            self._buckets.delete(old.name)
            self._buckets.put(new.name, new)

    def remove_bucket(self, bucket: Bucket) -> None:
        self._buckets.delete(bucket.name)
        del self._indexes[bucket.id]

    def find(self, bucket: Bucket, name: str) -> StoredObject | None:
        return self._objects.get(_key(bucket.id, name))

    def get(self, bucket: Bucket, name: str) -> StoredObject:
        found = self._objects.get(_key(bucket.id, name))
        if found is None:
            raise ApiError(
                404, "ObjectNotFound", f"The object '{name}' was not found in the bucket '{bucket.name}'"
            )
        return found

    def segments(self, stored: StoredObject) -> list[Segment]:
        return [
            Segment(self.files.path(file), size)
            for file, size in zip(stored.files, stored.sizes, strict=True)
        ]

    def put(self, new: StoredObject) -> None:
        """Make an object visible, all of it at once; one of the same name is gone."""
        self.files.remove(self.record(new))

    def record(self, new: StoredObject) -> Sequence[str]:
        """Put an object without removing what it replaces: return the files that are no longer needed."""
        if new.bucket_id not in self._indexes:
            raise ApiError(404, "BucketNotFound", "The bucket was deleted meanwhile")
        key = _key(new.bucket_id, new.name)
        old = self._objects.get(key)
        self._objects.put(key, new)
        if old is None:
            self._indexes[new.bucket_id].add(new.name)
            return ()
        return old.files

    def change(self, old: StoredObject, **changes: Any) -> StoredObject:
        """Replace the record of an object whose bytes stay."""
        changed = replace(old, **changes)
        self._objects.put(_key(old.bucket_id, old.name), changed)
        return changed

    def rename(self, old: StoredObject, new: StoredObject) -> None:
        with self._store.transaction():
            self._objects.delete(_key(old.bucket_id, old.name))
            unused = self.record(new)
        self._indexes[old.bucket_id].remove(old.name)
        self.files.remove(unused)

    def delete(self, old: StoredObject) -> None:
        self._objects.delete(_key(old.bucket_id, old.name))
        self._indexes[old.bucket_id].remove(old.name)
        self.files.remove(old.files)


def _key(bucket_id: str, name: str) -> str:
    return f"{bucket_id}/{name}"
