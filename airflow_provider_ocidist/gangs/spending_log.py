"""SpendingLog: what a run has used, and will have used at its pace, in the log and as metrics. No Airflow."""

from __future__ import annotations

import math
from collections.abc import Callable

from airflow_provider_ocidist.gangs.pace import Pace
from airflow_provider_ocidist.gangs.spending import Spending
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.model.run import RunStatus

SPENDING_EVERY = 600.0
"""Seconds between two log lines about what a run has used."""


class SpendingLog:
    """Logs the node-hours and the cost of one run every ten minutes, and at its end."""

    __slots__ = ("_clock", "_log", "_logged_at", "_pace", "newest", "publish")

    def __init__(self, log: TaskLog, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._pace = Pace()
        self._logged_at = clock()
        self.newest: Spending | None = None
        """Node-hours and cost of the run up to the last look."""
        self.publish: Callable[[Spending], object] | None = None
        """Function that takes them whenever they are logged."""

    def add(self, status: RunStatus, at: float, price: float | None) -> None:
        """Add a look; log when it is due. `at`: Unix time of the look, by the service's clock."""
        self._pace.add(status, at)
        self.newest = Spending.of(status, at, price, self._pace.remaining(status))
        if self.newest.spent.node_seconds <= 0:
            return
        now = self._clock()
        due_at = self._logged_at + (0.0 if status.ended else SPENDING_EVERY)
        if now >= due_at:
            self._logged_at = math.inf if status.ended else now
            self._log.info("%s", self.newest)
            self._publish(self.newest)

    def _publish(self, spending: Spending) -> None:
        if self.publish is None:
            return
        try:
            self.publish(spending)
        except Exception as error:  # noqa: BLE001 - a metric is no reason to end a gang
            self._log.warning("the metrics of what the run has used could not be published: %s", error)
