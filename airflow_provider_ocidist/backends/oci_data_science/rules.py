"""What OCI Data Science requires of a job, as far as it can be checked without the service. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_ocidist.backends import bundle
from airflow_provider_ocidist.backends.oci_data_science import mounts
from airflow_provider_ocidist.errors import Problem, StorageError
from airflow_provider_ocidist.model.job import TrainingJob, is_placeholder
from airflow_provider_ocidist.storage import locations

MIN_BLOCK_STORAGE_GB, MAX_BLOCK_STORAGE_GB = 50, 10_240
"""Sizes of a node's disk in GB (Oracle's documentation, jobs-create)."""
MAX_TAGS, REPLACED_TAGS = 10 - 4, 2
"""Most free-form tags of one resource (Oracle's documentation, tagging overview), less our own; and our further
ones of a run in the place of a lost one."""
MAX_TAG_KEY, MAX_TAG_VALUE = 100, 256
"""Most characters of a tag's key, and of its value."""
MAX_DEFINED_TAGS = 64
"""Most defined tags of one resource, in all namespaces."""
MAX_CONTAINER_COMMAND = 2_048
"""Most bytes of entrypoint and cmd together (the SDK's OcirContainerJobEnvironmentConfigurationDetails)."""
MAX_ARGUMENTS = 4_000
"""Most characters of the command line arguments (Oracle's documentation, jobs-env-vars)."""
MAX_ARTIFACT = 4 * 1024**3 - 16 * 1024**2
"""Most bytes of the user's part of a job artifact, 4 GB (Oracle's documentation, jobs-artifact) less room for the
agent."""
_SLUG_PYTHON = re.compile(r"(?:^|_)p([23])(\d{1,2})(?:_|$)")
"""Python in the name of a service conda environment, as `pytorch24_p310_gpu_x86_64_v1`."""

OCID = re.compile(r"ocid1\.([a-z0-9]+)\.")
KINDS = {
    "compartment_id": ("compartment", "tenancy"),
    "project_id": ("datascienceproject",),
    "subnet_id": ("subnet",),
    "log_group_id": ("loggroup",),
    "log_id": ("log",),
    "image_signature_id": ("containerimagesignature",),
}
"""Type of the resource that an OCID must be of, by the field; its second part (Oracle's documentation, resource
identifiers)."""
_COMMON_KINDS = {kind for kinds in KINDS.values() for kind in kinds} | {
    "vcn",
    "datasciencejob",
    "datasciencejobrun",
}


def _ocids(job: TrainingJob) -> Iterator[Problem]:
    """Report OCIDs of the wrong kind: the service would answer "not authorized or not found"."""
    for name, kinds in KINDS.items():
        ocid = OCID.match(getattr(job.backend, name) or "")
        if ocid and ocid[1] in _COMMON_KINDS and ocid[1] not in kinds:
            yield Problem(f"backend.{name}", f"must be the OCID of a {kinds[0]}, not of a {ocid[1]}")


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
            yield Problem(
                f"backend.{name}", f"is for flexible shapes only, and {options.shape} is not flexible"
            )


def _place(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    size = options.block_storage_gb
    if size < MIN_BLOCK_STORAGE_GB:
        yield Problem("backend.block_storage_gb", f"must be at least {MIN_BLOCK_STORAGE_GB}")
    if size > MAX_BLOCK_STORAGE_GB:
        message = f"must be at most {MAX_BLOCK_STORAGE_GB}: read larger data from a bucket or a file system"
        yield Problem("backend.block_storage_gb", message)
    if options.managed_network and options.subnet_id is not None:
        yield Problem("backend.managed_network", "is the opposite of 'subnet_id': remove one of them")


def _range(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    if job.min_nodes is None:
        return
    if options.topology == "multi_node":
        yield Problem(
            "backend.topology",
            "must be job_runs for a range of nodes: the one run of multi_node ends with any node",
        )
    if job.container is not None:
        yield Problem("container", "has no agent on the nodes, which a range of nodes needs")


def _conda(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    given = [name for name in ("conda_slug", "conda_uri") if getattr(options, name) is not None]
    if job.image is not None:
        yield from (Problem(f"backend.{name}", "is for jobs without an image") for name in given)
    elif len(given) > 1:
        yield Problem("backend.conda_uri", "says the same as 'conda_slug': remove one of them")
    python = python_of(options.conda_slug or "")
    if python is not None and python < bundle.OLDEST_PYTHON:
        found, oldest = ("{}.{}".format(*version) for version in (python, bundle.OLDEST_PYTHON))
        message = f"has Python {found}; the agent needs {oldest}: choose a newer environment, or an image"
        yield Problem("backend.conda_slug", message)
    if options.conda_uri is not None:
        yield from _pack(options.conda_uri)
    elif options.conda_region is not None:
        yield Problem("backend.conda_region", "is the region of 'conda_uri', which is not there")


def python_of(slug: str) -> tuple[int, int] | None:
    """Return the Python that the name of a service conda environment contains; None where it has none."""
    said = _SLUG_PYTHON.search(slug)
    return (int(said[1]), int(said[2])) if said else None


def _pack(uri: str) -> Iterator[Problem]:
    if is_placeholder(uri):
        return
    try:
        pack = locations.parse(uri)
    except StorageError as error:
        yield Problem("backend.conda_uri", str(error))
        return
    if pack.kind != "oci" or not (pack.namespace and pack.path):
        found = locations.shown(uri)
        yield Problem("backend.conda_uri", f"must be oci://bucket@namespace/path/to/pack, not {found!r}")


def _container(job: TrainingJob) -> Iterator[Problem]:
    options: Any = job.backend
    for name in ("image_digest", "image_signature_id"):
        if job.image is None and getattr(options, name) is not None:
            yield Problem(f"backend.{name}", "needs an 'image'")
    if job.container is None:
        return
    words = [*(job.container.entrypoint or ()), *job.container.command]
    size = sum(len(word.encode(errors="replace")) for word in words)
    if size > MAX_CONTAINER_COMMAND:
        message = (
            f"and entrypoint have {size} bytes; the service allows {MAX_CONTAINER_COMMAND}: call a script"
        )
        yield Problem("container.command", message)
    length = len(container_arguments(job) or "")
    if length > MAX_ARGUMENTS:
        yield Problem("program.args", f"have {length} characters; the service allows {MAX_ARGUMENTS}")


def container_arguments(job: TrainingJob) -> str | None:
    """Return what the service hands to a container's own command, in its form; None where that is nothing."""
    if job.container is None or job.program.script or not job.program.args:
        return None
    return shlex.join(job.program.args)


def _artifact(job: TrainingJob) -> Iterator[Problem]:
    """Report code that would not fit, by its unpacked size: compression may save too little."""
    code = job.program.source
    if job.image is not None or code is None or not job.program.is_local or is_placeholder(code):
        return
    size = bundle.code_size(code, MAX_ARTIFACT)
    if size > MAX_ARTIFACT:
        message = f"{code} is larger than the 4 GB that the service accepts as an artifact"
        yield Problem("program.source", f"{message}: put data into a bucket and name it in 'inputs'")


def _tags(job: TrainingJob) -> Iterator[Problem]:
    most = MAX_TAGS - (REPLACED_TAGS if _replaces_nodes(job) else 0)
    if len(job.tags) > most:
        yield Problem("tags", f"there are {len(job.tags)}; {most} are allowed besides those of ocidist")
    for key, value in job.tags.items():
        if not 0 < len(key) <= MAX_TAG_KEY or "." in key or " " in key:
            yield Problem(f"tags.{key}", f"a key has 1 to {MAX_TAG_KEY} characters, no blanks and no dots")
        elif key.lower().startswith("ocidist-"):
            yield Problem(f"tags.{key}", "keys that begin with ocidist- are reserved")
        if len(value) > MAX_TAG_VALUE:
            yield Problem(f"tags.{key}", f"a value has at most {MAX_TAG_VALUE} characters")


def _replaces_nodes(job: TrainingJob) -> bool:
    """Whether runs may be created in the place of lost ones, as far as the job says it."""
    options: Any = job.backend
    able = options.topology != "multi_node" and job.nodes != 1 and job.container is None
    return able and bool(job.restarts.node)


def _defined_tags(job: TrainingJob) -> Iterator[Problem]:
    namespaces: Mapping[str, Mapping[str, str]] = getattr(job.backend, "defined_tags", {})
    count = sum(map(len, namespaces.values()))
    if count > MAX_DEFINED_TAGS:
        yield Problem("backend.defined_tags", f"there are {count}; {MAX_DEFINED_TAGS} are allowed")
    for namespace, tags in namespaces.items():
        for key, value in tags.items():
            path = f"backend.defined_tags.{namespace}.{key}"
            if not 0 < len(key) <= MAX_TAG_KEY or "." in key or " " in key:
                yield Problem(path, f"a key has 1 to {MAX_TAG_KEY} characters, no blanks and no dots")
            if len(value) > MAX_TAG_VALUE:
                yield Problem(path, f"a value has at most {MAX_TAG_VALUE} characters")


RULES = (_ocids, _shape, _place, _range, _conda, _container, _artifact, mounts.rules, _tags, _defined_tags)
