"""The options of a PyTorchJob, and what it requires of a job. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_provider_ocidist.backends.kubernetes.options import PodOptions
from airflow_provider_ocidist.backends.kubernetes.rules import RULES as RULES_OF_PODS
from airflow_provider_ocidist.backends.kubernetes.rules import near_name, pod_template_rules
from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.model.job import TrainingJob

KIND = "pytorchjob"
CONTAINER = "pytorch"
"""The one container that the operator reads."""
ELASTIC = ("maxReplicas", "maxRestarts", "minReplicas", "rdzvBackend", "rdzvConf", "rdzvId", "rdzvPort")


@dataclass(frozen=True, kw_only=True, slots=True)
class PyTorchJobOptions(PodOptions):
    """Kubeflow's training operator: a Master and Workers."""

    kind: str = KIND
    clean_pod_policy: Literal["Running", "All", "None"] = "Running"
    """Which pods the operator deletes at the end. `Running`: those that have ended keep their logs; `None`: after a
    failure the others run on to their own end."""
    restart_policy: Literal["Never", "OnFailure", "ExitCode", "Always"] = "Never"
    """Other than `Never` only for a `container` of its own: an agent's gang is retried whole, by Airflow."""
    backoff_limit: int | None = None
    """Restarts of all pods together. None: 3 where `restart_policy` restarts any."""
    elastic_policy: Mapping[str, Any] = field(default_factory=dict)
    """`elasticPolicy` of the manifest, for torchrun's own rendezvous: the gang has Workers only, `nodes` of them."""


def _restarts(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    if options.restart_policy != "Never" and job.container is None:
        why = (
            "is for jobs with a `container` of their own: an agent's gang ends whole, and Airflow retries it"
        )
        yield Problem("backend.restart_policy", why)
    if options.backoff_limit is not None and options.backoff_limit < 0:
        yield Problem("backend.backoff_limit", "must be 0 or more")


def _elastic(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    policy = options.elastic_policy
    for name in policy:
        if name not in ELASTIC:
            yield Problem(f"backend.elastic_policy.{name}", f"unknown key {name!r}{near_name(name, ELASTIC)}")
    for name, wrong in (("minReplicas", job.nodes.__lt__), ("maxReplicas", job.nodes.__gt__)):
        count = policy.get(name)
        if isinstance(count, int) and wrong(count):
            yield Problem(
                f"backend.elastic_policy.{name}", f"{count} leaves out the {job.nodes} nodes of the gang"
            )


def _image(job: TrainingJob) -> Iterator[Problem]:
    if job.image is None:
        yield Problem("image", f"is needed by backend {KIND!r}: a node is a container")


RULES = (*RULES_OF_PODS, pod_template_rules(CONTAINER), _restarts, _elastic, _image)
