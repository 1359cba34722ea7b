"""Budget: what a training may use, in node-seconds and in money. Pure; it travels to the nodes."""

from __future__ import annotations

import math

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model.job import Limits

HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What nodes have used, and what that has cost: attempts may have had machines of different prices."""

    node_seconds: float = 0.0
    cost: float | None = 0.0
    """Cost of those; None: not known."""

    def plus(self, node_seconds: float, price: float | None) -> Spent:
        """Return the sum of this and `node_seconds`, at the price of a node for an hour; None: not known."""
        return self.and_also(Spent(node_seconds=node_seconds, cost=cost_of(node_seconds, price)))

    def and_also(self, other: Spent) -> Spent:
        """Return both together."""
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        return Spent(node_seconds=self.node_seconds + other.node_seconds, cost=cost)

    def __str__(self) -> str:
        hours = f"{self.node_seconds / HOUR:.2f} node-hours"
        return hours if self.cost is None else f"{hours} (cost {self.cost:.2f})"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What all attempts of a task together may use, from one clear to the next."""

    node_seconds: float | None = None
    cost: float | None = None

    def left(self, spent: Spent, price: float | None) -> float:
        """Return how many node-seconds at this price remain until a limit is reached."""
        return min(seconds for seconds, _ in self._limits(spent, price))

    def limit(self, price: float | None) -> str:
        """Return the limit that is reached first at this price, for people: `limits.max_node_hours 8`."""
        return min(self._limits(Spent(), price))[1]

    def finding(self, spent: Spent) -> str | None:
        """Return why a run is to end that has used so much; None: it may go on."""
        by_hours = self.node_seconds is not None and spent.node_seconds >= self.node_seconds
        by_cost = self.cost is not None and spent.cost is not None and spent.cost >= self.cost
        if not by_hours and not by_cost:
            return None
        limit = self._hours_limit if by_hours else self._cost_limit
        return f"{spent} used: all that {limit} allows, earlier attempts included"

    def _limits(self, spent: Spent, price: float | None) -> list[tuple[float, str]]:
        """Return what each limit leaves, in node-seconds, and its name."""
        found = [(math.inf, "")]
        if self.node_seconds is not None:
            found.append((self.node_seconds - spent.node_seconds, self._hours_limit))
        if self.cost is not None and spent.cost is not None and price:
            found.append(((self.cost - spent.cost) / price * HOUR, self._cost_limit))
        return found

    @property
    def _hours_limit(self) -> str:
        return f"limits.max_node_hours {(self.node_seconds or 0.0) / HOUR:g}"

    @property
    def _cost_limit(self) -> str:
        return f"limits.max_cost {self.cost:g}"


def budget_of(limits: Limits, price: float | None) -> Budget | None:
    """Return a job's limits; None where it has none. `price`: of a node for an hour.

    `limits.max_cost` needs a price: the backend's plan refuses a job without one.
    """
    hours, cost = limits.max_node_hours, limits.max_cost if price else None
    if hours is None and cost is None:
        return None
    return Budget(node_seconds=None if hours is None else hours * HOUR, cost=cost)


def cost_of(node_seconds: float, price: float | None) -> float | None:
    """Return what so many node-seconds cost; None where the price of a node-hour is not known."""
    return None if price is None else node_seconds / HOUR * price
