"""Node-hours: those of a run, counted and limited by its nodes, also when nobody waits for it.

Each node measures its own time by its own clock, from the start of its agent; the others' are in their reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from airflow_provider_ocidist.model.budget import Budget
from airflow_provider_ocidist.model.report import NodeReport
from airflow_provider_ocidist.model.work_dir import NODES_FOLDER, rank_of
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store

LONGEST_PAUSE = 30.0
"""Seconds between two readings of the other nodes' reports, once the budget may be used up."""


def seconds_in(reports: Iterable[NodeReport | None]) -> float:
    """Return the time of the nodes together, as far as their reports show it."""
    ends = ((each.finished_at or each.heartbeat_at) - each.started_at for each in reports if each)
    return sum(max(0.0, seconds) for seconds in ends)


def spent_before(run_dir: str, attempt: int, access: OciAccess) -> float:
    """Return the node-seconds of all earlier attempts of this generation.

    `run_dir`: of this attempt. An attempt that has counted those before it ends the search. Raises StorageError.
    """
    total = 0.0
    stem = run_dir.rstrip("/").removesuffix(f"-a{attempt}")
    for number in range(attempt - 1, 0, -1):
        reports = _reports_in(open_store(f"{stem}-a{number}", access))
        total += seconds_in(reports)
        known = next((each.spent_before for each in reports if each.spent_before is not None), None)
        if known is not None:
            return total + known
    return total


def _reports_in(store: Store) -> list[NodeReport]:
    names = [entry.name for entry in store.list(f"{NODES_FOLDER}/") if rank_of(entry.name) is not None]
    found = []
    for name in names:
        try:
            found.append(NodeReport.from_json(store.read(name)))
        except (ValueError, TypeError, LookupError):
            # Half written as its node died: the others' are there.
            continue
    return found


class BudgetWatch:
    """Declares once that a run has used up its budget."""

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
        self.before = 0.0
        """Node-seconds of earlier attempts, once they are known."""
        self._price = price
        self._nodes = nodes
        self._others = others
        self._declare = declare
        self._clock = clock
        self._began = clock()
        self._known: dict[int, NodeReport] = {}
        """By rank: the others' newest reports that could be read."""
        self._due = 0.0
        """On this node's own time, when the budget may be used up at the earliest."""
        self._declared = False

    def look(self) -> None:
        own = self._clock() - self._began
        # No node is older than the oldest, which so never looks too late; the others' reports are read near the end.
        if self._declared or own < self._due or self.before + own * self._nodes < self.budget.node_seconds:
            return
        spent = self.before + own + self._of_others()
        finding = self.budget.finding(spent, self._price)
        if finding:
            self._declared = True
            self._declare(finding)
        # A node that could not be read may have used more than is known of it.
        self._due = own + min(LONGEST_PAUSE, (self.budget.node_seconds - spent) / self._nodes)

    def _of_others(self) -> float:
        """Return the time of the other nodes; one that has never been seen may have no machine."""
        self._known.update({each.rank: each for each in self._others() if each})
        return seconds_in(self._known.values())
