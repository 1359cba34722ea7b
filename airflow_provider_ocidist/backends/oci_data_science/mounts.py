"""Storage mounts: from a job's fields to the service's. Pure."""

from __future__ import annotations

import ipaddress
import posixpath
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.errors import JobFileError, Problem, StorageError
from airflow_provider_ocidist.model.job import Mount, TrainingJob, is_placeholder
from airflow_provider_ocidist.storage import locations

MAX_MOUNTS = 5
"""Most mounts of one job (Oracle's documentation, jobs-mount-file-systems)."""
SOURCES = (
    "oci://bucket@namespace/prefix, 10.0.0.1:/export, <mount target's OCID>:<export's OCID>, "
    "or a folder of work_dir"
)


def details(mount: Mount) -> dict[str, Any]:
    """Return one entry of `jobStorageMountConfigurationDetailsList`."""
    folder, name = posixpath.split(mount.path.rstrip("/"))
    place = {"destinationDirectoryName": name, **({"destinationPath": folder} if folder else {})}
    if mount.source.startswith(("oci://", "<")):
        return {"storageType": "OBJECT_STORAGE", **place, **_bucket(mount.source)}
    target, _, export = mount.source.partition(":")
    return {
        "storageType": "FILE_STORAGE",
        **place,
        "mountTargetId": target if is_ocid(target) else mount_target_at(target),
        "exportId": export if is_ocid(export) else export_of(export),
    }


def in_work_dir(job: TrainingJob, work_dir: str) -> tuple[Mount, ...]:
    """Return the mounts with the folders of the work directory under their own URIs. Raises JobFileError."""
    folders = [index for index, mount in enumerate(job.mounts) if mount.is_in_work_dir]
    # In a plan without a connection, a placeholder stands for the work directory.
    if folders and not work_dir.startswith(("oci://", "<")):
        why = f"is a folder of work_dir, and only buckets can be mounted, not {work_dir}: name a work_dir on oci://"
        raise JobFileError([Problem(f"mounts.{index}.source", why) for index in folders], job.name)
    return tuple(
        replace(mount, source=locations.join(work_dir, mount.source)) if mount.is_in_work_dir else mount
        for mount in job.mounts
    )


def is_bucket(mount: Mount) -> bool:
    """Whether the service mounts it from Object Storage."""
    return mount.is_in_work_dir or mount.source.startswith("oci://")


def mount_target_at(address: str) -> str:
    """Return what stands in a plan for an id that only the service can give."""
    return f"<mount target at {address}>"


def export_of(path: str) -> str:
    """Return what stands in a plan for an id that only the service can give."""
    return f"<export {path}>"


def is_ocid(text: str) -> bool:
    return text.startswith("ocid")


def rules(job: TrainingJob) -> Iterator[Problem]:
    """Report mounts that the service would refuse."""
    if len(job.mounts) > MAX_MOUNTS:
        yield Problem("mounts", f"there are {len(job.mounts)}; {MAX_MOUNTS} are allowed")
    taken: dict[str, int] = {}
    for index, mount in enumerate(job.mounts):
        if not mount.is_in_work_dir and (problem := _source_problem(mount.source)):
            yield Problem(f"mounts.{index}.source", problem)
        if problem := _path_problem(mount.path):
            yield Problem(f"mounts.{index}.path", problem)
        place = posixpath.join("/mnt", mount.path.rstrip("/"))
        if place in taken:
            yield Problem(f"mounts.{index}.path", f"is the place of mounts.{taken[place]} too")
        taken.setdefault(place, index)


def _source_problem(source: str) -> str | None:
    if is_placeholder(source):
        return None
    if source.startswith("oci://"):
        try:
            named = locations.parse(source).namespace
        except StorageError as error:
            return str(error)
        return None if named else "must name the namespace, as oci://bucket@namespace/prefix"
    target, _, export = source.partition(":")
    if (is_ocid(target) or _is_address(target)) and (is_ocid(export) or export.startswith("/")):
        return None
    return f"must be {SOURCES}, not {locations.shown(source)!r}"


def _path_problem(path: str) -> str | None:
    if is_placeholder(path):
        return None
    folder, name = posixpath.split(path.rstrip("/"))
    if name in ("", ".", "..") or (folder and not folder.startswith("/")) or ".." in folder.split("/"):
        return f"must be the name of a folder in /mnt, or an absolute path, not {path!r}"
    return None


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _bucket(uri: str) -> dict[str, str]:
    if uri.startswith("<"):
        return {"namespace": uri, "bucket": uri}
    place = locations.parse(uri)
    found = {"namespace": place.namespace or "", "bucket": place.bucket}
    return {**found, **({"prefix": place.path} if place.path else {})}
