"""Spending: what a run has used so far, what that costs, and what it will have cost at its end. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.model.budget import HOUR, Spent, budget_of, cost_of
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunStatus

Span = tuple[float | None, float | None]
"""Unix times at which a node began and ended; None: it has not."""


def seconds_of(spans: Iterable[Span], now: float) -> float | None:
    """Return the time of all nodes together; None if none has begun."""
    begun = [(start, end) for start, end in spans if start is not None]
    return sum(max(0.0, (now if end is None else end) - start) for start, end in begun) if begun else None


def spent_of(status: RunStatus, now: float, price: float | None) -> Spent:
    """Return what all nodes have used up to `now`, the service's, with the lost ones and the task's earlier attempts.

    `price`: of a node of this attempt for an hour, and of those before it where their nodes name none.
    """
    before, cost = status.spent_before, status.cost_before
    known = Spent(node_seconds=before, cost=cost_of(before, price) if cost is None else cost)
    return known.plus(status.lost_seconds + (seconds_of(spans_of(status), now) or 0.0), price)


def spans_of(status: RunStatus) -> list[Span]:
    """Return when each node began and ended, by rank."""
    return [(node.started_at, _end(node)) for node in status.nodes]


def _end(node: NodeStatus) -> float | None:
    """Return when a node ended; if the service gives no time, that of its last heartbeat."""
    if node.finished_at is not None or not node.state.terminal:
        return node.finished_at
    report = node.report
    return report.ran_until if report else node.started_at


def bound(job: TrainingJob, price: float | None) -> str:
    """Return what a job can use at most, for people, as far as its limits bound it. `price`: of a node for an hour."""
    budget, limit = budget_of(job.limits, price), job.limits.max_runtime
    said = []
    if budget is not None:
        most = Spent().plus(budget.left(Spent(), price), price)
        said.append(f"at most {most} in all attempts ({budget.limit(price)})")
    if limit is not None:
        most = Spent().plus(limit * job.nodes, price)
        said.append(f"at most {most} an attempt (limits.max_runtime)")
    if not said:
        said.append("not bounded: set limits.max_node_hours, limits.max_cost or limits.max_runtime")
    if price is None:
        said.append("the price of a node is not known (`prices`)")
    return "; ".join(said)


def forecast_like(like: RunStatus, now: float, nodes: int, price: float | None) -> Spent | None:
    """Return what a run on `nodes` nodes will use if it takes as long as another run; None if that is not known.

    `like`: the state of the other run. If it still runs, or has failed amid its steps, its pace counts for the rest.
    `now` is a Unix time by the clock of its service, `price` that of a node for an hour.
    """
    spans = [(begun, now if end is None else end) for begun, end in spans_of(like) if begun is not None]
    if not spans:
        return None
    took = max(end for _, end in spans) - min(begun for begun, _ in spans)
    if not all(node.state is NodeState.SUCCEEDED for node in like.of_members.nodes):
        progress = like.progress
        if progress is None or None in (progress.step, progress.steps, progress.step_time):
            return None
        took += max(0, (progress.steps or 0) - (progress.step or 0)) * (progress.step_time or 0.0)
    return Spent().plus(took * nodes, price)


@dataclass(frozen=True, slots=True)
class Spending:
    """What a task has used since its last clear."""

    spent: Spent
    price: float | None = None
    """Price of a node for an hour from here on; None: not known."""
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
        return cls(spent_of(status, now, price), price, ahead, status.ended)

    @property
    def forecast(self) -> Spent | None:
        """What the whole run will have used; None: not known."""
        return None if self.ahead is None else self.spent.plus(self.ahead, self.price)

    def to_json(self) -> dict[str, Any]:
        """Return it for XCom and the page; `forecast_...`: of the whole run."""
        return _named(self.spent) | (_named(self.forecast, "forecast_") if self.forecast else {})

    def __str__(self) -> str:
        if self.ended:
            return f"used: {self.spent}"
        ahead = f", about {self.forecast} at the end" if self.forecast else ""
        return f"used so far: {self.spent}{ahead}"


def _named(spent: Spent, prefix: str = "") -> dict[str, Any]:
    known = {f"{prefix}node_hours": round(spent.node_seconds / HOUR, 4)}
    return known if spent.cost is None else {**known, f"{prefix}cost": round(spent.cost, 4)}
