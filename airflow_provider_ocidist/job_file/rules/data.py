"""Rules for data: mounts, inputs, outputs, the work directory, checkpoints."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.job_file.rules.values import inside, location, on_node
from airflow_provider_ocidist.model.job import PVC_SCHEME, TrainingJob, is_placeholder

EXPORT = re.compile(r"[^/\s]+:/\S*")
"""Export of a file system: the host, and a path on it."""


def mounts(job: TrainingJob) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, mount in enumerate(job.mounts):
        if not is_placeholder(mount.source):
            yield from _mounted(f"mounts.{index}.source", mount.source)
        if is_placeholder(mount.path):
            continue
        where = f"mounts.{index}.path"
        path = posixpath.normpath(mount.path) if mount.path.strip() else ""
        if not path or path in ("/", ".") or "\0" in path:
            yield Problem(where, "must name a folder")
        elif ".." in mount.path.split("/"):
            yield Problem(where, f"must not leave its folder, as {mount.path!r} does")
        elif path in first:
            yield Problem(where, f"is the path of mounts.{first[path]} too")
        first.setdefault(path, index)


def _mounted(where: str, source: str) -> Iterator[Problem]:
    """Require a mountable source: an export, a claim, a bucket, or a folder of the work directory."""
    if source.startswith(PVC_SCHEME):
        if not source.removeprefix(PVC_SCHEME).strip("/"):
            yield Problem(where, "must name a claim, as pvc://claim/folder")
    elif "://" in source:
        yield from location(where, source)
    elif not EXPORT.fullmatch(source):
        yield from inside(where, source)


def inputs(job: TrainingJob) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, item in enumerate(job.inputs):
        yield from location(f"inputs.{index}.source", item.source)
        yield from on_node(f"inputs.{index}.target", item.target)
        target = posixpath.normpath(item.target)
        if target in first and not is_placeholder(target):
            yield Problem(f"inputs.{index}.target", f"is the target of inputs.{first[target]} too")
        first.setdefault(target, index)


def outputs(job: TrainingJob) -> Iterator[Problem]:
    for index, output in enumerate(job.outputs):
        yield from on_node(f"outputs.{index}.path", output.path)
        # A variable of the node may hold any part of it.
        if not output.uri.startswith("${"):
            yield from location(f"outputs.{index}.uri", output.uri)


def pattern(job: TrainingJob) -> Iterator[Problem]:
    text = job.checkpoints.pattern if job.checkpoints else None
    where = "checkpoints.pattern"
    if text is None or is_placeholder(text):
        return
    try:
        groups = re.compile(text).groupindex
    except re.error as error:
        yield Problem(where, f"is not a regular expression: {error}")
        return
    for unknown in sorted(set(groups) - {"step", "epoch"}):
        yield Problem(where, f"has the group {unknown!r}; `step` and `epoch` are those that count")
    if re.fullmatch(text, ""):
        yield Problem(where, "matches the empty name: name a part of what checkpoints are called")


def meeting_points(job: TrainingJob) -> Iterator[Problem]:
    if job.work_dir is not None:
        yield from location("work_dir", job.work_dir)
    if job.checkpoints is not None:
        yield from on_node("checkpoints.path", job.checkpoints.path)
        if posixpath.normpath(job.checkpoints.path) in ("/", "//"):
            yield Problem("checkpoints.path", "must name a folder, not the root of the node's file system")
        if job.checkpoints.uri is not None:
            yield from location("checkpoints.uri", job.checkpoints.uri)
        if job.checkpoints.start_from:
            yield from location("checkpoints.start_from", job.checkpoints.start_from)
        if job.checkpoints.resume_after_clear and not job.checkpoints.resume:
            yield Problem("checkpoints.resume_after_clear", "needs checkpoints.resume")
