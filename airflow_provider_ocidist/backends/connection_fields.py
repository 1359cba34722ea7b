"""From an Airflow connection, of any type that a backend knows, to the fields that backends and storage read."""

from __future__ import annotations

import dataclasses
import difflib
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

FORM_PREFIX = "extra__"
"""Beginning of the fields that Airflow's forms wrote before 2.3, for every type."""
ANY_TYPE = (None, "", "generic")
"""Types of connections that say nothing of what they are for; every backend takes their fields."""
USUAL_TYPES = ("oci", None)
CLUSTER_TYPE = "kubernetes"
OUR_TYPES = ("oci", "runai")
"""Types of connections that no other hook reads; that of Kubernetes has fields of Airflow's own hook."""


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
    if conn_type == CLUSTER_TYPE:
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


def unknown_fields(extra: Mapping[str, Any], conn_type: str | None = None) -> list[str]:
    """Return the names in a connection's extra that no backend reads, each with the name that was probably meant.

    Without those that Airflow's forms of earlier versions wrote (`extra__...`), and, of a connection that is not only
    ours, those that resemble none of ours.
    """
    given = {name for name in extra if not name.startswith(FORM_PREFIX)}
    if conn_type in USUAL_TYPES and given <= _usually_known():
        return []
    known = known_fields(conn_type if conn_type in (*OUR_TYPES, CLUSTER_TYPE) else None)
    near = {name: difflib.get_close_matches(name, known, n=1) for name in sorted(given - known)}
    return [
        f"{name} (did you mean {found[0]}?)" if found else name
        for name, found in near.items()
        if found or conn_type in OUR_TYPES
    ]


def _usually_known() -> frozenset[str]:
    """Return the fields of the usual backend, which are known without importing the others."""
    usual: type[Backend] = kinds.load("backends", kinds.DEFAULT_BACKEND).BACKEND
    of_storage = (field.name for field in dataclasses.fields(credentials.OciAccess))
    return frozenset(
        {*(field.name for field in dataclasses.fields(usual.reads)), *of_storage, *credentials.SECRETS}
    )


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
