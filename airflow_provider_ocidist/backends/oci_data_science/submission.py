"""Submission: bring about one plan, in as few round trips as the service allows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.agent.report import NODES_FOLDER
from airflow_provider_ocidist.backends.oci_data_science.calls import both, in_parallel
from airflow_provider_ocidist.bundle import agent_bundle, code_bundle
from airflow_provider_ocidist.errors import BackendError, Cause, StorageError
from airflow_provider_ocidist.oci_clients import oci_errors
from airflow_provider_ocidist.run import Plan, Request
from airflow_provider_ocidist.storage.stores import Store


class Submission:
    """The calls that create a gang. Each may be repeated: its idempotency token is derived from the plan's key."""

    def __init__(
        self, client: Any, plan: Plan, open_run_dir: Callable[[], Store], stop: threading.Event
    ) -> None:
        self._client = client
        self._plan = plan
        self._open_run_dir = open_run_dir
        self._stop = stop

    def job(self) -> Any:
        """Create the job, and make the run directory ready meanwhile; return the job as the service has it."""
        created, problem = both(self._create_job, self._work_dir_problem)
        if problem is None:
            return created
        if not problem.retryable:
            with oci_errors("removing the job again"):
                self._client.delete_job(created.id)
        raise problem

    def _create_job(self) -> Any:
        (request,) = self._requests("CreateJob")
        with oci_errors("creating the job"):
            return self._client.create_job(
                dict(request.body), opc_retry_token=self._plan.key.token("job")
            ).data

    def _work_dir_problem(self) -> BackendError | None:
        """Return why the nodes could not meet, if so: they would end without being able to say it."""
        try:
            store = self._open_run_dir()
            if self._plan.code is not None and not self._requests("CreateJobArtifact"):
                store.write("code.zip", code_bundle(self._plan.code))
            else:
                store.list(f"{NODES_FOLDER}/")
        except StorageError as error:
            passes = isinstance(error.__cause__, BackendError) and error.__cause__.retryable
            remedy = "" if passes else "; create its bucket, or name another work_dir"
            problem = BackendError(
                f"work_dir cannot be used: {error}{remedy}",
                retryable=passes,
                cause=Cause.SERVICE if passes else Cause.CONFIG,
            )
            problem.__cause__ = error
            return problem
        return None

    def artifact(self, job_id: str) -> None:
        """Upload agent and code, where the plan says so."""
        if not self._requests("CreateJobArtifact"):
            return
        try:
            with oci_errors("uploading the job artifact"):
                self._client.create_job_artifact(
                    job_id,
                    agent_bundle(self._plan.code),
                    content_disposition="attachment; filename=ocidist.zip",
                    opc_retry_token=self._plan.key.token("artifact"),
                )
        except BackendError as error:
            # It has one already: somebody who submits the same plan was faster, or died after this step.
            if error.status_code != 409 or not self._has_artifact(job_id):
                raise

    def _has_artifact(self, job_id: str) -> bool:
        try:
            with oci_errors("looking for the job artifact"):
                self._client.head_job_artifact(job_id)
        except BackendError as error:
            if error.status_code == 404:
                return False
            raise
        return True

    def runs(self, job_id: str, existing: Mapping[int, str]) -> dict[int, str]:
        """Create the job runs that do not exist; return the ids of all."""
        requests = self._requests("CreateJobRun")

        def create(number: int) -> str:
            if number in existing:
                return existing[number]
            if self._stop.is_set():
                raise BackendError("stopped while the job runs were being created", cause=Cause.CANCELED)
            body = {**requests[number].body, "jobId": job_id}
            with oci_errors(f"creating the job run {body['displayName']}"):
                answer = self._client.create_job_run(
                    body, opc_retry_token=self._plan.key.token("run", number)
                )
            return str(answer.data.id)

        return dict(enumerate(in_parallel(create, range(len(requests)))))

    def _requests(self, verb: str) -> Sequence[Request]:
        return [request for request in self._plan.requests if request.verb == verb]
