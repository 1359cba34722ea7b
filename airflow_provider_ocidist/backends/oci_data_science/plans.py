"""From a job to the literal requests of CreateJob and CreateJobRun. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.backends.bundle import BOOT_VARIABLE, ENTRYPOINT, START_SCRIPT, boot_text
from airflow_provider_ocidist.backends.fields import missing, options_of
from airflow_provider_ocidist.backends.node_config import (
    KEY_VARIABLE,
    key_text,
    may_replace,
    node_config,
    plan_of,
)
from airflow_provider_ocidist.backends.oci_data_science import ads_variables, mounts
from airflow_provider_ocidist.backends.oci_data_science.options import KIND, Defaults, OciDataScienceOptions
from airflow_provider_ocidist.backends.oci_data_science.rules import container_arguments
from airflow_provider_ocidist.backends.oci_data_science.topologies import choose_topology
from airflow_provider_ocidist.backends.oci_data_science.topology import Blueprint, Topology
from airflow_provider_ocidist.backends.prices import price_of
from airflow_provider_ocidist.errors import JobFileError, Problem
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.job import Container, TrainingJob
from airflow_provider_ocidist.model.masking import secrets_in
from airflow_provider_ocidist.model.run import Plan, Request, RunKey
from airflow_provider_ocidist.model.work_dir import CODE_ARCHIVE
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.locations import join

MAX_ENVIRONMENT = 20_000
"""Most characters of all environment variables together (Oracle's documentation, jobs-env-vars)."""
TAG_TASK, TAG_GENERATION, TAG_ATTEMPT, TAG_RUN, TAG_INCARNATION, TAG_GROWTH = (
    "ocidist-task",
    "ocidist-generation",
    "ocidist-attempt",
    "ocidist-rank",
    "ocidist-incarnation",
    "ocidist-growth",
)
"""Tags of a gang's resources. `TAG_RUN` numbers its job runs: by the rank of the only node, or of the first. The last
two are there where a run takes the place of others of its number: how many were lost, and that the gang had gone on
with fewer nodes by then, which no budget is charged for."""
JOB_ID = "<id of CreateJob>"
"""Placeholder in a plan for the one value that only the service can give."""
NO_SUBNET = (
    "is needed by more than one node of topology job_runs: they talk through a subnet that allows traffic "
    "within itself; topology multi_node needs none"
)
NO_SUBNET_FOR_IMAGE = (
    "is needed: the nodes of this image talk through a subnet that allows traffic within itself; where the image "
    "starts the agent of ocidist, topology multi_node needs none"
)
NO_SUBNET_FOR_A_RANGE = (
    "is needed: a range of nodes needs topology job_runs, in which each node is a run of its own, and those "
    "talk through a subnet"
)


def make_plan(
    job: TrainingJob, key: RunKey, defaults: Defaults, endpoint: str | None, *, oci_region: str | None = None
) -> Plan:
    """Return the plan of a gang. Raises JobFileError when job and connection together are incomplete.

    `oci_region`: of the job's buckets, where the nodes may be in another; None: they are in the nodes' own.
    """
    job, options = resolved(job, defaults)
    topology, because = choose_topology(options.topology, job.nodes, options.subnet_id)
    price = price_of(job, options.shape, defaults.prices)
    config = replace(_agent_config(job, options, key, topology, endpoint, price), oci_region=oci_region)
    blueprint = _blueprint(job, options, key, config)
    return plan_of(
        job,
        key,
        config,
        backend=KIND,
        topology=topology.kind,
        reason=f"topology {topology.kind}, {because}: {topology.why(blueprint)}",
        requests=_requests(job, options, key, topology, blueprint),
        compartment_id=options.compartment_id,
        region=defaults.region,
        machine=_asked_for(options, topology, defaults),
    )


def _asked_for(options: OciDataScienceOptions, topology: Topology, defaults: Defaults) -> dict[str, str]:
    asked = {
        "conn_id": options.conn_id,
        "region": defaults.region,
        "compartment_id": options.compartment_id,
        "subnet_id": options.subnet_id,
        "shape": options.shape,
        "ocpus": options.ocpus,
        "memory_gb": options.memory_gb,
        "topology": topology.kind,
    }
    return {name: str(value) for name, value in asked.items() if value is not None}


def key_in_tags(resource: Any, key: RunKey) -> RunKey | None:
    """Return whose gang a job is, when it lives on and belongs to the task of `key`."""
    tags = resource.freeform_tags or {}
    if tags.get(TAG_TASK) != key.task_digest or resource.lifecycle_state in ("DELETING", "DELETED", "FAILED"):
        return None
    return replace(key, generation=int(tags[TAG_GENERATION]), attempt=int(tags[TAG_ATTEMPT]))


def resolved(job: TrainingJob, defaults: Defaults) -> tuple[TrainingJob, OciDataScienceOptions]:
    """Return job and options with the connection's defaults filled in."""
    own, job = options_of(job, OciDataScienceOptions, KIND), defaults.filled(job)
    filled = _filled(own, defaults)
    needed = ["compartment_id", "project_id", "shape", *(["conda_region"] if own.conda_uri else [])]
    problems = missing({**{f"backend.{name}": filled[name] for name in needed}, "work_dir": job.work_dir})
    if job.min_nodes is not None and own.topology == "auto" and not filled["subnet_id"]:
        problems.append(Problem("backend.subnet_id", NO_SUBNET_FOR_A_RANGE))
    if job.nodes > 1 and not filled["subnet_id"] and own.topology == "job_runs":
        problems.append(Problem("backend.subnet_id", NO_SUBNET_FOR_IMAGE if job.container else NO_SUBNET))
    if problems:
        raise JobFileError(problems, job.name)
    placed = mounts.in_work_dir(job, str(job.work_dir))
    return replace(job, mounts=placed), replace(own, **filled)


def _filled(options: OciDataScienceOptions, defaults: Defaults) -> dict[str, Any]:
    filled = {
        name: getattr(options, name) or getattr(defaults, name)
        for name in ("compartment_id", "project_id", "subnet_id", "shape", "log_group_id")
    }
    if options.managed_network:
        filled["subnet_id"] = None
    # The connection's log lies in the connection's group: with another group the pair would be invalid.
    filled["log_id"] = options.log_id or (None if options.log_group_id else defaults.log_id)
    filled["conda_region"] = options.conda_region or defaults.conda_region or defaults.region
    return filled


def _agent_config(
    job: TrainingJob,
    options: OciDataScienceOptions,
    key: RunKey,
    topology: Topology,
    endpoint: str | None,
    price: float | None,
) -> AgentConfig:
    source = job.program.source
    if job.program.is_local:
        source = join(str(job.work_dir), key.name, CODE_ARCHIVE) if job.image else None
    return node_config(
        job,
        key,
        source,
        price=price,
        main_env=_role_environment(job, options, topology, main=True),
        worker_env=_role_environment(job, options, topology, main=False),
        secrets_apart=not topology.is_one_run and bool(secrets_in([job.main_env, job.worker_env])),
        one_run=topology.is_one_run and job.nodes > 1,
        reports=job.container is None,
        replaces=not topology.is_one_run and job.container is None and may_replace(job),
        oci_endpoint=endpoint,
    )


def _role_environment(
    job: TrainingJob, options: OciDataScienceOptions, topology: Topology, *, main: bool
) -> dict[str, str]:
    """Return the variables of main node or workers that the agent must set itself: the service has no roles."""
    if not topology.is_one_run:
        return {}
    own = job.main_env if main else job.worker_env
    return {**ads_variables.role_variables(options.contract, main=main), **own}


def _node_environments(job: TrainingJob, options: OciDataScienceOptions) -> list[dict[str, str]]:
    return [
        {
            **ads_variables.node_variables(options.contract, job, rank),
            **(job.worker_env if rank else job.main_env),
        }
        for rank in range(job.nodes)
    ]


def _blueprint(
    job: TrainingJob, options: OciDataScienceOptions, key: RunKey, config: AgentConfig
) -> Blueprint:
    limit = job.limits.max_runtime
    environment, node_environments = _environment(job, options, key, config), _node_environments(job, options)
    _check_size(job, environment, node_environments)
    return Blueprint(
        name=key.name,
        nodes=job.nodes,
        environment=environment,
        node_environments=node_environments,
        arguments=container_arguments(job),
        machine=_machine(options),
        container=_container(job, options),
        subnet_id=options.subnet_id,
        # A backstop where no process is left to cancel; the waiting task ends the gang to the second.
        max_minutes=None if limit is None else math.ceil(limit / 60) + 1,
    )


def _environment(
    job: TrainingJob, options: OciDataScienceOptions, key: RunKey, config: AgentConfig
) -> dict[str, str]:
    environment = {**ads_variables.job_variables(options.contract, job), **job.env}
    if job.image is None:
        environment["JOB_RUN_ENTRYPOINT"] = ENTRYPOINT
    elif config.reports:
        environment[BOOT_VARIABLE] = boot_text()
    environment |= _conda(options)
    environment |= config.to_env()
    environment[KEY_VARIABLE] = key_text(key)
    return environment


def _check_size(job: TrainingJob, environment: Mapping[str, str], nodes: Sequence[Mapping[str, str]]) -> None:
    """Raise JobFileError when the service would refuse the variables of a node."""
    size = max(
        sum(len(name) + len(value) for name, value in {**environment, **node}.items()) for node in nodes
    )
    if size > MAX_ENVIRONMENT:
        problem = Problem(
            "env", f"takes {size} characters with our own part; the service allows {MAX_ENVIRONMENT}"
        )
        raise JobFileError([problem], job.name)


def _conda(options: OciDataScienceOptions) -> dict[str, str]:
    """Return what makes the service prepare a conda environment (Oracle's documentation, jobs-env-vars)."""
    if options.conda_slug is not None:
        return {"CONDA_ENV_TYPE": "service", "CONDA_ENV_SLUG": options.conda_slug}
    if options.conda_uri is None:
        return {}
    pack = locations.parse(options.conda_uri)
    return {
        "CONDA_ENV_TYPE": "published",
        "CONDA_ENV_NAMESPACE": str(pack.namespace),
        "CONDA_ENV_BUCKET": pack.bucket,
        "CONDA_ENV_OBJECT_NAME": pack.path,
        "CONDA_ENV_REGION": str(options.conda_region),
    }


def _machine(options: OciDataScienceOptions) -> dict[str, Any]:
    machine: dict[str, Any] = {
        "shapeName": options.shape,
        "blockStorageSizeInGBs": options.block_storage_gb,
    }
    if options.ocpus or options.memory_gb:
        machine["jobShapeConfigDetails"] = {"ocpus": options.ocpus, "memoryInGBs": options.memory_gb}
    return machine


def _container(job: TrainingJob, options: OciDataScienceOptions) -> dict[str, Any] | None:
    if job.image is None:
        return None
    pinned = {"imageDigest": options.image_digest, "imageSignatureId": options.image_signature_id}
    return {
        "jobEnvironmentType": "OCIR_CONTAINER",
        "image": job.image,
        **{name: value for name, value in pinned.items() if value is not None},
        **_start(job.container),
    }


def _start(container: Container | None) -> dict[str, list[str]]:
    """Return what the container starts: the agent, unless the job sets its own command."""
    if container is None:
        return {"entrypoint": ["python3", "-c", START_SCRIPT]}
    own = {"entrypoint": container.entrypoint, "cmd": container.command}
    return {name: list(words) for name, words in own.items() if words}


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
    own_tags = {namespace: dict(values) for namespace, values in options.defined_tags.items()}
    tagged = {"freeformTags": tags, **({"definedTags": own_tags} if own_tags else {})}
    create_job = {
        **place,
        "displayName": key.name,
        **topology.job(blueprint),
        **_logs(options),
        **_mounts(job),
        **tagged,
    }
    artifact = Request(verb="CreateJobArtifact", body={"jobId": JOB_ID, "entrypoint": ENTRYPOINT})
    runs = [
        {**place, "jobId": JOB_ID, **run, **tagged, "freeformTags": {**tags, TAG_RUN: str(number)}}
        for number, run in enumerate(topology.runs(blueprint))
    ]
    return (
        Request(verb="CreateJob", body=create_job),
        *([artifact] if job.image is None else []),
        *(Request(verb="CreateJobRun", body=run) for run in runs),
    )


def _mounts(job: TrainingJob) -> dict[str, Any]:
    if not job.mounts:
        return {}
    return {"jobStorageMountConfigurationDetailsList": [mounts.details(mount) for mount in job.mounts]}


def log_group_of(log_id: str) -> str:
    """Return what stands in a plan for an id that only the service can give."""
    return f"<log group of {log_id}>"


def _logs(options: OciDataScienceOptions) -> dict[str, Any]:
    if options.log_group_id is None and options.log_id is None:
        return {}
    details = {
        "enableLogging": True,
        "enableAutoLogCreation": options.log_id is None,
        "logGroupId": options.log_group_id or log_group_of(str(options.log_id)),
        **({"logId": options.log_id} if options.log_id else {}),
    }
    return {"jobLogConfigurationDetails": details}
