"""Backend: what every place where a gang of nodes can run has to offer."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_provider_ocidist.backports import Self, StrEnum
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.attempts import Attempt, End, Place
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.kept_evidence import Missed
from airflow_provider_ocidist.model.log_cursor import LogCursor
from airflow_provider_ocidist.model.run import Ending, Plan, Request, RunKey, RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories


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
    """By rank, where one read did not return all lines: the Unix time of the first unread line."""


class Mark(StrEnum):
    """How one check of the target has ended."""

    PASS = "PASS"  # noqa: S105 - a mark, no word
    WARN = "WARN"
    """It may work; a person should check."""
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

    Making one does no I/O; `plan` neither. Everything else raises BackendError when the service fails or refuses.
    """

    needs_connection: ClassVar[bool] = True
    """Whether nothing can be done without the fields of an Airflow connection."""
    directories: RunDirectories
    """What its gangs' run directories hold for nodes, other tries, and the process that waits next."""

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
        """Create what the plan lists and does not exist yet, and return where it is.

        The same plan submitted twice, by any process, yields the same gang. When a node cannot be created, or `stop`
        is set meanwhile, all that exists of the gang is cancelled and BackendError raised.

        `found`: what `find` has just returned, which spares a second look.
        """

    @abstractmethod
    def find(self, plan: Plan) -> list[RunRef]:
        """Return the gangs of the plan's task that may live, and the newest, of any generation, oldest first."""

    def attempts(self, plan: Plan, noted: Sequence[Attempt] = ()) -> list[Attempt]:
        """Return what is recorded of the plan's task: the attempts that may live, and the newest of all, oldest first.

        `noted`: what the task itself has kept of its attempts, whose records may lie elsewhere than the plan's.
        """
        del plan
        return list(noted)

    def close(self, ref: RunRef, end: End) -> None:  # noqa: B027 - without it, a later try asks what it knows already
        """Record that no node of a gang lives any more."""

    def near(self, ref: RunRef) -> Backend:
        """Return the backend that reaches a gang: itself, unless the gang is in another region."""
        del ref
        return self

    def gangs_of(
        self, keys: Sequence[RunKey], place: str | None = None, run_dir: str | None = None
    ) -> list[RunRef]:
        """Return the gangs of the tasks of these keys that live, and the newest of each task, oldest first.

        For callers without a plan. `place` and `run_dir` are those of any of these gangs; None: the connection's.
        """
        del place, run_dir
        raise BackendError(f"{keys[0].name}: this backend finds gangs by their plan only", cause=Cause.CONFIG)

    def begin(self, plan: Plan, known: Sequence[Attempt] | None = None) -> list[RunRef]:
        """Return what `find` does; where that is nothing, the plan's own gang may be among it, begun without a node.

        For callers that expect no gang: free resources may be created during the lookup, but no node.
        `known`: what `attempts` has just returned, which spares a second look.
        Raises Overtaken when another try has recorded an attempt since.
        """
        del known
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

    def now(self) -> float:
        """Return the Unix time by the service's clock, as far as it has answered; else this machine's."""
        return time.time()

    def forget(self, ref: RunRef) -> None:  # noqa: B027 - most have nothing to forget
        """Drop the cached state of a gang that is no longer polled."""

    def missed(self, ref: RunRef) -> Mapping[str, Missed]:
        """Return which job runs of a gang the service did not find lately, by id: evidence that they were deleted."""
        del ref
        return {}

    def recall_missed(self, missed: Mapping[str, Missed]) -> None:  # noqa: B027 - most have nothing to recall
        """Restore another process's 404 counts."""

    def reconnect(self, fields: Mapping[str, Any]) -> None:  # noqa: B027 - most have nothing to renew
        """Take the credentials of the connection as they are now, and sign every later call anew.

        The place stays: an edited place applies to new gangs only; watched gangs do not move.
        """

    # what lies in run directories, the same for every backend

    def renew(self, ref: RunRef) -> None:
        """Renew the lease that the nodes of a gang check (`limits.lease`)."""
        self.directories.renew(ref)

    def claim(self, gang: Plan | RunRef, number: int) -> int:
        """Record that the try of this number now owns the gang; return the number of the try that does."""
        return self.directories.claim(gang, number)

    def claimed_by(self, gang: Plan | RunRef) -> int:
        """Return the number of the latest try that owns the gang; 0 when none does, or when it cannot be read."""
        return self.directories.claimed_by(gang)

    def save_cursor(self, ref: RunRef, cursor: LogCursor) -> None:
        """Save the position in a task's log, for the process that continues it."""
        self.directories.save_cursor(ref, cursor)

    def load_cursor(self, ref: RunRef) -> LogCursor | None:
        """Return what `save_cursor` saved last; None when there is nothing, or when it cannot be read."""
        return self.directories.load_cursor(ref)

    @abstractmethod
    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        """Ask every node that still lives to end, for this reason; returns before they have ended, and may be repeated.

        Raises CancelFailed when the service did not accept it; the nodes may still find a stop request.
        """

    def call_off(
        self, key: RunKey, place: Place | None, noted: Sequence[Attempt], ending: Ending, number: int
    ) -> list[str]:
        """End whatever may live of the task of a key, for its try of this number gives up and nobody comes after it.

        By the service or a stop request, whichever can be reached; nothing that a later try waits for. `place`: where
        the task's job puts its gangs; None where the job cannot be read: then as the connection says. `noted`: as in
        `attempts`. Returns what may live all the same, each with the way to end it. Raises no BackendError.
        """
        del key, place
        left = []
        for attempt in noted:
            if attempt.ref is not None and attempt.end is None and self.claimed_by(attempt.ref) <= number:
                try:
                    self.cancel(attempt.ref, ending)
                except BackendError as error:
                    left.append(f"{attempt.key.name} may live ({error}): end job {attempt.ref.job_id}")
        return left

    def ready_to_cancel(self, ref: RunRef) -> None:  # noqa: B027 - most have nothing to prepare
        """Do the slow preparations of a cancel ahead, without a request: a killed task has seconds only.

        Raises BackendError or StorageError when the credentials cannot be loaded now.
        """

    def open(self, resource_id: str) -> RunRecord:
        """Return the record of the gang that the service's own id of a job, or of any of its runs, belongs to.

        It lacks what only the submitter knows: the deadline of an Airflow task, the position in its log.
        Raises RunNotFound when there is no such thing, or ocidist did not start it.
        """
        raise BackendError(f"{resource_id}: this backend cannot find runs by their id", cause=Cause.CONFIG)

    def secrets_told(self, ref: RunRef) -> set[str]:
        """Return the secrets in its nodes' configuration, as far as their names show them, for masking.

        In one request, or two more where nodes are configured apart; none where the backend cannot know them.
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
            f"{ref.key.name}: this backend cannot list what it has created", cause=Cause.CONFIG
        )

    def preflight(self, job: TrainingJob) -> list[Finding]:
        """Return what would stop this job here, and what is fine. Raises JobFileError as `plan` does.

        It sends requests to the service, and may write, read and delete a small file.
        """
        del job
        return [Finding("place", Mark.WARN, "this backend checks nothing beforehand", "see `ocidist plan`")]

    @abstractmethod
    def delete(self, ref: RunRef) -> None:
        """Delete an ended gang from the service; its checkpoints and logs stay."""
