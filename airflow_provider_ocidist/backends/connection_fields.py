"""From an Airflow connection, of any type that a backend knows, to the fields that backends and storage read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.model.masking import secrets_in
from airflow_provider_ocidist.oci_client import credentials

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend

SECRETS = ("client_secret",)
"""Fields that no log may show, besides those of OCI."""
OLD_PREFIX = "extra__kubernetes__"
"""Prefix of the fields of type `kubernetes` in connections from before Airflow 2.3; its own hook reads them too."""


def fields_of(
    conn_type: str | None,
    host: str | None,
    login: str | None,
    password: str | None,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the fields of a connection. Raises BackendError for a number that is none."""
    fields = credentials.oci_fields(extra)
    if conn_type == "runai":
        from airflow_provider_ocidist.backends.runai.options import runai_fields

        return runai_fields(host, login, password, fields)
    if conn_type == "kubernetes":
        return {name.removeprefix(OLD_PREFIX): value for name, value in fields.items()}
    return fields


def known_fields(conn_type: str | None = None) -> frozenset[str]:
    """Return the names of the fields that backends and storage read of a connection; None: of any type.

    Imports every backend.
    """
    backends: list[type[Backend]] = [kinds.load("backends", kind).BACKEND for kind in kinds.names("backends")]
    read = [each.reads for each in backends if conn_type is None or conn_type in each.conn_types]
    of_backends = (field.name for each in read for field in dataclasses.fields(each))
    of_storage = (field.name for field in dataclasses.fields(credentials.OciAccess))
    return frozenset({*of_backends, *of_storage, *credentials.SECRETS})


def secrets_of(fields: Mapping[str, Any]) -> list[str]:
    """Return every text among the fields that no log may show."""
    own = [str(fields[name]) for name in SECRETS if fields.get(name)]
    return [
        *credentials.credential_secrets(fields),
        *own,
        *_secrets_in_kube_config(fields.get("kube_config")),
    ]


def _secrets_in_kube_config(kube_config: Any) -> list[str]:
    """Return the secrets of a kubeconfig that a connection has as text or as a mapping."""
    import yaml

    if not kube_config:
        return []
    try:
        return sorted(
            secrets_in(yaml.safe_load(kube_config) if isinstance(kube_config, str) else kube_config)
        )
    except Exception:  # noqa: BLE001 - whatever PyYAML raises for a value that its tag does not fit
        return [str(kube_config)]
