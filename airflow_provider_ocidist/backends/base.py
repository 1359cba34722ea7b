"""Backend: the six verbs of a place where a gang of nodes can run."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.run import Plan, RunKey, RunRef, RunStatus


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a node wrote."""

    id: str
    """Unique at the service; the same line read twice has the same id."""
    time: float
    """Unix time, in seconds."""
    rank: int
    text: str


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
    def submit(self, plan: Plan, stop: threading.Event | None = None) -> RunRef:
        """Create what the plan says and does not exist yet, and return where it is.

        The same plan submitted twice, by anybody, yields the same gang. When a node cannot be created, or `stop`
        is set meanwhile, all that exists of the gang is cancelled and BackendError raised.
        """

    @abstractmethod
    def find(self, plan: Plan) -> list[RunRef]:
        """Return all gangs that exist for the plan's task, of any generation and attempt, oldest first."""

    @abstractmethod
    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        """Return the state of several gangs, in the order asked for, in as few calls as the service allows."""

    @abstractmethod
    def logs(self, ref: RunRef, since: float) -> list[LogLine]:
        """Return the lines of all nodes since a Unix time, in order of time."""

    @abstractmethod
    def cancel(self, ref: RunRef) -> None:
        """Ask every node that still lives to end; returns before they have ended. Repeating it is harmless."""

    @abstractmethod
    def delete(self, ref: RunRef) -> None:
        """Remove an ended gang from the service's books; its checkpoints and logs stay."""


class LogFollower:
    """Yields each log line of a gang once, though logs arrive late and out of order."""

    OVERLAP = 120.0
    """Seconds that are read again each time, for lines that arrive late (Oracle's own reader takes 180)."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._seen: dict[str, float] = {}

    def new_lines(self, backend: Backend, ref: RunRef) -> list[LogLine]:
        """Return the lines that were not returned before. Raises BackendError; the next call then makes up for it."""
        lines = [line for line in backend.logs(ref, self._since) if line.id not in self._seen]
        self._seen.update((line.id, line.time) for line in lines)
        if self._seen:
            self._since = max(self._since, max(self._seen.values()) - self.OVERLAP)
            self._seen = {id_: time for id_, time in self._seen.items() if time >= self._since}
        return lines
