"""Node-hours of a run, counted and limited by its nodes, also when no process waits for it.

Each node measures its own time by its own clock, from the start of its agent; the others' are in their reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from airflow_provider_ocidist.model.budget import Budget, Spent, cost_of
from airflow_provider_ocidist.model.report import NodeReport
from airflow_provider_ocidist.model.work_dir import NODES_FOLDER, rank_of
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store

LONGEST_PAUSE = 30.0
"""Seconds between two readings of the other nodes' reports, once the budget may be used up."""
READERS = 16
"""Most reports of an earlier attempt that are read at once."""


def seconds_in(reports: Iterable[NodeReport | None]) -> float:
    """Return the time of the nodes together, with that of those they replace, as far as their reports show it."""
    return sum(_seconds(each) for each in reports if each)


def _seconds(report: NodeReport) -> float:
    return report.predecessors + max(0.0, report.ran_until - report.started_at)


def counted_in(report: NodeReport, price: float | None) -> Spent | None:
    """Return what a node's report says of the attempts before its own; None: nothing.

    `price`: of a node for an hour, where it does not say what they have cost.
    """
    seconds, cost = report.spent_before, report.cost_before
    if seconds is None:
        return None
    return Spent(node_seconds=seconds, cost=cost_of(seconds, price) if cost is None else cost)


def spent_before(run_dir: str, attempt: int, access: OciAccess, price: float | None) -> Spent:
    """Return what all earlier attempts of this generation have used, each node at its own price.

    `run_dir`: of this attempt. `price`: of a node for an hour, for nodes that report none. An attempt that has counted
    those before it ends the search. Raises StorageError.
    """
    total = Spent()
    for number in range(attempt - 1, 0, -1):
        reports = reports_of(run_dir, attempt, number, access)
        for report in reports:
            total = total.plus(_seconds(report), price if report.price is None else report.price)
        known = next((found for each in reports if (found := counted_in(each, price))), None)
        if known is not None:
            return total.and_also(known)
    return total


def reports_of(run_dir: str, attempt: int, number: int, access: OciAccess) -> list[NodeReport]:
    """Return the readable reports of another attempt of this generation, `number`. Raises StorageError.

    `run_dir`: of this attempt.
    """
    # Late: only a retry needs threads for it.
    from concurrent.futures import ThreadPoolExecutor

    stem = run_dir.rstrip("/").removesuffix(f"-a{attempt}")
    store = open_store(f"{stem}-a{number}", access)
    names = [entry.name for entry in store.list(f"{NODES_FOLDER}/") if rank_of(entry.name) is not None]
    with ThreadPoolExecutor(READERS, "reports") as pool:
        return [report for report in pool.map(lambda name: _readable(store, name), names) if report]


def _readable(store: Store, name: str) -> NodeReport | None:
    try:
        return NodeReport.from_json(store.read(name))
    except (ValueError, TypeError, LookupError):
        # Half written as its node died: the others' are there.
        return None


class BudgetWatch:
    """Declares that a run has used up its budget, again and again, for the reason of `lease.LeaseWatch`."""

    def __init__(
        self,
        budget: Budget,
        price: float | None,
        nodes: int,
        *,
        others: Callable[[], Sequence[NodeReport | None]],
        declare: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`others` returns the newest reports of the other nodes, None for each that cannot be read."""
        self.budget = budget
        self.before = Spent()
        """Node-seconds and cost of earlier attempts, once they are known."""
        self.predecessors = 0.0
        """Seconds of the lost nodes in whose place this one was made."""
        self._price = price
        self._nodes = nodes
        self._others = others
        self._declare = declare
        self._clock = clock
        self._began = clock()
        self._known: dict[int, NodeReport] = {}
        """Newest readable report of each other node, by rank."""
        self._due = 0.0
        """Earliest time, by this node's clock, at which the budget may be used up."""

    def look(self) -> None:
        own = self._clock() - self._began
        # The oldest node bounds the total, so its estimate is never too low; it reads the others' reports near the end.
        left = self.budget.left(self.before, self._price)
        if own < self._due or (self.predecessors + own) * self._nodes < left:
            return
        spent = self.before.plus(self.predecessors + own + self._of_others(), self._price)
        finding = self.budget.finding(spent)
        if finding:
            self._declare(finding)
            self._due = own + LONGEST_PAUSE
            return
        # A node that could not be read may have used more than is known of it.
        self._due = own + min(LONGEST_PAUSE, self.budget.left(spent, self._price) / self._nodes)

    def _of_others(self) -> float:
        """Return the time of the other nodes; one that has never been seen may have no machine."""
        self._known.update({each.rank: each for each in self._others() if each})
        return seconds_in(self._known.values())
