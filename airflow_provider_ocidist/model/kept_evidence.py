"""A sensor's refusals, saved between its processes: in mode `reschedule` each poke has its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Protocol

from airflow_provider_ocidist.backports import Self, dataclass
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.evidence import ANSWERED, Absent, Unanswered

EVIDENCE_KEY = "ocidist_evidence"
"""Key of the evidence in Airflow's task state store (3.3)."""


class TaskStateStore(Protocol):
    """Airflow's (3.3); it survives retries and clears."""

    def get(self, key: str) -> Any: ...

    def set(self, key: str, value: Any) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Missed:
    """How often something was not found, and for how many seconds so far."""

    answers: int
    seconds: float

    @classmethod
    def of(cls, absent: Absent, now: float) -> Self:
        """Return the evidence of this process, whose monotonic clock shows `now`, as another one can continue it."""
        return cls(answers=absent.answers, seconds=now - absent.since)

    def until(self, now: float) -> Absent:
        """Return it as the evidence of this process, whose monotonic clock shows `now`."""
        return Absent(since=now - self.seconds, answers=self.answers)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The refusals and missing answers that speak against waiting on."""

    unanswered: Unanswered = ANSWERED
    missed: Mapping[str, Missed] = field(default_factory=dict)
    """Answers without a run, by its id, and without a report or a whole checkpoint of the gang."""
    unread_since: float | None = None
    """Time at the service since which the gang has ended and its reports, or its checkpoint, cannot be read."""
    has_looked: bool = False
    """Whether a look for a checkpoint has had an answer, so that the connection exists."""
    defects: int = 0
    """Looks in a row that ended with an error that is no answer."""

    def after(self, seconds: float) -> Kept:
        """Return the evidence after at least this many seconds without a request."""
        missed = {
            run_id: replace(each, seconds=each.seconds + seconds) for run_id, each in self.missed.items()
        }
        return replace(self, missed=missed)


NOTHING = Kept()


def read(notes: TaskStateStore | None, subject: str) -> Kept:
    """Return the saved evidence of a subject: one try of a task and what it waits for."""
    try:
        found = notes.get(EVIDENCE_KEY) if notes is not None else None
        if isinstance(found, dict) and found.get("subject") == subject:
            return codec.decode(Kept, found["kept"])
    except Exception:  # noqa: BLE001 - Airflow's, or written by another version: evidence begins again
        return NOTHING
    return NOTHING


def write(notes: TaskStateStore | None, subject: str, kept: Kept) -> bool:
    """Save it; return whether that worked: otherwise the evidence begins again."""
    if notes is None:
        return False
    try:
        notes.set(EVIDENCE_KEY, {"subject": subject, "kept": codec.encode(kept)})
    except Exception:  # noqa: BLE001 - Airflow's
        return False
    return True
