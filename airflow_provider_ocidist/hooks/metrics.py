"""Airflow metrics of a training: what it has used so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_ocidist.gangs.spending import Spending

NODE_HOURS, COST = "ocidist.node_hours", "ocidist.cost"
"""Names of the gauges."""


def publish_spending(spending: Spending, owner: Mapping[str, Any]) -> None:
    """Set the gauges of a task to what its run has used; where Airflow sends no metrics, nothing happens."""
    tags = {name: str(owner[name]) for name in ("dag_id", "task_id")}
    known = spending.to_json()
    for stats in _senders():
        stats.gauge(NODE_HOURS, known["node_hours"], tags=tags)
        if "cost" in known:
            stats.gauge(COST, known["cost"], tags=tags)


def _senders() -> list[Any]:
    """Return what may send metrics from this process; what Airflow has not set up here drops them.

    From Airflow 3.3 on, tasks have the metrics of the SDK, and a triggerer has those of Airflow's core.
    """
    from airflow.providers.common.compat.sdk import Stats

    try:
        from airflow.observability.stats import Stats as OfCore
    except ImportError:
        return [Stats]
    senders: list[Any] = [Stats, OfCore]
    return senders if senders[0] is not senders[1] else senders[:1]
