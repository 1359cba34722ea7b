"""Container restart: what a node does after its platform has restarted its container."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_ocidist.agent.join.abandonment import Abandonment
from airflow_provider_ocidist.agent.join.node_identity import identity_of
from airflow_provider_ocidist.agent.join.peer_reports import load_report
from airflow_provider_ocidist.agent.join.run_directory import run_directory
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.agent.store_retries import with_retries_unless_stopped
from airflow_provider_ocidist.model.agent_config import INSTANCE_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.work_dir import report_of

logger = logging.getLogger("ocidist")

STAY = 120.0
"""Seconds for which the node stays, while the waiting process reads the log of the first start and deletes the gang."""
LOOK_INTERVAL = 5.0
"""Seconds between two looks of a node that stays longer."""
LOST_MESSAGE = "the platform restarted its container; the process before has ended without a report"


def report_before(config: AgentConfig, environ: Mapping[str, str], switch: StopSwitch) -> NodeReport | None:
    """Return what this node has reported in this attempt before its container was restarted; None: it has not begun.

    Raises AgentError when the run directory cannot be read, Stopped when a stop request ends the retries.
    """
    if not config.starts_again:
        return None
    rank, instance = identity_of(environ, config.nodes).rank, environ.get(INSTANCE_VARIABLE, "")

    def load() -> NodeReport | None:
        with run_directory(config, environ) as store:
            found = load_report(store, rank)
        # Another's is that of the node before this one.
        return found if found is not None and found.instance == instance else None

    return with_retries_unless_stopped(load, config.limits.join_timeout, switch)


def close_report(
    before: NodeReport, config: AgentConfig, environ: Mapping[str, str], switch: StopSwitch
) -> None:
    """Write the last report of the process before the restart. Raises as `report_before`."""
    last = _last_of(before)

    def write() -> None:
        with run_directory(config, environ) as store:
            now = load_report(store, before.rank)
            # Another may have this one's place by now.
            if now is None or (now.instance, now.incarnation) == (before.instance, before.incarnation):
                store.write(report_of(before.rank), last.to_json())

    if last != before:
        with_retries_unless_stopped(write, config.limits.join_timeout, switch)


def _last_of(before: NodeReport) -> NodeReport:
    """Return the last report of the node whose container was restarted."""
    if before.phase is not Phase.DONE:
        return replace(before, phase=Phase.DONE, lost=True, message=LOST_MESSAGE, finished_at=time.time())
    # Its message stays. The mark also shows a process that looks for the first time that this pod is not that node.
    return replace(before, lost=before.cause is not None or not before.has_succeeded)


def wait_for_end(
    config: AgentConfig, environ: Mapping[str, str], switch: StopSwitch, patience: float = 0.0
) -> bool:
    """Wait until this node is ended: for `STAY`, or for `patience` seconds where its pod may be replaced by another.

    It stays no longer once its run is to end, or nobody waits for that any more, and the others have had `STAY` for
    their last checkpoint: its end may end them. Returns whether nobody needs it, in a run whose pods are replaced.
    """
    logger.warning(
        "this container was restarted: the node stays idle, because only another pod, or another gang, takes its place"
    )
    if not config.replaces:
        switch.event.wait(STAY)
        return False
    abandonment, began = Abandonment(config, environ), time.monotonic()
    while not switch.event.wait(LOOK_INTERVAL):
        why = abandonment.why()
        if why is None and time.monotonic() - began < max(STAY, patience):
            continue
        logger.warning("the node stays idle no longer: %s", why or "no other pod has taken its place in time")
        return not switch.event.wait(STAY if why else 0.0)
    return False
