"""Which topologies there are, and which one a gang gets."""

from __future__ import annotations

from typing import Any

from airflow_provider_ocidist.backends.oci_data_science.job_runs import JOB_RUNS
from airflow_provider_ocidist.backends.oci_data_science.multi_node import MULTI_NODE
from airflow_provider_ocidist.backends.oci_data_science.topology import Topology

TOPOLOGIES: dict[str, Topology] = {topology.kind: topology for topology in (JOB_RUNS, MULTI_NODE)}


def choose_topology(wanted: str, nodes: int, subnet_id: str | None) -> tuple[Topology, str]:
    """Return the topology of a gang, and why it is this one."""
    if wanted != "auto":
        return TOPOLOGIES[wanted], "the job asks for it"
    if nodes == 1:
        return JOB_RUNS, "for one node"
    if subnet_id is not None:
        return JOB_RUNS, "since there is a subnet through which the nodes can talk"
    return MULTI_NODE, "since there is no subnet through which several job runs could talk"


def topology_of(job: Any) -> Topology:
    """Return the topology that a job was created with."""
    return JOB_RUNS if job.job_node_configuration_details is None else MULTI_NODE
