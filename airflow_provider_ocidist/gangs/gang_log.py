"""GangLog: what a waiting process logs of a gang: each line of its nodes once, and its state. No Airflow."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_ocidist.agent.train.shared_log import level_of
from airflow_provider_ocidist.backends.base import LogLine, LogPart
from airflow_provider_ocidist.gangs.log_follower import LogFollower
from airflow_provider_ocidist.gangs.status_line import status_line
from airflow_provider_ocidist.gangs.task_log import TaskLog, logs_at
from airflow_provider_ocidist.model.masking import masked_text
from airflow_provider_ocidist.model.run import RunStatus


class GangLog:
    """Logs the lines of a gang's nodes, and its state when that has changed."""

    def __init__(self, log: TaskLog, since: Sequence[float]) -> None:
        """`since`: Unix times, by rank, up to which the nodes' lines are logged already."""
        self._log = log
        self.follower = LogFollower(since)
        self._said: str | None = None
        self._logged: str | None = None
        self._has_lines = False

    def take_lines(self, part: LogPart, now: float) -> bool:
        """Log the lines that are new; return whether there are any. `now`: when they were read, by the clock of their
        times.
        """
        lines = self.follower.take(part.lines, now, part.unread_from)
        for line in lines:
            self.write_line(line)
        self._has_lines = self._has_lines or bool(lines)
        return bool(lines)

    def take_status(self, status: RunStatus) -> None:
        """Log the state of a look, if its description has changed."""
        said = status_line(status)
        if said != self._said:
            self._said = said
            self.write_status(status, said)

    def write_line(self, line: LogLine) -> None:
        """Log a line of a node, the agent's warnings and errors at their level."""
        logs_at(self._log, level_of(line.text))("[node %d] %s", line.rank, masked_text(line.text))

    def write_status(self, status: RunStatus, said: str) -> None:
        """Log that the gang's state has changed; `said` is one line for a person."""
        if self._has_lines and status.progress and status.progress.printed:
            # The program's own lines already show the step.
            said = status_line(status, with_step=False)
        if said == self._logged:
            return
        self._logged = said
        self._log.info("%s", said)
