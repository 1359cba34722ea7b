"""RestOfLog: what nodes wrote shortly before their end, which is found only some seconds later. No Airflow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_ocidist.backends.base import Backend, LogPart
from airflow_provider_ocidist.backends.capabilities import now_at
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.gangs.log_follower import LogFollower
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.model.run import RunRef

LAST_LINES_AFTER = 2.0
"""Seconds after the end of a run in which its last lines can be found."""
LAST_LINES_PATIENCE = 60.0
"""Seconds for which a failing service is asked for the last lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestOfLog:
    """The lines of a gang that the last look did not find."""

    backend: Backend
    ref: RunRef
    follower: LogFollower
    take: Callable[[LogPart, float], object]
    """Function that logs lines, with the time at which they were read."""
    log: TaskLog
    warn: Callable[[str, Exception, float], object]
    """Function that logs a warning at a Unix time, but not each time."""

    def write(self) -> None:
        """Log them. Raises nothing: the outcome is decided.

        Takes two seconds, and more only while the service does not answer (a minute at most) or has more lines than
        fit into one look.
        """
        give_up_at = time.monotonic() + LAST_LINES_PATIENCE
        while True:
            time.sleep(LAST_LINES_AFTER)
            now, reached = time.time(), self.follower.reached
            try:
                self._write_some()
            except Exception as error:  # noqa: BLE001 - the outcome is decided
                passes = isinstance(error, BackendError) and error.retryable
                if not passes or time.monotonic() > give_up_at:
                    self.log.warning("%s; lines may be missing here: the service's log has them", error)
                    return
                self.warn("%s; waiting for the last lines", error, now)
                continue
            if not self.follower.is_behind:
                return
            if self.follower.reached != reached:
                give_up_at = time.monotonic() + LAST_LINES_PATIENCE
            elif time.monotonic() > give_up_at:
                self.log.warning("the last lines of some nodes cannot be read; their own logs have them")
                return

    def _write_some(self) -> None:
        at = now_at(self.backend)
        (part,) = self.backend.logs_of([(self.ref, self.follower.since(at, again=True))])
        self.take(part, at)
