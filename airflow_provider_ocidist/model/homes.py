"""Homes: what a person calls a node where it runs, and where to end one by hand, by the kind of backend. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_ocidist.backports import dataclass


@dataclass(frozen=True, kw_only=True)
class Words:
    """The words of one home, for messages of rooms that know no home."""

    node: str
    """What a node is there: `pod`."""
    gang: str
    """What holds all nodes of a gang: `PyTorchJob`."""
    where: str
    """Where to delete it by hand: `with kubectl`."""
    cost: str = "and hold their machines"
    """What nodes do that have not ended."""
    helper: str = "the cluster's administrators"
    """Who helps where they do not end."""


def _on_kubernetes(gang: str) -> Words:
    return Words(node="pod", gang=gang, where=f"with kubectl delete {gang.lower()}")


WORDS: Mapping[str, Words] = {
    "oci_data_science": Words(
        node="job run",
        gang="job",
        where="in the console (Data Science, Jobs, job runs)",
        cost="and billed",
        helper="its support",
    ),
    "pytorchjob": _on_kubernetes("PyTorchJob"),
    "trainjob": _on_kubernetes("TrainJob"),
    "runai": Words(node="pod", gang="workload", where="in Run:ai, under Workloads"),
    "local": Words(
        node="process", gang="process group", where="on its machine, with kill", helper="that machine's owner"
    ),
}
OTHER = Words(node="node", gang="run", where="at the service", helper="the service's support")
"""Of a backend that this version does not know."""


def words_of(kind: str) -> Words:
    return WORDS.get(kind, OTHER)
