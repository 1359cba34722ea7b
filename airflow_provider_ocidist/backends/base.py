"""Backend: what every place where a gang of nodes can run has to offer."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.run import Plan, Request, RunKey, RunRecord, RunRef, RunStatus


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a node wrote."""

    id: str
    """Unique at the service; the same line read twice has the same id."""
    time: float
    """Unix time, in seconds."""
    rank: int
    text: str


class Mark(StrEnum):
    """How one check of the target has ended."""

    PASS = "PASS"  # noqa: S105 - a mark, no word
    WARN = "WARN"
    """It may work; somebody should look."""
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check of the target has found."""

    subject: str
    """What was looked at, in a word or two: `subnet`."""
    mark: Mark
    message: str
    fix: str | None = None
    """What to do about it; every finding that is no PASS has one."""

    @classmethod
    def passed(cls, subject: str, message: str) -> Self:
        return cls(subject, Mark.PASS, message)

    @classmethod
    def warned(cls, subject: str, message: str, fix: str) -> Self:
        return cls(subject, Mark.WARN, message, fix)

    @classmethod
    def failed(cls, subject: str, message: str, fix: str) -> Self:
        return cls(subject, Mark.FAIL, message, fix)


class Backend(ABC):
    """Runs gangs at one place, for one connection. Blocking, safe to use from several threads.

    Making one does no I/O; `plan` neither. Everything else raises BackendError when the service does not play along.
    """

    @classmethod
    @abstractmethod
    def connect(cls, fields: Mapping[str, Any]) -> Self:
        """Return a backend for the fields of an Airflow connection; unknown fields are ignored."""

    @abstractmethod
    def plan(self, job: TrainingJob, key: RunKey) -> Plan:
        """Return the literal requests for a job. Raises JobFileError when the job lacks what this place needs."""

    @abstractmethod
    def submit(
        self, plan: Plan, stop: threading.Event | None = None, found: Sequence[RunRef] | None = None
    ) -> RunRef:
        """Create what the plan says and does not exist yet, and return where it is.

        The same plan submitted twice, by anybody, yields the same gang. When a node cannot be created, or `stop`
        is set meanwhile, all that exists of the gang is cancelled and BackendError raised.

        `found`: what `find` has just returned, which spares a second look.
        """

    @abstractmethod
    def find(self, plan: Plan) -> list[RunRef]:
        """Return all gangs that exist for the plan's task, of any generation and attempt, oldest first."""

    def begin(self, plan: Plan) -> list[RunRef]:
        """Return what `find` does; where that is nothing, the plan's own gang may be among it, begun without a node.

        For whoever expects to find nothing: what costs nothing can be created during the look. No node is.
        """
        return self.find(plan)

    @abstractmethod
    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        """Return the state of several gangs, in the order asked for, in as few calls as the service allows."""

    @abstractmethod
    def logs(self, ref: RunRef, since: Sequence[float]) -> list[LogLine]:
        """Return the lines of all nodes, in order of time; those of each rank since its Unix time."""

    @abstractmethod
    def cancel(self, ref: RunRef) -> None:
        """Ask every node that still lives to end; returns before they have ended. Repeating it is harmless."""

    def open(self, resource_id: str) -> RunRecord:
        """Return the record of the gang that the service's own id of a job, or of any of its runs, belongs to.

        What only the one who started it knows is not in it: the deadline of an Airflow task, how far its log has come.
        Raises RunNotFound when there is no such thing, or ocidist did not start it.
        """
        raise BackendError(f"{resource_id}: this backend cannot find runs by their id", cause=Cause.CONFIG)

    def recent(self, limit: int, name: str = "") -> list[RunRef]:
        """Return the newest gangs at the connection's place whose name holds `name`, newest first, at most `limit`."""
        del limit, name
        raise BackendError("this backend cannot list its gangs", cause=Cause.CONFIG)

    def created(self, ref: RunRef) -> tuple[Request, ...]:
        """Return the requests that would create a gang as the service has it now, for comparison with a plan's."""
        raise BackendError(
            f"{ref.key.name}: this backend cannot tell what it has created", cause=Cause.CONFIG
        )

    def preflight(self, job: TrainingJob) -> list[Finding]:
        """Return what would stop this job here, and what is fine. Raises JobFileError as `plan` does.

        It asks the service and may write, read and delete a small file, and leaves nothing behind.
        """
        del job
        return [Finding("place", Mark.WARN, "this backend checks nothing beforehand", "see `ocidist plan`")]

    @abstractmethod
    def delete(self, ref: RunRef) -> None:
        """Remove an ended gang from the service's books; its checkpoints and logs stay."""


class LogFollower:
    """Yields each log line of a gang once, though lines may arrive late and out of order.

    Each look reads what is new; now and then one reads two minutes again, for the stragglers (Oracle's own reader
    takes three minutes, every time).
    """

    OVERLAP = 120.0
    RECHECK_EVERY = 30.0

    def __init__(self, since: Sequence[float]) -> None:
        self._from = tuple(since)
        self._newest = list(since)
        self._seen: dict[str, float] = {}
        self._recheck_at = 0.0

    @property
    def cursor(self) -> tuple[float, ...]:
        """Up to when the lines of each node were returned: where another follower may go on. Unix times, by rank."""
        return tuple(self._newest)

    def new_lines(self, backend: Backend, ref: RunRef, now: float) -> list[LogLine]:
        """Return the lines that were not returned before. Raises BackendError; the next call then makes up for it."""
        recheck = now >= self._recheck_at
        since = [newest - self.OVERLAP if recheck else newest for newest in self._newest]
        lines = [line for line in backend.logs(ref, since) if self._is_new(line)]
        for line in lines:
            self._seen[line.id] = line.time
            self._newest[line.rank] = max(self._newest[line.rank], line.time)
        if recheck:
            self._recheck_at = now + self.RECHECK_EVERY
            oldest = min(self._newest) - self.OVERLAP
            self._seen = {id_: time for id_, time in self._seen.items() if time >= oldest}
        return lines

    def _is_new(self, line: LogLine) -> bool:
        return line.time > self._from[line.rank] and line.id not in self._seen
