"""Budget: what a training may use, in node-seconds, and what that costs. Pure; it travels to the nodes."""

from __future__ import annotations

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model.job import Limits

HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What all attempts of a task together may use, from one clear to the next."""

    node_seconds: float
    limit: str
    """Limit that the budget comes from, for people: `limits.max_node_hours 8`."""

    def finding(self, spent: float, price: float | None) -> str | None:
        """Return why a run that has used so many node-seconds must end; None: it may go on."""
        if spent < self.node_seconds:
            return None
        return f"{described(spent, price)} used: all that {self.limit} allows, earlier attempts included"


def budget_of(limits: Limits, price: float | None) -> Budget | None:
    """Return the narrower of a job's limits; None where it has none. `price`: of a node for an hour.

    `limits.max_cost` needs a price: the backend's plan refuses a job without one.
    """
    found = []
    if limits.max_node_hours is not None:
        found.append((limits.max_node_hours * HOUR, f"limits.max_node_hours {limits.max_node_hours:g}"))
    if limits.max_cost is not None and price:
        found.append((limits.max_cost / price * HOUR, f"limits.max_cost {limits.max_cost:g}"))
    return Budget(node_seconds=min(found)[0], limit=min(found)[1]) if found else None


def cost_of(node_seconds: float, price: float | None) -> float | None:
    """Return what so many node-seconds cost; None where the price of a node-hour is not known."""
    return None if price is None else node_seconds / HOUR * price


def described(node_seconds: float, price: float | None) -> str:
    """Return node-hours for a person, with what they cost where that is known: `3.25 node-hours (cost 13.00)`."""
    cost = cost_of(node_seconds, price)
    hours = f"{node_seconds / HOUR:.2f} node-hours"
    return hours if cost is None else f"{hours} (cost {cost:.2f})"
