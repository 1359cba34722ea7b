"""Data Science projects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.data_science.rules import check_common, require
from airflow_provider_ocidist.emulator.errors import not_found
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, check_if_match, new_etag, now, page

BASE = "/20190101/projects"


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """A project, as stored."""

    id: str
    details: Mapping[str, Any]
    created_by: str
    time_created: str = field(default_factory=now)
    state: str = "ACTIVE"
    etag: str = field(default_factory=new_etag)


class Projects:
    """Creates, shows and deletes projects."""

    def __init__(self, context: Context, identity: Identity, retries: RetryTokens) -> None:
        self._ids = context.ids
        self._identity = identity
        self._retries = retries
        self._projects: Table[Project] = Table(context.store, "project", Project)
        self._seed()

    def _seed(self) -> None:
        if self._projects.get(self._ids.project_id) is None:
            details = {"compartmentId": self._ids.compartment_id, "displayName": "ocidist"}
            first = Project(id=self._ids.project_id, details=details, created_by=self._ids.user_id)
            self._projects.put(first.id, first)

    def routes(self) -> list[Route]:
        one = f"{BASE}/{{id}}"
        return [
            Route("POST", BASE, self.create),
            Route("GET", BASE, self.list),
            Route("GET", one, self.get),
            Route("PUT", one, self.update),
            Route("DELETE", one, self.delete),
        ]

    def check(self, project_id: str) -> None:
        """Raise 404 unless the project is there to hold something."""
        project = self._projects.get(project_id)
        if project is None or project.state != "ACTIVE":
            raise not_found()

    def compartment_of(self, project_id: str) -> str:
        project = self._projects.get(project_id)
        return str(project.details["compartmentId"]) if project else ""

    def reset(self) -> None:
        self._projects.clear()
        self._seed()

    async def create(self, call: Call) -> Response:
        details = await call.json()
        known = self._retries.find(call, details)
        project = self._projects.get(known) if known else None
        if project is None:
            project = self._new(call, details)
        return answer(_body(project), etag=project.etag)

    def _new(self, call: Call, details: Mapping[str, Any]) -> Project:
        require(details, "compartmentId")
        check_common(details)
        self._identity.check_compartment(details["compartmentId"])
        project = Project(id=new_ocid("datascienceproject"), details=details, created_by=call.actor)
        self._projects.put(project.id, project)
        self._retries.remember(call, details, project.id)
        return project

    def _find(self, call: Call) -> Project:
        project = self._projects.get(call.params["id"])
        if project is None:
            raise not_found()
        return project

    async def get(self, call: Call) -> Response:
        project = self._find(call)
        return answer(_body(project), etag=project.etag)

    async def list(self, call: Call) -> Response:
        wanted = {"compartmentId": call.required_query("compartmentId")}
        self._identity.check_compartment(wanted["compartmentId"])
        for name in ("id", "displayName", "lifecycleState", "createdBy"):
            if name in call.query:
                wanted[name] = call.query[name]
        bodies = [_body(project) for project in self._projects.values()]
        found = [body for body in bodies if all(body[name] == value for name, value in wanted.items())]
        name = "displayName" if call.query.get("sortBy") == "displayName" else "timeCreated"
        default = "ASC" if name == "displayName" else "DESC"
        chosen, headers = page(call, found, lambda body: (body[name], body["id"]), default=default)
        return answer(chosen, headers=headers)

    async def update(self, call: Call) -> Response:
        project = self._find(call)
        check_if_match(call, project.etag)
        details = await call.json()
        check_common(details)
        allowed = {"displayName", "description", "freeformTags", "definedTags"}
        changes = {name: value for name, value in details.items() if name in allowed}
        project = replace(project, details={**project.details, **changes}, etag=new_etag())
        self._projects.put(project.id, project)
        return answer(_body(project), etag=project.etag)

    async def delete(self, call: Call) -> Response:
        project = self._find(call)
        check_if_match(call, project.etag)
        self._projects.put(project.id, replace(project, state="DELETED", etag=new_etag()))
        return answer()


def _body(project: Project) -> dict[str, Any]:
    return {
        "id": project.id,
        "timeCreated": project.time_created,
        "displayName": project.details.get("displayName") or "project",
        "description": project.details.get("description"),
        "compartmentId": project.details["compartmentId"],
        "createdBy": project.created_by,
        "lifecycleState": project.state,
        "freeformTags": project.details.get("freeformTags") or {},
        "definedTags": project.details.get("definedTags") or {},
    }
