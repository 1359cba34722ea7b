"""Data Science jobs: definitions and what they point at; `artifacts` keeps their code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.data_science import shapes
from airflow_provider_ocidist.emulator.data_science.layout import layout_of, shapes_of, subnets_of
from airflow_provider_ocidist.emulator.data_science.projects import Projects
from airflow_provider_ocidist.emulator.data_science.resources import (
    Body,
    Collection,
    ResourceKind,
    StoredResource,
    named,
    shared_body,
)
from airflow_provider_ocidist.emulator.data_science.rules import check_job
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.logs.service import Logs
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.wire import Call, Route


@dataclass(frozen=True, kw_only=True, slots=True)
class Job(StoredResource):
    """A job, as stored."""

    artifact_name: str | None = None
    artifact_size: int = 0


class Jobs:
    """Creates, shows and changes jobs; other services look them up here."""

    def __init__(
        self, context: Context, identity: Identity, logs: Logs, projects: Projects, retries: RetryTokens
    ) -> None:
        self._context = context
        self._identity = identity
        self._logs = logs
        self.projects = projects
        self.all = Collection(
            context.store, JOB, identity, retries, make=self._new, check_change=self._check_change
        )

    def routes(self) -> list[Route]:
        return self.all.routes()

    def check_references(self, details: Mapping[str, Any]) -> None:
        """Raise 404 when something that a job or run points at does not exist, 400 for an unknown shape."""
        self._identity.check_compartment(details["compartmentId"])
        self.projects.check(details["projectId"])
        for subnet_id in subnets_of(details):
            self._identity.check_subnet(subnet_id)
        for shape in shapes_of(details):
            shapes.check(shape, self._context.options.shapes)
        for kind in ("Details", "OverrideDetails"):
            logging = details.get(f"jobLogConfiguration{kind}") or {}
            if logging.get("enableLogging"):
                self._logs.check_log(logging["logGroupId"], logging.get("logId"))

    def reset(self) -> None:
        self.all.clear()

    def _check(self, details: Mapping[str, Any]) -> None:
        check_job(details)
        layout_of(details, {})
        self.check_references(details)

    def _new(self, call: Call, details: Mapping[str, Any]) -> Job:
        self._check(details)
        return Job(id=new_ocid("datasciencejob"), details=named(details, "job"), created_by=call.actor)

    def _check_change(self, _: Job, details: Mapping[str, Any]) -> None:
        self._check(details)


def _summary(job: Job) -> Body:
    project_id = job.details["projectId"]
    return {**shared_body(job), "projectId": project_id, "timeCreated": job.time_created}


def _body(job: Job) -> Body:
    return {**job.details, **_summary(job), "lifecycleDetails": None}


JOB = ResourceKind(
    name="job",
    decode=Job,
    path="jobs",
    states=frozenset({"CREATING", "ACTIVE", "DELETING", "FAILED", "DELETED"}),
    summary=_summary,
    body=_body,
    filters=("id", "projectId", "displayName", "lifecycleState", "createdBy"),
    updatable=(
        "displayName",
        "description",
        "jobInfrastructureConfigurationDetails",
        "jobStorageMountConfigurationDetailsList",
        "freeformTags",
        "definedTags",
    ),
)
