"""Capabilities: what some backends can do and others cannot; callers ask with `isinstance` or `Capability.of`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.connections import beside
from airflow_provider_ocidist.backports import Self, StrEnum
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.kept_evidence import Missed
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import Plan, Request, RunKey, RunRecord, RunRef


class Capability(ABC):
    """Something that only some backends can do: those whose class also inherits the capability."""

    cannot: ClassVar[str]
    """Text for an error message about a backend without it: `cannot list its gangs`."""

    @classmethod
    def of(cls, backend: Backend) -> Self:
        """Return a backend as one that can do this. Raises BackendError when it cannot."""
        asked: object = backend
        if isinstance(asked, cls):
            return asked
        raise BackendError(f"backend {backend.kind!r} {cls.cannot}", cause=Cause.CONFIG)


class OpensById(Capability):
    """Finds a gang by an id of its service."""

    cannot = "cannot find runs by their id: name the note of the run, info.yaml"

    @abstractmethod
    def open(self, resource_id: str) -> RunRecord:
        """Return the record of the gang that the service's own id of a job, or of any of its runs, belongs to.

        It lacks what only the submitter knows: the deadline of an Airflow task, the position in its log.
        Raises RunNotFound when there is no such thing, or ocidist did not start it.
        """


class ListsGangs(Capability):
    """Lists gangs, also those that other users have started."""

    cannot = "cannot list its gangs"

    @abstractmethod
    def recent(self, limit: int, name: str = "") -> list[RunRef]:
        """Return the newest gangs at the connection's place whose name holds `name`, newest first, at most `limit`."""


class ListsLiveGangs(Capability):
    """Finds running gangs of a task that the work directory does not record."""

    cannot = "cannot list the gangs of a task"

    @abstractmethod
    def live(self, keys: Sequence[RunKey], place: str | None = None) -> list[RunRef]:
        """Return the gangs of the tasks of these keys that have a node which lives, oldest first.

        `place`: the compartment to look in; None: the connection's. Raises BackendError when neither names one.
        """


class ShowsWhatItCreated(Capability):
    """Shows with which requests a gang was created."""

    cannot = "cannot show what it has created: compare two job files"

    @abstractmethod
    def created(self, ref: RunRef) -> tuple[Request, ...]:
        """Return the requests that would create a gang as the service has it now, for comparison with a plan's.

        Raises BackendError, RunNotFound where the gang is gone.
        """

    def planned(self, plan: Plan) -> tuple[Request, ...]:
        """Return the requests of a plan in the form in which `created` has them. Raises BackendError."""
        return plan.requests


class HasCommandLine(Capability):
    """Has a platform whose own command line can create the same gang."""

    cannot = "has no command line of its platform"

    @staticmethod
    @abstractmethod
    def equivalents(plan: Plan) -> dict[str, str]:
        """Return the platform's command lines for a plan, by generation of the tool, if that can express the plan."""


class PlacesLogs(Capability):
    """Keeps the lines of its nodes at a place that a person can search."""

    cannot = "has no place that its nodes' lines are searched in"

    @abstractmethod
    def log_place(self, ref: RunRef) -> str:
        """Return what a search for the lines of a gang names, as far as it can be read; takes seconds at most."""


class SpansRegions(Capability):
    """Has gangs in several regions."""

    cannot = "has no regions"

    @abstractmethod
    def near(self, ref: RunRef) -> Backend:
        """Return the backend that reaches a gang: itself, unless the gang is in another region."""


def near(backend: Backend, ref: RunRef) -> Backend:
    """Return the backend that reaches a gang, also at another connection, or in another region.

    Raises BackendError where the connection with which the gang was created cannot be had.
    """
    there = beside(backend, ref.conn_id)
    return there.near(ref) if isinstance(there, SpansRegions) else there


class KeepsTime(Capability):
    """Knows the time at the service, which all times of a record use."""

    cannot = "does not know the time at its service"

    @abstractmethod
    def now(self) -> float:
        """Return the Unix time by the service's clock, as far as it has answered; else this machine's."""


def now_at(backend: Backend, here: float | None = None) -> float:
    """Return the Unix time by the service's clock where the backend knows it, else by this machine's (`here`)."""
    if isinstance(backend, KeepsTime):
        return backend.now()
    return time.time() if here is None else here


class CountsMissing(Capability):
    """Concludes from several answers without it that a node was deleted, or a report never written: lists may lag."""

    cannot = "does not count what its service and its store have not found"

    @abstractmethod
    def missed(self, ref: RunRef) -> Mapping[str, Missed]:
        """Return how often runs of a gang, by their ids, its reports or its checkpoint were not found."""

    @abstractmethod
    def recall_missed(self, missed: Mapping[str, Missed]) -> None:
        """Continue the counts of another process."""


class PreparesCancels(Capability):
    """Has slow preparations of a cancel, which are done ahead: a killed task has seconds only."""

    cannot = "has nothing to prepare for a cancel"

    @abstractmethod
    def ready_to_cancel(self, ref: RunRef) -> None:
        """Prepare, without a request. Raises BackendError or StorageError when the credentials cannot be loaded now."""


class Suspends(Capability):
    """Gives a gang's machines back without ending the gang, and lets it begin or go on."""

    cannot = "cannot suspend a gang"

    @abstractmethod
    def suspend(self, ref: RunRef) -> None:
        """End the nodes of a gang, which stays. Raises BackendError, RunNotFound where it is gone."""

    @abstractmethod
    def resume(self, ref: RunRef) -> None:
        """Let a suspended gang begin. Raises BackendError, RunNotFound where it is gone."""


class ReplacesNodes(Capability):
    """Creates nodes in the place of lost ones while the others train on: where a node can be made alone."""

    cannot = "cannot replace a node"
    goes_on_with_fewer: ClassVar[bool] = True
    """Whether a gang may train on without those that are not replaced (`nodes: {min, max}`)."""

    @abstractmethod
    def current(self, ref: RunRef) -> RunRef:
        """Return a gang with its present nodes: other processes may have replaced some. Raises BackendError."""

    @abstractmethod
    def replace_nodes(self, ref: RunRef, failures: Sequence[Restart]) -> RunRef:
        """Create a node in the place of each failed one, which has ended; return the gang with the new nodes.

        The same call by several processes, or again after a kill, creates each node once. Raises BackendError.
        """

    @abstractmethod
    def end_nodes(self, ref: RunRef, ranks: Sequence[int]) -> None:
        """End some nodes of a gang, and leave the others alone. Raises BackendError."""


class EndsLeftovers(Capability):
    """Has gangs of which something may run on when all of their nodes have ended."""

    cannot = "leaves nothing behind"

    @abstractmethod
    def end_leftovers(self, ref: RunRef) -> None:
        """End what still runs of a gang whose nodes have all ended, and delete objects that nobody else deletes.

        Raises BackendError.
        """


class NamesSecrets(Capability):
    """Knows the secrets that were given to its nodes, for masking."""

    cannot = "does not know the secrets of its nodes"

    @abstractmethod
    def secrets_of(self, ref: RunRef) -> set[str]:
        """Return the secrets in the configuration of a gang's nodes, as far as their names show them.

        Sends one request, or two more where nodes have secrets of their own. Raises BackendError.
        """


def secrets_of_gang(backend: Backend, ref: RunRef) -> set[str]:
    """Return the secrets that were given to a gang's nodes, as far as the backend knows them. Raises BackendError."""
    return backend.secrets_of(ref) if isinstance(backend, NamesSecrets) else set()


class Mark(StrEnum):
    """How one check of the target has ended."""

    PASS = "PASS"  # noqa: S105 - a mark, no word
    WARN = "WARN"
    """The job may work; a person should check."""
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check of the target has found."""

    subject: str
    """Subject of the check in a word or two: `subnet`."""
    mark: Mark
    message: str
    fix: str | None = None
    """Remedy; every finding that is no PASS has one."""

    @classmethod
    def passed(cls, subject: str, message: str) -> Self:
        return cls(subject, Mark.PASS, message)

    @classmethod
    def warned(cls, subject: str, message: str, fix: str) -> Self:
        return cls(subject, Mark.WARN, message, fix)

    @classmethod
    def failed(cls, subject: str, message: str, fix: str) -> Self:
        return cls(subject, Mark.FAIL, message, fix)


class ChecksBeforehand(Capability):
    """Checks a job against the place where it is to run."""

    cannot = "checks nothing beforehand"

    @abstractmethod
    def preflight(self, job: TrainingJob) -> list[Finding]:
        """Return what would stop this job here, and what is fine. Raises JobFileError as `plan` does.

        It sends requests to the service, and may write, read and delete a small file.
        """
