"""Backend: what every place where a gang of nodes can run has to offer."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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


LOG_LINES = 20_000
"""Beyond the first thousand of each search, of all gangs in one look: some tens of MB."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """What was read of a gang's log."""

    lines: Sequence[LogLine] = ()
    """In order of time."""
    unread_from: Mapping[int, float] = field(default_factory=dict)
    """By rank, where there was more than is read in one look: the Unix time from which on lines were left."""


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

    def gangs_of(self, keys: Sequence[RunKey], place: str | None = None) -> list[RunRef]:
        """Return all gangs that exist for the tasks of these keys, of any generation and attempt, oldest first.

        For whoever knows no plan. `place` is where the job said that they should be; None: at the connection's place.
        """
        del place
        raise BackendError(f"{keys[0].name}: this backend finds gangs by their plan only", cause=Cause.CONFIG)

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

    def logs_of(
        self, wanted: Sequence[tuple[RunRef, Sequence[float]]], most: int = LOG_LINES
    ) -> list[LogPart]:
        """Return what `logs` does for several gangs, in the order asked for, in as few calls as the service allows.

        About `most` lines are read, the oldest of each gang; the newer ones then are for the next call. Lines from
        before the time that was asked for may be among them.
        """
        del most
        return [LogPart(self.logs(ref, since)) for ref, since in wanted]

    def forget(self, ref: RunRef) -> None:  # noqa: B027 - most have nothing to forget
        """Drop what is remembered of a gang between two looks: nobody looks at it any more."""

    def reconnect(self, fields: Mapping[str, Any]) -> None:  # noqa: B027 - most have nothing to renew
        """Take the credentials of the connection as they are now, and sign every later call anew.

        The place stays: whoever edits it means new gangs, and those that are watched are where they are.
        """

    def renew(self, ref: RunRef) -> None:
        """Show the nodes of a gang that somebody waits for it (`limits.lease`)."""
        raise BackendError(f"{ref.key.name}: this backend knows no leases", cause=Cause.CONFIG)

    def claim(self, ref: RunRef, number: int) -> None:  # noqa: B027 - without it, whoever is killed ends the gang
        """Leave word that the task's try of this number waits for a gang which an earlier one has created."""

    def claimed_by(self, ref: RunRef) -> int:
        """Return the number of the try that left word last; 0 when none has, or when it cannot be read."""
        del ref
        return 0

    @abstractmethod
    def cancel(self, ref: RunRef) -> None:
        """Ask every node that still lives to end; returns before they have ended. Repeating it is harmless."""

    def open(self, resource_id: str) -> RunRecord:
        """Return the record of the gang that the service's own id of a job, or of any of its runs, belongs to.

        What only the one who started it knows is not in it: the deadline of an Airflow task, how far its log has come.
        Raises RunNotFound when there is no such thing, or ocidist did not start it.
        """
        raise BackendError(f"{resource_id}: this backend cannot find runs by their id", cause=Cause.CONFIG)

    def secrets_told(self, ref: RunRef) -> set[str]:
        """Return the secrets in what its nodes were told, as far as their names show them, for whoever masks them.

        In one request; none where the backend cannot tell.
        """
        del ref
        return set()

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

    A look reads what came since the last one, whether a node says much or nothing: so gangs that are looked at
    together ask for the same time, and can share a search. Now and then a look reads two minutes again, for the
    stragglers (Oracle's own reader takes three minutes, every time), and more seldom, of a node that has been silent,
    a quarter of an hour: a line that can only be found later than that after it was written is never told. What was
    too much for one look is read on from there at the next.
    """

    OVERLAP = 120.0
    RECHECK_EVERY = 30.0
    LAG = 15.0
    """Seconds after which most lines can be found."""
    LATE_EVERY = 300.0
    LATEST = 900.0
    """Seconds after which a line of a node that wrote nothing since is given up."""

    def __init__(self, since: Sequence[float]) -> None:
        self._from = tuple(since)
        self._newest = list(since)
        self._seen: tuple[dict[str, float], ...] = tuple({} for _ in since)
        self._looked_at: float | None = None
        self._unread_from: dict[int, float] = {}

    @property
    def is_behind(self) -> bool:
        """Whether the last look left lines for the next one."""
        return bool(self._unread_from)

    @property
    def cursor(self) -> tuple[float, ...]:
        """Up to when the lines of each node were returned: where another follower may go on. Unix times, by rank."""
        return tuple(self._newest)

    def new_lines(self, backend: Backend, ref: RunRef, now: float) -> list[LogLine]:
        """Return the lines that were not returned before. Raises BackendError; the next call then makes up for it."""
        return self.take(backend.logs(ref, self.since(now)), now)

    def since(self, now: float, *, again: bool = False) -> list[float]:
        """Return from when on the lines of each node are to be read at `now`. Unix times, by rank.

        `again`: for the stragglers too, whether it is time for them or not.
        """
        if self._looked_at is None:
            return list(self._newest)
        if self._begins(self.LATE_EVERY, now):
            since = [max(newest - self.OVERLAP, self._looked_at - self.LATEST) for newest in self._newest]
        elif again or self._begins(self.RECHECK_EVERY, now):
            since = [max(newest, self._looked_at) - self.OVERLAP for newest in self._newest]
        else:
            since = [max(newest, self._looked_at - self.LAG) for newest in self._newest]
        return [self._unread_from.get(rank, start) for rank, start in enumerate(since)]

    def take(
        self, lines: Iterable[LogLine], now: float, unread_from: Mapping[int, float] | None = None
    ) -> list[LogLine]:
        """Return those of the lines, read at `now`, that were not returned before.

        `unread_from`: where more was to be read, by rank; nothing from after these Unix times is among the lines.
        """
        # What is older came along in a search that others share; it was returned, and its id is forgotten.
        oldest = [
            max(first, newest - self.OVERLAP) for first, newest in zip(self._from, self._newest, strict=True)
        ]
        new = []
        for line in lines:
            seen = self._seen[line.rank]
            if line.time > self._from[line.rank] and line.time >= oldest[line.rank] and line.id not in seen:
                seen[line.id] = line.time
                self._newest[line.rank] = max(self._newest[line.rank], line.time)
                new.append(line)
        if self._begins(self.RECHECK_EVERY, now):
            for seen, newest in zip(self._seen, self._newest, strict=True):
                _forget_before(seen, newest - self.OVERLAP)
        self._looked_at = now
        self._unread_from = dict(unread_from or {})
        return new

    def _begins(self, period: float, now: float) -> bool:
        """Return whether a period has begun since the last look: at the same times for all gangs of a process."""
        return self._looked_at is None or now // period > self._looked_at // period


def _forget_before(seen: dict[str, float], time: float) -> None:
    for id_ in [id_ for id_, when in seen.items() if when < time]:
        del seen[id_]
