"""From a job to the literal request that creates its workload. Pure."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from airflow_provider_ocidist.backends.as_created import bare
from airflow_provider_ocidist.backends.bundle import BOOT_VARIABLE, START_SCRIPT, boot_text
from airflow_provider_ocidist.backends.fields import missing, options_of
from airflow_provider_ocidist.backends.kubernetes.pods import labels_and_others, literal
from airflow_provider_ocidist.backends.node_config import (
    KEY_VARIABLE,
    in_json,
    key_text,
    may_replace,
    node_config,
    plan_of,
    shared_source,
)
from airflow_provider_ocidist.backends.prices import price_of
from airflow_provider_ocidist.backends.runai.names import (
    START_VARIABLE,
    SUSPENSION_VARIABLE,
    workload_name,
)
from airflow_provider_ocidist.backends.runai.options import (
    KIND,
    Fields,
    RunaiOptions,
    Toleration,
    VolumeClaim,
)
from airflow_provider_ocidist.backends.runai.rules import EXPORT
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.job import PVC_SCHEME, TrainingJob
from airflow_provider_ocidist.model.masking import secrets_in
from airflow_provider_ocidist.model.run import Plan, Request, RunKey

DISTRIBUTED, TRAINING = "CreateDistributed", "CreateTraining"
PATHS = {DISTRIBUTED: "distributed", TRAINING: "trainings"}
"""Part of the address for each verb."""
START_COMMAND = f"import os; exec(os.environ['{START_VARIABLE}'])"
"""Command that starts the agent, in one line whose blanks do not matter, as the platform splits it in its own way."""
SAVING_GRACE = 60.0
"""Seconds beyond `limits.stop_grace` in which a node that is ended saves its checkpoint."""


def make_plan(job: TrainingJob, key: RunKey, fields: Fields) -> Plan:
    """Return the plan of a gang. Raises JobFileError when job and connection together are incomplete."""
    job, options = resolved(job, fields)
    price = price_of(job, options.node_type or next(iter(options.node_pools), None), fields.prices)
    config = _config(job, options, key, price)
    verb = TRAINING if job.nodes == 1 else DISTRIBUTED
    body = {
        "name": workload_name(key),
        "useGivenNameAsPrefix": False,
        "projectId": id_of_project(str(options.project)),
        "clusterId": options.cluster_id or CLUSTER_ID,
        **({"masterSpecSameAsWorker": True} if verb == DISTRIBUTED else {}),
        "spec": _spec(job, options, key, config),
    }
    return plan_of(
        job,
        key,
        config,
        backend=KIND,
        topology=PATHS[verb],
        reason=_reason(job.nodes) + _losses(job) + _shown_secrets(job),
        requests=(Request(verb=verb, body=body),),
        machine=_asked_for(options),
    )


def _asked_for(options: RunaiOptions) -> dict[str, str]:
    names = ("project", "node_type", "node_pools", "priority", "preemptible", "extended_resources")
    asked = {name: getattr(options, name) for name in names} | _compute(options)
    return {name: json.dumps(value, sort_keys=True) for name, value in asked.items() if value}


def asked_for(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the creator of a workload has set, of a planned one or of one at the platform."""
    found: dict[str, Any] = bare(
        {name: workload.get(name) for name in ("name", "projectId", "clusterId", "spec")}
    )
    return found


CLUSTER_ID = "<id of the project's cluster>"
"""Placeholder in a plan for the one value that only the service can give."""


def id_of_project(project: str) -> str:
    """Return what stands in a plan for the id of a project; an id itself is all digits."""
    return project if project.isdecimal() else f"<id of project {project}>"


def _reason(nodes: int) -> str:
    if nodes == 1:
        return "topology trainings: one node is a plain training workload"
    workers = "1 worker" if nodes == 2 else f"{nodes - 1} workers"
    return f"topology distributed: one workload of PyTorch, whose {nodes} nodes are a master and {workers}"


def _losses(job: TrainingJob) -> str:
    """Return what becomes of a lost pod where the job allows machines to be lost.

    With `restartPolicy` the operator beneath would create it again; but the API deletes no single pod, so that one
    whose machine is silent, or whose container was started again, could not be removed.
    """
    if not may_replace(job):
        return ""
    return "; a lost pod is created again only with all others, since the control plane deletes no single pod"


def _shown_secrets(job: TrainingJob) -> str:
    """Return a warning of secrets that the control plane would show."""
    given = {**job.env, **job.main_env, **job.worker_env}
    found = ", ".join(sorted(name for name, value in given.items() if secrets_in({name: value})))
    return (
        f"; {found}: plain text at Run:ai, for all who see the workload: use backend.secrets" if found else ""
    )


def resolved(job: TrainingJob, fields: Fields) -> tuple[TrainingJob, RunaiOptions]:
    """Return job and options with the connection's defaults filled in."""
    own, job = options_of(job, RunaiOptions, KIND), fields.filled(job)
    options = replace(
        own, project=own.project or fields.project, cluster_id=own.cluster_id or fields.cluster_id
    )
    if problems := missing({"backend.project": options.project, "work_dir": job.work_dir}):
        raise JobFileError(problems, job.name)
    return job, options


def _config(job: TrainingJob, options: RunaiOptions, key: RunKey, price: float | None) -> AgentConfig:
    config = node_config(
        job,
        key,
        shared_source(job, key),
        price=price,
        main_env=job.main_env,
        worker_env=job.worker_env,
        reports=job.container is None,
        ends_others=job.nodes > 1,
    )
    return replace(config, mounts=(*config.mounts, *(volume.path for volume in options.volumes)))


def _spec(job: TrainingJob, options: RunaiOptions, key: RunKey, config: AgentConfig) -> dict[str, Any]:
    labels, others = labels_and_others(job)
    spec: dict[str, Any] = {
        "image": job.image,
        **_start(job, options),
        "environmentVariables": [*_variables(job, options, key, config)],
        "compute": _compute(options),
        "storage": _storage(job, options),
        "backoffLimit": 0,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(job.limits.stop_grace + SAVING_GRACE),
        "autoDeletionTimeAfterCompletionSeconds": options.keep_for,
        "nodePools": list(options.node_pools),
        "nodeType": options.node_type,
        "tolerations": [_toleration(number, each) for number, each in enumerate(options.tolerations)],
        "priorityClass": options.priority,
        "preemptibility": _preemptibility(options.preemptible),
        "imagePullPolicy": options.image_pull_policy,
        "imagePullSecrets": [{"name": name} for name in options.image_pull_secrets],
        "security": {"hostNetwork": True} if options.host_network else {},
        "labels": _pairs({**labels, **options.labels}),
        "annotations": _pairs({**others, **options.annotations}),
    }
    if job.nodes > 1:
        # A node that fails ends the others: retries belong to Airflow.
        own = {"distributedFramework": "PyTorch", "numWorkers": job.nodes - 1, "cleanPodPolicy": "Running"}
        spec = {**own, **spec}
    return {name: value for name, value in spec.items() if value not in (None, [], {})}


def _start(job: TrainingJob, options: RunaiOptions) -> dict[str, str]:
    """Return what the container starts, each as one text: the agent, unless the job sets its own command."""
    if job.container is None:
        return {"command": shlex.join([options.python, "-c", START_COMMAND])}
    own = {"command": job.container.entrypoint or (), "args": job.container.command}
    return {name: shlex.join(words) for name, words in own.items() if words}


def _variables(
    job: TrainingJob, options: RunaiOptions, key: RunKey, config: AgentConfig
) -> Iterator[dict[str, Any]]:
    own = {**config.to_env(), KEY_VARIABLE: key_text(key)}
    # The pods beneath are Kubernetes'.
    plain = {name: literal(value) for name, value in job.env.items()}
    plain |= {name: in_json(text) for name, text in own.items()}
    plain[SUSPENSION_VARIABLE] = options.when_suspended
    if config.reports:
        plain |= {START_VARIABLE: START_SCRIPT, BOOT_VARIABLE: boot_text()}
    for name, value in plain.items():
        yield {"name": name, "value": value}
    for name, entry in options.secrets.items():
        yield {"name": name, "secret": {"name": entry.name, "key": entry.key}}
    # The address that the platform gives a node: its own guess may be that of another network.
    yield {"name": "POD_IP", "podFieldRef": {"path": "status.podIP"}}


def _compute(options: RunaiOptions) -> dict[str, Any]:
    compute: dict[str, Any] = {
        "gpuDevicesRequest": options.gpus,
        "cpuCoreRequest": options.cpus,
        "cpuCoreLimit": options.cpu_limit,
        "cpuMemoryRequest": options.memory,
        "cpuMemoryLimit": options.memory_limit,
        "largeShmRequest": options.large_shm or None,
        "extendedResources": [
            {"resource": name, "quantity": amount} for name, amount in options.extended_resources.items()
        ],
    }
    if options.gpu_fraction is not None:
        part = {"gpuRequestType": "portion", "gpuPortionRequest": options.gpu_fraction}
        compute |= {**part, "gpuDevicesRequest": options.gpus or 1}
    elif options.gpu_memory is not None:
        part = {"gpuRequestType": "memory", "gpuMemoryRequest": options.gpu_memory}
        compute |= {**part, "gpuDevicesRequest": 1}
    return {name: value for name, value in compute.items() if value not in (None, [])}


def _storage(job: TrainingJob, options: RunaiOptions) -> dict[str, Any]:
    claims = [
        *options.volumes,
        *(
            VolumeClaim(claim=mount.source.removeprefix(PVC_SCHEME).strip("/"), path=mount.path)
            for mount in job.mounts
            if mount.source.startswith(PVC_SCHEME)
        ),
    ]
    storage = {
        "pvc": [
            {"claimName": each.claim, "existingPvc": True, "path": each.path, "readOnly": each.read_only}
            for each in claims
        ],
        "nfs": [
            {"server": found["server"], "path": found["path"], "mountPath": mount.path, "readOnly": False}
            for mount in job.mounts
            if (found := EXPORT.fullmatch(mount.source))
        ],
        "secretVolume": [{"secret": name, "mountPath": path} for path, name in options.secret_files.items()],
    }
    return {name: items for name, items in storage.items() if items}


def _toleration(number: int, given: Toleration) -> dict[str, Any]:
    values = {"name": f"toleration-{number}", **asdict(given)}
    return {name: value for name, value in values.items() if value is not None}


def _preemptibility(preemptible: bool | None) -> str | None:
    return None if preemptible is None else "preemptible" if preemptible else "non-preemptible"


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]
