"""Every error that says what went wrong, and the causes that a failed training is filed under.

OcidistError
    JobFileError(ValueError)      the job as written is wrong             .problems      never retry
    BackendError                  the service refused or failed           .status_code .code .request_id .retryable
        RunNotFound               what a reference points at is gone (or hidden from these credentials)
        GaveUp                    the service reported no state of a gang for too long: it is ended, and may be retried
        StillAlive                nodes that were cancelled have not ended in time
        LeftRuns                  a submission has failed, and what it had created has not ended yet
        Overtaken                 another try of the task runs, or owns its gang    .try_number
        CancelFailed              the service did not take a cancel            .stop_requested
    StorageError                  data could not be moved                 .uri .retryable
        Unopenable                a URI names no place, or one that this installation cannot reach whatever happens
        CopyInterrupted           on a node that only copies: the same may well succeed later
        BehindLink                a file would be written or deleted behind a symbolic link
        DamagedFence              nobody can say which attempt saves to a place, so that none does
        CheckpointError           a checkpoint is missing, partial or corrupt
            Unpublishable         it can never be published as it is: a retry cannot succeed
                Fenced                a later attempt saves to that place
                IncompleteCheckpoint  the nodes do not have all parts of it
    TrainingFailed                the service worked, the training did not .cause
    AgentError                    on a node, before or around the training .cause
        TopologyTimeout           the nodes did not find one another in time
        DifferentCheckpoints      the nodes found one another, and would not go on from the same content
        CheckpointsDamaged        all stored checkpoints are damaged, as this node reads them  (cause DATA)
        StoreUnavailable          data is unavailable now, for a transient fault  (cause SERVICE)
        StoreRefused              a store refused data: one answer may be wrong  (cause DATA, or CONFIG)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_ocidist.backports import StrEnum


class Cause(StrEnum):
    """Why a run did not succeed; decides whether and when Airflow retries."""

    USER = "USER"
    """The training program failed, or did less than its job promises."""
    DATA = "DATA"
    """An input is missing or unreadable, or an output cannot be written."""
    OOM = "OOM"
    """The program needed more memory than a machine or a GPU has."""
    HANG = "HANG"
    """The program stopped making progress."""
    NODE = "NODE"
    """A machine died, or its state is unknown."""
    CAPACITY = "CAPACITY"
    """The service had no machine available."""
    QUOTA = "QUOTA"
    """A limit of the tenancy, or of the cluster, leaves no room for the machines."""
    PREEMPTED = "PREEMPTED"
    """The service took a machine back."""
    CONFIG = "CONFIG"
    """The job asks for something that cannot be: a wrong image, credentials, subnet."""
    SERVICE = "SERVICE"
    """The service, a store or ocidist itself failed, rather than the training."""
    DEADLINE = "DEADLINE"
    """The job ran into the time limit that it, or its Airflow task, was given."""
    CANCELED = "CANCELED"
    """A person or a program cancelled the run."""
    ABANDONED = "ABANDONED"
    """The run's lease expired, and so its nodes ended it."""
    BUDGET = "BUDGET"
    """The task has used the node-hours, or the money, that its job allows."""
    IDLE = "IDLE"
    """The program used neither GPU nor processor for as long as its job allows."""


class OcidistError(Exception):
    """Root of all errors of this package."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a job file."""

    path: str
    """Dotted path to the value, as `program.args.0`; empty for the file as a whole."""
    message: str
    line: int | None = None
    """Line in the file, counted from 1; None when the job did not come from text."""

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        subject = f"{self.path}: " if self.path else ""
        return f"{place}{subject}{self.message}"


class JobFileError(OcidistError, ValueError):
    """The job as written is wrong; carries every problem that was found."""

    def __init__(self, problems: Sequence[Problem], source: str | None = None) -> None:
        self.problems = tuple(problems)
        self.source = source
        where = source or "the training job"
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n  ".join([f"{count} in {where}:", *map(str, self.problems)]))


class BackendError(OcidistError):
    """The service refused a request, or could not answer it."""

    def __init__(
        self,
        message: str,
        *,
        status_code: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retryable: bool = False,
        cause: Cause = Cause.SERVICE,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.code = code
        self.request_id = request_id
        self.retryable = retryable
        self.cause = cause
        self.after_acceptance = False
        """Whether something of the same task was accepted before: an earlier request of this submission, a record in
        the work directory, or a gang. Then a first try, too, asks again."""

    @property
    def is_refused(self) -> bool:
        """Whether its status may come from the credentials or a passing fault, and not from the request itself."""
        return self.status_code in (401, 403, 404)


class RunNotFound(BackendError):
    """The run that a reference points at is deleted, or hidden from these credentials."""


class GaveUp(BackendError):
    """The service has refused requests for a gang's state for too long, or not answered them."""

    def __init__(self, message: str, last: BackendError) -> None:
        super().__init__(
            message, status_code=last.status_code, code=last.code, request_id=last.request_id, retryable=True
        )


class StillAlive(BackendError):
    """Nodes that were cancelled have not ended in the time that they had."""


class LeftRuns(BackendError):
    """A submission has failed, and nodes that it has created have not ended yet: the next try ends them first."""


class Overtaken(BackendError):
    """Another try of the same task runs, or waits for its gang; `try_number`: that of the latest such try."""

    def __init__(self, message: str, try_number: int) -> None:
        super().__init__(message, retryable=True)
        self.try_number = try_number


class CancelFailed(BackendError):
    """The service did not accept a cancel; `stop_requested`: the nodes find a stop request in their run directory."""

    def __init__(self, refused: BackendError, *, stop_requested: bool) -> None:
        left = (
            "a stop request in the run directory reaches the nodes all the same"
            if stop_requested
            else "and no stop request could be written to the run directory"
        )
        super().__init__(
            f"{refused}; {left}",
            status_code=refused.status_code,
            code=refused.code,
            request_id=refused.request_id,
            retryable=refused.retryable,
            cause=refused.cause,
        )
        self.stop_requested = stop_requested


class StorageError(OcidistError):
    """Data could not be read, written or moved; `retryable`: the same may well succeed later."""

    def __init__(self, message: str, *, uri: str | None = None, retryable: bool = False) -> None:
        super().__init__(message)
        self.uri = uri
        self.retryable = retryable


class Unopenable(StorageError):
    """A URI names no place, or one for which this installation has no driver: to ask again is of no use."""


class CopyInterrupted(StorageError):
    """The copy may succeed at the next try; a node's log carries an error's name, not its fields."""


class BehindLink(StorageError):
    """A file would be written or deleted behind a symbolic link of a local folder: a retry cannot succeed."""


class DamagedFence(StorageError):
    """The fence of a place of checkpoints is damaged: no attempt saves there until a user deletes it."""


class CheckpointError(StorageError):
    """A checkpoint is missing, partial or corrupt."""


class Unpublishable(CheckpointError):
    """A checkpoint can never be published as it is: a retry cannot succeed."""


class Fenced(Unpublishable):
    """A later attempt of the task saves to this place: an earlier one publishes and deletes nothing there any more."""


class IncompleteCheckpoint(Unpublishable):
    """The nodes do not have all parts of a checkpoint."""


class TrainingFailed(OcidistError):
    """The service worked, the training did not."""

    def __init__(self, message: str, *, cause: Cause) -> None:
        super().__init__(message)
        self.cause = cause


class AgentError(OcidistError):
    """A node could not start, feed or finish its part of the training."""

    def __init__(self, message: str, *, cause: Cause) -> None:
        super().__init__(message)
        self.cause = cause


class TopologyTimeout(AgentError):
    """The nodes did not find one another in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, cause=Cause.NODE)


class DifferentCheckpoints(AgentError):
    """The nodes found one another, and would not go on from the same content."""

    BEGINS = "the nodes would resume from different checkpoints"
    """Begin of the message, by which all nodes know why a launch has ended."""

    def __init__(self, message: str) -> None:
        super().__init__(message, cause=Cause.NODE)


class CheckpointsDamaged(AgentError):
    """All stored checkpoints are damaged, as this node reads them."""

    def __init__(self, message: str) -> None:
        super().__init__(message, cause=Cause.DATA)


class StoreUnavailable(AgentError):
    """Data is unavailable, for a transient fault: the store is down, slow, or throttles."""

    def __init__(self, message: str) -> None:
        super().__init__(message, cause=Cause.SERVICE)


class StoreRefused(AgentError):
    """A store has refused access to data, or says that it is not there: a single answer may be wrong."""

    def __init__(self, message: str, cause: Cause = Cause.DATA) -> None:
        super().__init__(message, cause=cause)


def refusal_in(error: BaseException) -> str | None:
    """Return the kind of refusal that an error is; None for an outage: no answer, or one that asks to wait.

    Every wait follows this one rule: an outage is waited out for a day, refusals of one kind are believed within the
    hour (`evidence`).
    """
    inner = error.__cause__
    if isinstance(error, StorageError) and isinstance(inner, BackendError):
        return refusal_in(inner)
    if isinstance(error, BackendError) and isinstance(inner, StorageError):
        return refusal_in(inner)
    if isinstance(error, BackendError):
        busy = error.code is None if error.status_code is None else _is_busy(error.status_code)
        return None if error.retryable and busy else str(error.status_code or error.cause)
    if isinstance(error, (ConnectionError, TimeoutError)):
        return None
    return None if isinstance(error, StorageError) and error.retryable else type(error).__name__


def service_error_in(error: BaseException) -> BackendError | None:
    """Return what the service has answered, also where a store has passed it on; None: it has not answered."""
    found = error.__cause__ if isinstance(error, StorageError) else error
    return found if isinstance(found, BackendError) else None


def _is_busy(status_code: int) -> bool:
    return status_code == 429 or status_code >= 500
