"""TaskLog: where a waiting process logs, and warnings that are not repeated at each look. No Airflow."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

SAME_WARNING_AFTER = 60.0
"""Seconds after which the same warning is logged again."""


class TaskLog(Protocol):
    """The methods common to Airflow's and the standard library's loggers."""

    def info(self, msg: Any, /, *args: Any) -> Any: ...

    def warning(self, msg: Any, /, *args: Any) -> Any: ...

    def error(self, msg: Any, /, *args: Any) -> Any: ...


def logs_at(log: TaskLog, level: int) -> Callable[..., Any]:
    """Return what logs at a level, as `logging` numbers it; below warnings all is information."""
    if level >= logging.ERROR:
        return log.error
    return log.warning if level >= logging.WARNING else log.info


class RareWarnings:
    """Logs a warning, unless the same was logged a moment ago: an outage lasts many looks."""

    __slots__ = ("_at", "_log", "_subject")

    def __init__(self, log: TaskLog) -> None:
        self._log = log
        self._subject = ""
        self._at = 0.0

    def warn(self, message: str, error: Exception, now: float) -> None:
        """Log an error, as `message` puts it. `now`: Unix time in seconds."""
        # After the first bracket comes the id of the request, which always differs.
        subject = str(error).partition(" (")[0]
        if subject != self._subject or now - self._at >= SAME_WARNING_AFTER:
            self._subject, self._at = subject, now
            self._log.warning(message, error)
