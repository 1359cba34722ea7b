"""Gangs on OCI Data Science Jobs, through the `oci` SDK."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_ocidist import oci_clients
from airflow_provider_ocidist.agent.config import AgentConfig
from airflow_provider_ocidist.agent.report import NODES_FOLDER, STOP_FILE, NodeReport, StopRequest
from airflow_provider_ocidist.backends.base import Backend, LogLine
from airflow_provider_ocidist.backends.oci_data_science.answers import log_line, node_status
from airflow_provider_ocidist.backends.oci_data_science.options import KIND, Defaults
from airflow_provider_ocidist.backends.oci_data_science.plans import TAG_RANK, key_of, make_plan
from airflow_provider_ocidist.bundle import agent_bundle, code_bundle
from airflow_provider_ocidist.errors import (
    BackendError,
    Cause,
    CheckpointError,
    StorageError,
)
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.oci_clients import OciAccess, oci_errors
from airflow_provider_ocidist.run import (
    NodeState,
    Plan,
    Request,
    RunKey,
    RunRef,
    RunStatus,
)
from airflow_provider_ocidist.storage import checkpoints
from airflow_provider_ocidist.storage.stores import open_store

if TYPE_CHECKING:
    from airflow_provider_ocidist.storage.stores import Store

log = logging.getLogger(__name__)

PAGE = 100
PARALLEL = 32
_STOP = StopRequest(cause=Cause.CANCELED, message="the run was cancelled")


class OciDataScience(Backend):
    """Gangs for one connection."""

    def __init__(self, access: OciAccess, defaults: Defaults) -> None:
        self.access = access
        self.defaults = defaults
        self._reports: dict[str, dict[str, tuple[str | None, NodeReport | None]]] = {}

    @classmethod
    def connect(cls, fields: Mapping[str, Any]) -> Self:
        """See OciAccess and Defaults for the fields."""
        return cls(_pick(OciAccess, fields), _pick(Defaults, fields))

    @cached_property
    def _client(self) -> Any:
        return oci_clients.client(self.access, "data_science")

    @cached_property
    def _log_client(self) -> Any:
        return oci_clients.client(self.access, "logging_search")

    def plan(self, job: TrainingJob, key: RunKey) -> Plan:
        return make_plan(job, key, self.defaults, self.access.endpoint)

    # submit

    def submit(self, plan: Plan, stop: threading.Event | None = None) -> RunRef:
        create_job, _, *create_runs = plan.requests
        compartment_id = str(create_job.body["compartmentId"])
        job_id = self._existing_job(plan.key, compartment_id)
        if job_id is None:
            self._require_work_dir(plan.run_dir)
            job_id = self._create_job(plan, create_job)
        self._upload(plan, job_id, with_image="jobEnvironmentConfigurationDetails" in create_job.body)
        try:
            run_ids = self._create_runs(plan, create_runs, job_id, compartment_id, stop or threading.Event())
        except BaseException:
            # Airflow's timeout too, which is no Exception: half a gang would run for nobody.
            self._cancel_job(job_id, compartment_id)
            raise
        return self._ref_of(job_id, plan.key, run_ids)

    def _require_work_dir(self, run_dir: str) -> None:
        """Raise BackendError where the nodes could not meet: they would end without being able to say why."""
        try:
            self._store(run_dir).list(f"{NODES_FOLDER}/")
        except StorageError as error:
            passes = isinstance(error.__cause__, BackendError) and error.__cause__.retryable
            remedy = "" if passes else "; create its bucket, or name another work_dir"
            raise BackendError(
                f"work_dir cannot be used: {error}{remedy}",
                retryable=passes,
                cause=Cause.SERVICE if passes else Cause.CONFIG,
            ) from error

    def _existing_job(self, key: RunKey, compartment_id: str) -> str | None:
        with oci_errors("looking for an earlier submission"):
            found = self._client.list_jobs(compartment_id, display_name=key.name, limit=PAGE).data
        live = [
            job for job in found if job.lifecycle_state in ("CREATING", "ACTIVE") and key_of(job, key) == key
        ]
        return str(live[0].id) if live else None

    def _create_job(self, plan: Plan, request: Request) -> str:
        with oci_errors("creating the job"):
            answer = self._client.create_job(dict(request.body), opc_retry_token=plan.key.token("job"))
        return str(answer.data.id)

    def _upload(self, plan: Plan, job_id: str, *, with_image: bool) -> None:
        if with_image:
            if plan.code is not None:
                self._store(plan.run_dir).write("code.zip", code_bundle(plan.code))
            return
        if not self._has_artifact(job_id):
            self._create_artifact(plan, job_id)

    def _create_artifact(self, plan: Plan, job_id: str) -> None:
        try:
            with oci_errors("uploading the job artifact"):
                self._client.create_job_artifact(
                    job_id,
                    agent_bundle(plan.code),
                    content_disposition="attachment; filename=ocidist.zip",
                    opc_retry_token=plan.key.token("artifact"),
                )
        except BackendError as error:
            # Somebody who submits the same plan was faster by a moment.
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

    def _create_runs(
        self, plan: Plan, requests: Sequence[Request], job_id: str, compartment_id: str, stop: threading.Event
    ) -> dict[int, str]:
        existing = {
            int(run.freeform_tags[TAG_RANK]): str(run.id) for run in self._runs_of(job_id, compartment_id)
        }

        def create(rank: int) -> str:
            if rank in existing:
                return existing[rank]
            if stop.is_set():
                raise BackendError("stopped while the job runs were being created", cause=Cause.CANCELED)
            body = {**requests[rank].body, "jobId": job_id}
            with oci_errors(f"creating the job run of node {rank}"):
                answer = self._client.create_job_run(body, opc_retry_token=plan.key.token("run", rank))
            return str(answer.data.id)

        return dict(enumerate(_in_parallel(create, range(plan.nodes))))

    def find(self, plan: Plan) -> list[RunRef]:
        compartment_id = str(plan.requests[0].body["compartmentId"])
        with oci_errors("looking for earlier gangs of this task"):
            jobs = list(_pages(self._client.list_jobs, compartment_id))
        found = [(job, key) for job in jobs if (key := key_of(job, plan.key)) is not None]
        refs = [self._found_ref(str(job.id), key, compartment_id) for job, key in found]
        return sorted(refs, key=lambda ref: (ref.key.generation, ref.key.attempt))

    def _found_ref(self, job_id: str, key: RunKey, compartment_id: str) -> RunRef:
        by_rank = {
            int(run.freeform_tags[TAG_RANK]): str(run.id) for run in self._runs_of(job_id, compartment_id)
        }
        return self._ref_of(job_id, key, by_rank)

    def _ref_of(self, job_id: str, key: RunKey, run_ids: Mapping[int, str]) -> RunRef:
        """Return the reference that the job itself tells: its environment holds all that the nodes were told."""
        with oci_errors("reading the job"):
            job = self._client.get_job(job_id).data
        config = AgentConfig.from_env(job.job_configuration_details.environment_variables)
        logs = job.job_log_configuration_details
        return RunRef(
            backend=KIND,
            key=key,
            nodes=config.nodes,
            job_id=job_id,
            run_ids=tuple(run_ids.get(rank, "") for rank in range(config.nodes)),
            run_dir=config.run_dir,
            submitted_at=job.time_created.timestamp(),
            checkpoints_uri=config.checkpoints.uri if config.checkpoints else None,
            compartment_id=job.compartment_id,
            log_group_id=logs.log_group_id if logs else None,
            log_id=logs.log_id if logs else None,
        )

    # status

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        known = self._summaries(refs)
        return [self._status_of(ref, known) for ref in refs]

    def _summaries(self, refs: Sequence[RunRef]) -> dict[str, Any]:
        """Return the job runs of all refs by id; one list of calls for each compartment."""
        found: dict[str, Any] = {}
        for compartment_id in {ref.compartment_id for ref in refs}:
            here = [ref for ref in refs if ref.compartment_id == compartment_id]
            filters = {"job_id": here[0].job_id} if len(here) == 1 else {}
            wanted = {run_id for ref in here for run_id in ref.run_ids if run_id}
            with oci_errors("asking for the state of the job runs"):
                for run in _pages(
                    self._client.list_job_runs, compartment_id, sort_by="timeCreated", **filters
                ):
                    found[str(run.id)] = run
                    wanted.discard(str(run.id))
                    if not wanted:
                        break
        return found

    def _status_of(self, ref: RunRef, known: Mapping[str, Any]) -> RunStatus:
        nodes = [node_status(rank, run_id, known.get(run_id)) for rank, run_id in enumerate(ref.run_ids)]
        if all(node.state is NodeState.PENDING for node in nodes):
            return RunStatus(nodes=tuple(nodes))
        try:
            reports = self._read_reports(ref)
        except (StorageError, BackendError, OSError) as error:
            log.warning("%s: the run directory cannot be read now: %s", ref.key.name, error)
            return RunStatus(nodes=tuple(nodes), reports_readable=False)
        nodes = [replace(node, report=reports.get(node.rank)) for node in nodes]
        return self._with_verified_checkpoint(RunStatus(nodes=tuple(nodes)))

    def _read_reports(self, ref: RunRef) -> dict[int, NodeReport]:
        """Return the reports by rank, reading only those that have changed since the last call."""
        store = self._store(ref.run_dir)
        cache = self._reports.setdefault(ref.run_dir, {})
        for entry in store.list(f"{NODES_FOLDER}/"):
            etag, _ = cache.get(entry.name, (None, None))
            if entry.etag is None or entry.etag != etag:
                cache[entry.name] = (
                    entry.etag,
                    _report_in(store.place_of(entry.name), store.read(entry.name)),
                )
        return {report.rank: report for _, report in cache.values() if report is not None}

    def _with_verified_checkpoint(self, status: RunStatus) -> RunStatus:
        if not status.ended or status.checkpoint is None:
            return status
        try:
            checkpoints.verify(status.checkpoint.uri, self.access)
        except CheckpointError as error:
            return replace(status, checkpoint_problem=f"the newest checkpoint is not whole: {error}")
        except (StorageError, BackendError):
            return replace(
                status, reports_readable=False, checkpoint_problem="the checkpoint cannot be read now"
            )
        return status

    def _store(self, run_dir: str) -> Store:
        return open_store(run_dir, self.access)

    # logs

    def logs(self, ref: RunRef, since: Sequence[float]) -> list[LogLine]:
        if ref.log_group_id is None:
            return []
        lines = _in_parallel(lambda rank: self._node_log(ref, rank, since[rank]), range(ref.nodes))
        return sorted((line for node in lines for line in node), key=lambda line: line.time)

    def _node_log(self, ref: RunRef, rank: int, since: float) -> list[LogLine]:
        place = "/".join(part for part in (ref.compartment_id, ref.log_group_id, ref.log_id) if part)
        search = {
            "timeStart": datetime.fromtimestamp(since, UTC),
            "timeEnd": datetime.now(UTC),
            "searchQuery": f"SEARCH \"{place}\" | WHERE source = '*{ref.run_ids[rank]}' | SORT BY datetime ASC",
            "isReturnFieldInfo": False,
        }
        lines: list[LogLine] = []
        page = None
        while True:
            with oci_errors("reading the logs"):
                answer = self._log_client.search_logs(search, limit=1000, **({"page": page} if page else {}))
            lines += [log_line(rank, result.data) for result in answer.data.results or ()]
            page = answer.headers.get("opc-next-page")
            if not page:
                return lines

    # end

    def cancel(self, ref: RunRef) -> None:
        _in_parallel(self._cancel_run, filter(None, ref.run_ids))
        # For nodes that are just starting, and for those that the service does not signal.
        try:
            self._store(ref.run_dir).write(STOP_FILE, _STOP.to_json())
        except (StorageError, BackendError, OSError) as error:
            log.warning("%s: no stop request could be left for the nodes: %s", ref.key.name, error)

    def _cancel_job(self, job_id: str, compartment_id: str) -> None:
        _in_parallel(self._cancel_run, [str(run.id) for run in self._runs_of(job_id, compartment_id)])

    def _cancel_run(self, run_id: str) -> None:
        try:
            with oci_errors(f"cancelling job run {run_id}"):
                self._client.cancel_job_run(run_id)
        except BackendError as error:
            # 409: it has ended, or is ending; 404: it is gone. Both are what was asked for.
            if error.status_code not in (404, 409):
                raise

    def delete(self, ref: RunRef) -> None:
        with oci_errors("deleting the job"):
            self._client.delete_job(ref.job_id, delete_related_job_runs=True)

    def _runs_of(self, job_id: str, compartment_id: str) -> list[Any]:
        with oci_errors("listing the job runs"):
            runs = list(_pages(self._client.list_job_runs, compartment_id, job_id=job_id))
        return [
            run for run in runs if TAG_RANK in (run.freeform_tags or {}) and run.lifecycle_state != "DELETED"
        ]


def _report_in(place: str, text: bytes) -> NodeReport | None:
    try:
        return NodeReport.from_json(text)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        # Of another version, or no report at all: no reason to lose sight of the whole gang.
        log.warning("%s holds no report of a node: %s", place, error)
        return None


def _pick(cls: type[Any], values: Mapping[str, Any]) -> Any:
    return cls(
        **{
            field.name: values[field.name]
            for field in fields(cls)
            if values.get(field.name) not in (None, "")
        }
    )


def _pages(call: Any, *args: Any, **kwargs: Any) -> Iterable[Any]:
    page = None
    while True:
        answer = call(*args, limit=PAGE, **kwargs, **({"page": page} if page else {}))
        yield from answer.data
        page = answer.headers.get("opc-next-page")
        if not page:
            return


def _in_parallel(work: Any, items: Iterable[Any]) -> list[Any]:
    """Run one call for each item, all at once; every one is finished before the first error is raised."""
    items = list(items)
    if not items:
        return []
    with ThreadPoolExecutor(max_workers=min(PARALLEL, len(items))) as pool:
        futures = [pool.submit(work, item) for item in items]
    return [future.result() for future in futures]
