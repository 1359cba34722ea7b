"""From a job to the literal requests of CreateJob and CreateJobRun. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.agent.config import RANK_VARIABLE, AgentConfig
from airflow_provider_ocidist.backends.oci_data_science.options import KIND, Defaults, OciDataScienceOptions
from airflow_provider_ocidist.bundle import ENTRYPOINT
from airflow_provider_ocidist.errors import JobFileError, Problem
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.run import Expectations, Plan, Request, RunKey
from airflow_provider_ocidist.storage.locations import join

MAX_ENVIRONMENT = 20_000
"""Characters of all environment variables together (Oracle's documentation, jobs-env-vars)."""
TAG_TASK, TAG_GENERATION, TAG_ATTEMPT, TAG_RANK = (
    "ocidist-task",
    "ocidist-generation",
    "ocidist-attempt",
    "ocidist-rank",
)
JOB_ID = "<id of CreateJob>"
"""Stands in a plan for the one value that only the service can give."""
NO_SUBNET = "is needed by more than one node: they talk through a subnet that allows traffic within itself"
OLD_PYTHON = re.compile(r"_p(2\d|3\d|310)_")
"""Service conda environments say their Python in their name, as `pytorch20_p39_gpu_v1`."""
MISSING = "is needed here: the job does not say it, and the connection has no default for it"


def make_plan(job: TrainingJob, key: RunKey, defaults: Defaults, endpoint: str | None) -> Plan:
    """Return the plan of a gang. Raises JobFileError when job and connection together do not say enough."""
    job, options = _resolved(job, defaults)
    config = _agent_config(job, key, endpoint)
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
        run_dir=config.run_dir,
        checkpoints_uri=config.checkpoints.uri if config.checkpoints else None,
        code=job.program.source if _travels(job) else None,
        expects=Expectations(
            checkpoint=bool(job.checkpoints and job.checkpoints.required),
            outputs=tuple(output.uri for output in job.outputs if output.required),
        ),
    )


def key_of(resource: Any, key: RunKey) -> RunKey | None:
    """Return whose gang a job is, when it lives on and belongs to the task of `key`."""
    tags = resource.freeform_tags or {}
    if tags.get(TAG_TASK) != key.task_digest or resource.lifecycle_state in ("DELETING", "DELETED", "FAILED"):
        return None
    return replace(key, generation=int(tags[TAG_GENERATION]), attempt=int(tags[TAG_ATTEMPT]))


def _resolved(job: TrainingJob, defaults: Defaults) -> tuple[TrainingJob, OciDataScienceOptions]:
    """Return job and options with the connection's defaults filled in."""
    if not isinstance(job.backend, OciDataScienceOptions):
        raise JobFileError([Problem("backend", f"is for {job.backend.kind!r}, not for {KIND!r}")])
    filled = {
        name: getattr(job.backend, name) or getattr(defaults, name)
        for name in ("compartment_id", "project_id", "subnet_id", "shape", "log_group_id", "log_id")
    }
    work_dir = job.work_dir or defaults.work_dir
    missing = [f"backend.{name}" for name in ("compartment_id", "project_id", "shape") if not filled[name]]
    missing += [] if work_dir else ["work_dir"]
    problems = [Problem(path, MISSING) for path in missing]
    if job.nodes > 1 and not filled["subnet_id"]:
        problems.append(Problem("backend.subnet_id", NO_SUBNET))
    if OLD_PYTHON.search(job.backend.conda_slug or ""):
        problems.append(Problem("backend.conda_slug", "has a Python older than 3.11, which the agent needs"))
    if problems:
        raise JobFileError(problems, job.name)
    return replace(job, work_dir=work_dir), replace(job.backend, **filled)


def _agent_config(job: TrainingJob, key: RunKey, endpoint: str | None) -> AgentConfig:
    run_dir = join(str(job.work_dir), key.name)
    source = job.program.source
    if _travels(job):
        source = join(run_dir, "code.zip") if job.image else None
    kept = job.checkpoints
    if kept is not None:
        base = kept.uri or join(str(job.work_dir), "checkpoints")
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
        oci_endpoint=endpoint,
    )


def _travels(job: TrainingJob) -> bool:
    """Return whether the code is on this machine and must be carried to the nodes."""
    source = job.program.source
    return source is not None and "://" not in source and not source.startswith("git@")


def _tags(key: RunKey) -> dict[str, str]:
    return {TAG_TASK: key.task_digest, TAG_GENERATION: str(key.generation), TAG_ATTEMPT: str(key.attempt)}


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
