"""`ObjectStoragePath("oci://connection@bucket/key")`: Object Storage through an Airflow connection.

Before the `@` stands the connection's id, as Airflow defines it. The namespace is that of the connection's tenancy,
which OCI's own form of a URI would have there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fsspec import AbstractFileSystem
from upath._flavour import WrappedFileSystemFlavour
from upath.implementations.cloud import CloudPath

if TYPE_CHECKING:
    from airflow_provider_ocidist.integrations.ocifs_paths import ObjectStorage

schemes = ["oci"]


def get_fs(conn_id: str | None, storage_options: Mapping[str, Any] | None = None) -> ObjectStorage:
    """Return ocifs with the credentials of a connection; `storage_options` go to ocifs as they are.

    Raises BackendError when the connection has no usable credentials.
    """
    from airflow_provider_ocidist.hooks.oci import OciHook
    from airflow_provider_ocidist.integrations.ocifs_paths import ObjectStorage
    from airflow_provider_ocidist.oci_client.credentials import credentials

    hook = OciHook(conn_id or OciHook.default_conn_name)
    config, signer = credentials(hook.access)
    endpoint = {"service_endpoint": hook.access.endpoint.rstrip("/")} if hook.access.endpoint else {}
    return ObjectStorage(
        config=config,
        signer=signer,
        region=config.get("region"),
        compartment_id=hook.fields.get("compartment_id"),
        **{"config_kwargs": endpoint, **(storage_options or {})},
    )


class BucketNames(AbstractFileSystem):
    """Parses names as in any bucket; ocifs, which would otherwise do it, requires a namespace in each."""

    protocol = ("oci",)


class OciPath(CloudPath):
    """The universal-pathlib path for `oci://`."""

    __slots__ = ()

    @property
    def parser(self) -> WrappedFileSystemFlavour:  # type: ignore[override]  # a type that upath keeps to itself
        return _PARSER


_PARSER = WrappedFileSystemFlavour(BucketNames, netloc_is_anchor=True, supports_empty_parts=True)
