"""From an Airflow connection, of any type that a backend knows, to the fields that backends and storage read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.oci_client import credentials

SECRETS = ("client_secret",)
"""Fields that no log may show, besides those of OCI."""


def fields_of(
    conn_type: str | None,
    host: str | None,
    login: str | None,
    password: str | None,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the fields of a connection. Raises BackendError for a number that is none."""
    fields = credentials.fields_of(extra)
    if conn_type == "runai":
        from airflow_provider_ocidist.backends.runai.options import fields_of as runai_fields

        return runai_fields(host, login, password, fields)
    return fields


def secrets_of(fields: Mapping[str, Any]) -> list[str]:
    """Return every text among the fields that no log may show."""
    return [*credentials.secrets_of(fields), *(str(fields[name]) for name in SECRETS if fields.get(name))]
