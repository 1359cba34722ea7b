"""Deleting jobs and projects: what is deleted with them, and the work request that reports it."""

from __future__ import annotations

from starlette.responses import Response

from airflow_provider_ocidist.emulator.data_science import lifecycle
from airflow_provider_ocidist.emulator.data_science.artifacts import Artifacts
from airflow_provider_ocidist.emulator.data_science.job_runs import JobRun, JobRunLives
from airflow_provider_ocidist.emulator.data_science.jobs import Jobs
from airflow_provider_ocidist.emulator.data_science.lifecycle import State
from airflow_provider_ocidist.emulator.data_science.projects import Projects
from airflow_provider_ocidist.emulator.data_science.resources import BASE
from airflow_provider_ocidist.emulator.data_science.work_requests import DataScienceWorkRequests
from airflow_provider_ocidist.emulator.errors import incorrect_state
from airflow_provider_ocidist.emulator.wire import Call, Route
from airflow_provider_ocidist.emulator.work_requests import Work

JOB_DELETE, PROJECT_DELETE = "JOB_DELETE", "PROJECT_DELETE"


class CascadingDeletions:
    """Deletes what other resources belong to. What is deleted can still be read, as at the service."""

    def __init__(
        self,
        projects: Projects,
        jobs: Jobs,
        artifacts: Artifacts,
        runs: JobRunLives,
        requests: DataScienceWorkRequests,
    ) -> None:
        self._projects = projects.all
        self._jobs = jobs.all
        self._artifacts = artifacts
        self._runs = runs
        self._requests = requests
        requests.serve(JOB_DELETE, Work(self._remove_job, self._keep_job), at_once=True)
        requests.serve(PROJECT_DELETE, Work(self._remove_project, self._keep_project), at_once=True)

    def routes(self) -> list[Route]:
        return [
            Route("DELETE", f"{BASE}/jobs/{{id}}", self.delete_job),
            Route("DELETE", f"{BASE}/projects/{{id}}", self.delete_project),
        ]

    async def delete_job(self, call: Call) -> Response:
        """Delete a job at once, or with its runs if asked, a little later; not while one of them is active."""
        job = self._jobs.asked(call)
        runs = self._runs_of(job.id)
        if runs and call.query.get("deleteRelatedJobRuns", "").lower() != "true":
            raise incorrect_state(
                f"The job has {len(runs)} job runs: delete them first, or with the job"
                " (deleteRelatedJobRuns)."
            )
        for run in runs:
            lifecycle.check_delete(State(run.state))
        self._jobs.change(job, state="DELETING")
        return self._requests.accept(
            JOB_DELETE, "job", job.id, job.details["compartmentId"], at_once=not runs
        )

    def _runs_of(self, job_id: str) -> list[JobRun]:
        return [run for run in self._runs.all.values() if run.job_id == job_id and run.state != State.DELETED]

    def _remove_job(self, job_id: str) -> None:
        for run in self._runs_of(job_id):
            self._runs.remove(run.id)
        job = self._jobs.get(job_id)
        self._artifacts.remove(job)
        self._jobs.change(job, state="DELETED", artifact_name=None)

    def _keep_job(self, job_id: str) -> None:
        self._jobs.change(self._jobs.get(job_id), state="ACTIVE")

    async def delete_project(self, call: Call) -> Response:
        """Delete a project a little later; not while there are jobs in it."""
        project = self._projects.asked(call)
        self._check_empty(project.id)
        self._projects.change(project, state="DELETING")
        return self._requests.accept(PROJECT_DELETE, "project", project.id, project.details["compartmentId"])

    def _check_empty(self, project_id: str) -> None:
        jobs = [job for job in self._jobs.values() if job.details["projectId"] == project_id]
        if any(job.state != "DELETED" for job in jobs):
            raise incorrect_state("The project has jobs: delete them first.")

    def _remove_project(self, project_id: str) -> None:
        self._check_empty(project_id)
        self._projects.change(self._projects.get(project_id), state="DELETED")

    def _keep_project(self, project_id: str) -> None:
        self._projects.change(self._projects.get(project_id), state="ACTIVE")
