"""Topology `multi_node`: one job run with all nodes, as the service's Distributed Jobs. Pure.

The service reports the state of the run, not of single nodes; the nodes report their own states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.backends.oci_data_science.answers import (
    cause_in_details,
    state_of,
    timestamp_of,
)
from airflow_provider_ocidist.backends.oci_data_science.topology import Blueprint, Topology, configuration
from airflow_provider_ocidist.backends.shared_run import states_while_running
from airflow_provider_ocidist.model.report import NodeReport
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunRef

NODE_GROUP = "node-group"
"""Oracle ADS's name for the only group; its tools look for it."""


class MultiNode(Topology):
    """One job with one group of nodes, and one run of it."""

    kind = "multi_node"
    is_one_run = True

    def why(self, blueprint: Blueprint) -> str:
        network = (
            "through the given subnet" if blueprint.subnet_id else "through a network that the service makes"
        )
        return f"one job and one job run with {blueprint.nodes} nodes, which talk {network}"

    def job(self, blueprint: Blueprint) -> dict[str, Any]:
        details: dict[str, Any] = {
            "jobNodeType": "MULTI_NODE",
            "startupOrder": "IN_PARALLEL",
            "jobNetworkConfiguration": _network(blueprint.subnet_id),
            "jobNodeGroupConfigurationDetailsList": [_group(blueprint)],
        }
        if blueprint.max_minutes is not None:
            details["maximumRuntimeInMinutes"] = blueprint.max_minutes
        return {"jobNodeConfigurationDetails": details}

    def runs(self, blueprint: Blueprint) -> list[dict[str, Any]]:
        return [{"displayName": blueprint.name}]

    def run_of(self, rank: int) -> int:  # noqa: ARG002 - the same for all
        return 0

    def environment_of(self, job: Any) -> Mapping[str, str]:
        (group,) = job.job_node_configuration_details.job_node_group_configuration_details_list
        found: Mapping[str, str] = group.job_configuration_details.environment_variables
        return found

    def nodes(
        self, ref: RunRef, runs: Mapping[str, Any], reports: Mapping[int, NodeReport] | None
    ) -> list[NodeStatus]:
        run = runs.get(ref.main_run_id)
        reported = [reports.get(rank) for rank in range(ref.nodes)] if reports is not None else None
        states = node_states(state_of(run), reported, ref.nodes)
        return [
            NodeStatus(
                rank=rank,
                run_id=ref.run_ids[rank],
                state=state,
                details=run and (run.lifecycle_details or None),
                cause=cause_in_details(run),
                started_at=report.started_at if report else run and timestamp_of(run.time_started),
                finished_at=_finished_at(state, run, report),
                report=report,
            )
            for rank, (state, report) in enumerate(zip(states, reported or [None] * ref.nodes, strict=True))
        ]


def _network(subnet_id: str | None) -> dict[str, Any]:
    if subnet_id is None:
        return {"jobNetworkType": "DEFAULT_NETWORK"}
    return {"jobNetworkType": "CUSTOM_NETWORK", "subnetId": subnet_id}


def _group(blueprint: Blueprint) -> dict[str, Any]:
    group: dict[str, Any] = {
        "name": NODE_GROUP,
        "replicas": blueprint.nodes,
        # A gang that has lost a node cannot train: one failure is the run's.
        "minimumSuccessReplicas": blueprint.nodes,
        "jobInfrastructureConfigurationDetails": {
            "jobInfrastructureType": "MULTI_NODE",
            **blueprint.machine,
        },
        "jobConfigurationDetails": configuration(blueprint),
    }
    if blueprint.container is not None:
        group["jobEnvironmentConfigurationDetails"] = dict(blueprint.container)
    return group


def node_states(run: NodeState, reports: Sequence[NodeReport | None] | None, nodes: int) -> list[NodeState]:
    """Return the nodes' states: the run's, refined by the nodes' own reports while it runs."""
    if run is not NodeState.RUNNING or reports is None:
        return [run] * nodes
    return states_while_running(reports)


def _finished_at(state: NodeState, run: Any, report: NodeReport | None) -> float | None:
    """Return when a node ended: by its own report, else when it was last known to live."""
    if run is None or not state.terminal:
        return None
    if report is None:
        return timestamp_of(run.time_started) or timestamp_of(run.time_finished)
    return report.ran_until


MULTI_NODE = MultiNode()
