"""Topology `job_runs`: one job run for each node, whose state the service reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.backends.oci_data_science.answers import (
    cause_in_details,
    state_of,
    timestamp_of,
)
from airflow_provider_ocidist.backends.oci_data_science.topology import Blueprint, Topology, configuration
from airflow_provider_ocidist.model.agent_config import RANK_VARIABLE
from airflow_provider_ocidist.model.report import NodeReport
from airflow_provider_ocidist.model.run import NodeStatus, RunRef


class JobRunsTopology(Topology):
    """One job, a run for each node; rank 0 is the main run."""

    kind = "job_runs"
    is_one_run = False

    def why(self, blueprint: Blueprint) -> str:
        if blueprint.nodes == 1:
            return "one job and one job run for its one node"
        return f"one job and {blueprint.nodes} job runs, one for each node; rank 0 is the main run"

    def job(self, blueprint: Blueprint) -> dict[str, Any]:
        details = configuration(blueprint)
        if blueprint.max_minutes is not None:
            details["maximumRuntimeInMinutes"] = blueprint.max_minutes
        job: dict[str, Any] = {
            "jobConfigurationDetails": details,
            "jobInfrastructureConfigurationDetails": _infrastructure(blueprint),
        }
        if blueprint.container is not None:
            job["jobEnvironmentConfigurationDetails"] = dict(blueprint.container)
        return job

    def runs(self, blueprint: Blueprint) -> list[dict[str, Any]]:
        return [_run(blueprint, rank) for rank in range(blueprint.nodes)]

    def run_of(self, rank: int) -> int:
        return rank

    def environment_of(self, job: Any) -> Mapping[str, str]:
        found: Mapping[str, str] = job.job_configuration_details.environment_variables
        return found

    def nodes(
        self, ref: RunRef, runs: Mapping[str, Any], reports: Mapping[int, NodeReport] | None
    ) -> list[NodeStatus]:
        return [
            _node(rank, run_id, runs.get(run_id), (reports or {}).get(rank))
            for rank, run_id in enumerate(ref.run_ids)
        ]


def _infrastructure(blueprint: Blueprint) -> dict[str, Any]:
    if blueprint.subnet_id is None:
        return {"jobInfrastructureType": "ME_STANDALONE", **blueprint.machine}
    return {
        "jobInfrastructureType": "STANDALONE",
        **blueprint.machine,
        "subnetId": blueprint.subnet_id,
    }


def _run(blueprint: Blueprint, rank: int) -> dict[str, Any]:
    return {
        "displayName": f"{blueprint.name}-{rank}",
        "jobConfigurationOverrideDetails": {
            "jobType": "DEFAULT",
            "environmentVariables": {**blueprint.node_environments[rank], RANK_VARIABLE: str(rank)},
        },
    }


def _node(rank: int, run_id: str, run: Any | None, report: NodeReport | None) -> NodeStatus:
    return NodeStatus(
        rank=rank,
        run_id=run_id,
        state=state_of(run),
        details=run and (run.lifecycle_details or None),
        cause=cause_in_details(run),
        started_at=run and timestamp_of(run.time_started),
        finished_at=run and timestamp_of(run.time_finished),
        report=report,
    )


JOB_RUNS = JobRunsTopology()
