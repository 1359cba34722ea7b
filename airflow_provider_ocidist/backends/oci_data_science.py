"""OCI Data Science Jobs: one job, one job run for each node."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from airflow_provider_ocidist import oci_clients
from airflow_provider_ocidist.agent.config import RANK_VARIABLE, AgentConfig
from airflow_provider_ocidist.agent.report import NODES_FOLDER, STOP_FILE, NodeReport, StopRequest
from airflow_provider_ocidist.backends.base import Backend, LogLine
from airflow_provider_ocidist.bundle import ENTRYPOINT, agent_bundle, code_bundle
from airflow_provider_ocidist.errors import (
    BackendError,
    Cause,
    CheckpointError,
    JobFileError,
    Problem,
    StorageError,
)
from airflow_provider_ocidist.job import BackendOptions, TrainingJob
from airflow_provider_ocidist.oci_clients import OciAccess, oci_errors
from airflow_provider_ocidist.run import (
    Expectations,
    NodeState,
    NodeStatus,
    Plan,
    Request,
    RunKey,
    RunRef,
    RunStatus,
)
from airflow_provider_ocidist.storage import checkpoints
from airflow_provider_ocidist.storage.locations import join
from airflow_provider_ocidist.storage.stores import open_store

if TYPE_CHECKING:
    from airflow_provider_ocidist.storage.stores import Store

log = logging.getLogger(__name__)

KIND = "oci_data_science"
MAX_ENVIRONMENT = 20_000
"""Characters of all environment variables together (Oracle's documentation, jobs-env-vars)."""
PAGE = 100
PARALLEL = 32
TAG_TASK, TAG_GENERATION, TAG_ATTEMPT, TAG_RANK = (
    "ocidist-task",
    "ocidist-generation",
    "ocidist-attempt",
    "ocidist-rank",
)
JOB_ID = "<id of CreateJob>"
"""Stands in a plan for the one value that only the service can give."""

STATES = {
    "ACCEPTED": NodeState.PENDING,
    "IN_PROGRESS": NodeState.RUNNING,
    "NEEDS_ATTENTION": NodeState.RUNNING,
    "CANCELING": NodeState.ENDING,
    "SUCCEEDED": NodeState.SUCCEEDED,
    "FAILED": NodeState.FAILED,
    "CANCELED": NodeState.CANCELED,
    "DELETED": NodeState.MISSING,
}
"""Every lifecycle state of a job run; anything else is UNKNOWN and waited out."""

CAUSES = (
    ("out of host capacity", Cause.CAPACITY),
    ("limit", Cause.QUOTA),
    ("quota", Cause.QUOTA),
    ("preempt", Cause.PREEMPTED),
    ("maximum runtime", Cause.DEADLINE),
    ("image", Cause.CONFIG),
    ("exit code 137", Cause.OOM),
)
"""Words in the service's lifecycle details, and what they mean; the first that fits counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OciDataScienceOptions(BackendOptions):
    """Where on OCI Data Science; what is absent comes from the connection."""

    kind: str = KIND
    topology: Literal["job_runs"] = "job_runs"
    """`job_runs`: one job, one job run for each node; rank 0 is the main run."""
    compartment_id: str | None = None
    project_id: str | None = None
    subnet_id: str | None = None
    """Nodes talk through it: it must allow traffic within itself. None: egress managed by the service."""
    shape: str | None = None
    """As `VM.GPU.A10.1`."""
    ocpus: float | None = None
    """For flexible shapes only."""
    memory_gb: float | None = None
    """For flexible shapes only."""
    block_storage_gb: int = 50
    log_group_id: str | None = None
    log_id: str | None = None
    """None with a log group: the service creates a log for each job run."""
    conda_slug: str | None = None
    """Service conda environment, as `pytorch20_p39_gpu_v1`; for jobs without an image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What a connection fills in where a job says nothing."""

    compartment_id: str | None = None
    project_id: str | None = None
    subnet_id: str | None = None
    shape: str | None = None
    log_group_id: str | None = None
    log_id: str | None = None
    work_dir: str | None = None


class OciDataScience(Backend):
    """Gangs on OCI Data Science Jobs, through the `oci` SDK."""

    def __init__(self, access: OciAccess, defaults: Defaults) -> None:
        self.access = access
        self.defaults = defaults
        self._reports: dict[str, dict[str, tuple[str | None, NodeReport]]] = {}

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

    # plan

    def plan(self, job: TrainingJob, key: RunKey) -> Plan:
        options = self._resolve(job)
        run_dir = join(str(self._work_dir(job)), key.name)
        config = self._agent_config(job, key, run_dir)
        runs = [_run_request(job, options, key, rank) for rank in range(job.nodes)]
        return Plan(
            key=key,
            backend=KIND,
            nodes=job.nodes,
            reason=f"topology {options.topology}: one job and {job.nodes} job runs, rank 0 is the main run",
            requests=(
                Request(verb="CreateJob", body=_job_body(job, options, key, config)),
                Request(verb="CreateJobArtifact", body={"jobId": JOB_ID, "entrypoint": ENTRYPOINT}),
                *runs,
            ),
            run_dir=run_dir,
            checkpoints_uri=config.checkpoints.uri if config.checkpoints else None,
            code=job.program.source if _travels(job) else None,
            expects=Expectations(
                checkpoint=bool(job.checkpoints and job.checkpoints.required),
                outputs=tuple(output.uri for output in job.outputs if output.required),
            ),
        )

    def _resolve(self, job: TrainingJob) -> OciDataScienceOptions:
        """Return the options with the connection's defaults filled in. Raises JobFileError for what is missing."""
        if not isinstance(job.backend, OciDataScienceOptions):
            raise JobFileError([Problem("backend", f"is for {job.backend.kind!r}, not for {KIND!r}")])
        options = replace(
            job.backend,
            **{
                name: getattr(job.backend, name) or getattr(self.defaults, name)
                for name in ("compartment_id", "project_id", "subnet_id", "shape", "log_group_id", "log_id")
            },
        )
        missing = [name for name in ("compartment_id", "project_id", "shape") if not getattr(options, name)]
        problems = [_missing(f"backend.{name}") for name in missing]
        if not self._work_dir(job):
            problems.append(_missing("work_dir"))
        if problems:
            raise JobFileError(problems, job.name)
        return options

    def _work_dir(self, job: TrainingJob) -> str | None:
        return job.work_dir or self.defaults.work_dir

    def _agent_config(self, job: TrainingJob, key: RunKey, run_dir: str) -> AgentConfig:
        source = job.program.source
        if _travels(job):
            source = join(run_dir, "code.zip") if job.image else None
        kept = job.checkpoints
        if kept is not None:
            base = kept.uri or join(str(self._work_dir(job)), "checkpoints")
            kept = replace(kept, uri=join(base, key.task_name))
        return AgentConfig(
            run_name=key.name,
            nodes=job.nodes,
            run_dir=run_dir,
            program=replace(job.program, source=source),
            launcher=job.launcher,
            inputs=job.inputs,
            outputs=job.outputs,
            checkpoints=kept,
            limits=job.limits,
            oci_endpoint=self.access.endpoint,
        )

    # submit

    def submit(self, plan: Plan, stop: threading.Event | None = None) -> RunRef:
        create_job, _, *create_runs = plan.requests
        compartment_id = str(create_job.body["compartmentId"])
        job_id = self._existing_job(plan.key, compartment_id) or self._create_job(plan, create_job)
        self._upload(plan, job_id, with_image="jobEnvironmentConfigurationDetails" in create_job.body)
        try:
            run_ids = self._create_runs(plan, create_runs, job_id, compartment_id, stop or threading.Event())
        except BaseException:
            # Airflow's timeout too, which is no Exception: half a gang would run for nobody.
            self._cancel_job(job_id, compartment_id)
            raise
        return self._ref_of(job_id, plan.key, run_ids)

    def _existing_job(self, key: RunKey, compartment_id: str) -> str | None:
        with oci_errors("looking for an earlier submission"):
            found = self._client.list_jobs(compartment_id, display_name=key.name, limit=PAGE).data
        live = [
            job for job in found if job.lifecycle_state in ("CREATING", "ACTIVE") and _key_of(job, key) == key
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
        found = [(job, key) for job in jobs if (key := _key_of(job, plan.key)) is not None]
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
        nodes = [_node_status(rank, run_id, known.get(run_id)) for rank, run_id in enumerate(ref.run_ids)]
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
                cache[entry.name] = (entry.etag, NodeReport.from_json(store.read(entry.name)))
        return {report.rank: report for _, report in cache.values()}

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
            lines += [_log_line(rank, result.data) for result in answer.data.results or ()]
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


_STOP = StopRequest(cause=Cause.CANCELED, message="the run was cancelled")


def _pick(cls: type[Any], values: Mapping[str, Any]) -> Any:
    return cls(
        **{
            field.name: values[field.name]
            for field in fields(cls)
            if values.get(field.name) not in (None, "")
        }
    )


def _missing(path: str) -> Problem:
    return Problem(path, "is needed here: the job does not say it, and the connection has no default for it")


def _travels(job: TrainingJob) -> bool:
    """Return whether the code is on this machine and must be carried to the nodes."""
    source = job.program.source
    return source is not None and "://" not in source and not source.startswith("git@")


def _tags(key: RunKey) -> dict[str, str]:
    return {TAG_TASK: key.task_digest, TAG_GENERATION: str(key.generation), TAG_ATTEMPT: str(key.attempt)}


def _key_of(resource: Any, key: RunKey) -> RunKey | None:
    """Return whose gang a job is, when it belongs to the task of `key`."""
    tags = resource.freeform_tags or {}
    if tags.get(TAG_TASK) != key.task_digest or resource.lifecycle_state in ("DELETING", "DELETED", "FAILED"):
        return None
    return replace(key, generation=int(tags[TAG_GENERATION]), attempt=int(tags[TAG_ATTEMPT]))


def _job_body(
    job: TrainingJob, options: OciDataScienceOptions, key: RunKey, config: AgentConfig
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "compartmentId": options.compartment_id,
        "projectId": options.project_id,
        "displayName": key.name,
        "jobConfigurationDetails": _configuration(job, options, config),
        "jobInfrastructureConfigurationDetails": _infrastructure(options),
        "freeformTags": {**job.tags, **_tags(key)},
    }
    if job.image is not None:
        body["jobEnvironmentConfigurationDetails"] = {
            "jobEnvironmentType": "OCIR_CONTAINER",
            "image": job.image,
            "entrypoint": ["python", "-m", "airflow_provider_ocidist.agent"],
        }
    if options.log_group_id is not None:
        body["jobLogConfigurationDetails"] = {
            "enableLogging": True,
            "enableAutoLogCreation": options.log_id is None,
            "logGroupId": options.log_group_id,
            **({"logId": options.log_id} if options.log_id else {}),
        }
    return body


def _configuration(job: TrainingJob, options: OciDataScienceOptions, config: AgentConfig) -> dict[str, Any]:
    environment = dict(job.env)
    if job.image is None:
        environment["JOB_RUN_ENTRYPOINT"] = ENTRYPOINT
    if options.conda_slug is not None:
        environment |= {"CONDA_ENV_TYPE": "service", "CONDA_ENV_SLUG": options.conda_slug}
    environment |= config.to_env()
    size = sum(len(name) + len(value) for name, value in environment.items())
    if size > MAX_ENVIRONMENT:
        problem = Problem(
            "env", f"takes {size} characters with our own part; the service allows {MAX_ENVIRONMENT}"
        )
        raise JobFileError([problem], job.name)
    configuration: dict[str, Any] = {"jobType": "DEFAULT", "environmentVariables": environment}
    if job.limits.max_runtime is not None:
        # A backstop for the day when nobody is left to cancel; the waiting task ends the gang to the second.
        configuration["maximumRuntimeInMinutes"] = math.ceil(job.limits.max_runtime / 60) + 1
    return configuration


def _infrastructure(options: OciDataScienceOptions) -> dict[str, Any]:
    infrastructure: dict[str, Any] = {
        "jobInfrastructureType": "STANDALONE" if options.subnet_id else "ME_STANDALONE",
        "shapeName": options.shape,
        "blockStorageSizeInGBs": options.block_storage_gb,
    }
    if options.subnet_id:
        infrastructure["subnetId"] = options.subnet_id
    if options.ocpus or options.memory_gb:
        infrastructure["jobShapeConfigDetails"] = {"ocpus": options.ocpus, "memoryInGBs": options.memory_gb}
    return infrastructure


def _run_request(job: TrainingJob, options: OciDataScienceOptions, key: RunKey, rank: int) -> Request:
    return Request(
        verb="CreateJobRun",
        body={
            "compartmentId": options.compartment_id,
            "projectId": options.project_id,
            "jobId": JOB_ID,
            "displayName": f"{key.name}-{rank}",
            "jobConfigurationOverrideDetails": {
                "jobType": "DEFAULT",
                "environmentVariables": {RANK_VARIABLE: str(rank)},
            },
            "freeformTags": {**job.tags, **_tags(key), TAG_RANK: str(rank)},
        },
    )


def _node_status(rank: int, run_id: str, run: Any | None) -> NodeStatus:
    if run is None:
        return NodeStatus(rank=rank, run_id=run_id, state=NodeState.MISSING)
    details = run.lifecycle_details or ""
    return NodeStatus(
        rank=rank,
        run_id=run_id,
        state=STATES.get(run.lifecycle_state, NodeState.UNKNOWN),
        details=details or None,
        cause=next((cause for words, cause in CAUSES if words in details.lower()), None),
        started_at=_unix(run.time_started),
        finished_at=_unix(run.time_finished),
    )


def _unix(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None


def _log_line(rank: int, data: Mapping[str, Any]) -> LogLine:
    content = data["logContent"]
    time = datetime.fromisoformat(content["time"]).timestamp()
    return LogLine(id=content["id"], time=time, rank=rank, text=content["data"]["message"])


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


OPTIONS = OciDataScienceOptions
BACKEND = OciDataScience
