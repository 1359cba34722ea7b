"""The options of Run:ai in a job, and the fields of a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from airflow_provider_ocidist.backends.fields import ConnectionFields, read_fields
from airflow_provider_ocidist.backends.kubernetes.options import SecretKey
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.field_limits import STRICT, AtLeast
from airflow_provider_ocidist.model.job import BackendOptions

KIND = "runai"
Priority = Literal["very-low", "low", "medium-low", "medium", "medium-high", "high", "very-high"]
"""Priorities that the control plane's description lists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeClaim:
    """A persistent volume claim that every node mounts."""

    __pydantic_config__ = STRICT

    claim: str
    """Name of the claim in the project's namespace."""
    path: str
    """Absolute path at which nodes see it."""
    read_only: bool = False
    """Whether nodes may only read it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Toleration:
    """A taint that the nodes may have."""

    __pydantic_config__ = STRICT

    key: str
    """Key of the taint."""
    operator: Literal["Equal", "Exists"] = "Exists"
    """Whether the taint's value counts."""
    value: str | None = None
    """Value of the taint; with `Equal`."""
    effect: Literal["NoSchedule", "NoExecute", "PreferNoSchedule", "Any"] | None = None
    """Effect of the taint on pods; None: any of these."""
    seconds: int | None = None
    """Seconds for which pods stay; with `NoExecute`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunaiOptions(BackendOptions):
    """Where on Run:ai; what is absent comes from the connection."""

    kind: str = KIND
    project: str | None = None
    """Name or id of the project. None, here and below: the connection's."""
    cluster_id: str | None = None
    """UUID of the cluster; None there too: that of the project."""
    gpus: Annotated[int, AtLeast(0)] | None = None
    """Number of GPUs of each node; None: no GPU."""
    gpu_fraction: float | None = None
    """Share of each GPU, between 0 and 1, instead of whole ones."""
    gpu_memory: str | None = None
    """Memory of the one GPU, as `20G`, instead of a whole one."""
    cpus: float | None = None
    """Processor cores requested for each node."""
    cpu_limit: float | None = None
    """Processor cores that a node cannot exceed."""
    memory: str | None = None
    """Memory requested for each node, as `32G`."""
    memory_limit: str | None = None
    """Memory that a node cannot exceed."""
    large_shm: bool = False
    """Whether `/dev/shm` may exceed the 64 MB of a container, as NCCL and data loaders need it."""
    extended_resources: Mapping[str, str] = field(default_factory=dict)
    """Other resources requested for each node, such as `{nvidia.com/rdma: "1"}`."""
    node_pools: tuple[str, ...] = ()
    """Node pools in the order of preference; none: the project's."""
    node_type: str | None = None
    """Label of nodes that an administrator has set."""
    tolerations: tuple[Toleration, ...] = ()
    priority: Priority | None = None
    """Priority of the workload. None: the platform's default for trainings."""
    preemptible: bool | None = None
    """Whether other workloads may take its GPUs; one that is not preemptible stays within the project's quota. None:
    the platform's default."""
    volumes: tuple[VolumeClaim, ...] = ()
    """Claims that every node mounts."""
    secrets: Mapping[str, SecretKey] = field(default_factory=dict)
    """Environment variables whose values are in secrets: `{HF_TOKEN: {name: hugging-face, key: token}}`. The
    console puts a prefix before the name of a credential, as `genericsecret-`."""
    secret_files: Mapping[str, str] = field(default_factory=dict)
    """Secrets that nodes see as folders: `{/etc/oci: oci-config}`."""
    image_pull_secrets: tuple[str, ...] = ()
    """Names of the secrets with which the image is pulled, with the prefix that the console gives them,
    `dockerreg-`."""
    image_pull_policy: Literal["Always", "Never", "IfNotPresent"] | None = None
    """Pull policy of the image. None: the platform's default."""
    host_network: bool = False
    """Whether nodes use their machines' network, as RDMA may need it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the pods, besides `tags`."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the pods."""
    python: str = "python3"
    """Python interpreter of the image."""
    when_suspended: Literal["fail", "wait"] = "fail"
    """Consequence if a user suspends the workload: the try fails, or it waits."""
    keep_for: Annotated[int, AtLeast(1)] | None = None
    """Seconds for which Run:ai keeps a workload that has ended; None: its default, 30 days."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields(ConnectionFields):
    """The fields of a connection of type `runai`."""

    url: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    project: str | None = None
    cluster_id: str | None = None
    verify: bool | str = True
    """Whether, or with which bundle of authorities, the control plane's certificate is verified."""
    kube_config_path: str | None = None
    """Path of a kubeconfig, with which the logs of nodes are read from the cluster itself."""
    cluster_context: str | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        read = read_fields(cls, fields)
        return replace(read, verify=_verify(read.verify))

    @property
    def address(self) -> str:
        """The control plane's. Raises BackendError where the connection names none."""
        missing = [name for name in ("url", "client_id", "client_secret") if not getattr(self, name)]
        if missing:
            words = {
                "url": "host",
                "client_id": "login (client id)",
                "client_secret": "password (client secret)",
            }
            raise BackendError(
                f"the connection to Run:ai lacks {', '.join(words[name] for name in missing)}",
                cause=Cause.CONFIG,
            )
        return str(self.url)


def _verify(value: Any) -> bool | str:
    text = str(value)
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(
        text.lower(), text
    )


def runai_fields(
    host: str | None, login: str | None, password: str | None, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of a connection of type `runai`; `host` may be a name or a URL."""
    url = None
    if host:
        url = (host if "://" in host else f"https://{host}").rstrip("/")
    own = {"url": url, "client_id": login, "client_secret": password}
    return {name: value for name, value in {**extra, **own}.items() if value not in (None, "")}
