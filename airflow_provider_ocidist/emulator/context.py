"""Context: what every service of one emulator shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.installation import Identifiers, Installation
from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings
from airflow_provider_ocidist.emulator.store import RecordStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How an emulator behaves; the same from start to end."""

    verify_signatures: bool = True
    provisioning_s: float = 0.0
    """Seconds from ACCEPTED to the start of a node's program. Minutes at the real service."""
    grace_s: float = 30.0
    """Seconds from SIGTERM to SIGKILL."""
    minute_s: float = 60.0
    """Seconds of a minute in maximumRuntimeInMinutes; tests have shorter ones."""
    copy_s: float = 0.05
    """Seconds that an object copy takes after it was accepted."""
    deletion_s: float = 0.05
    """Seconds that a deletion with a work request takes."""
    token_lifetime_s: float = 900.0
    """Seconds that a node's resource principal token is valid; its file is written again when half of it is over."""
    log_lag_s: float = 0.0
    """Seconds from the write of a log entry until searches find it. Up to a minute at the real service."""
    log_jitter_s: float = 0.0
    """Most seconds more for some entries, the same ones each time: entries then appear out of order."""
    keep_node_files: bool = False
    """Whether the folders of ended nodes stay for a look; the service destroys them."""
    seed: int | None = None
    """Seed of the random numbers for faults with a probability; None: another at each start."""
    pass_through: bool = False
    """Whether the proxy connects to hosts that are not OCI's, too."""
    shapes: tuple[str, ...] = ()
    """Shapes that jobs may name besides those that the service is known to have."""
    file_systems: tuple[str, ...] = ()
    """Exports that jobs can mount by address and path, such as `10.0.1.5:/data`, besides `10.0.0.1:/export`."""
    conda: Mapping[str, Path] = field(default_factory=dict)
    """Environments of this machine that stand for conda environments, by slug (or by object name)."""
    kubernetes: ClusterSettings | None = None
    """Settings of a Kubernetes cluster to start, too; None: no cluster."""
    runai: RunaiSettings | None = None
    """Options of a control plane of Run:ai to start over that cluster; None: no control plane."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Commands of this machine that stand for what container images run, by image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """The state folder and what is in it."""

    folder: Path
    url: str
    proxy_url: str
    ca_file: Path
    """Certificate that a client must trust to use the proxy."""
    ca_bundle: Path
    """Certificates of the proxy and of the public authorities, for nodes, which may reach all hosts."""
    installation: Installation
    store: RecordStore
    options: Options

    @property
    def ids(self) -> Identifiers:
        return self.installation.ids
