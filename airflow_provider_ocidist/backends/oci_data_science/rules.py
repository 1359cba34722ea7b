"""What OCI Data Science asks of a job, as far as it can be known without asking the service. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.job import TrainingJob, is_placeholder

MIN_BLOCK_STORAGE_GB = 50
MAX_TAGS = 10 - 4
"""Free-form tags of one resource (Oracle's documentation, tagging overview), less our own."""
MAX_TAG_KEY, MAX_TAG_VALUE = 100, 256


def _shape(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    size = {name: getattr(options, name) for name in ("ocpus", "memory_gb")}
    for name in [name for name, value in size.items() if value is not None and value <= 0]:
        yield Problem(f"backend.{name}", "must be above 0")
    if options.shape is None or is_placeholder(options.shape):
        return
    flexible = options.shape.endswith(".Flex")
    for name, value in size.items():
        if flexible and value is None:
            yield Problem(f"backend.{name}", f"is needed: {options.shape} is a flexible shape")
        elif not flexible and value is not None:
            yield Problem(f"backend.{name}", f"is for flexible shapes only, and {options.shape} is none")


def _place(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    if options.block_storage_gb < MIN_BLOCK_STORAGE_GB:
        yield Problem("backend.block_storage_gb", f"must be at least {MIN_BLOCK_STORAGE_GB}")
    if options.conda_slug is not None and job.image is not None:
        yield Problem("backend.conda_slug", "is for jobs without an image")


def _tags(job: TrainingJob) -> Iterator[Problem]:
    if len(job.tags) > MAX_TAGS:
        yield Problem("tags", f"there are {len(job.tags)}; {MAX_TAGS} fit beside our own")
    for key, value in job.tags.items():
        if not 0 < len(key) <= MAX_TAG_KEY or "." in key or " " in key:
            yield Problem(f"tags.{key}", f"a key has 1 to {MAX_TAG_KEY} characters, no blanks and no dots")
        elif key.lower().startswith("ocidist-"):
            yield Problem(f"tags.{key}", "keys that begin with ocidist- are ours")
        if len(value) > MAX_TAG_VALUE:
            yield Problem(f"tags.{key}", f"a value has at most {MAX_TAG_VALUE} characters")


RULES = (_shape, _place, _tags)
