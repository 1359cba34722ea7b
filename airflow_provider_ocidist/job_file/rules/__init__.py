"""Rules across the fields of a job that need no service."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.job_file.rules import code, data, node
from airflow_provider_ocidist.model.job import TrainingJob, is_placeholder

MAX_NAME = 255
"""Most characters of a job's name."""
MAX_NODES = 1000
"""Most nodes of a job, since a plan holds a request for each; a greater number is a typing error."""

LOGIN = re.compile(r"[^/@\s:]+:[^/@\s]+@(?![\w+.-]+:[0-9a-fA-F]{32,})")
"""User and password before a registry, as no client takes them; a digest also follows an `@`."""

Rule = Callable[[TrainingJob], Iterator[Problem]]


def rules(job: TrainingJob) -> list[Problem]:
    """Return all problems of a job whose single fields are valid."""
    return [*(problem for rule in RULES for problem in rule(job)), *rules_of_the_place(job)]


def rules_of_the_place(job: TrainingJob) -> list[Problem]:
    """Return the problems by the rules of this kind of backend."""
    if job.backend.kind not in kinds.names("backends"):
        return []
    place: Sequence[Rule] = kinds.load("backends", job.backend.kind).RULES
    return [problem for rule in place for problem in rule(job)]


def _name(job: TrainingJob) -> Iterator[Problem]:
    if not job.name.strip():
        yield Problem("name", "must not be blank")
    if len(job.name) > MAX_NAME:
        yield Problem("name", f"has {len(job.name)} characters; {MAX_NAME} are allowed")
    elif not job.name.isprintable():
        yield Problem("name", "must not contain line breaks or other invisible characters")


def _nodes(job: TrainingJob) -> Iterator[Problem]:
    if job.nodes > MAX_NODES:
        yield Problem("nodes", f"must be at most {MAX_NODES}")


def _image(job: TrainingJob) -> Iterator[Problem]:
    if job.image is None or is_placeholder(job.image):
        return
    if code.holds_credentials(job.image) or LOGIN.match(job.image):
        yield Problem("image", "contains a password, which the service would store as plain text: remove it")
    elif not job.image or re.search(r"\s", job.image):
        yield Problem("image", "is not the name of an image, such as region.ocir.io/namespace/image:tag")


RULES: Sequence[Rule] = (
    _name,
    _nodes,
    code.program,
    code.paths_in_the_code,
    code.secret,
    node.launcher,
    node.elastic,
    node.environment,
    node.dependencies,
    node.container,
    node.lease,
    data.mounts,
    data.inputs,
    data.outputs,
    data.meeting_points,
    data.pattern,
    _image,
)
