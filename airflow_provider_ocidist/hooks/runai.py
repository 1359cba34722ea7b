"""RunaiHook: an Airflow connection of type `runai`, with its form and its test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.hooks.oci import OciHook

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.runai.client import Client


class RunaiHook(OciHook):
    """Turn a connection to a control plane of NVIDIA Run:ai into a backend.

    :param conn_id: an Airflow connection of type `runai`
    """

    default_conn_name = "runai_default"
    conn_type = "runai"
    hook_name = "NVIDIA Run:ai"

    def get_conn(self) -> Client:  # type: ignore[override]  # the client of another service
        """Return a client of the control plane. Raises BackendError where the connection lacks a field."""
        from airflow_provider_ocidist.backends.runai.client import Client
        from airflow_provider_ocidist.backends.runai.options import Fields

        return Client(Fields.of(self.fields))

    def test_connection(self) -> tuple[bool, str]:
        """Ask for the projects that the service account may use."""
        from airflow_provider_ocidist.backends.runai.projects import projects_of

        try:
            found = [str(project["name"]) for project in projects_of(self.get_conn())]
        except OcidistError as error:
            return False, str(error)
        wanted = self.fields.get("project")
        if wanted and str(wanted) not in found and not str(wanted).isdecimal():
            return (
                False,
                f"connected, but there is no project {wanted} for this account; it may use {', '.join(found)}",
            )
        return True, f"connected: projects {', '.join(sorted(found)) or 'none'}"
