"""The ways in which a node's agent starts."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

from airflow_provider_ocidist.backends.bundle import START_SCRIPT, agent_bundle, unpack
from airflow_provider_ocidist.backends.kubernetes import agent_parts


def as_module(_: Path) -> list[str]:
    """Return the command of an image whose entry point is the agent."""
    return [sys.executable, "-m", "airflow_provider_ocidist.agent"]


def as_artifact(place: Path) -> list[str]:
    """Return the command that runs a job artifact, which is unpacked here."""
    unpack(zipfile.ZipFile(io.BytesIO(agent_bundle(None))), place)
    return [sys.executable, str(place / "ocidist/node.py")]


def in_an_image_that_has_it(_: Path) -> list[str]:
    """Return the command of a container of any image; it needs `bundle.BOOT_VARIABLE` in its environment."""
    return [sys.executable, "-c", START_SCRIPT]


def in_a_pod(place: Path) -> list[str]:
    """Return the command of a pod, whose ConfigMap has its files here."""
    (place / agent_parts.ARCHIVE).write_bytes(agent_bundle(None))
    (place / agent_parts.START).write_text(agent_parts.START_SCRIPT)
    return [sys.executable, str(place / agent_parts.START)]
