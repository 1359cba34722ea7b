"""From a job to the literal requests of CreateJob and CreateJobRun. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.agent.config import AgentConfig
from airflow_provider_ocidist.backends.oci_data_science.options import KIND, Defaults, OciDataScienceOptions
from airflow_provider_ocidist.backends.oci_data_science.topologies import choose
from airflow_provider_ocidist.backends.oci_data_science.topology import Blueprint, Topology
from airflow_provider_ocidist.bundle import ENTRYPOINT
from airflow_provider_ocidist.errors import JobFileError, Problem
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.run import Expectations, Plan, Request, RunKey
from airflow_provider_ocidist.storage.locations import join

MAX_ENVIRONMENT = 20_000
"""Characters of all environment variables together (Oracle's documentation, jobs-env-vars)."""
TAG_TASK, TAG_GENERATION, TAG_ATTEMPT, TAG_RUN = (
    "ocidist-task",
    "ocidist-generation",
    "ocidist-attempt",
    "ocidist-rank",
)
"""The last one numbers the job runs of a gang: the rank of the only node, or of the first."""
JOB_ID = "<id of CreateJob>"
"""Stands in a plan for the one value that only the service can give."""
NO_SUBNET = (
    "is needed by more than one node of topology job_runs: they talk through a subnet that allows traffic "
    "within itself; topology multi_node needs none"
)
OLD_PYTHON = re.compile(r"_p(2\d|3\d|310)_")
"""Service conda environments say their Python in their name, as `pytorch20_p39_gpu_v1`."""
MISSING = "is needed here: the job does not say it, and the connection has no default for it"


def make_plan(job: TrainingJob, key: RunKey, defaults: Defaults, endpoint: str | None) -> Plan:
    """Return the plan of a gang. Raises JobFileError when job and connection together do not say enough."""
    job, options = _resolved(job, defaults)
    topology, because = choose(options.topology, job.nodes, options.subnet_id)
    config = _agent_config(job, key, topology, endpoint)
    blueprint = _blueprint(job, options, key, config)
    return Plan(
        key=key,
        backend=KIND,
        nodes=job.nodes,
        topology=topology.kind,
        reason=f"topology {topology.kind}, {because}: {topology.why(blueprint)}",
        requests=_requests(job, options, key, topology, blueprint),
        run_dir=config.run_dir,
        checkpoints_uri=config.checkpoints.uri if config.checkpoints else None,
        code=job.program.source if job.program.is_local else None,
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
    if job.nodes > 1 and not filled["subnet_id"] and job.backend.topology == "job_runs":
        problems.append(Problem("backend.subnet_id", NO_SUBNET))
    if OLD_PYTHON.search(job.backend.conda_slug or ""):
        problems.append(Problem("backend.conda_slug", "has a Python older than 3.11, which the agent needs"))
    if problems:
        raise JobFileError(problems, job.name)
    return replace(job, work_dir=work_dir), replace(job.backend, **filled)


def _agent_config(job: TrainingJob, key: RunKey, topology: Topology, endpoint: str | None) -> AgentConfig:
    run_dir = join(str(job.work_dir), key.name)
    source = job.program.source
    if job.program.is_local:
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
        one_run=topology.is_one_run and job.nodes > 1,
        oci_endpoint=endpoint,
    )


def _blueprint(
    job: TrainingJob, options: OciDataScienceOptions, key: RunKey, config: AgentConfig
) -> Blueprint:
    limit = job.limits.max_runtime
    return Blueprint(
        name=key.name,
        nodes=job.nodes,
        environment=_environment(job, options, config),
        machine=_machine(options),
        container=_container(job.image),
        subnet_id=options.subnet_id,
        # A backstop for the day when nobody is left to cancel; the waiting task ends the gang to the second.
        max_minutes=None if limit is None else math.ceil(limit / 60) + 1,
    )


def _environment(job: TrainingJob, options: OciDataScienceOptions, config: AgentConfig) -> dict[str, str]:
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
    return environment


def _machine(options: OciDataScienceOptions) -> dict[str, Any]:
    machine: dict[str, Any] = {
        "shapeName": options.shape,
        "blockStorageSizeInGBs": options.block_storage_gb,
    }
    if options.ocpus or options.memory_gb:
        machine["jobShapeConfigDetails"] = {"ocpus": options.ocpus, "memoryInGBs": options.memory_gb}
    return machine


def _container(image: str | None) -> dict[str, Any] | None:
    if image is None:
        return None
    return {
        "jobEnvironmentType": "OCIR_CONTAINER",
        "image": image,
        "entrypoint": ["python", "-m", "airflow_provider_ocidist.agent"],
    }


def _requests(
    job: TrainingJob,
    options: OciDataScienceOptions,
    key: RunKey,
    topology: Topology,
    blueprint: Blueprint,
) -> tuple[Request, ...]:
    place = {"compartmentId": options.compartment_id, "projectId": options.project_id}
    tags = {
        **job.tags,
        TAG_TASK: key.task_digest,
        TAG_GENERATION: str(key.generation),
        TAG_ATTEMPT: str(key.attempt),
    }
    create_job = {
        **place,
        "displayName": key.name,
        **topology.job(blueprint),
        **_logs(options),
        "freeformTags": tags,
    }
    artifact = Request(verb="CreateJobArtifact", body={"jobId": JOB_ID, "entrypoint": ENTRYPOINT})
    runs = [
        {**place, "jobId": JOB_ID, **run, "freeformTags": {**tags, TAG_RUN: str(number)}}
        for number, run in enumerate(topology.runs(blueprint))
    ]
    return (
        Request(verb="CreateJob", body=create_job),
        *([artifact] if job.image is None else []),
        *(Request(verb="CreateJobRun", body=run) for run in runs),
    )


def _logs(options: OciDataScienceOptions) -> dict[str, Any]:
    if options.log_group_id is None:
        return {}
    details = {
        "enableLogging": True,
        "enableAutoLogCreation": options.log_id is None,
        "logGroupId": options.log_group_id,
        **({"logId": options.log_id} if options.log_id else {}),
    }
    return {"jobLogConfigurationDetails": details}
