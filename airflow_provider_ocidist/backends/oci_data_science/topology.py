"""Topology: how the nodes of a gang are laid out over job runs. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.model.report import NodeReport
from airflow_provider_ocidist.model.run import NodeStatus, RunRef


@dataclass(frozen=True, kw_only=True, slots=True)
class Blueprint:
    """What the job of a gang sets in every topology; parts in the service's own form."""

    name: str
    nodes: int
    environment: Mapping[str, str]
    node_environments: Sequence[Mapping[str, str]]
    """Variables of each node, by rank, that win over `environment` if each node has a job run of its own."""
    arguments: str | None
    """Arguments that the service passes to the container's command."""
    machine: Mapping[str, Any]
    """Machine of a node: shape, its size, block storage."""
    container: Mapping[str, Any] | None
    subnet_id: str | None
    max_minutes: int | None


def configuration(blueprint: Blueprint) -> dict[str, Any]:
    """Return the nodes' configuration, in the service's form."""
    details = {"jobType": "DEFAULT", "environmentVariables": dict(blueprint.environment)}
    return {**details, **({"commandLineArguments": blueprint.arguments} if blueprint.arguments else {})}


class Topology(ABC):
    """Builds the part of the requests, and reads the part of the answers, that depends on the layout."""

    kind: str
    is_one_run: bool
    """Whether all nodes are one run: they share its log, and the first that fails ends it for all."""

    @abstractmethod
    def why(self, blueprint: Blueprint) -> str:
        """Return what is created, in words for a person."""

    @abstractmethod
    def job(self, blueprint: Blueprint) -> dict[str, Any]:
        """Return the fields of CreateJob that set where and how the nodes run."""

    @abstractmethod
    def runs(self, blueprint: Blueprint) -> list[dict[str, Any]]:
        """Return the fields of each CreateJobRun that differ from the others."""

    @abstractmethod
    def run_of(self, rank: int) -> int:
        """Return which of these runs holds a node."""

    @abstractmethod
    def environment_of(self, job: Any) -> Mapping[str, str]:
        """Return the environment that `job` was created with."""

    @abstractmethod
    def nodes(
        self, ref: RunRef, runs: Mapping[str, Any], reports: Mapping[int, NodeReport] | None
    ) -> list[NodeStatus]:
        """Return each node's status from the service's runs, by id, and the nodes' own reports, by rank.

        `reports` None: they were not read, so that nothing follows from the absence of one.
        """
