"""A job's mounts as volumes of its pods: claims and NFS exports. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.model.job import PVC_SCHEME, Mount, TrainingJob, is_placeholder

CLAIM_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
SOURCES = "pvc://claim/folder or 10.0.0.1:/export"


def volumes(mounts: Sequence[Mount]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of a pod, each source once, and where its container mounts them."""
    names: dict[str, str] = {}
    made: list[dict[str, Any]] = []
    mounted = []
    for mount in mounts:
        source, folder = _split(mount.source)
        if source not in names:
            names[source] = f"mount-{len(names)}"
            made.append({"name": names[source], **_volume(source)})
        place = {"name": names[source], "mountPath": mount.path}
        mounted.append({**place, **({"subPath": folder} if folder else {})})
    return made, mounted


def _split(source: str) -> tuple[str, str]:
    if source.startswith(PVC_SCHEME):
        claim, _, folder = source.removeprefix(PVC_SCHEME).partition("/")
        return PVC_SCHEME + claim, folder.strip("/")
    return source, ""


def _volume(source: str) -> dict[str, Any]:
    if source.startswith(PVC_SCHEME):
        return {"persistentVolumeClaim": {"claimName": source.removeprefix(PVC_SCHEME)}}
    server, _, path = source.partition(":")
    return {"nfs": {"server": server, "path": path}}


def rules(job: TrainingJob) -> Iterator[Problem]:
    """Report mounts that no pod can have."""
    for index, mount in enumerate(job.mounts):
        if not is_placeholder(mount.source) and (problem := _source_problem(mount.source)):
            yield Problem(f"mounts.{index}.source", problem)
        if not is_placeholder(mount.path) and not mount.path.startswith("/"):
            yield Problem(f"mounts.{index}.path", f"must be an absolute path, not {mount.path!r}")


def _source_problem(source: str) -> str | None:
    if source.startswith(PVC_SCHEME):
        claim = source.removeprefix(PVC_SCHEME).partition("/")[0]
        return None if CLAIM_NAME.fullmatch(claim) else f"must name a claim, as {SOURCES}, not {source!r}"
    server, separator, path = source.partition(":")
    if separator and server and path.startswith("/") and not path.startswith("//"):
        return None
    return f"cannot be mounted into a pod: write {SOURCES}"
