"""ocifs as paths need it: plain dictionaries, names without a namespace, nothing remembered of a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocifs import OCIFileSystem


class ObjectStorage(OCIFileSystem):  # type: ignore[misc]
    """Object Storage of one tenancy, whose namespace nobody has to write."""

    protocol = ("oci",)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """Return what is in a folder now; ocifs would return what was there when it looked first."""
        entries = [_entry(found) for found in super().ls(path, detail=True, **{**options, "refresh": True})]
        return entries if detail else sorted(entry["name"] for entry in entries)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return _entry(super().info(path, **options))

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Do nothing: folders are there when something is in them, and buckets are not made by the way."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing, as `mkdir`."""

    @classmethod
    def _parent(cls, path: str) -> str:
        return str(cls._strip_protocol(path)).rstrip("/").rpartition("/")[0]


def _entry(found: Mapping[str, Any]) -> dict[str, Any]:
    bucket, separator, key = str(found["name"]).partition("/")
    return {**found, "name": bucket.partition("@")[0] + separator + key}
