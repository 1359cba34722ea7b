"""The template of a gang's pods: what all nodes have. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.backends.kubernetes import agent_parts, mounts, names, presets
from airflow_provider_ocidist.backends.kubernetes.merging import merged_manifest
from airflow_provider_ocidist.backends.kubernetes.options import PodOptions
from airflow_provider_ocidist.backends.kubernetes.presets import SHARED_MEMORY
from airflow_provider_ocidist.backends.kubernetes.rules import is_label_value
from airflow_provider_ocidist.model.agent_config import INSTANCE_VARIABLE
from airflow_provider_ocidist.model.job import Container, TrainingJob
from airflow_provider_ocidist.model.run import RunKey

POD_ADDRESS = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
INSTANCE = {"name": INSTANCE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
SAVING_TIME = 120
"""Seconds beyond `limits.stop_grace` that a node has before SIGKILL, for its last checkpoint and report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PodPlan:
    """What the kinds of backend put into a template of their own form."""

    name: str
    key: RunKey
    run_dir: str
    checkpoints_uri: str | None
    lease: float | None
    container: str
    """Name of the container, which the operator reads."""
    environment: Sequence[Mapping[str, Any]]
    """Entries of `env`, in Kubernetes' form."""
    agent: str | None
    """Name of the ConfigMap that holds the agent; None: the container's own start."""
    replaces: bool = False
    """Whether the operator is to create a lost pod again, and the new one is a node in its place."""
    conn_id: str | None = None
    """Connection of the candidate that the gang is created with; None: the task's."""


def variable(name: str, value: str) -> dict[str, Any]:
    """Return an entry of `env` whose value stays text."""
    return {"name": name, "value": literal(value)}


def literal(value: str) -> str:
    """Return a value escaped for Kubernetes, which replaces `$(NAME)`, and reads `$$` as one `$`."""
    return value.replace("$", "$$") if "$(" in value or "$$" in value else value


def secret_variable(name: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def object_metadata(job: TrainingJob, options: PodOptions, plan: PodPlan) -> dict[str, Any]:
    """Return labels and annotations of everything that a gang has; ours cannot be replaced.

    A tag that no label can hold is an annotation.
    """
    labels, others = labels_and_others(job)
    return {
        "labels": {**labels, **options.labels, **names.labels_of(plan.key, plan.name)},
        "annotations": {
            **others,
            **options.annotations,
            **names.annotations_of(
                plan.key,
                plan.run_dir,
                plan.checkpoints_uri,
                plan.lease,
                replaces=plan.replaces,
                conn_id=plan.conn_id,
            ),
        },
    }


def labels_and_others(job: TrainingJob) -> tuple[dict[str, str], dict[str, str]]:
    """Return the tags of a job that labels can hold, and the others."""
    labels = {name: value for name, value in job.tags.items() if is_label_value(value)}
    return labels, {name: value for name, value in job.tags.items() if name not in labels}


def template(job: TrainingJob, options: PodOptions, plan: PodPlan) -> dict[str, Any]:
    """Return `metadata` and `spec` of a node's pod."""
    pod: dict[str, Any] = {"metadata": {}, "spec": _spec(job, options, plan)}
    if options.preset:
        pod = presets.pod_of(options.preset, pod, plan.container)
    pod = merged_manifest(pod, _with_options(options, plan.container))
    pod = merged_manifest(pod, options.pod_template)
    metadata = object_metadata(job, options, plan)
    # Kueue holds back every object with this label; only the gang's object is to wait.
    metadata["labels"].pop(names.QUEUE, None)
    return merged_manifest(pod, {"metadata": metadata})


def _spec(job: TrainingJob, options: PodOptions, plan: PodPlan) -> dict[str, Any]:
    volumes, mounted = mounts.volumes(job.mounts)
    agent = [] if plan.agent is None else [agent_parts.MOUNT]
    container = {
        "name": plan.container,
        **({"image": job.image} if job.image else {}),
        **_start(job.container),
        "env": [POD_ADDRESS, *([INSTANCE] if plan.replaces else []), *plan.environment],
        "volumeMounts": [*mounted, *agent],
        "resources": _resources(options),
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(job.limits.stop_grace) + SAVING_TIME,
        "volumes": [*volumes, *([] if plan.agent is None else [agent_parts.volume(plan.agent)])],
        "containers": [{name: value for name, value in container.items() if value not in ({}, [], None)}],
    }


def _start(container: Container | None) -> dict[str, list[str]]:
    if container is None:
        return {"command": list(agent_parts.COMMAND)}
    own = {"command": container.entrypoint, "args": container.command}
    return {name: list(words) for name, words in own.items() if words}


def _resources(options: PodOptions) -> dict[str, Any]:
    gpus = {options.resource_of_gpus: options.gpus_of_node} if options.gpus_of_node else {}
    memory = {"memory": options.memory} if options.memory else {}
    cpu = {"cpu": options.cpu} if options.cpu else {}
    requests, limits = {**cpu, **memory, **gpus}, {**memory, **gpus}
    return {name: value for name, value in (("requests", requests), ("limits", limits)) if value}


def _with_options(options: PodOptions, container: str) -> dict[str, Any]:
    """Return those of the options that are set, in Kubernetes' form."""
    shm = {"medium": "Memory", "sizeLimit": options.shm_size}
    spec: dict[str, Any] = {
        "serviceAccountName": options.service_account,
        "priorityClassName": options.priority_class,
        "imagePullSecrets": [{"name": name} for name in options.image_pull_secrets],
        "nodeSelector": dict(options.node_selector),
        "tolerations": [dict(item) for item in options.tolerations],
        "affinity": dict(options.affinity),
        "securityContext": dict(options.security_context),
        "initContainers": [dict(item) for item in options.init_containers],
        "volumes": [{"name": "shm", "emptyDir": shm}] if options.shm_size else [],
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if options.host_network else {}),
    }
    own = {
        "imagePullPolicy": options.image_pull_policy,
        "envFrom": [dict(item) for item in options.env_from],
        "env": [secret_variable(name, item.name, item.key) for name, item in options.secrets.items()],
        "volumeMounts": [{"name": "shm", "mountPath": SHARED_MEMORY}] if options.shm_size else [],
    }
    spec["containers"] = [{"name": container, **_set(own)}]
    return {"spec": _set(spec)}


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in ({}, [], None)}
