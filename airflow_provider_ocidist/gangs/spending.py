"""Spending: what a run has used so far, what that costs, and what it will have cost at its end. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.model.budget import HOUR, budget_of, cost_of, described
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import NodeStatus, RunStatus

Span = tuple[float | None, float | None]
"""When a node began and ended, Unix times; None: it has not."""


def seconds_of(spans: Iterable[Span], now: float) -> float | None:
    """Return the time of all nodes together; None if none has begun."""
    begun = [(start, end) for start, end in spans if start is not None]
    return sum(max(0.0, (now if end is None else end) - start) for start, end in begun) if begun else None


def node_seconds(status: RunStatus, now: float) -> float:
    """Return the time of all nodes up to `now`, the service's, with the lost ones and the task's earlier attempts."""
    return status.spent_before + status.lost_seconds + (seconds_of(spans_of(status), now) or 0.0)


def spans_of(status: RunStatus) -> list[Span]:
    return [(node.started_at, _end(node)) for node in status.nodes]


def _end(node: NodeStatus) -> float | None:
    """Return when a node ended; where nobody says, its last sign of life, so that what is over costs no more."""
    if node.finished_at is not None or not node.state.terminal:
        return node.finished_at
    report = node.report
    return (report.finished_at or report.heartbeat_at) if report else node.started_at


def bound(job: TrainingJob, price: float | None) -> str:
    """Return what a job can use at most, for people, as far as its limits bound it. `price`: of a node for an hour."""
    budget, limit = budget_of(job.limits, price), job.limits.max_runtime
    said = []
    if budget is not None:
        said.append(f"at most {described(budget.node_seconds, price)} in all attempts ({budget.limit})")
    if limit is not None:
        said.append(f"at most {described(limit * job.nodes, price)} an attempt (limits.max_runtime)")
    if not said:
        said.append("not bounded: set limits.max_node_hours, limits.max_cost or limits.max_runtime")
    if price is None:
        said.append("the price of a node is not known (`prices`)")
    return "; ".join(said)


@dataclass(frozen=True, slots=True)
class Spending:
    """What a task has used since its last clear."""

    node_seconds: float
    price: float | None = None
    """Of a node for an hour; None: not known."""
    ahead: float | None = None
    """Node-seconds that the rest of the training takes at its present pace; None: not known."""
    ended: bool = False

    @classmethod
    def of(
        cls, status: RunStatus, now: float, price: float | None, remaining: float | None = None
    ) -> Spending:
        """`remaining`: seconds until the last step."""
        alive = sum(not node.state.terminal for node in status.nodes)
        ahead = None if remaining is None or status.ended else remaining * alive
        return cls(node_seconds(status, now), price, ahead, status.ended)

    def to_json(self) -> dict[str, Any]:
        """Return it for XCom and the page; `forecast_...`: of the whole run."""
        cost = cost_of(self.node_seconds, self.price)
        known: dict[str, Any] = {"node_hours": round(self.node_seconds / HOUR, 4)}
        known |= {} if cost is None else {"cost": round(cost, 4)}
        if self.ahead is None:
            return known
        total = self.node_seconds + self.ahead
        expected = cost_of(total, self.price)
        known["forecast_node_hours"] = round(total / HOUR, 4)
        return known if expected is None else {**known, "forecast_cost": round(expected, 4)}

    def __str__(self) -> str:
        used = described(self.node_seconds, self.price)
        if self.ended:
            return f"used: {used}"
        if self.ahead is None:
            return f"used so far: {used}"
        return (
            f"used so far: {used}, about {described(self.node_seconds + self.ahead, self.price)} at the end"
        )
