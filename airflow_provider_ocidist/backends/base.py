"""Backend: the contract of every place where a gang of nodes can run."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

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


class OtherConnections(Protocol):
    """The backends of all connections at which gangs of one task may be (`connections.Connections`)."""

    def at(self, conn_id: str | None) -> Backend:
        """Return the backend of a connection; None: of the task's own. Raises BackendError."""

    def connected(self) -> list[Backend]:
        """Return the backends that are connected now."""

    @property
    def named(self) -> str | None:
        """The connection of the task, which a command has to name; None: it is the usual one."""


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
    """Types of the Airflow connections that it accepts."""
    reads: ClassVar[type[ConnectionFields]] = ConnectionFields
    """Class that names the fields which it reads of a connection, besides the credentials of storage."""
    gangs: RecordedGangs
    """Finder of a task's gangs, by the records of its attempts."""
    conn_id: str | None = None
    """Connection that it was made for, where that stands beside the task's own; None: it is the task's own."""
    connections: OtherConnections | None = None
    """The other connections at which gangs of the same task may be; None: there is no way to them."""
    directories: RunDirectories
    """Files in the gangs' run directories, for nodes, for other tries, and for the next waiting process."""

    @classmethod
    @abstractmethod
    def connect(cls, fields: Mapping[str, Any]) -> Self:
        """Return a backend for the fields of an Airflow connection; unknown fields are ignored."""

    @abstractmethod
    def reconnect(self, fields: Mapping[str, Any]) -> None:
        """Sign every later call with the credentials of a connection, which was edited or read again.

        Another place in it applies to new gangs only: watched gangs stay where they are.
        """

    @abstractmethod
    def plan(self, job: TrainingJob, key: RunKey) -> Plan:
        """Return the plan of a job: literal requests. Raises JobFileError if the job lacks what this place needs."""

    @abstractmethod
    def submit(
        self, plan: Plan, stop: threading.Event | None = None, found: Sequence[RunRef] | None = None
    ) -> RunRef:
        """Create what the plan lists and does not exist yet, and return the reference to the gang.

        The same plan submitted twice, by any process, yields the same gang. When a node cannot be created, or `stop`
        is set meanwhile, all that exists of the gang is cancelled and BackendError raised.

        `found`: the result of `gangs.find`, if the caller has it: it saves the requests for it.
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
        """Return the lines of several gangs, in the order asked for, in as few calls as the service allows.

        `wanted`: each gang with the Unix times from which to read, as for `logs`; some lines may be older. About `most`
        lines are read, the oldest of each gang; the next call reads the newer ones.
        """

    @abstractmethod
    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        """Ask every live node to end, for this reason; return before they have ended. May be repeated.

        Raises CancelFailed when the service did not accept it; the nodes may still find a stop request.
        """

    @abstractmethod
    def delete(self, ref: RunRef) -> None:
        """Delete an ended gang from the service; its checkpoints and logs stay."""
