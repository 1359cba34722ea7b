"""Context: what every service of one emulator shares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airflow_provider_ocidist.emulator.installation import Identifiers, Installation
from airflow_provider_ocidist.emulator.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How an emulator behaves; the same from start to end."""

    verify_signatures: bool = True
    provisioning_s: float = 0.0
    """From ACCEPTED to the start of a node's program. Minutes at the real service."""
    grace_s: float = 30.0
    """From SIGTERM to SIGKILL."""
    minute_s: float = 60.0
    """Length of a minute of maximumRuntimeInMinutes; tests have shorter ones."""
    copy_s: float = 0.05
    """How long an object copy takes after it was accepted."""
    keep_node_files: bool = False
    """Leave the folders of ended nodes for a look; the service destroys them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """The state folder and what is in it."""

    folder: Path
    url: str
    installation: Installation
    store: Store
    options: Options

    @property
    def ids(self) -> Identifiers:
        return self.installation.ids
