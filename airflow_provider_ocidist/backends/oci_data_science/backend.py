"""Gangs on OCI Data Science Jobs, through the `oci` SDK."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_ocidist import oci_clients
from airflow_provider_ocidist.agent.report import STOP_FILE, StopRequest
from airflow_provider_ocidist.backends.base import Backend, Finding, LogLine
from airflow_provider_ocidist.backends.oci_data_science.answers import log_line
from airflow_provider_ocidist.backends.oci_data_science.calls import both, in_parallel, pages
from airflow_provider_ocidist.backends.oci_data_science.created import job_request, run_request
from airflow_provider_ocidist.backends.oci_data_science.lookups import completed
from airflow_provider_ocidist.backends.oci_data_science.options import Defaults
from airflow_provider_ocidist.backends.oci_data_science.plans import TAG_RUN, TAG_TASK, key_of, make_plan
from airflow_provider_ocidist.backends.oci_data_science.refs import (
    key_in,
    record_of,
    ref_of,
    runs_of,
    with_runs,
)
from airflow_provider_ocidist.backends.oci_data_science.reports import Reports
from airflow_provider_ocidist.backends.oci_data_science.submission import Submission
from airflow_provider_ocidist.backends.oci_data_science.topologies import TOPOLOGIES
from airflow_provider_ocidist.errors import BackendError, Cause, CheckpointError, StorageError
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.oci_credentials import OciAccess
from airflow_provider_ocidist.oci_errors import oci_errors
from airflow_provider_ocidist.run import NodeState, Plan, Request, RunKey, RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.storage import checkpoints
from airflow_provider_ocidist.storage.stores import open_store

if TYPE_CHECKING:
    from airflow_provider_ocidist.storage.stores import Store

log = logging.getLogger(__name__)

_STOP = StopRequest(cause=Cause.CANCELED, message="the run was cancelled")


class OciDataScience(Backend):
    """Gangs for one connection."""

    def __init__(self, access: OciAccess, defaults: Defaults) -> None:
        self.access = access
        self.defaults = defaults
        self._reports = Reports()

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

    def submit(
        self, plan: Plan, stop: threading.Event | None = None, found: Sequence[RunRef] | None = None
    ) -> RunRef:
        if found is None:
            found = self._found(plan, display_name=plan.key.name)
        known = next((ref for ref in found if ref.key == plan.key), None)
        if known is not None and known.complete:
            return known
        submission = self._submission(plan, stop)
        ref = known or ref_of(submission.job(), plan.key)
        existing = runs_of(ref)
        if not existing:
            submission.artifact(ref.job_id)
        try:
            return with_runs(ref, submission.runs(ref.job_id, existing))
        except BaseException:
            # Airflow's timeout too, which is no Exception: half a gang would run for nobody.
            self._cancel_all_of(ref)
            raise

    def _submission(self, plan: Plan, stop: threading.Event | None = None) -> Submission:
        return Submission(
            self._client,
            plan,
            lambda: self._store(plan.run_dir),
            stop or threading.Event(),
            lambda body: completed(body, self.access),
        )

    def find(self, plan: Plan) -> list[RunRef]:
        return self._found(plan)

    def begin(self, plan: Plan) -> list[RunRef]:
        """Look, and create the job meanwhile: it is only a definition, and its runs come after the look."""
        # The look goes out first: were the new job in the list, its runs would be asked for, which it has not.
        begun, found = both(lambda: self._begun(plan), lambda: self._found(plan))
        mine = [ref for ref in found if ref.key == plan.key]
        others = [ref for ref in found if ref.key != plan.key]
        alive = [ref for ref in mine if runs_of(ref)]
        if isinstance(begun, BackendError):
            # What of our own has no node may be gone by now: the look went on meanwhile.
            if not others and not alive:
                raise begun
            return sorted([*others, *alive], key=_age)
        kept = alive or [begun]
        # Twice, where the service has forgotten the idempotency token of an earlier submission, after 24 hours.
        for job_id in {ref.job_id for ref in (begun, *mine)} - {ref.job_id for ref in kept}:
            self._remove(job_id)
        return sorted([*others, *kept], key=_age)

    def _begun(self, plan: Plan) -> RunRef | BackendError:
        try:
            return ref_of(self._submission(plan).job(), plan.key)
        except BackendError as error:
            return error

    def _found(self, plan: Plan, **filters: str) -> list[RunRef]:
        compartment_id = plan.requests[0].body["compartmentId"]
        with oci_errors("looking for earlier gangs of this task"):
            jobs = list(pages(self._client.list_jobs, compartment_id, **filters))
        owned = [(str(job.id), key) for job in jobs if (key := key_of(job, plan.key)) is not None]
        refs = in_parallel(lambda item: self._found_ref(*item, compartment_id), owned)
        return sorted(refs, key=_age)

    def _found_ref(self, job_id: str, key: RunKey, compartment_id: str) -> RunRef:
        job, runs = both(lambda: self._job(job_id), lambda: self._runs(job_id, compartment_id))
        return with_runs(ref_of(job, key), _by_number(runs))

    def open(self, resource_id: str) -> RunRecord:
        job = self._job(self._job_id_of(resource_id))
        ref = ref_of(job, key_in(job))
        return record_of(job, with_runs(ref, _by_number(self._runs(ref.job_id, ref.compartment_id))))

    def _job_id_of(self, resource_id: str) -> str:
        match resource_id.split(".")[:2]:
            case ["ocid1", "datasciencejob"]:
                return resource_id
            case ["ocid1", "datasciencejobrun"]:
                return str(self._run(resource_id).job_id)
        raise BackendError(f"{resource_id} is no OCID of a job or of a job run", cause=Cause.CONFIG)

    def recent(self, limit: int, name: str = "") -> list[RunRef]:
        place = self.defaults.compartment_id
        if place is None:
            raise BackendError(
                "the connection names no compartment_id to look in: add it to its extra, or on the command line "
                "--field compartment_id=ocid1.compartment...",
                cause=Cause.CONFIG,
            )
        with oci_errors("listing the jobs"):
            jobs = pages(self._client.list_jobs, place, sort_by="timeCreated", sort_order="DESC")
            ours = (job for job in jobs if _is_gang(job) and name in job.display_name)
            wanted = [str(job.id) for job in itertools.islice(ours, limit)]
        return in_parallel(lambda job_id: self.open(job_id).ref, wanted)

    def _job(self, job_id: str) -> Any:
        with oci_errors("reading the job"):
            return self._client.get_job(job_id).data

    def _runs(self, job_id: str, compartment_id: str | None) -> list[Any]:
        with oci_errors("listing the job runs"):
            runs = list(pages(self._client.list_job_runs, compartment_id, job_id=job_id))
        return [
            run for run in runs if TAG_RUN in (run.freeform_tags or {}) and run.lifecycle_state != "DELETED"
        ]

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
                for run in pages(
                    self._client.list_job_runs, compartment_id, sort_by="timeCreated", **filters
                ):
                    found[str(run.id)] = run
                    wanted.discard(str(run.id))
                    if not wanted:
                        break
        return found

    def _status_of(self, ref: RunRef, known: Mapping[str, Any]) -> RunStatus:
        topology = TOPOLOGIES[ref.topology]
        by_service = RunStatus(nodes=tuple(topology.nodes(ref, known, None)))
        if all(node.state is NodeState.PENDING for node in by_service.nodes):
            return by_service
        try:
            reports = self._reports.read(ref.run_dir, self._store(ref.run_dir))
        except (StorageError, BackendError, OSError) as error:
            log.warning("%s: the run directory cannot be read now: %s", ref.key.name, error)
            return replace(by_service, reports_readable=False)
        return self._with_verified_checkpoint(RunStatus(nodes=tuple(topology.nodes(ref, known, reports))))

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
        ranks: dict[str, list[int]] = {}
        for rank, run_id in enumerate(ref.run_ids):
            ranks.setdefault(run_id, []).append(rank)
        lines = in_parallel(lambda item: self._run_log(ref, *item, since), ranks.items())
        return sorted((line for run in lines for line in run), key=lambda line: line.time)

    def _run_log(
        self, ref: RunRef, run_id: str, ranks: Sequence[int], since: Sequence[float]
    ) -> list[LogLine]:
        place = "/".join(part for part in (ref.compartment_id, ref.log_group_id, ref.log_id) if part)
        search = {
            # A log is read on from its newest line, whichever node wrote that: the others may be silent for hours.
            "timeStart": datetime.fromtimestamp(max(since[rank] for rank in ranks), UTC),
            "timeEnd": datetime.now(UTC),
            "searchQuery": f"SEARCH \"{place}\" | WHERE source = '*{run_id}' | SORT BY datetime ASC",
            "isReturnFieldInfo": False,
        }
        lines: list[LogLine] = []
        page = None
        while True:
            with oci_errors("reading the logs"):
                answer = self._log_client.search_logs(search, limit=1000, **({"page": page} if page else {}))
            lines += [log_line(ranks, result.data) for result in answer.data.results or ()]
            page = answer.headers.get("opc-next-page")
            if not page:
                return lines

    def created(self, ref: RunRef) -> tuple[Request, ...]:
        job = self._job(ref.job_id)
        runs = in_parallel(self._run, [run_id for _, run_id in sorted(runs_of(ref).items())])
        told = self._client.base_client.sanitize_for_serialization
        return (job_request(told(job)), *(run_request(told(run)) for run in runs))

    def _run(self, run_id: str) -> Any:
        with oci_errors("reading the job run"):
            return self._client.get_job_run(run_id).data

    # beforehand

    def preflight(self, job: TrainingJob) -> list[Finding]:
        from airflow_provider_ocidist.backends.oci_data_science.preflight import preflight

        return preflight(job, self.access, self.defaults)

    # end

    def cancel(self, ref: RunRef) -> None:
        if ref.complete:
            in_parallel(self._cancel_run, dict.fromkeys(ref.run_ids))
        else:
            self._cancel_all_of(ref)
        # For nodes that are just starting, and for those that the service does not signal.
        try:
            self._store(ref.run_dir).write(STOP_FILE, _STOP.to_json())
        except (StorageError, BackendError, OSError) as error:
            log.warning("%s: no stop request could be left for the nodes: %s", ref.key.name, error)

    def _cancel_all_of(self, ref: RunRef) -> None:
        """Cancel every run of the job, those too whose creation was never answered."""
        in_parallel(self._cancel_run, [str(run.id) for run in self._runs(ref.job_id, ref.compartment_id)])

    def _cancel_run(self, run_id: str) -> None:
        try:
            with oci_errors(f"cancelling job run {run_id}"):
                self._client.cancel_job_run(run_id)
        except BackendError as error:
            # 409: it has ended, or is ending; 404: it is gone. Both are what was asked for.
            if error.status_code not in (404, 409):
                raise

    def _remove(self, job_id: str) -> None:
        """Remove a job that has no runs, where the service still has it."""
        try:
            with oci_errors("removing a job that was begun twice"):
                self._client.delete_job(job_id)
        except BackendError as error:
            if error.status_code not in (404, 409):
                raise

    def delete(self, ref: RunRef) -> None:
        with oci_errors("deleting the job"):
            self._client.delete_job(ref.job_id, delete_related_job_runs=True)


def _by_number(runs: Sequence[Any]) -> dict[int, str]:
    return {int(run.freeform_tags[TAG_RUN]): str(run.id) for run in runs}


def _is_gang(job: Any) -> bool:
    return TAG_TASK in (job.freeform_tags or {}) and job.lifecycle_state not in ("DELETING", "DELETED")


def _age(ref: RunRef) -> tuple[int, int]:
    return ref.key.generation, ref.key.attempt


def _pick(cls: type[Any], values: Mapping[str, Any]) -> Any:
    return cls(
        **{
            field.name: values[field.name]
            for field in fields(cls)
            if values.get(field.name) not in (None, "")
        }
    )
