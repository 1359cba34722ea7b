"""Preparation: fetches the program and its packages to this node, and opens the exchange of inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_ocidist.agent.join.topology import await_address
from airflow_provider_ocidist.agent.prepare import code
from airflow_provider_ocidist.agent.prepare.workspace import Workspace, with_executable
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.errors import TopologyTimeout
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.git_source import at_commit

if TYPE_CHECKING:
    from airflow_provider_ocidist.agent.share.exchange import Exchange

ADDRESS_WITHIN = 5.0
"""Seconds within which the service lists this node's address, for it to share its inputs."""


def fetch_program(context: NodeContext) -> Workspace:
    """Return the workspace once code and packages are in it; node 0 announces which commit it has."""
    config = _config(context)
    workspace = context.with_retries(
        lambda: code.fetch_code(config, context.environ, context.access, context.switch)
    )
    if context.rank == 0 and config.nodes > 1:
        context.with_retries(lambda: _announce(context, workspace.commit))
    context.activity.enter()
    return with_executable(_with_packages(context, workspace), context.environ)


def exchange_of(context: NodeContext) -> Exchange | None:
    """Return this node's part in the exchange of inputs; None if there is nothing to share, or no other node."""
    config, identity = context.config, context.identity
    reads = bool(config.inputs) or _may_restore(config)
    if not reads or not config.share_inputs or config.nodes == 1:
        return None
    if context.heartbeat.report.incarnation:
        # The others have ended their servers before they trained: their programs may listen at the same ports by now.
        return None
    from airflow_provider_ocidist.agent.share.exchange import Exchange

    def address() -> str | None:
        try:
            return await_address(identity, context.environ, context.switch.pause, ADDRESS_WITHIN)
        except TopologyTimeout:
            return None

    return Exchange(
        context.rank, config.nodes, context.heartbeat.quick_store, address, lambda: context.others
    )


def _may_restore(config: AgentConfig) -> bool:
    """Whether there may be a checkpoint that each node reads into a folder of its own."""
    checkpoints = config.checkpoints
    if checkpoints is None or Path(checkpoints.path).is_absolute():
        return False
    is_first = config.attempt <= 1 and config.checkpoints_stem is None
    return bool(checkpoints.start_from) or (checkpoints.uri is not None and not is_first)


def _config(context: NodeContext) -> AgentConfig:
    """Return the settings; a node that replaces a lost one gets the others' commit: the branch may have moved."""
    config, source = context.config, context.config.program.source
    if not context.heartbeat.report.incarnation or source is None:
        return config
    commit = context.with_retries(lambda: _announced(context))
    program = replace(config.program, source=at_commit(source, commit) if commit else source)
    return replace(config, program=program)


def _announce(context: NodeContext, commit: str | None) -> None:
    with code.fetch_errors("the run directory", context.folder):
        code.announce(commit, context.heartbeat.store)


def _announced(context: NodeContext) -> str | None:
    with code.fetch_errors("the run directory", context.folder):
        return code.announced(context.heartbeat.store)


def _with_packages(context: NodeContext, workspace: Workspace) -> Workspace:
    config = context.config
    if config.dependencies is None:
        return workspace
    from airflow_provider_ocidist.agent.prepare.packages import install
    from airflow_provider_ocidist.agent.prepare.wheels import WheelCache

    cache = WheelCache(
        run_dir=config.run_dir,
        rank=context.rank,
        nodes=config.nodes,
        access=context.access,
        switch=context.switch,
    )
    return install(config.dependencies, workspace, context.environ, context.switch, cache)
