"""Settings of a Kubernetes cluster, the same from start to end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSettings:
    """How a cluster behaves."""

    namespace: str = "training"
    """Namespace that exists from the start, beside `default`; the kubeconfig's context names it."""
    nodes: int = 4
    node_capacity: Mapping[str, str] = field(
        default_factory=lambda: {"cpu": "64", "memory": "512Gi", "pods": "250", "ephemeral-storage": "1Ti"}
    )
    """Resources of each node; with `nvidia.com/gpu`, pods may ask for GPUs, which no program will find."""
    training_operator: str | None = "1.9.4"
    """Version of Kubeflow's training operator, 1.3 to 1.9.4; None: the cluster has no PyTorchJob."""
    trainer: str | None = "2.3"
    """Version of Kubeflow Trainer, 2.0 to 2.3; None: the cluster has no TrainJob."""
    status_delay_s: float = 0.0
    """Seconds after its creation for which the status of a PyTorchJob stays empty."""
    init_tries: int = 100
    """Number of times that a worker of a PyTorchJob looks for its master, every two seconds, before it fails."""
    pull_s: float = 0.0
    """Seconds in which a machine pulls an image that it does not have yet; 0: all images are there."""
    backoff_s: float = 10.0
    """Seconds before a container is restarted for the second time, or an image pulled again; they double to
    `backoff_max_s`."""
    backoff_max_s: float = 300.0
    mount_retry_s: float = 0.2
    """Seconds between two attempts to make a pod's volumes."""
    bookmark_s: float = 60.0
    """Seconds between two bookmarks of a watch."""
    eviction_s: float = 300.0
    """Seconds from the loss of a node until its pods are deleted (the toleration that all pods have)."""
    pod_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that each container gets besides its own, such as how to reach the emulated OCI."""
