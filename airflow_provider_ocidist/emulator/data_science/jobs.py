"""Data Science jobs: definitions, artifacts, shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from starlette.responses import Response

from airflow_provider_ocidist.emulator.bodies import FileAnswer, Segment, read_range, receive_file
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.data_science.projects import Projects
from airflow_provider_ocidist.emulator.data_science.rules import (
    MAX_ARTIFACT_BYTES,
    check_common,
    check_infrastructure,
    check_job,
)
from airflow_provider_ocidist.emulator.errors import ApiError, conflict, incorrect_state, not_found
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.logs.service import Logs
from airflow_provider_ocidist.emulator.nodes.machine import Artifact
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, check_if_match, new_etag, now, page

BASE = "/20190101/jobs"
FILTERS = ("id", "projectId", "displayName", "lifecycleState", "createdBy")
UPDATABLE = (
    "displayName",
    "description",
    "jobInfrastructureConfigurationDetails",
    "jobStorageMountConfigurationDetailsList",
    "freeformTags",
    "definedTags",
)
SHAPES = (
    ("VM.Standard.E4.Flex", 64, 1024, "AMD_ROME"),
    ("VM.Standard3.Flex", 32, 512, "INTEL_SKYLAKE"),
    ("VM.GPU.A10.1", 15, 240, "NVIDIA_GPU"),
    ("VM.GPU.A10.2", 30, 480, "NVIDIA_GPU"),
    ("BM.GPU.A10.4", 64, 1024, "NVIDIA_GPU"),
    ("BM.GPU4.8", 64, 2048, "NVIDIA_GPU"),
    ("BM.GPU.H100.8", 112, 2048, "NVIDIA_GPU"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job, as stored."""

    id: str
    details: Mapping[str, Any]
    """As given to create, with later updates."""
    created_by: str
    time_created: str = field(default_factory=now)
    state: str = "ACTIVE"
    etag: str = field(default_factory=new_etag)
    artifact_name: str | None = None
    artifact_size: int = 0


class Jobs:
    """Creates, shows and deletes jobs; other services look them up here."""

    def __init__(
        self, context: Context, identity: Identity, logs: Logs, projects: Projects, retries: RetryTokens
    ) -> None:
        self._folder = context.folder / "artifacts"
        self._folder.mkdir(exist_ok=True)
        self.identity = identity
        self._logs = logs
        self.projects = projects
        self._retries = retries
        self._jobs: Table[Job] = Table(context.store, "job", Job)

    def routes(self) -> list[Route]:
        one = f"{BASE}/{{id}}"
        return [
            Route("POST", BASE, self.create),
            Route("GET", BASE, self.list),
            Route("GET", one, self.get),
            Route("PUT", one, self.update),
            Route("POST", f"{one}/actions/changeCompartment", self.change_compartment),
            Route("POST", f"{one}/artifact", self.create_artifact, streams=True),
            Route("HEAD", f"{one}/artifact/content", self.get_artifact),
            Route("GET", f"{one}/artifact/content", self.get_artifact),
            Route("GET", "/20190101/jobShapes", self.list_shapes),
            Route("GET", "/20190101/fastLaunchJobConfigs", self.list_fast_launch),
        ]

    def active(self, job_id: str) -> Job:
        """Return a job that can be run or changed. Raises 404."""
        job = self._jobs.get(job_id)
        if job is None or job.state != "ACTIVE":
            raise not_found()
        return job

    def find(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def artifact(self, job: Job) -> Artifact | None:
        if job.artifact_name is None:
            return None
        return Artifact(path=self._artifact_path(job), name=job.artifact_name)

    def _artifact_path(self, job: Job) -> Path:
        return self._folder / job.id.rpartition(".")[2]

    def check_references(self, details: Mapping[str, Any]) -> None:
        """Raise 404 when something that a job or run points at does not exist."""
        self.identity.check_compartment(details["compartmentId"])
        self.projects.check(details["projectId"])
        for kind in ("Details", "OverrideDetails"):
            subnet_id = (details.get(f"jobInfrastructureConfiguration{kind}") or {}).get("subnetId")
            if subnet_id:
                self.identity.check_subnet(subnet_id)
            logging = details.get(f"jobLogConfiguration{kind}") or {}
            if logging.get("enableLogging"):
                self._logs.check_log(logging["logGroupId"], logging.get("logId"))

    def remove(self, job: Job) -> None:
        """Mark a job deleted. It can still be read, as at the service, but its artifact is gone."""
        self._artifact_path(job).unlink(missing_ok=True)
        self._jobs.put(job.id, replace(job, state="DELETED", etag=new_etag(), artifact_name=None))

    def reset(self) -> None:
        for job in self._jobs.values():
            self._artifact_path(job).unlink(missing_ok=True)
        self._jobs.clear()

    async def create(self, call: Call) -> Response:
        details = await call.json()
        known = self._retries.find(call, details)
        job = self._jobs.get(known) if known else None
        if job is None:
            job = self._new(call, details)
        return answer(_body(job), etag=job.etag)

    def _new(self, call: Call, details: Mapping[str, Any]) -> Job:
        check_job(details)
        self.check_references(details)
        name = details.get("displayName") or generated_name("job")
        job = Job(
            id=new_ocid("datasciencejob"), details={**details, "displayName": name}, created_by=call.actor
        )
        self._jobs.put(job.id, job)
        self._retries.remember(call, details, job.id)
        return job

    def _known(self, call: Call) -> Job:
        job = self._jobs.get(call.params["id"])
        if job is None:
            raise not_found()
        return job

    async def get(self, call: Call) -> Response:
        job = self._known(call)
        return answer(_body(job), etag=job.etag)

    async def list(self, call: Call) -> Response:
        self.identity.check_compartment(call.required_query("compartmentId"))
        bodies = [_summary(job) for job in self._jobs.values()]
        found = filtered(call, bodies, FILTERS)
        chosen, headers = sorted_page(call, found, "timeCreated")
        return answer(chosen, headers=headers)

    async def update(self, call: Call) -> Response:
        details = await call.json()
        job = self.active(call.params["id"])
        check_if_match(call, job.etag)
        check_common(details)
        if details.get("jobInfrastructureConfigurationDetails"):
            check_infrastructure(details["jobInfrastructureConfigurationDetails"])
        changes = {name: details[name] for name in UPDATABLE if details.get(name) is not None}
        return self._changed(job, changes)

    async def change_compartment(self, call: Call) -> Response:
        details = await call.json()
        job = self.active(call.params["id"])
        check_if_match(call, job.etag)
        self.identity.check_compartment(details.get("compartmentId", ""))
        self._changed(job, {"compartmentId": details["compartmentId"]})
        return answer()

    def _changed(self, job: Job, changes: Mapping[str, Any]) -> Response:
        job = replace(job, details={**job.details, **changes}, etag=new_etag())
        self._jobs.put(job.id, job)
        return answer(_body(job), etag=job.etag)

    async def create_artifact(self, call: Call) -> Response:
        job = self.active(call.params["id"])
        name = artifact_name(call.headers.get("content-disposition", ""))
        retry = {"artifact": name}
        known = self._retries.find(call, retry)
        if job.artifact_name is not None and not known:
            raise conflict("The job has an artifact already, and artifacts cannot be changed.")
        if int(call.headers.get("content-length") or 0) > MAX_ARTIFACT_BYTES:
            raise too_large()
        received = await receive_file(call.chunks(), self._folder, limit=MAX_ARTIFACT_BYTES)
        if known:
            received.path.unlink()
            return answer()
        self._keep_artifact(job.id, name, received.path, received.size)
        self._retries.remember(call, retry, job.id)
        return answer(headers={"etag": new_etag()})

    def _keep_artifact(self, job_id: str, name: str, path: Path, size: int) -> None:
        """The job is looked up again: while the bytes came in, it may have been deleted or changed."""
        try:
            job = self.active(job_id)
            if job.artifact_name is not None:
                raise conflict("The job has an artifact already, and artifacts cannot be changed.")
        except ApiError:
            path.unlink()
            raise
        path.replace(self._artifact_path(job))
        self._jobs.put(job.id, replace(job, artifact_name=name, artifact_size=size))

    async def get_artifact(self, call: Call) -> Response:
        job = self.active(call.params["id"])
        if job.artifact_name is None:
            raise not_found()
        headers = {
            "content-disposition": f"attachment; filename={job.artifact_name}",
            "content-type": "application/octet-stream",
        }
        part = read_range(call.headers.get("range"), job.artifact_size)
        segments = [Segment(self._artifact_path(job), job.artifact_size)]
        return FileAnswer(segments, part, headers, head=call.method == "HEAD")

    async def list_shapes(self, call: Call) -> Response:
        self.identity.check_compartment(call.required_query("compartmentId"))
        names = ("name", "coreCount", "memoryInGBs", "shapeSeries")
        return answer([dict(zip(names, shape, strict=True)) for shape in SHAPES])

    async def list_fast_launch(self, call: Call) -> Response:
        call.required_query("compartmentId")
        return answer([])


def check_no_runs(runs: int, *, delete_runs: bool) -> None:
    """Raise 409 when a job with runs is deleted without them."""
    if runs and not delete_runs:
        raise incorrect_state(
            f"The job has {runs} job runs: delete them first, or with the job (deleteRelatedJobRuns)."
        )


def too_large() -> ApiError:
    return ApiError(413, "RequestEntityTooLarge", "A job artifact may have 4 GB.")


def artifact_name(disposition: str) -> str:
    """Return the file name of a Content-Disposition header, without any folder."""
    match = re.search(r"filename\*?=(?:UTF-8'')?\"?([^\";]+)", disposition, re.IGNORECASE)
    name = PurePosixPath(unquote(match[1]).replace("\\", "/")).name.strip() if match else ""
    return name if name not in ("", ".", "..") else "artifact"


def generated_name(kind: str) -> str:
    """Return what the service calls a resource that was given no name, as `jobrun20210808222435`."""
    return f"{kind}{datetime.now(UTC):%Y%m%d%H%M%S}"


def filtered(call: Call, bodies: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Keep what fits the query's filters, `compartmentId` always."""
    wanted = {"compartmentId": call.required_query("compartmentId")}
    wanted |= {name: call.query[name] for name in names if name in call.query}
    return [body for body in bodies if all(body.get(name) == value for name, value in wanted.items())]


def sorted_page(
    call: Call, bodies: list[dict[str, Any]], time_name: str
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a page in the order of `sortBy`: newest first, or by name."""
    call.number("limit", 100, 1, 100)
    by_name = call.query.get("sortBy") == "displayName"
    name = "displayName" if by_name else time_name
    return page(call, bodies, lambda body: (body[name], body["id"]), default="ASC" if by_name else "DESC")


def _summary(job: Job) -> dict[str, Any]:
    details = job.details
    return {
        "id": job.id,
        "timeCreated": job.time_created,
        "createdBy": job.created_by,
        "projectId": details["projectId"],
        "compartmentId": details["compartmentId"],
        "displayName": details["displayName"],
        "lifecycleState": job.state,
        "freeformTags": details.get("freeformTags") or {},
        "definedTags": details.get("definedTags") or {},
    }


def _body(job: Job) -> dict[str, Any]:
    return {**job.details, **_summary(job), "lifecycleDetails": None}
