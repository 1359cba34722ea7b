"""Artifacts of jobs: the code that a job runs, written once and read as often as wanted."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from starlette.responses import Response

from airflow_provider_ocidist.emulator.bodies import FileAnswer, Segment, read_range, receive_file
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.data_science.jobs import Job, Jobs
from airflow_provider_ocidist.emulator.data_science.mount_folder import MAX_COMPONENT_BYTES
from airflow_provider_ocidist.emulator.data_science.resources import BASE
from airflow_provider_ocidist.emulator.data_science.rules import MAX_ARTIFACT_BYTES
from airflow_provider_ocidist.emulator.errors import ApiError, conflict, invalid, not_found
from airflow_provider_ocidist.emulator.nodes.machine import Artifact
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, new_etag


class Artifacts:
    """Takes and gives the artifacts of jobs."""

    def __init__(self, context: Context, jobs: Jobs, retries: RetryTokens) -> None:
        self._folder = context.folder / "artifacts"
        self._folder.mkdir(exist_ok=True)
        for path in self._folder.glob("receiving-*"):
            path.unlink()
        self._jobs = jobs.all
        self._retries = retries

    def routes(self) -> list[Route]:
        one = f"{BASE}/jobs/{{id}}/artifact"
        return [
            Route("POST", one, self.create, streams=True),
            Route("HEAD", f"{one}/content", self.get),
            Route("GET", f"{one}/content", self.get),
        ]

    def of(self, job: Job) -> Artifact | None:
        if job.artifact_name is None:
            return None
        return Artifact(path=self._path(job), name=job.artifact_name)

    def remove(self, job: Job) -> None:
        self._path(job).unlink(missing_ok=True)

    def reset(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()

    def _path(self, job: Job) -> Path:
        return self._folder / job.id.rpartition(".")[2]

    async def create(self, call: Call) -> Response:
        job = self._jobs.existing(call.params["id"])
        name = artifact_name(call.headers.get("content-disposition", ""))
        retry = {"artifact": name}
        known = self._retries.find(call, retry)
        if not known:
            check_absent(job)
        if int(call.headers.get("content-length") or 0) > MAX_ARTIFACT_BYTES:
            raise ApiError(413, "RequestEntityTooLarge", "A job artifact may have at most 4 GB.")
        received = await receive_file(call.chunks(), self._folder, limit=MAX_ARTIFACT_BYTES)
        if known:
            received.path.unlink()
            return answer()
        self._keep(job.id, name, received.path, received.size)
        self._retries.remember(call, retry, job.id)
        return answer(headers={"etag": new_etag()})

    def _keep(self, job_id: str, name: str, path: Path, size: int) -> None:
        """Make a body the artifact of its job, looked up again: meanwhile that may have been deleted or changed."""
        try:
            job = self._jobs.existing(job_id)
            check_absent(job)
        except ApiError:
            path.unlink(missing_ok=True)
            raise
        path.replace(self._path(job))
        self._jobs.change(job, artifact_name=name, artifact_size=size)

    async def get(self, call: Call) -> Response:
        job = self._jobs.existing(call.params["id"])
        if job.artifact_name is None:
            raise not_found()
        headers = {
            "content-disposition": disposition_of(job.artifact_name),
            "content-type": "application/octet-stream",
        }
        part = read_range(call.headers.get("range"), job.artifact_size)
        segments = [Segment(self._path(job), job.artifact_size)]
        return FileAnswer(segments, part, headers, head=call.method == "HEAD")


def check_absent(job: Job) -> None:
    if job.artifact_name is not None:
        raise conflict("The job has an artifact already, and artifacts cannot be changed.")


def artifact_name(disposition: str) -> str:
    """Return the file name of a Content-Disposition header, without any folder. Raises 400 for one that no file has."""
    match = re.search(r"filename\*?=(?:UTF-8'')?\"?([^\";]+)", disposition, re.IGNORECASE)
    name = PurePosixPath(unquote(match[1]).replace("\\", "/")).name.strip() if match else ""
    if not name.isprintable() or len(name.encode()) > MAX_COMPONENT_BYTES:
        raise invalid(
            f"The file name in Content-Disposition must be printable, with at most {MAX_COMPONENT_BYTES} bytes."
        )
    return name if name not in ("", ".", "..") else "artifact"


def disposition_of(name: str) -> str:
    """Return the Content-Disposition header of a download, in which a name beyond ASCII is encoded (RFC 6266)."""
    if name.isascii() and name.isprintable():
        return f"attachment; filename={name}"
    return f"attachment; filename*=UTF-8''{quote(name, safe='')}"
