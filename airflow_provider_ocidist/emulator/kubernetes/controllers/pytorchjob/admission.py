"""What the operator's webhook refuses of a PyTorchJob, and what its CRD does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.defaults import CONTAINER, TYPES
from airflow_provider_ocidist.emulator.kubernetes.kinds import MAX_REPLICAS, TOO_MANY, Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import LABEL, LABEL_TEXT
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.statuses import Problem, refused_by_webhook

WEBHOOK = "validator.pytorchjob.training-operator.kubeflow.org"
SPECS = "spec.pytorchReplicaSpecs"
MANAGERS = ("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue")


def admit(_: Cluster, job: Obj, old: Obj | None) -> None:
    """Refuse a bad job with 403. cleanPodPolicy is not looked at: the real webhook lets "Maybe" pass."""
    if old is not None and old.get("spec") == job.get("spec"):
        return
    if texts := refusals(job):
        raise refused_by_webhook(WEBHOOK, texts)


def refusals(job: Obj) -> Sequence[str]:
    return [str(problem) for problem in (*_of_metadata(job), *_of_spec(job["spec"]))]


def changed(job: Obj, old: Obj | None) -> Sequence[Problem]:
    """Return what an update may not change, as the CRD's own rules have it (422)."""
    if old is None:
        return ()
    before, after = (one["spec"].get("runPolicy", {}) for one in (old, job))
    queues = [(policy.get("schedulingPolicy") or {}).get("queue") for policy in (before, after)]
    values = {
        "spec.runPolicy.managedBy": (before.get("managedBy"), after.get("managedBy")),
        "spec.runPolicy.schedulingPolicy.queue": (queues[0], queues[1]),
    }
    return [
        Problem(path, f'Invalid value: "{new}": field is immutable')
        for path, (known, new) in values.items()
        if known is not None and known != new
    ]


def _of_metadata(job: Obj) -> Iterator[Problem]:
    """A job's name is a label of DNS; that its services' names are longer is looked at by nobody."""
    name = job["metadata"]["name"]
    if not LABEL.fullmatch(name):
        yield Problem("metadata.name", f'Invalid value: "{name}": should match: {LABEL_TEXT}')
    if len(name) > 63:
        text = "should match: must be no more than 63 characters"
        yield Problem("metadata.name", f'Invalid value: "{name}": {text}')


def _of_spec(spec: Obj) -> Iterator[Problem]:
    manager = (spec.get("runPolicy") or {}).get("managedBy")
    if manager is not None and manager not in MANAGERS:
        shown = ", ".join(f'"{each}"' for each in MANAGERS)
        path = "spec.runPolicy.managedBy"
        yield Problem(path, f'Unsupported value: "{manager}": supported values: {shown}')
    specs = spec.get("pytorchReplicaSpecs")
    if not specs:
        yield Problem(SPECS, "Required value: must be required")
    elastic = spec.get("elasticPolicy") or {}
    if spec.get("elasticPolicy") is not None and "Worker" not in (specs or {}):
        yield Problem(f"{SPECS}[Worker]", "Required value: must be configured if elastic policy is used")
    if elastic.get("nProcPerNode") is not None and spec.get("nprocPerNode") is not None:
        path = "spec.elasticPolicy.nProcPerNode"
        yield Problem(path, "Forbidden: must not be used with spec.nprocPerNode")
    for kind, replica in (specs or {}).items():
        yield from _of_replica(kind, replica or {})


def _of_replica(kind: str, replica: Obj) -> Iterator[Problem]:
    path = f"{SPECS}[{kind}]"
    if kind not in TYPES:
        shown = ", ".join(f'"{each}"' for each in TYPES)
        yield Problem(path, f'Unsupported value: "{kind}": supported values: {shown}')
    yield from _of_containers(f"{path}.template.spec.containers", replica)
    count = replica.get("replicas")
    if kind == "Master" and count != 1:
        yield Problem(f"{path}.replicas", "Forbidden: must be 1")
    elif count is not None and count < 1:
        yield Problem(f"{path}.replicas", "Forbidden: must be at least 1")
    elif count is not None and count > MAX_REPLICAS:
        yield Problem(f"{path}.replicas", TOO_MANY)


def _of_containers(path: str, replica: Obj) -> Iterator[Problem]:
    containers = ((replica.get("template") or {}).get("spec") or {}).get("containers") or ()
    if not containers:
        yield Problem(path, "Required value: must be specified")
    for index, container in enumerate(containers):
        if not container.get("image"):
            yield Problem(f"{path}[{index}].image", "Required value: must be required")
    if not any(container.get("name") == CONTAINER for container in containers):
        text = f"Required value: must have at least one container with name {CONTAINER}"
        yield Problem(path, text)
