"""The options of a TrainJob, and what it requires of a job. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_ocidist.backends.kubernetes.options import PodOptions
from airflow_provider_ocidist.backends.kubernetes.rules import RULES as RULES_OF_PODS
from airflow_provider_ocidist.backends.kubernetes.rules import alike, entries_of, pod_template_rules
from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.model.job import TrainingJob

KIND = "trainjob"
CONTAINER = "node"
"""Name of the training container in a runtime, and of its replicated job."""
PATCHED = (
    "affinity",
    "containers",
    "imagePullSecrets",
    "initContainers",
    "nodeSelector",
    "schedulingGates",
    "securityContext",
    "serviceAccountName",
    "tolerations",
    "volumes",
)
"""Fields that a TrainJob may change in the pods of its runtime (`PodSpecPatch` of Kubeflow Trainer 2.3)."""
PATCHED_IN_CONTAINER = ("env", "name", "securityContext", "volumeMounts")
RUNTIMES = (
    "env_from",
    "host_network",
    "image_pull_policy",
    "init_containers",
    "preset",
    "priority_class",
)
"""Options that only a runtime can have."""
RESERVED = ("PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE")
NOT_OURS = (
    "is not for a TrainJob to say: put it into the runtime (`backend.runtime`), or choose backend pytorchjob"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainJobOptions(PodOptions):
    """Kubeflow Trainer: a runtime that an administrator has prepared, and what this job changes of it."""

    kind: str = KIND
    runtime: str = "torch-distributed"
    """Runtime that defines the pods. One that never restarts them is best: see docs/kubernetes.md."""
    runtime_kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = "ClusterTrainingRuntime"
    """Kind of the runtime: of the whole cluster, or of the namespace."""


def _runtimes(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    for name in RUNTIMES:
        if getattr(options, name):
            yield Problem(f"backend.{name}", NOT_OURS)
    spec = options.pod_template.get("spec")
    if not isinstance(spec, Mapping):
        return
    path = "backend.pod_template.spec"
    for name in spec:
        if name not in PATCHED:
            yield Problem(f"{path}.{name}", NOT_OURS)
    for name in ("containers", "initContainers"):
        for index, item in enumerate(entries_of(spec, name)):
            yield from _container(item, f"{path}.{name}.{index}")


def _container(item: Any, path: str) -> Iterator[Problem]:
    if not isinstance(item, Mapping):
        return
    own = item.get("name") == CONTAINER
    for name in item:
        if name not in PATCHED_IN_CONTAINER and not (
            own and name in ("command", "args", "image", "resources")
        ):
            yield Problem(f"{path}.{name}", NOT_OURS)


def _variables(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    yield from _reserved("env", job.env)
    yield from _reserved("backend.secrets", options.secrets)
    yield from alike(job, "the pods of a TrainJob")


def _reserved(path: str, names: Iterable[str]) -> Iterator[Problem]:
    for name in names:
        if name in RESERVED:
            yield Problem(f"{path}.{name}", "is set by Kubeflow Trainer, which refuses any other value")


RULES = (*RULES_OF_PODS, _runtimes, _variables, pod_template_rules(CONTAINER))
