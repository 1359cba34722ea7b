"""What Run:ai requires of a job, as far as it can be checked without the service. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from airflow_provider_ocidist.backends.kubernetes.mounts import CLAIM_NAME
from airflow_provider_ocidist.backends.kubernetes.rules import VARIABLE_NAME, alike, covers, marks
from airflow_provider_ocidist.backends.runai.options import KIND
from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.model.job import PVC_SCHEME, TrainingJob, is_placeholder

EXPORT = re.compile(r"(?P<server>[^/\s:]+):(?P<path>/(?!/)\S*)")
QUANTITY = re.compile(r"[+]?[0-9.]+[eEinumkKMGTP]*[-+]?[0-9]*")
"""Pattern of a quantity in the control plane's description."""


def _image(job: TrainingJob) -> Iterator[Problem]:
    if job.image is None:
        yield Problem("image", f"is needed by backend {KIND!r}: name a container image with torch")


def _gpus(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    if options.gpu_fraction is not None and not 0 < options.gpu_fraction <= 1:
        yield Problem("backend.gpu_fraction", "must be above 0 and at most 1")
    if options.gpu_fraction is not None and options.gpu_memory is not None:
        yield Problem("backend.gpu_memory", "says the same as 'gpu_fraction': remove one of them")
    if options.gpu_memory is not None and (options.gpus or 1) > 1:
        yield Problem(
            "backend.gpu_memory", "is for one GPU on each node: Run:ai shares several by 'gpu_fraction'"
        )
    if options.gpus == 0 and (options.gpu_fraction or options.gpu_memory):
        yield Problem("backend.gpus", "is 0, and a part of a GPU is asked for: remove one of them")


def _quantities(job: TrainingJob) -> Iterator[Problem]:
    for name in ("gpu_memory", "memory", "memory_limit"):
        text = getattr(job.backend, name)
        if text is not None and not is_placeholder(text) and not QUANTITY.fullmatch(text):
            yield Problem(f"backend.{name}", f"must be an amount as 20G or 512Mi, not {text!r}")


def _paths(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    paths = [(f"backend.volumes.{number}.path", volume.path) for number, volume in enumerate(options.volumes)]
    paths += [(f"backend.secret_files.{path}", path) for path in options.secret_files]
    for where, path in paths:
        if not path.startswith("/") and not is_placeholder(path):
            yield Problem(where, "must be absolute")
    paths += [(f"mounts.{number}.path", mount.path) for number, mount in enumerate(job.mounts)]
    yield from _twice(paths)
    for number, volume in enumerate(options.volumes):
        if not CLAIM_NAME.fullmatch(volume.claim) and not is_placeholder(volume.claim):
            yield Problem(f"backend.volumes.{number}.claim", f"is no name of a claim: {volume.claim!r}")
    for number, mount in enumerate(job.mounts):
        if not is_placeholder(mount.source) and (problem := _mount_problem(mount.source)):
            yield Problem(f"mounts.{number}.source", problem)


def _twice(paths: Sequence[tuple[str, str]]) -> Iterator[Problem]:
    """Yield the places at which a container would have two mounts, which Kubernetes refuses."""
    taken: dict[str, str] = {}
    for where, path in paths:
        first = taken.setdefault(path.rstrip("/"), where)
        if first != where and not is_placeholder(path):
            yield Problem(where, f"is the place of {first} too")


def _mount_problem(source: str) -> str | None:
    if source.startswith(PVC_SCHEME):
        claim, _, folder = source.removeprefix(PVC_SCHEME).partition("/")
        if folder.strip("/"):
            return f"names a folder: Run:ai mounts a claim whole, as {PVC_SCHEME}{claim}"
        return (
            None if CLAIM_NAME.fullmatch(claim) else f"must name a claim, as {PVC_SCHEME}data, not {source!r}"
        )
    if EXPORT.fullmatch(source):
        return None
    return f"cannot be mounted at backend {KIND!r}: write {PVC_SCHEME}claim or 10.0.0.1:/export"


def _variables(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    for name in options.secrets:
        if not VARIABLE_NAME.fullmatch(name) and not is_placeholder(name):
            yield Problem(f"backend.secrets.{name}", "is not a valid name for an environment variable")
    for name in options.secrets.keys() & {*job.env, *job.main_env, *job.worker_env}:
        yield Problem(f"backend.secrets.{name}", "is a variable of the job, too: remove one of them")
    yield from alike(job, "the nodes of a workload")


def _work_dir(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    place = job.work_dir
    if place is None or not place.startswith("/") or is_placeholder(place):
        return
    folders = [*(volume.path for volume in options.volumes), *(mount.path for mount in job.mounts)]
    if not any(covers(folder, place) for folder in folders):
        yield Problem(
            "work_dir",
            f"{place} is a folder: mount the claim that contains it in `backend.volumes`, at the path where Airflow "
            "has it too, or name a bucket",
        )


RULES = (_image, _gpus, _quantities, _paths, _variables, _work_dir, marks)
