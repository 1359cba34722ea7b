"""ocifs for paths: plain dictionaries, names without a namespace, no cached listings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocifs import OCIFileSystem


class ObjectStorage(OCIFileSystem):
    """Object Storage of one tenancy; names need no namespace."""

    protocol = ("oci",)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """Return the current contents of a folder; ocifs would return those of its first look."""
        entries = [_entry(found) for found in super().ls(path, detail=True, **{**options, "refresh": True})]
        return entries if detail else sorted(entry["name"] for entry in entries)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return _entry(super().info(path, **options))

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Do nothing: folders exist when they contain something, and buckets are not created implicitly."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing, like `mkdir`."""

    @classmethod
    def _parent(cls, path: str) -> str:
        return str(cls._strip_protocol(path)).rstrip("/").rpartition("/")[0]


def _entry(found: Mapping[str, Any]) -> dict[str, Any]:
    bucket, separator, key = str(found["name"]).partition("/")
    return {**found, "name": bucket.partition("@")[0] + separator + key}
