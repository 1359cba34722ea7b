"""Data Science projects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.data_science.resources import (
    Body,
    Collection,
    ResourceKind,
    StoredResource,
    named,
    shared_body,
)
from airflow_provider_ocidist.emulator.data_science.rules import check_common
from airflow_provider_ocidist.emulator.errors import not_found
from airflow_provider_ocidist.emulator.fields import require
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.wire import Call, Route


class Projects:
    """Creates, shows and changes projects; `deletions` deletes them."""

    def __init__(self, context: Context, identity: Identity, retries: RetryTokens) -> None:
        self._ids = context.ids
        self._identity = identity
        self.all = Collection(
            context.store, PROJECT, identity, retries, make=self._new, check_change=lambda *_: None
        )
        self._seed()

    def _seed(self) -> None:
        if self.all.find(self._ids.project_id) is None:
            details = {"compartmentId": self._ids.compartment_id, "displayName": "ocidist"}
            self.all.put(
                StoredResource(id=self._ids.project_id, details=details, created_by=self._ids.user_id)
            )

    def routes(self) -> list[Route]:
        return self.all.routes()

    def check(self, project_id: str) -> None:
        """Raise 404 unless the project is there to hold something."""
        project = self.all.find(project_id)
        if project is None or project.state != "ACTIVE":
            raise not_found()

    def compartment_of(self, project_id: str) -> str:
        return str(self.all.get(project_id).details["compartmentId"])

    def reset(self) -> None:
        self.all.clear()
        self._seed()

    def _new(self, call: Call, details: Mapping[str, Any]) -> StoredResource:
        require(details, "compartmentId")
        check_common(details)
        self._identity.check_compartment(details["compartmentId"])
        return StoredResource(
            id=new_ocid("datascienceproject"), details=named(details, "project"), created_by=call.actor
        )


def _body(project: StoredResource) -> Body:
    description = project.details.get("description")
    return {**shared_body(project), "timeCreated": project.time_created, "description": description}


PROJECT = ResourceKind(
    name="project",
    decode=StoredResource,
    path="projects",
    states=frozenset({"ACTIVE", "DELETING", "DELETED"}),
    summary=_body,
    body=_body,
    updatable=("displayName", "description", "freeformTags", "definedTags"),
)
