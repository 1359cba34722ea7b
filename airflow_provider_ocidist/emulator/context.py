"""Context: what every service of one emulator shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.installation import Identifiers, Installation
from airflow_provider_ocidist.emulator.runai_settings import RunaiOptions
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
    deletion_s: float = 0.05
    """How long a deletion takes that has a work request."""
    token_lifetime_s: float = 900.0
    """Of a node's resource principal token; its file is written anew when half of it is over."""
    log_lag_s: float = 0.0
    """From when a log entry was written to when searches find it. Seconds to a minute at the real service."""
    log_jitter_s: float = 0.0
    """Up to so much more for some entries, the same ones each time: entries then appear out of order."""
    keep_node_files: bool = False
    """Leave the folders of ended nodes for a look; the service destroys them."""
    seed: int | None = None
    """Of the dice that faults with a probability roll; None: a new one at each start."""
    pass_through: bool = False
    """The proxy connects to hosts that are not OCI's, too."""
    shapes: tuple[str, ...] = ()
    """Shapes that jobs may name besides those that the service is known to have."""
    file_systems: tuple[str, ...] = ()
    """Exports that jobs can mount by address and path, such as `10.0.1.5:/data`, besides `10.0.0.1:/export`."""
    conda: Mapping[str, Path] = field(default_factory=dict)
    """Environments of this machine that stand for conda environments, by slug (or by object name)."""
    kubernetes: ClusterSettings | None = None
    """Start a Kubernetes cluster, too."""
    runai: RunaiOptions | None = None
    """Start a control plane of Run:ai over that cluster, too."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Commands of this machine that stand for what container images run, by image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """The state folder and what is in it."""

    folder: Path
    url: str
    proxy_url: str
    ca_file: Path
    """What a client must trust to use the proxy."""
    ca_bundle: Path
    """The same and the public authorities: what a node trusts, for which all hosts are open."""
    installation: Installation
    store: Store
    options: Options

    @property
    def ids(self) -> Identifiers:
        return self.installation.ids
