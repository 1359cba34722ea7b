"""OciHook: an Airflow connection of type `oci` becomes a connected backend."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.errors import OcidistError

# DAG files import this module by way of the operators: what is heavy waits until it is used.
if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.oci_credentials import OciAccess


class OciHook(BaseHook):
    """Turn a connection into a backend, or into credentials for storage.

    :param conn_id: an Airflow connection of type `oci`
    """

    conn_name_attr = "conn_id"
    default_conn_name = "oci_default"
    conn_type = "oci"
    hook_name = "Oracle Cloud Infrastructure"

    def __init__(self, conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id

    @cached_property
    def fields(self) -> Mapping[str, Any]:
        """The connection's fields, under the names that backends and storage use."""
        from airflow_provider_ocidist.oci_credentials import fields_of

        return fields_of(self.get_connection(self.conn_id).extra_dejson)

    @cached_property
    def access(self) -> OciAccess:
        """Credentials and place, for storage."""
        from airflow_provider_ocidist.oci_credentials import access_of

        return access_of(self.fields)

    def backend(self, kind: str = "oci_data_science") -> Backend:
        """Return a backend of a kind, for this connection; no request is sent yet."""
        backend: Backend = kinds.load("backends", kind).BACKEND.connect(self.fields)
        return backend

    def get_conn(self) -> OciAccess:
        return self.access

    def test_connection(self) -> tuple[bool, str]:
        """Ask Object Storage for the tenancy's namespace: the cheapest request that needs valid credentials."""
        from airflow_provider_ocidist.oci_clients import namespace

        try:
            return True, f"connected: Object Storage namespace {namespace(self.access)}"
        except OcidistError as error:
            return False, str(error)
