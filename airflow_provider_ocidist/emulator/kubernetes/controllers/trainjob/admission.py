"""What Kubeflow Trainer's webhooks refuse of a TrainJob, and what its CRD does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.patches import pod_templates
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.release import Release
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.runtime import (
    CLUSTER_RUNTIME,
    CONTAINER,
    reference,
)
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import LABEL, LABEL_TEXT
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError, Problem, refused_by_webhook

VALIDATOR = "validator.trainjob.trainer.kubeflow.org"
DEFAULTER = "defaulter.trainjob.trainer.kubeflow.org"
RESERVED = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
DOMAIN_PREFIXED = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[-A-Za-z0-9/_.~%]+"
)


def admission(release: Release) -> Callable[[Cluster, Obj, Obj | None], None]:
    """Return what refuses a bad job: 400 for a count that is none, else 403."""

    def admit(cluster: Cluster, job: Obj, old: Obj | None) -> None:
        if old is not None and old.get("spec") == job.get("spec"):
            return
        _check_count(job, release)
        kind, name = reference(job)
        namespace = None if kind == CLUSTER_RUNTIME else job["metadata"]["namespace"]
        runtime = cluster.find(kind, namespace, name) if cluster.has_kind(kind) else None
        if texts := refusals(job, runtime, release):
            raise refused_by_webhook(VALIDATOR, texts)

    return admit


def _check_count(job: Obj, release: Release) -> None:
    """From 2.2 on a text in the place of a number does not even reach the validation."""
    count = (job["spec"].get("trainer") or {}).get("numProcPerNode")
    if release.counts_processes and isinstance(count, str):
        text = "json: cannot unmarshal string into Go struct field Trainer.spec.trainer.numProcPerNode of type int32"
        raise KubernetesError(
            400, "BadRequest", f'admission webhook "{DEFAULTER}" denied the request: {text}'
        )


def refusals(job: Obj, runtime: Obj | None, release: Release) -> Sequence[str]:
    return [str(problem) for problem in _problems(job, runtime, release)]


def changed(job: Obj, old: Obj | None) -> Sequence[Problem]:
    """Return what the CRD's own rules refuse (422)."""
    deadline = job["spec"].get("activeDeadlineSeconds")
    problems = [
        Problem(f"spec.{name}", f"Invalid value: {name} is immutable")
        for name in ("runtimeRef", "activeDeadlineSeconds", "managedBy")
        if old is not None and old["spec"].get(name) != job["spec"].get(name)
    ]
    if deadline is not None and deadline < 1:
        text = f"Invalid value: {deadline}: should be greater than or equal to 1"
        problems.append(Problem("spec.activeDeadlineSeconds", text))
    return problems


def _problems(job: Obj, runtime: Obj | None, release: Release) -> Iterator[Problem]:
    name = job["metadata"]["name"]
    if not LABEL.fullmatch(name) or len(name) > 63:
        yield Problem("metadata.name", f'Invalid value: "{name}": {LABEL_TEXT}')
    if runtime is None:
        yield _missing(job)
    yield from _of_trainer(job["spec"].get("trainer") or {})
    yield from _of_patches(job, runtime, release)


def _missing(job: Obj) -> Problem:
    kind, name = reference(job)
    plural = f"{kind.lower()}s.trainer.kubeflow.org"
    kind = kind[0].lower() + kind[1:]
    why = f'{plural} "{name}" not found: specified {kind} must be created before the TrainJob is created'
    return Problem("spec.runtimeRef", f"Invalid value: {why}")


def _of_trainer(trainer: Obj) -> Iterator[Problem]:
    count = trainer.get("numProcPerNode")
    if isinstance(count, str) and count not in ("auto", "cpu", "gpu"):
        text = f'Invalid value: "{count}": must have an int value or [auto cpu gpu]'
        yield Problem("spec.trainer.numProcPerNode", text)
    taken = sorted(one["name"] for one in trainer.get("env") or () if one["name"] in RESERVED)
    if taken:
        text = f"Invalid value: must not have reserved envs, invalid envs configured: [{' '.join(taken)}]"
        yield Problem("spec.trainer.env", text)


def _of_patches(job: Obj, runtime: Obj | None, release: Release) -> Iterator[Problem]:
    path = f"spec.{release.patches}"
    patches = job["spec"].get(release.patches) or ()
    for index, patch in enumerate(patches):
        manager = patch.get("manager")
        if manager is not None and not DOMAIN_PREFIXED.fullmatch(manager):
            text = f'Invalid value: "{manager}": must be a domain-prefixed path (such as "acme.io/foo")'
            yield Problem(f"{path}[{index}].manager", text)
    known = [] if runtime is None else runtime["spec"]["template"]["spec"]["replicatedJobs"]
    for name, template in pod_templates(patches, release):
        if runtime is not None and name not in {each["name"] for each in known}:
            yield Problem(
                path, "Invalid value: must not have targetJob that doesn't exist in the runtime job template"
            )
        for container in template.get("spec", {}).get("containers") or ():
            if container.get("name") == CONTAINER and container.get("env"):
                text = "must not have envs for the dataset-initializer, model-initializer, node containers"
                yield Problem(path, f"Invalid value: {text}")
