"""Container restart: what a node does after its platform has restarted its container."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_ocidist.agent.join.node_identity import identity_of
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause, OcidistError
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.work_dir import report_of
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store

logger = logging.getLogger("ocidist")

STAY = 120.0
"""Seconds for which the node stays, while the waiting process reads the log of the first start and deletes the gang."""
LOST = "the platform restarted its container; the process before has ended without a report"


def is_restarted(config: AgentConfig, environ: Mapping[str, str]) -> bool:
    """Return whether this node has begun before in this attempt; close the report that it has left open.

    Raises AgentError when the run directory cannot be read.
    """
    if not config.starts_again:
        return False
    rank = identity_of(environ, config.nodes).rank
    try:
        store = open_store(config.run_dir, OciAccess.from_environment(environ, endpoint=config.oci_endpoint))
        before = _report(store, rank)
        if before is not None and (last := _last_of(before)) != before:
            store.write(report_of(rank), last.to_json())
    except (OcidistError, OSError, ValueError) as error:
        raise AgentError(f"the run directory cannot be used: {error}", cause=Cause.SERVICE) from error
    return before is not None


def _last_of(before: NodeReport) -> NodeReport:
    """Return the last report of the node whose container was restarted."""
    if before.phase is not Phase.DONE:
        return replace(before, phase=Phase.DONE, lost=True, message=LOST, finished_at=time.time())
    # Its message stays. The mark also shows a process that looks for the first time that this pod is not that node.
    return replace(before, lost=before.cause is not None or before.exit_code != 0)


def _report(store: Store, rank: int) -> NodeReport | None:
    try:
        return NodeReport.from_json(store.read(report_of(rank)))
    except FileNotFoundError:
        return None


def wait_for_end(switch: StopSwitch) -> None:
    """Wait until this node is ended."""
    logger.warning(
        "this container was restarted: the node stays idle, because a gang is only retried as a whole"
    )
    switch.event.wait(STAY)
