"""The nodes of a job run, worked out from its job and its overrides: groups, ranks, what each group runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from airflow_provider_ocidist.emulator.data_science.rules import (
    check_environment,
    check_mounts,
    groups_of,
    refuse_single_node,
)
from airflow_provider_ocidist.emulator.errors import invalid, limit_exceeded

Details = Mapping[str, Any]
MAX_NODES = 256
"""Most nodes for one machine; the service's own limits are those of the tenancy."""
OVERRIDDEN_AS_A_WHOLE = (
    "replicas",
    "minimumSuccessReplicas",
    "jobInfrastructureConfigurationDetails",
    "jobEnvironmentConfigurationDetails",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGroup:
    """Nodes that run the same thing on the same shape."""

    name: str
    first_rank: int
    replicas: int
    minimum_success: int
    configuration: Details
    container: Details | None
    infrastructure: Details

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.replicas)

    @property
    def shape(self) -> str:
        return str(self.infrastructure.get("shapeName") or "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """All nodes of a run. A single-node run is one group of one node, without a name."""

    groups: tuple[NodeGroup, ...]
    multi_node: bool
    in_order: bool
    minutes: int | None
    """Shortest maximum runtime of job, run and groups."""

    @property
    def size(self) -> int:
        return sum(group.replicas for group in self.groups)


def layout_of(job: Details, run: Details) -> Layout:
    """Return the nodes of a run. Raises 400 when job and run do not fit together."""
    nodes = job.get("jobNodeConfigurationDetails")
    check_mounts(mounts_of(job, run))
    layout = _single(job, run) if not nodes else _multi_node(nodes, run)
    if layout.size > MAX_NODES:
        raise limit_exceeded(f"A job run may have at most {MAX_NODES} nodes, not {layout.size}.")
    for group in layout.groups:
        check_environment(group.configuration["environmentVariables"])
    return layout


def _single(job: Details, run: Details) -> Layout:
    if run.get("jobNodeConfigurationOverrideDetails"):
        raise invalid("jobNodeConfigurationOverrideDetails: the job is not a multi-node job.")
    configuration = merged_configuration(
        job.get("jobConfigurationDetails"), run.get("jobConfigurationOverrideDetails")
    )
    group = NodeGroup(
        name="",
        first_rank=0,
        replicas=1,
        minimum_success=1,
        configuration=configuration,
        container=effective(job, run, "jobEnvironmentConfiguration"),
        infrastructure=effective(job, run, "jobInfrastructureConfiguration") or {},
    )
    minutes = configuration.get("maximumRuntimeInMinutes")
    return Layout(groups=(group,), multi_node=False, in_order=False, minutes=minutes)


def _multi_node(nodes: Details, run: Details) -> Layout:
    refuse_single_node(run, "OverrideDetails")
    override = run.get("jobNodeConfigurationOverrideDetails") or {}
    groups = _overridden(groups_of(nodes), groups_of(override))
    first_ranks = accumulate((group.get("replicas") or 1 for group in groups), initial=0)
    built = tuple(_group(group, first) for group, first in zip(groups, first_ranks, strict=False))
    limits = [
        override.get("maximumRuntimeInMinutes") or nodes.get("maximumRuntimeInMinutes"),
        *(group.configuration.get("maximumRuntimeInMinutes") for group in built),
    ]
    order = override.get("startupOrder") or nodes.get("startupOrder")
    return Layout(
        groups=built,
        multi_node=True,
        in_order=order == "IN_ORDER",
        minutes=min((limit for limit in limits if limit), default=None),
    )


def _overridden(groups: Sequence[Details], overrides: Sequence[Details]) -> list[Details]:
    """Return the groups of a job, each with the run's overrides; a run adds no groups."""
    by_name = {override["name"]: override for override in overrides}
    unknown = set(by_name) - {group["name"] for group in groups}
    if unknown:
        raise invalid(f"The job has no node group named {', '.join(sorted(unknown))}.")
    return [_with_override(group, by_name.get(group["name"], {})) for group in groups]


def _with_override(group: Details, override: Details) -> Details:
    replaced = {name: override[name] for name in OVERRIDDEN_AS_A_WHOLE if override.get(name) is not None}
    configuration = merged_configuration(
        group.get("jobConfigurationDetails"), override.get("jobConfigurationDetails")
    )
    return {**group, **replaced, "jobConfigurationDetails": configuration}


def _group(group: Details, first_rank: int) -> NodeGroup:
    replicas = group.get("replicas") or 1
    minimum = group.get("minimumSuccessReplicas") or replicas
    if minimum > replicas:
        raise invalid(f"minimumSuccessReplicas of {group['name']} is more than its {replicas} replicas.")
    return NodeGroup(
        name=group["name"],
        first_rank=first_rank,
        replicas=replicas,
        minimum_success=minimum,
        configuration=group["jobConfigurationDetails"],
        container=group.get("jobEnvironmentConfigurationDetails"),
        infrastructure=group["jobInfrastructureConfigurationDetails"],
    )


def merged_configuration(base: Details | None, override: Details | None) -> dict[str, Any]:
    """Return a configuration overlaid by its run's: variable by variable, the rest as a whole."""
    given = {name: value for name, value in (override or {}).items() if value is not None}
    variables = [(layer or {}).get("environmentVariables") or {} for layer in (base, override)]
    return {**(base or {}), **given, "environmentVariables": {**variables[0], **variables[1]}}


def effective(job: Details, run: Details, kind: str) -> Any:
    """Return the run's override of one configuration (`jobLogConfiguration`...), or else the job's."""
    return run.get(f"{kind}OverrideDetails") or job.get(f"{kind}Details")


def mounts_of(job: Details, run: Details) -> list[Details]:
    """Return the storage mounts of a run: its own, or else its job's."""
    own = run.get("jobStorageMountConfigurationOverrideDetailsList")
    return list(own or job.get("jobStorageMountConfigurationDetailsList") or ())


def shapes_of(details: Details) -> list[str]:
    """Return the shapes that a job's or a run's details name."""
    found = []
    for kind in ("Details", "OverrideDetails"):
        found.append(details.get(f"jobInfrastructureConfiguration{kind}"))
        groups = groups_of(details.get(f"jobNodeConfiguration{kind}") or {})
        found += [group.get("jobInfrastructureConfigurationDetails") for group in groups]
    return [each["shapeName"] for each in found if each and each.get("shapeName")]


def subnets_of(details: Details) -> list[str]:
    """Return the subnets that a job's or a run's details name."""
    found = []
    for kind in ("Details", "OverrideDetails"):
        found.append(details.get(f"jobInfrastructureConfiguration{kind}"))
        found.append((details.get(f"jobNodeConfiguration{kind}") or {}).get("jobNetworkConfiguration"))
    return [each["subnetId"] for each in found if each and each.get("subnetId")]
