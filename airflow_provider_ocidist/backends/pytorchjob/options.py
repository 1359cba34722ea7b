"""The options of a PyTorchJob, and what it requires of a job. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from airflow_provider_ocidist.backends.kubernetes.options import PodOptions
from airflow_provider_ocidist.backends.kubernetes.rules import RULES as RULES_OF_PODS
from airflow_provider_ocidist.backends.kubernetes.rules import near_name, pod_template_rules
from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.model.field_limits import Seconds
from airflow_provider_ocidist.model.job import TrainingJob

KIND = "pytorchjob"
DAY = 86_400.0
CONTAINER = "pytorch"
"""Name of the one container that the operator reads."""
TEMPLATES = ("pod_template", "main_template", "worker_template")
SCHEDULING = ("minAvailable", "minResources", "priorityClass", "queue", "scheduleTimeoutSeconds")
ELASTIC = (
    "maxReplicas",
    "maxRestarts",
    "metrics",
    "minReplicas",
    "nProcPerNode",
    "rdzvBackend",
    "rdzvConf",
    "rdzvHost",
    "rdzvId",
    "rdzvPort",
    "standalone",
)
NO_MASTER = "is for a Master, and a gang with an elastic policy has no Master: say it for all nodes"


@dataclass(frozen=True, kw_only=True, slots=True)
class PyTorchJobOptions(PodOptions):
    """Kubeflow's training operator: a Master and Workers."""

    kind: str = KIND
    clean_pod_policy: Literal["Running", "All", "None"] = "Running"
    """Pods that the operator deletes at the end. `Running`: those that have ended keep their logs; `None`: after a
    failure the others run on to their own end."""
    restart_policy: Literal["Never", "OnFailure", "ExitCode", "Always"] = "Never"
    """Restart policy of the pods. Other than `Never` only for a `container` of its own: an agent's gang is retried
    whole, by Airflow."""
    backoff_limit: int | None = None
    """Number of restarts of all pods together. None: 3 where `restart_policy` restarts any."""
    main_template: Mapping[str, Any] = field(default_factory=dict)
    """`metadata` and `spec` of the Master's pod, merged over `pod_template`, in the same form."""
    worker_template: Mapping[str, Any] = field(default_factory=dict)
    """`metadata` and `spec` of the Workers' pods, merged over `pod_template`, in the same form."""
    scheduling_policy: Mapping[str, Any] = field(default_factory=dict)
    """`schedulingPolicy` of the manifest, for a gang scheduler: Volcano or the scheduler plugins."""
    ttl: Seconds | None = DAY
    """Time after its end at which the operator deletes the gang, as a safety net. None: it stays until a user deletes
    it."""
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
    elif options.backoff_limit is not None and _replaces_pods(job):
        why = "is for jobs with a `container` of their own: with `restarts.node` ocidist sets the limit"
        yield Problem("backend.backoff_limit", why)


def _replaces_pods(job: TrainingJob) -> bool:
    """Whether lost pods may be created again one by one, as far as the job says it: a submitter may give it a lease."""
    options: Any = job.backend
    able = job.nodes > 1 and job.container is None and not options.elastic_policy
    return able and job.restarts.node > 0 and job.limits.lease != 0


def _elastic(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    policy = options.elastic_policy
    yield from _unknown("backend.elastic_policy", policy, ELASTIC)
    yield from _unknown("backend.scheduling_policy", options.scheduling_policy, SCHEDULING)
    for path, given in (("backend.main_template", options.main_template), ("main_env", job.main_env)):
        if policy and given:
            yield Problem(path, NO_MASTER)
    for name, wrong in (("minReplicas", job.nodes.__lt__), ("maxReplicas", job.nodes.__gt__)):
        count = policy.get(name)
        if isinstance(count, int) and wrong(count):
            yield Problem(
                f"backend.elastic_policy.{name}", f"{count} excludes the {job.nodes} nodes of the gang"
            )


def _unknown(path: str, given: Iterable[str], known: Iterable[str]) -> Iterator[Problem]:
    for name in given:
        if name not in known:
            yield Problem(f"{path}.{name}", f"unknown key {name!r}{near_name(name, known)}")


def _image(job: TrainingJob) -> Iterator[Problem]:
    if job.image is None:
        yield Problem("image", f"is needed by backend {KIND!r}: a node is a container")


RULES = (*RULES_OF_PODS, pod_template_rules(CONTAINER, TEMPLATES), _restarts, _elastic, _image)
