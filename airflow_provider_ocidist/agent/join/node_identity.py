"""NodeIdentity: the variables by which a platform describes a node to itself.

| platform | it sets |
| --- | --- |
| ours, on any backend | `OCIDIST_NODE_RANK`, and `OCIDIST_ADDRESSES` where the addresses are known beforehand |
| OCI, native multi-node runs | `NODE_RANK`, `INITIAL_CLUSTER_SIZE`, `CLUSTER_NODES_METADATA_FILE` |
| Kubeflow TrainJob | `PET_NODE_RANK`, `PET_NNODES`, `PET_MASTER_ADDR`, `PET_MASTER_PORT` |
| Kubeflow PyTorchJob, Run:ai | the same from 1.7 on; `RANK` (of the node), `MASTER_ADDR`, `MASTER_PORT` |
| PyTorchJob with an elastic policy | `PET_RDZV_ENDPOINT`, and no rank |
| Kubernetes Job, Indexed | `JOB_COMPLETION_INDEX` |

`ads_contract` has translated Oracle ADS's variables before.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model.agent_config import RANK_VARIABLE

ADDRESSES_VARIABLE = "OCIDIST_ADDRESSES"
"""Variable with the addresses of all nodes, by rank, separated by commas."""
SWITCH_VARIABLE = "OCIDIST_SWITCH"
"""Variable of a node on backend `local`: the process that holds the switch of its network; empty where the node shares
the network of this machine."""
NODES_FILE_VARIABLE = "CLUSTER_NODES_METADATA_FILE"
"""Variable with the path of a JSON list of `Rank` and `IPAddress` of each node (as Oracle ADS reads it)."""

RANK_VARIABLES = (RANK_VARIABLE, "NODE_RANK", "PET_NODE_RANK")
COUNTS = ("INITIAL_CLUSTER_SIZE", "PET_NNODES")
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class NodeIdentity:
    """One node, as its platform describes it; None where unknown."""

    rank: int
    address: str | None = None
    """Address at which other nodes reach this one."""
    master: str | None = None
    """Name or address of the node of rank 0."""
    master_port: int | None = None


def identity_of(environ: Mapping[str, str], nodes: int) -> NodeIdentity:
    """Return what the platform says of this node. Raises AgentError for an unusable rank, or another number of
    nodes.
    """
    rank = _rank(environ, nodes)
    _check_count(environ, nodes)
    addresses = _addresses(environ, nodes)
    if addresses:
        return NodeIdentity(rank=rank, address=addresses[rank], master=addresses[0])
    master, port = _master(environ) if nodes > 1 else (None, None)
    return NodeIdentity(rank=rank, address=environ.get("POD_IP") or None, master=master, master_port=port)


def _rank(environ: Mapping[str, str], nodes: int) -> int:
    names = [*RANK_VARIABLES, *_ranks_by_other_names(environ)]
    name = next((name for name in names if name in environ), RANK_VARIABLE)
    text = environ.get(name, "0" if nodes == 1 else None)
    if text is None or not text.isdecimal() or int(text) >= nodes:
        problem = f"{name} is {'not set' if text is None else repr(text)}"
        raise AgentError(f"{problem}: it must be the rank of this node, 0 to {nodes - 1}", cause=Cause.CONFIG)
    return int(text)


def _ranks_by_other_names(environ: Mapping[str, str]) -> list[str]:
    return [*(["RANK"] if _is_pytorchjob(environ) else []), "JOB_COMPLETION_INDEX"]


def _is_pytorchjob(environ: Mapping[str, str]) -> bool:
    """`RANK` is a node's where the platform has set it with all else; within a training it is a process's."""
    return "LOCAL_RANK" not in environ and {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environ.keys()


def _check_count(environ: Mapping[str, str], nodes: int) -> None:
    for name in COUNTS:
        text = environ.get(name, "")
        if text.isdecimal() and int(text) != nodes:
            raise AgentError(
                f"the platform started {text} nodes ({name}), the job has {nodes}: make them equal",
                cause=Cause.CONFIG,
            )


def _addresses(environ: Mapping[str, str], nodes: int) -> list[str]:
    text = environ.get(ADDRESSES_VARIABLE, "")
    found = [address.strip() for address in text.split(",") if address.strip()]
    if found and len(found) != nodes:
        raise AgentError(
            f"{ADDRESSES_VARIABLE} names {len(found)} nodes, the job has {nodes}: make them equal",
            cause=Cause.CONFIG,
        )
    return found


def _master(environ: Mapping[str, str]) -> tuple[str | None, int | None]:
    if "PET_MASTER_ADDR" in environ:
        host, port = environ["PET_MASTER_ADDR"], environ.get("PET_MASTER_PORT", "")
    elif _is_pytorchjob(environ):
        host, port = environ["MASTER_ADDR"], environ.get("MASTER_PORT", "")
    else:
        host, _, port = environ.get("PET_RDZV_ENDPOINT", "").rpartition(":")
    if not host or host in LOCAL_NAMES:
        # PyTorchJob up to 1.3 sets `localhost` on the master itself.
        return None, None
    return host, int(port) if port.isdecimal() else None
