"""The projects of an account at a control plane, by the id or the name that a job gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.backends.runai.plans import CLUSTER_ID, id_of_project
from airflow_provider_ocidist.errors import BackendError, Cause

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.runai.client import Client

PROJECTS = "/api/v1/org-unit/projects"

Project = Mapping[str, Any]


def projects_of(client: Client) -> list[Project]:
    """Return the projects that the account may use. Raises BackendError."""
    return list(client.pages(PROJECTS, "projects", "looking for the project"))


def chosen(projects: Sequence[Project], wanted: str) -> Project:
    """Return the project of an id, or of what stands in a plan for one. Raises BackendError."""
    for project in projects:
        if wanted in (str(project["id"]), id_of_project(str(project["name"]))):
            return project
    known = ", ".join(sorted(str(project["name"]) for project in projects)) or "none"
    raise BackendError(
        f"there is no {wanted.removeprefix('<id of ').removesuffix('>')} that the service account may use; "
        f"it may use {known}: correct backend.project, or give it an access rule",
        cause=Cause.CONFIG,
    )


def with_ids(body: Mapping[str, Any], client: Client) -> dict[str, Any]:
    """Return a plan's request with the ids that only the service can give. Raises BackendError."""
    if str(body["projectId"]).isdecimal() and body["clusterId"] != CLUSTER_ID:
        return dict(body)
    project = chosen(projects_of(client), str(body["projectId"]))
    cluster = body["clusterId"] if body["clusterId"] != CLUSTER_ID else str(project["clusterId"])
    return {**body, "projectId": str(project["id"]), "clusterId": cluster}
