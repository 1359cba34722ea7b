"""Submission: create the gang of one plan, in as few round trips as the service allows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from airflow_provider_ocidist.backends.bundle import agent_bundle, code_bundle, code_errors
from airflow_provider_ocidist.backends.claims import overtaken
from airflow_provider_ocidist.backends.oci_data_science.ads_variables import wants_main_run, with_main_run
from airflow_provider_ocidist.backends.oci_data_science.calls import pages
from airflow_provider_ocidist.backends.oci_data_science.cancels import Cancels
from airflow_provider_ocidist.backends.oci_data_science.rules import MAX_ARTIFACT
from airflow_provider_ocidist.errors import BackendError, Cause, StorageError
from airflow_provider_ocidist.model.report import Renewal
from airflow_provider_ocidist.model.run import Plan, Request
from airflow_provider_ocidist.model.work_dir import (
    AGENT_ARCHIVE,
    CODE_ARCHIVE,
    LEASE_FILE,
    NODES_FOLDER,
    STOP_FILE,
)
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.work_dir.parallel import both, in_parallel
from airflow_provider_ocidist.work_dir.run_dir_stores import unusable

log = logging.getLogger(__name__)

SPENT = "InvalidatedRetryToken"
"""Code of a retry token whose resource was deleted, or created by another request."""
SPENT_LIMIT = 5
"""Most tokens that are tried for one job, each after the one before was spent."""
GOING = ("DELETING", "DELETED")
"""Lifecycle states of a job that is being deleted, or is deleted and still listed."""


class Submission:
    """The calls that create a gang. Each may be repeated: its idempotency token is derived from the plan's key."""

    def __init__(
        self,
        client: Any,
        plan: Plan,
        open_run_dir: Callable[[], Store],
        stop: threading.Event,
        complete: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        cancels: Cancels,
    ) -> None:
        """`complete` fills in what the plan leaves open in the job; `cancels` ends runs that are created too late."""
        self._client = client
        self._plan = plan
        self._open_run_dir = open_run_dir
        self._stop = stop
        self._complete = complete
        self._cancels = cancels
        self._answered: dict[int, str] = {}
        self._abandoned = threading.Event()

    def job(self) -> Any:
        """Create the job, and make the rest ready meanwhile; return the job as the service has it."""
        created, problem = both(self._create_job, self._problem)
        if problem is None:
            return created
        if not problem.retryable:
            with oci_errors("removing the job again"):
                self._client.delete_job(created.id)
        problem.after_acceptance = True
        raise problem

    def _create_job(self) -> Any:
        gone: Sequence[str] = ()
        for _ in range(SPENT_LIMIT):
            try:
                created = self._post_job(gone)
            except BackendError as error:
                if error.code != SPENT:
                    raise
            else:
                # The answer to an old token may be a job that is just being deleted.
                if created.lifecycle_state not in GOING:
                    return created
            gone = self._gone_jobs(gone)
            self._forget_nodes()
        raise _begun_otherwise(self._plan.key.name)

    def _post_job(self, gone: Sequence[str]) -> Any:
        (request,) = self._requests("CreateJob")
        # Another Airflow may run the same task in another compartment.
        token = self._plan.key.token("job", request.body["compartmentId"], *gone)
        body = dict(self._complete(request.body))
        with oci_errors("creating the job"):
            return self._client.create_job(body, opc_retry_token=token).data

    def _gone_jobs(self, known: Sequence[str]) -> list[str]:
        """Return the ids of the jobs of this name that are gone.

        If no job is newly gone, those of another job file without a run are deleted; not earlier, since two
        concurrent submitters could otherwise delete each other's job.
        """
        (request,) = self._requests("CreateJob")
        name, place = request.body["displayName"], request.body["compartmentId"]
        with oci_errors("looking for jobs of this name"):
            jobs = {
                str(job.id): job.lifecycle_state
                for job in pages(self._client.list_jobs, place, display_name=name)
            }
        gone = {job_id for job_id, state in jobs.items() if state in GOING} | set(known)
        if gone == set(known):
            gone |= {job_id for job_id in jobs if job_id not in gone and self._removed(job_id, place)}
        if gone == set(known):
            raise _begun_otherwise(name)
        return sorted(gone)

    def _removed(self, job_id: str, compartment_id: str) -> bool:
        """Remove a job unless it has runs; return whether it is gone."""
        try:
            with oci_errors("removing what was begun with another job file"):
                if any(pages(self._client.list_job_runs, compartment_id, job_id=job_id)):
                    return False
                self._client.delete_job(job_id)
        except BackendError as error:
            # 404: another process deleted it; 409: it has got a run, or is being deleted.
            if error.status_code not in (404, 409):
                raise
            return error.status_code == 404
        return True

    def _forget_nodes(self) -> None:
        """Delete the reports of a deleted job's nodes; they would be read as those of new nodes."""
        # An unusable run directory is reported elsewhere.
        with suppress(StorageError, BackendError):
            store = self._open_run_dir()
            names = [entry.name for entry in store.list()]
            for name in names:
                if name == STOP_FILE or name.startswith(f"{NODES_FOLDER}/"):
                    store.delete(name)

    def _problem(self) -> BackendError | None:
        """Return why the nodes could not get their code or meet, if so; they could not report it."""
        try:
            return self._work_dir_problem(self._archives())
        except BackendError as error:
            return error

    def _archives(self) -> dict[str, bytes]:
        """Return what containers fetch from the run directory; see in any case that the code can be read."""
        code = {} if self._plan.code is None else {CODE_ARCHIVE: self._read_code(code_bundle)}
        if self._requests("CreateJobArtifact"):
            _check_artifact(code.get(CODE_ARCHIVE, b""))
            return {}
        return {**code, **({AGENT_ARCHIVE: agent_bundle(None)} if self._plan.expects.reports else {})}

    def _read_code(self, bundle: Callable[[str], bytes]) -> bytes:
        with code_errors(self._plan.code):
            return bundle(str(self._plan.code))

    def _work_dir_problem(self, archives: Mapping[str, bytes]) -> BackendError | None:
        try:
            store = self._open_run_dir()
            # The first renewal precedes every node, and proves that later ones can be written.
            files = {**archives, **({LEASE_FILE: Renewal.now().to_json()} if self._plan.lease else {})}
            for name, content in files.items():
                store.write(name, content)
            if not files:
                store.list(f"{NODES_FOLDER}/")
        except StorageError as error:
            problem = unusable(error)
            problem.__cause__ = error
            return problem
        return None

    def artifact(self, job_id: str) -> None:
        """Upload agent and code, where the plan has them."""
        if not self._requests("CreateJobArtifact"):
            return
        archive = agent_bundle(None) if self._plan.code is None else self._read_code(agent_bundle)
        try:
            with oci_errors("uploading the job artifact"):
                self._client.create_job_artifact(
                    job_id,
                    archive,
                    content_disposition="attachment; filename=ocidist.zip",
                    opc_retry_token=self._plan.key.token("artifact", job_id),
                )
        except BackendError as error:
            # It has one already: another submitter of the same plan was faster, or died after this step.
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

    def runs(self, job_id: str, existing: Mapping[int, str]) -> dict[int, Any]:
        """Create the job runs that do not exist, by number with their ids, and return them by number."""
        requests = self._requests("CreateJobRun")
        ids = dict(existing)

        def create(number: int) -> Any:
            try:
                return self._created(job_id, number, with_main_run(requests[number].body, ids.get(0, "")))
            except BaseException:
                # The service may have other requests wait for minutes: what exists is ended before they are answered.
                # Once: what is created later is cancelled where it is answered. Whatever happens, this error arrives.
                if not self._abandoned.is_set():
                    with suppress(Exception):
                        self._give_up(existing.values())
                raise

        missing = [number for number in range(len(requests)) if number not in existing]
        made: dict[int, Any] = {}
        if 0 in missing and any(wants_main_run(request.body) for request in requests):
            # The others receive its id.
            made[0] = create(missing.pop(0))
            ids[0] = str(made[0].id)
        return made | dict(zip(missing, in_parallel(create, missing), strict=True))

    def _created(self, job_id: str, number: int, body: Mapping[str, Any]) -> Any:
        if self._stop.is_set():
            raise BackendError("stopped while the job runs were being created", cause=Cause.CANCELED)
        with oci_errors(f"creating the job run {body['displayName']}"):
            answer = self._client.create_job_run(
                {**body, "jobId": job_id}, opc_retry_token=self._plan.key.token("run", job_id, number)
            )
        # Recorded at once: it exists, even if the others fail.
        self._answered[number] = str(answer.data.id)
        if self._abandoned.is_set():
            self._cancel(str(answer.data.id))
        return answer.data

    def _give_up(self, existing: Iterable[str]) -> None:
        """Cancel what exists: the gang cannot be completed. Who submits makes sure that it ends."""
        made = self.abandoned()
        if overtaken(self._plan, self._cancels.directories) is not None:
            # Who has claimed it completes it.
            return
        for error in self._cancels.cancel_runs([*existing, *made.values()]).values():
            log.info("%s", error)

    def abandoned(self) -> dict[int, str]:
        """Return the ids of the job runs that were created, by number; one whose answer comes later is cancelled."""
        self._abandoned.set()
        return dict(self._answered)

    def _cancel(self, run_id: str) -> None:
        if overtaken(self._plan, self._cancels.directories) is not None:
            return
        for error in self._cancels.cancel_runs([run_id]).values():
            log.warning("job run %s, which was created too late, may run on: %s", run_id, error)

    def _requests(self, verb: str) -> Sequence[Request]:
        return [request for request in self._plan.requests if request.verb == verb]


def _check_artifact(code: bytes) -> None:
    if len(code) > MAX_ARTIFACT:
        raise BackendError(
            f"the code takes {len(code)} bytes packed, and the service takes {MAX_ARTIFACT} in an artifact: "
            "put data into a bucket and name it in 'inputs'",
            cause=Cause.CONFIG,
        )


def _begun_otherwise(name: str) -> BackendError:
    return BackendError(
        f"creating the job: {name} was begun before with another job file or connection, and has job runs, "
        "or the service's lists do not show it yet: try again",
        code=SPENT,
        retryable=True,
    )
