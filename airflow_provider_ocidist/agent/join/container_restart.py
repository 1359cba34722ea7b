"""Container restart: what a node does that its platform has started again after it had begun."""

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
"""Seconds for which it stays: the waiting process reads the log of the first start meanwhile, and deletes the gang."""
LOST = "its platform has started it again: what ran on it before has ended without a word"


def is_restarted(config: AgentConfig, environ: Mapping[str, str]) -> bool:
    """Return whether this node of this attempt has begun before; what it left unsaid is then said in its report.

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
    """Return the report of a node that runs no more, whatever runs in its place."""
    if before.phase is not Phase.DONE:
        return replace(before, phase=Phase.DONE, lost=True, message=LOST, finished_at=time.time())
    # Its own words stay; the mark shows also those who look for the first time that this pod is not that node.
    return replace(before, lost=before.cause is not None or before.exit_code != 0)


def _report(store: Store, rank: int) -> NodeReport | None:
    try:
        return NodeReport.from_json(store.read(report_of(rank)))
    except FileNotFoundError:
        return None


def wait_for_end(switch: StopSwitch) -> None:
    """Wait until this node is ended."""
    logger.warning(
        "this node has begun before: a gang is retried whole, so that it does nothing until its end"
    )
    switch.event.wait(STAY)
