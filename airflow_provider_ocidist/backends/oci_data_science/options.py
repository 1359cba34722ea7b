"""The options of OCI Data Science in a job and a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_ocidist.backends.fields import ConnectionFields
from airflow_provider_ocidist.model.job import BackendOptions

KIND = "oci_data_science"


@dataclass(frozen=True, kw_only=True, slots=True)
class OciDataScienceOptions(BackendOptions):
    """Where on OCI Data Science; what is absent comes from the connection."""

    kind: str = KIND
    topology: Literal["auto", "job_runs", "multi_node"] = "auto"
    """Layout of the nodes. `job_runs`: one job run for each node. `multi_node`: one job run with all nodes.
    `auto`: `multi_node` for several nodes without a subnet, else `job_runs`."""
    compartment_id: str | None = None
    """OCID of the compartment. None, here and below: the connection's."""
    project_id: str | None = None
    """OCID of the Data Science project."""
    subnet_id: str | None = None
    """OCID of the subnet that the nodes use: it must allow traffic within itself. None: the connection's. Without any,
    the service manages egress, and a network of their own for the nodes of a `multi_node` run."""
    managed_network: bool = False
    """Whether to leave the network to the service, even where the connection names a subnet."""
    shape: str | None = None
    """Shape of the machines, as `VM.GPU.A10.1`."""
    ocpus: float | None = None
    """OCPUs of a machine; for flexible shapes only."""
    memory_gb: float | None = None
    """Memory of a machine in GB; for flexible shapes only."""
    block_storage_gb: int = 50
    """Size of each node's disk in GB."""
    log_group_id: str | None = None
    """OCID of the log group. None, and none in the connection: the service keeps no log."""
    log_id: str | None = None
    """OCID of the log. None with a log group: the service creates a log for each job run."""
    conda_slug: str | None = None
    """Service conda environment with torch and Python 3.9 or later; for jobs without an image."""
    conda_uri: str | None = None
    """Published conda environment, `oci://bucket@namespace/path/to/pack`; instead of `conda_slug`."""
    conda_region: str | None = None
    """Region of `conda_uri`; None: the connection's `conda_region`, its `region`, or that of its profile."""
    defined_tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Tags of namespaces that administrators have defined: `{namespace: {key: value}}`."""
    image_digest: str | None = None
    """Digest of the image, as `sha256:...`: the run fails unless the image has it."""
    image_signature_id: str | None = None
    """OCID of the signature by which the service verifies the image."""
    contract: Literal["none", "ads_distributed", "ads_job"] = "none"
    """Variables of Oracle ADS that the nodes get besides ocidist's: those that its container images read
    (`ads_distributed`, for `kind: distributed`), or those of its driver (`ads_job`, for `kind: job`), which programs
    may read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults(ConnectionFields):
    """The connection's defaults for what a job does not set."""

    compartment_id: str | None = None
    project_id: str | None = None
    subnet_id: str | None = None
    shape: str | None = None
    log_group_id: str | None = None
    log_id: str | None = None
    region: str | None = None
    conda_region: str | None = None
    """Region of published conda environments; None: `region`."""
