"""Mounts: checks, before any read or write there, that the platform has mounted the job's mounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_provider_ocidist.errors import AgentError, Cause

ROOT_VARIABLE = "OCIDIST_MOUNT_ROOT"
"""Variable with the folder that stands for `/mnt`, where a process cannot have a `/mnt` of its own, as in the emulator
without that right."""


def check_mounts(paths: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise AgentError that names every folder that should be mounted, and is not there."""
    missing = [path for path in paths if not mount_folder(path, environ).is_dir()]
    if missing:
        raise AgentError(
            f"the job mounts {', '.join(missing)}, and this node has no such folder: check that the platform could "
            "mount it (subnet, policies of the file system or bucket), and that the image does not hide it",
            cause=Cause.CONFIG,
        )


def mount_folder(path: str, environ: Mapping[str, str]) -> Path:
    """Return where a mount is seen: a bare name is a folder in `/mnt`, as OCI has it."""
    absolute = Path("/mnt") / path
    root = environ.get(ROOT_VARIABLE)
    return Path(root) / absolute.relative_to("/") if root else absolute
