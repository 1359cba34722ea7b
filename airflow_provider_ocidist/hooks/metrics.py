"""Airflow metrics of a training: what it has used so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_ocidist.gangs.spending import Spending

NODE_HOURS, COST = "ocidist.node_hours", "ocidist.cost"


def publish_spending(spending: Spending, owner: Mapping[str, Any]) -> None:
    """Set the gauges of a task to what its run has used; where Airflow sends no metrics, nothing happens."""
    from airflow.providers.common.compat.sdk import Stats

    tags = {name: str(owner[name]) for name in ("dag_id", "task_id")}
    known = spending.to_json()
    Stats.gauge(NODE_HOURS, known["node_hours"], tags=tags)
    if "cost" in known:
        Stats.gauge(COST, known["cost"], tags=tags)
