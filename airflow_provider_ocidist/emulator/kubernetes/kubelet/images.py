"""Images: each is this machine's Python and programs; some cannot be pulled."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj

MISSING = "missing"
"""Part of the name of an image that is in no registry."""
PROGRAMS = Path(__file__).with_name("programs")
"""Folder of programs that images have and this machine may lack."""


def is_missing(image: str) -> bool:
    return MISSING in image


def full_name(image: str) -> str:
    """Return an image's name as container runtimes write it: with registry and tag."""
    first, slash, _ = image.partition("/")
    has_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    name = image if has_registry else f"docker.io/{image}" if slash else f"docker.io/library/{image}"
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def not_found(image: str) -> str:
    name = full_name(image)
    return (
        f'failed to pull and unpack image "{name}": failed to resolve reference "{name}": {name}: not found'
    )


def search_path() -> str:
    """Return where a container finds programs: `python` is the one that runs the emulator."""
    own = str(Path(sys.executable).parent)
    return os.pathsep.join([str(PROGRAMS), own, os.environ.get("PATH", os.defpath)])


def environment(home: Path, hostname: str) -> Obj:
    """Return what every container has, as an image and the kubelet set it."""
    return {
        "PATH": search_path(),
        "HOME": str(home),
        "TMPDIR": str(home),
        "HOSTNAME": hostname,
        "LANG": os.environ.get("LANG", "C.UTF-8"),
    }
