"""The options of a job's pods, and the fields of a connection to a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_ocidist.backends.fields import ConnectionFields
from airflow_provider_ocidist.backends.kubernetes.presets import NVIDIA, SHAPES
from airflow_provider_ocidist.model.job import BackendOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class SecretKey:
    """One entry of a Secret that is in the namespace."""

    __pydantic_config__ = BackendOptions.__pydantic_config__

    name: str
    """Name of the Secret."""
    key: str
    """Key of the entry in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PodOptions(BackendOptions):
    """Each node is a pod; what is in Kubernetes' own form is passed on as it is."""

    namespace: str | None = None
    """Namespace of the gang. None: the connection's, else that of the kubeconfig's context, else `default`."""
    gpus: int | None = None
    """Number of GPUs of each node. None: those of the `preset`, else none."""
    gpu_resource: str | None = None
    """Resource name of a GPU, as the cluster's device plugin has it. None: that of the `preset`, else
    `nvidia.com/gpu`."""
    cpu: str | None = None
    """Processor cores requested for each node, as `8` or `500m`."""
    memory: str | None = None
    """Memory requested for each node, and its limit, as `64Gi`."""
    shm_size: str | None = None
    """Size of `/dev/shm`, in memory, as `16Gi`: data loaders and NCCL share memory there. None: the cluster's, 64
    MB."""
    preset: str | None = None
    """Shape of OKE with an RDMA network, as `BM.GPU.H100.8`; it sets host network, devices, parameters of NCCL,
    GPUs."""
    queue: str | None = None
    """LocalQueue of Kueue in the namespace; it holds the gang back until there is room for all of it."""
    priority_class: str | None = None
    """Priority class of the pods, one of the cluster's."""
    service_account: str | None = None
    """Service account of the pods."""
    image_pull_secrets: tuple[str, ...] = ()
    """Names of the Secrets with which the image is pulled."""
    image_pull_policy: str | None = None
    """Pull policy of the image: `Always`, `IfNotPresent` or `Never`. None: as Kubernetes chooses by the image's tag."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that a machine must have."""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    """Tolerations of the pods, in Kubernetes' form, as every key below that has no type of its own."""
    affinity: Mapping[str, Any] = field(default_factory=dict)
    """Affinity of the pods, in Kubernetes' form."""
    security_context: Mapping[str, Any] = field(default_factory=dict)
    """Security context of the pod, in Kubernetes' form."""
    host_network: bool = False
    """Whether the pods use the network of their machines, as RDMA needs it."""
    env_from: tuple[Mapping[str, Any], ...] = ()
    """ConfigMaps and Secrets whose entries become variables."""
    secrets: Mapping[str, SecretKey] = field(default_factory=dict)
    """Variables whose values are entries of Secrets: `{HF_TOKEN: {name: hugging-face, key: token}}`."""
    init_containers: tuple[Mapping[str, Any], ...] = ()
    """Containers that run before the training, on each node, in Kubernetes' form."""
    pod_template: Mapping[str, Any] = field(default_factory=dict)
    """`metadata` and `spec` of a pod, merged over all the rest: lists of named entries by name, other lists whole."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the job and its pods, beside those of `tags`."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the job and its pods."""
    suspend: bool = False
    """Whether to create the gang suspended, until a person or a queue lets it begin."""

    @property
    def gpus_of_node(self) -> int:
        if self.gpus is not None:
            return self.gpus
        return SHAPES[self.preset].gpus if self.preset in SHAPES else 0

    @property
    def resource_of_gpus(self) -> str:
        return self.gpu_resource or (SHAPES[self.preset].resource if self.preset in SHAPES else NVIDIA)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterFields(ConnectionFields):
    """What a connection of Airflow's type `kubernetes` has, by the names that its provider gives them."""

    in_cluster: bool | str | None = None
    kube_config_path: str | None = None
    kube_config: Any = field(default=None, repr=False)
    """Kubeconfig as JSON text, or as the mapping."""
    cluster_context: str | None = None
    namespace: str | None = None
    disable_verify_ssl: bool | str | None = None
    storage_conn_id: str | None = None
    """Id of a connection of type `oci`, whose credentials open `work_dir` and other places of Object Storage."""
