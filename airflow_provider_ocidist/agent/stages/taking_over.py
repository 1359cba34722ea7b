"""Taking over: a node that replaces a lost one begins with the last report of that node."""

from __future__ import annotations

from airflow_provider_ocidist.agent.join.peer_reports import load_report
from airflow_provider_ocidist.agent.join.stop_requests import load_stop_request
from airflow_provider_ocidist.agent.monitor.node_hours import seconds_in
from airflow_provider_ocidist.agent.prepare.code import fetch_errors
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.model.report import NodeReport
from airflow_provider_ocidist.model.work_dir import lost_report_of
from airflow_provider_ocidist.storage.stores.base import Store


def take_over(context: NodeContext) -> None:
    """Keep the lost node's last report, and take part in the launch for which the others wait.

    Call it before this node writes its own report. Raises AgentError where the run directory cannot be read.
    """
    if context.heartbeat.report.incarnation:
        context.with_retries(lambda: _take_over(context))


def _take_over(context: NodeContext) -> None:
    heartbeat = context.heartbeat
    with fetch_errors("what the lost node has left in the run directory", context.folder):
        before = _report(heartbeat.store, context.rank)
        if before is not None and before.incarnation < heartbeat.report.incarnation:
            heartbeat.store.write(lost_report_of(before.rank, before.incarnation), before.to_json())
            # The main node's knowledge of the others' folders stays valid.
            heartbeat.update(predecessors=seconds_in([before]), apart=before.apart)
        request = load_stop_request(heartbeat.store)
    if request is not None and not request.ends_run:
        # They may name this rank as lost: that was the node before.
        heartbeat.take_part(request.restarts)
    elif request is not None:
        heartbeat.heed(request)


def _report(store: Store, rank: int) -> NodeReport | None:
    try:
        return load_report(store, rank)
    except (ValueError, TypeError):
        # Half written as its node died.
        return None
