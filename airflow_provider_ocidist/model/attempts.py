"""The records of a task's attempts, and which generation a try belongs to. Pure; no I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import Plan, RunKey, RunRef, Tries


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place at which the gang of an attempt is looked for, whatever the settings say by then."""

    backend: str
    run_dir: str
    compartment_id: str | None = None
    region: str | None = None
    conn_id: str | None = None
    """Connection at whose service the gang is created; None: the task's."""

    @classmethod
    def of(cls, plan: Plan) -> Place:
        return cls(
            backend=plan.backend,
            run_dir=plan.run_dir,
            compartment_id=plan.compartment_id,
            region=plan.region,
            conn_id=plan.conn_id,
        )

    @classmethod
    def of_gang(cls, ref: RunRef) -> Place:
        """Return where a gang is; without the region, which its ids name."""
        return cls(
            backend=ref.backend,
            run_dir=ref.run_dir,
            compartment_id=ref.compartment_id,
            conn_id=ref.conn_id,
        )

    @property
    def digest(self) -> str:
        """The name of the place, in eight hexadecimal digits."""
        parts = [
            self.backend,
            self.compartment_id or "",
            self.run_dir,
            *([self.conn_id] if self.conn_id else []),
        ]
        text = "\0".join(parts)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def is_that_of(self, plan: Plan) -> bool:
        return self.digest == Place.of(plan).digest and self.region in (None, plan.region)


@dataclass(frozen=True, kw_only=True)
class End:
    """How an attempt has ended, as the task saw it."""

    succeeded: bool
    try_number: int | None = field(default=None, metadata=codec.key("number"))
    """Number of the try that saw the end."""
    failure: Restart | None = None
    """Failure that ended the attempt, and how far it had come; None for a success, and for one that had not trained."""
    final: bool = False
    """Whether Airflow makes no retry after this end, whatever `retries` are left."""
    alive: bool = False
    """Whether a node may live all the same: one that took no part in a success, and could not be ended."""
    restarts: tuple[Restart, ...] = ()
    """Restarts of a gang that has failed, oldest first."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt: recorded before anything of it is created, and again with what was created."""

    key: RunKey
    place: Place
    tries: Tries | None = None
    ref: RunRef | None = None
    """Reference to the gang; None: as far as is known, the request that creates it was not answered."""
    end: End | None = None
    """End of the attempt; None: it is open."""
    candidate: str = ""
    """Candidate that the attempt runs on, as in its plan."""

    @classmethod
    def of(cls, plan: Plan, ref: RunRef | None = None) -> Attempt:
        """Return the record of an attempt; that of an existing gang holds its place."""
        place = Place.of(plan)
        if ref is not None:
            place = replace(
                place, run_dir=ref.run_dir, compartment_id=ref.compartment_id, conn_id=ref.conn_id
            )
            if ref.conn_id != plan.conn_id:
                # The plan is for another service, whose region says nothing of this gang's.
                place = replace(place, region=None)
        return cls(key=plan.key, place=place, tries=plan.tries, ref=ref, candidate=plan.candidate)

    @property
    def may_live(self) -> bool:
        """Whether a node of it may live."""
        return self.end is None or self.end.alive

    @property
    def run_dir(self) -> str:
        """The run directory of its nodes."""
        return self.place.run_dir

    @property
    def order(self) -> tuple[int, int]:
        """The order of attempts: greater for a later one."""
        return self.key.generation, self.key.attempt

    def is_that_of(self, plan: Plan) -> bool:
        """Whether it is the plan's own attempt, at the plan's place."""
        return self.key == plan.key and self.place.is_that_of(plan)

    @property
    def max_tries(self) -> int:
        """Airflow's `max_tries` of the task when the attempt was begun."""
        # A record without tries is of an earlier version, which took Airflow's number for the generation.
        return self.tries.max_tries if self.tries else self.key.generation

    def to_json(self) -> dict[str, Any]:
        return dict(codec.encode(self))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Attempt:
        """Read what `to_json` returned, in any version. Raises TypeError or ValueError for another form."""
        return codec.decode(cls, value)


def newest_attempt(known: Iterable[Attempt]) -> Attempt | None:
    """Return the newest attempt; of several records of it, one that has its gang. None where none is known."""
    return max(known, key=lambda attempt: (*attempt.order, attempt.ref is not None), default=None)


def merged_records(*records: Iterable[Attempt]) -> list[Attempt]:
    """Return each attempt at each place once, from its most complete record; the oldest first."""
    found: dict[tuple[object, ...], Attempt] = {}
    for attempt in (attempt for some in records for attempt in some):
        name = (*attempt.order, attempt.place.digest)
        before = found.get(name)
        if before is None or _known(attempt) >= _known(before):
            found[name] = attempt
    return sorted(found.values(), key=lambda attempt: attempt.order)


def _known(attempt: Attempt) -> tuple[bool, int]:
    return attempt.end is not None, sum(map(bool, attempt.ref.run_ids)) + 1 if attempt.ref else 0


def generation_of(now: Tries, known: Iterable[Attempt]) -> int:
    """Return the generation that a try belongs to: that of the newest attempt, or one that is higher than all.

    Airflow sets a task's `max_tries` to its `retries` when it is made, and to the tries that it has had plus its
    `retries` when it is cleared; a retry leaves it as it is. So:

    | `max_tries`                   | newest attempt                                 | the try is           |
    | ----------------------------- | ---------------------------------------------- | -------------------- |
    | as in the newest attempt      | is open, or has ended without success          | a retry              |
    | as in the newest attempt      | has failed for good (`End.final`)              | cleared, with other  |
    |                               |                                                | `retries`            |
    | as in the newest attempt      | the task saw its success, and was not cleared  | a retry: what comes  |
    |                               | since, as far as the numbers show              | after it had failed  |
    | as in the newest attempt      | the task saw its success, and was cleared      | cleared, with other  |
    |                               | since (`Tries.cleared_after`)                  | `retries`            |
    | as in the newest attempt      | a try of this number or a later one saw its    | of a DAG run that    |
    |                               | success                                        | was created again    |
    | another, higher or lower      | any                                            | cleared              |
    """
    latest = newest_attempt(known)
    if latest is None:
        return now.max_tries
    if latest.max_tries == now.max_tries and not _begins_anew(latest.end, now):
        return latest.key.generation
    return max(now.max_tries, latest.key.generation + 1)


def _begins_anew(end: End | None, now: Tries) -> bool:
    """Whether the task was cleared, or its DAG run created again, since an end, though `max_tries` is the same."""
    if end is not None and end.final:
        return True
    if end is None or not end.succeeded or end.try_number is None:
        return False
    after = now.cleared_after
    return now.try_number <= end.try_number or (after is not None and end.try_number <= after)
