"""The inputs of each node of a job run: environment, artifact, token, a place for its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.emulator.auth import tokens
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.data_science.execution import Orders, nodes_file
from airflow_provider_ocidist.emulator.data_science.layout import Layout, NodeGroup
from airflow_provider_ocidist.emulator.data_science.rules import mount_place
from airflow_provider_ocidist.emulator.nodes.life import NodePlan, OutputSink
from airflow_provider_ocidist.emulator.nodes.machine import Artifact, NodeSpec
from airflow_provider_ocidist.emulator.nodes.rules import NodeKind
from airflow_provider_ocidist.emulator.proxy import for_nodes

STANDS_FOR = {
    "FILE_STORAGE": "a folder of this machine, shared by all who mount this export",
    "OBJECT_STORAGE": "a folder of this machine, brought in step with the bucket every second and at the end",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What is the same for all nodes of a run."""

    run_id: str
    compartment_id: str
    display_name: str
    environment: dict[str, str]
    """Variables that the service documents for every job run."""
    artifact: Artifact | None
    mounts: Mapping[str, Path]
    private_mounts: bool
    notes: Callable[[], Sequence[str]]
    output: Callable[[int | None], OutputSink]
    """Function that opens the output of a rank; of None for a single-node run."""


def orders_of(facts: RunFacts, layout: Layout, context: Context, folder: Path) -> Orders:
    """Return the plan by which an execution starts all nodes of a run."""

    def token() -> str:
        return issue_token(facts, context)

    plans = {
        rank: _plan(facts, layout, group, rank, context, folder, token)
        for group in layout.groups
        for rank in group.ranks
    }
    return Orders(layout=layout, plans=plans, folder=folder, token=token)


def _plan(
    facts: RunFacts,
    layout: Layout,
    group: NodeGroup,
    rank: int,
    context: Context,
    folder: Path,
    token: Callable[[], str],
) -> NodePlan:
    place = _place_in_cluster(layout, rank, folder) if layout.multi_node else {}

    def spec(address: str) -> NodeSpec:
        return NodeSpec(
            folder=folder / str(rank),
            service_environment={**facts.environment, "FQDN": address, **place},
            user_environment=group.configuration["environmentVariables"],
            arguments=group.configuration.get("commandLineArguments") or "",
            artifact=facts.artifact,
            container=group.container,
            token=token(),
            session_key=context.installation.session_key_file,
            region=context.ids.region,
            endpoint=context.url,
            proxy_url=for_nodes(context.proxy_url),
            ca_file=context.ca_bundle,
            mounts=facts.mounts,
            private_mounts=facts.private_mounts,
            conda=context.options.conda,
            images=context.options.images,
        )

    return NodePlan(
        kind=NodeKind(display_name=facts.display_name, group=group.name, shape=group.shape, rank=rank),
        spec=spec,
        output=lambda: facts.output(rank if layout.multi_node else None),
        notes=facts.notes,
        probe=group.configuration.get("startupProbeDetails"),
        delay_s=context.options.provisioning_s,
        keep_files=context.options.keep_node_files,
    )


def _place_in_cluster(layout: Layout, rank: int, folder: Path) -> dict[str, str]:
    return {
        "NODE_RANK": str(rank),
        "INITIAL_CLUSTER_SIZE": str(layout.size),
        "CLUSTER_NODES_METADATA_FILE": str(nodes_file(folder)),
    }


def mount_notes(mounts: Sequence[Mapping[str, Any]], *, private: bool) -> list[str]:
    """Return log lines about storage mounts: what stands for them, and how fast it follows."""
    where = (
        "" if private else ", below $OCIDIST_MOUNT_ROOT, as this machine gives processes no view of their own"
    )
    return [
        f"the {mount['storageType']} mount {mount_place(mount)} is {STANDS_FOR[mount['storageType']]}{where}"
        for mount in mounts
    ]


def issue_token(facts: RunFacts, context: Context) -> str:
    """Return a fresh resource principal session token of a run."""
    installation = context.installation
    claims: dict[str, Any] = {
        "sub": facts.run_id,
        "tenant": context.ids.tenancy_id,
        "ptype": "resource",
        "res_type": "datasciencejobrun",
        "res_id": facts.run_id,
        "res_tenant": context.ids.tenancy_id,
        "res_compartment": facts.compartment_id,
    }
    return tokens.issue(
        installation.issuer,
        installation.session.public_key(),
        claims,
        lifetime_s=context.options.token_lifetime_s,
    )
