"""Backend: what every place where a gang of nodes can run has to offer."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_provider_ocidist.backends.fields import ConnectionFields
from airflow_provider_ocidist.backends.recorded_gangs import RecordedGangs
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import Ending, Plan, RunKey, RunRef, RunStatus
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a node wrote."""

    id: str
    """Id of the line, unique at the service and the same at each reading."""
    time: float
    """Unix time, in seconds."""
    rank: int
    text: str


LOG_LINES = 20_000
"""Most lines that one look reads of all gangs, beyond the first thousand of each search: some tens of MB."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """What was read of a gang's log."""

    lines: Sequence[LogLine] = ()
    """Lines in order of time."""
    unread_from: Mapping[int, float] = field(default_factory=dict)
    """Unix time of the first unread line, by rank; of ranks only of which one read did not return all lines."""


class Backend(ABC):
    """Runs gangs at one place, for one connection. Blocking, safe to use from several threads.

    Making one does no I/O; `plan` neither. Everything else raises BackendError when the service fails or refuses.
    What only some backends can do is in `capabilities`.
    """

    kind: ClassVar[str]
    """Name of the backend's module, by which a job names it."""
    needs_connection: ClassVar[bool] = True
    """Whether the fields of an Airflow connection are needed for everything."""
    conn_types: ClassVar[tuple[str, ...]] = ("oci",)
    """Types of an Airflow connection that may name its place."""
    reads: ClassVar[type[ConnectionFields]] = ConnectionFields
    """Class of the fields that it reads of a connection, besides the credentials of storage."""
    gangs: RecordedGangs
    """Finder of a task's gangs, by what is recorded of its attempts."""
    directories: RunDirectories
    """Access to the gangs' run directories, for nodes, other tries, and the process that waits next."""

    @classmethod
    @abstractmethod
    def connect(cls, fields: Mapping[str, Any]) -> Self:
        """Return a backend for the fields of an Airflow connection; unknown fields are ignored."""

    @abstractmethod
    def reconnect(self, fields: Mapping[str, Any]) -> None:
        """Take the credentials of the connection as they are now, and sign every later call with them.

        The place stays: an edited place applies to new gangs only; watched gangs do not move.
        """

    @abstractmethod
    def plan(self, job: TrainingJob, key: RunKey) -> Plan:
        """Return the literal requests for a job. Raises JobFileError when the job lacks what this place needs."""

    @abstractmethod
    def submit(
        self, plan: Plan, stop: threading.Event | None = None, found: Sequence[RunRef] | None = None
    ) -> RunRef:
        """Create what the plan lists and does not exist yet, and return where it is.

        The same plan submitted twice, by any process, yields the same gang. When a node cannot be created, or `stop`
        is set meanwhile, all that exists of the gang is cancelled and BackendError raised.

        `found`: what `gangs.find` has just returned, which spares a second look.
        """

    @abstractmethod
    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        """Return the state of several gangs, in the order asked for, in as few calls as the service allows."""

    @abstractmethod
    def forget(self, ref: RunRef) -> None:
        """Drop the cached state of a gang that is no longer polled."""

    def logs(self, ref: RunRef, since: Sequence[float]) -> list[LogLine]:
        """Return the lines of all nodes, in order of time. `since`: a Unix time for each rank; infinity skips it."""
        (part,) = self.logs_of([(ref, since)])
        return [*part.lines]

    @abstractmethod
    def logs_of(
        self, wanted: Sequence[tuple[RunRef, Sequence[float]]], most: int = LOG_LINES
    ) -> list[LogPart]:
        """Return what `logs` does for several gangs, in the order asked for, in as few calls as the service allows.

        About `most` lines are read, the oldest of each gang; the newer ones then are for the next call. Lines from
        before the time that was asked for may be among them.
        """

    @abstractmethod
    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        """Ask every node that still lives to end, for this reason; returns before they have ended, and may be repeated.

        Raises CancelFailed when the service did not accept it; the nodes may still find a stop request.
        """

    @abstractmethod
    def delete(self, ref: RunRef) -> None:
        """Delete an ended gang from the service; its checkpoints and logs stay."""
