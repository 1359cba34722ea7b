"""Cancels the gangs of a task's earlier tries, each at its own home, by the service or by stop requests. No Airflow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TypeVar

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import ListsLiveGangs, near, now_at
from airflow_provider_ocidist.backends.claims import GIVE_UP_CLAIM_PATIENCE, overtaken_by
from airflow_provider_ocidist.backends.connections import beside, is_connected, named_for
from airflow_provider_ocidist.errors import BackendError, CancelFailed
from airflow_provider_ocidist.gangs.attempt_notes import noted_in
from airflow_provider_ocidist.gangs.canceller import given_up
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.model.attempts import Attempt, Place, merged_records
from airflow_provider_ocidist.model.homes import how_to_end, words_of
from airflow_provider_ocidist.model.kept_evidence import TaskStateStore
from airflow_provider_ocidist.model.report import StopRequest
from airflow_provider_ocidist.model.run import Ending, RunKey, RunRef
from airflow_provider_ocidist.work_dir.parallel import Pending, in_parallel

Item = TypeVar("Item")
UNLISTED = "the attempts of earlier tries cannot be listed"
Messages = list[str]
"""Texts that name each gang which may still be running, and why it is not known or its cancel failed."""
Reach = Callable[[str], Backend]
"""Function that returns the backend of a kind. Raises whatever keeps it from being connected."""


class Homes:
    """The backends at which gangs of a task may be, each connected when it is asked for first."""

    def __init__(self, backend: Backend, reach: Reach | None, log: TaskLog) -> None:
        """`backend` is the present one; `reach`: None where there is no way to others."""
        self.present = backend
        self._reach = reach
        self._log = log
        self._found: dict[str, Backend | None] = {backend.kind: backend}
        self._is_prepared = False
        """Whether no other kinds and connections are connected any more."""

    def at(self, kind: str) -> Backend | None:
        """Return the backend of a kind; None where it cannot be connected."""
        if kind not in self._found:
            self._found[kind] = self._connect(kind)
        return self._found[kind]

    def connected(self) -> list[Backend]:
        """Return the backends that are connected now, the present one first."""
        return [each for each in self._found.values() if each is not None]

    def of(self, places: Iterable[Place]) -> list[Backend]:
        """Return the connected backends, the present one first, and those of the connections that these places name."""
        named = [(self.at(place.backend), place.conn_id) for place in places]
        found = self.connected()
        for home, conn_id in dict.fromkeys(named):
            there = None if home is None or conn_id is None else self._beside(home, conn_id)
            if there is not None and there not in found:
                found.append(there)
        return found

    def prepare(self, places: Iterable[Place]) -> None:
        """Connect these now, and no others later: a killed task asks nothing of Airflow."""
        self.of(places)
        self._reach, self._is_prepared = None, True

    def near(self, home: Backend, ref: RunRef) -> Backend:
        """Return the backend that reaches a gang. Raises BackendError where its connection cannot be had (now)."""
        if self._is_prepared and not is_connected(home, ref.conn_id):
            raise BackendError(f"connection {ref.conn_id!r} was not connected before the task was killed")
        return near(home, ref)

    def _beside(self, home: Backend, conn_id: str) -> Backend | None:
        if self._is_prepared and not is_connected(home, conn_id):
            return None
        try:
            return beside(home, conn_id)
        except BackendError as error:
            self._log.warning("connection %s, of an earlier try's gang, cannot be used: %s", conn_id, error)
            return None

    def _connect(self, kind: str) -> Backend | None:
        if self._reach is None:
            return None
        try:
            return self._reach(kind)
        except Exception as error:  # noqa: BLE001 - Airflow's own, or of a kind that this version does not have
            self._log.warning("backend %s, of an earlier try's gang, cannot be connected: %s", kind, error)
            return None


def cancel_earlier(
    homes: Homes,
    key: RunKey,
    place: Place | None,
    noted: Sequence[Attempt],
    ending: Ending,
    try_number: int,
    claim_patience: float = GIVE_UP_CLAIM_PATIENCE,
    asked: Sequence[Attempt] = (),
) -> list[str]:
    """Cancel the gangs of a task that may be running, except those of later tries: `try_number`, the last, fails.

    Each gang is cancelled at the service or by a stop request, whichever can be reached. `place`: where the task's job
    creates its gangs; None if the job cannot be read: then the place of the connection. `noted`: the attempts that
    Airflow's task state names. `asked`: what this try has asked for. `claim_patience`: the seconds to wait for the
    store's list of attempts, and then for its answer whether a later try owns a gang, before a cancel is sent without;
    a gang that neither `noted` nor `asked` names waits for the list, since a later try may just be creating it.
    Returns a message for each gang that may still be running, with the way to end it. Raises no BackendError.
    """
    return EarlierTryCanceller(homes, key, place, ending, claim_patience).end(noted, asked, try_number)


class EarlierTryCanceller:
    """Cancels all known gangs of one task, at the services and in the run directories."""

    def __init__(
        self, homes: Homes, key: RunKey, place: Place | None, ending: Ending, claim_patience: float
    ) -> None:
        self._homes = homes
        self._key = key
        self._place = place
        self._ending = ending
        self._claim_patience = claim_patience
        self._stop = StopRequest(cause=ending.cause, message=ending.message)
        self._ended: dict[str, RunRef] = {}
        """Gangs of which no node runs on as far as this try knows, or which a later try owns, by their jobs."""
        self._failed: dict[str, RunRef] = {}
        """Gangs whose last cancel has failed, by their jobs."""

    def end(self, noted: Sequence[Attempt], asked: Sequence[Attempt], try_number: int) -> Messages:
        """Cancel every open attempt except those of tries later than `try_number`. Raises nothing of ours."""
        # Known attempts go first, before any request: a killed task has seconds.
        mine = merged_records(noted, asked)
        self._cancel_all([each.ref for each in mine if each.ref and _may_live(each, try_number)], try_number)
        homes = self._connected(noted)
        records = Pending(lambda: _of_each(homes, lambda home: self._recorded(home, noted), UNLISTED))
        if not records.is_made(self._claim_patience):
            # Of a gang that this try does not know, only the records say whether a later one has begun it.
            self._end_found(homes, noted, mine, try_number, only={each.key for each in mine})
        begun, unread = records.result()
        # Each attempt is recorded before anything of it is created: what has no record does not exist.
        known = merged_records(noted, begun, asked if unread else ())
        # What is said of a gang is said now: each cancel that has failed so far is repeated.
        said = self._end_found(self._connected(known), noted, known, try_number)
        seen = {ref.key for ref in (*self._ended.values(), *self._failed.values())}
        unseen = [each for each in known if _may_live(each, try_number) and each.key not in seen]
        is_asked = in_parallel(lambda each: self._request_stop(each, try_number), unseen)
        left = [_begun(each) for each, found in zip(unseen, is_asked, strict=True) if not found]
        return list(dict.fromkeys([*unread, *said, *left]))

    def _end_found(
        self,
        homes: Iterable[Backend],
        noted: Sequence[Attempt],
        known: Sequence[Attempt],
        try_number: int,
        only: Container[RunKey] | None = None,
    ) -> Messages:
        """Cancel the gangs of known attempts, and those that homes show, unless that was done; `only` those of keys."""
        theirs = {each.key for each in known if _is_of_a_later_try(each, try_number)}
        mine = [each for each in known if _may_live(each, try_number)]
        live, messages = _of_each(
            # What lives at another connection only its own lists show.
            dict.fromkeys([*homes, *self._homes.of(each.place for each in mine)]),
            lambda home: self._live(home, noted, mine),
            "the running gangs of this task cannot be listed",
        )
        found = [
            ref
            for ref in (*self._failed.values(), *(each.ref for each in mine if each.ref), *live)
            if ref.key not in theirs and (only is None or ref.key in only)
        ]
        return messages + self._cancel_all(found, try_number)

    def _connected(self, attempts: Sequence[Attempt]) -> list[Backend]:
        """Return the connected backends: the present one, and those of these attempts that can be connected."""
        for each in attempts:
            self._homes.at(each.place.backend)
        return self._homes.connected()

    def _recorded(self, home: Backend, noted: Sequence[Attempt]) -> Sequence[Attempt]:
        here = [each for each in noted if each.place.backend == home.kind]
        return home.gangs.recorded(self._key, self._place_at(home, noted), here)

    def _live(self, home: Backend, noted: Sequence[Attempt], mine: Sequence[Attempt]) -> Sequence[RunRef]:
        if not isinstance(home, ListsLiveGangs):
            place = home.kind, home.conn_id
            unanswered = [
                each
                for each in mine
                if each.ref is None and (each.place.backend, each.place.conn_id) == place
            ]
            return home.gangs.found(self._key, unanswered)
        places = [self._place, *(each.place for each in (*noted, *mine))]
        compartments = (
            each.compartment_id
            for each in places
            if each and (each.backend, each.conn_id) == (home.kind, home.conn_id)
        )
        return home.live([self._key], next(filter(None, compartments), None))

    def _place_at(self, home: Backend, noted: Sequence[Attempt]) -> Place | None:
        """Return where the task's gangs are put at a home; None: as its connection says."""
        if home is self._homes.present:
            return self._place
        return next((each.place for each in noted if each.place.backend == home.kind), None)

    def _cancel_all(self, refs: Sequence[RunRef], try_number: int) -> Messages:
        """Cancel gangs side by side, as `_cancel` does, except the ended ones: none waits for the home of another."""
        new = {ref.job_id: ref for ref in refs if ref.job_id not in self._ended}
        for ref in new.values():
            self._homes.at(ref.backend)
        said = in_parallel(lambda ref: self._cancel(ref, try_number), new.values())
        for (job_id, ref), messages in zip(new.items(), said, strict=True):
            self._failed.pop(job_id, None)
            (self._failed if messages else self._ended)[job_id] = ref
        return [message for each in said for message in each]

    def _cancel(self, ref: RunRef, try_number: int) -> Messages:
        """Cancel a gang unless a later try owns it; return a message where it may still be running."""
        home = self._homes.at(ref.backend)
        if self._is_claimed(home, ref, try_number):
            return []
        if home is None:
            return [self._request_stop_unreached(ref)]
        try:
            there = self._homes.near(home, ref)
        except BackendError:
            return [self._request_stop_unreached(ref)]
        try:
            there.cancel(ref, self._ending)
        except CancelFailed as error:
            return [] if error.stop_requested else [self._alive(ref, str(error))]
        except BackendError as error:
            return [self._alive(ref, str(error))]
        return []

    def _is_claimed(self, home: Backend | None, gang: RunRef | Attempt, try_number: int) -> bool:
        """Whether a later try owns a gang; `home`: None where it cannot be connected."""
        directories = (home or self._homes.present).directories
        return overtaken_by(directories, gang, try_number, self._claim_patience) is not None

    def _request_stop_unreached(self, ref: RunRef) -> str:
        """Write a stop request for a gang whose home cannot be reached; return the message about it."""
        asked = self._homes.present.directories.request_stop(ref.key, ref.run_dir, self._stop)
        found = "its nodes find a stop request in" if asked else "and no stop request could be written to"
        return self._alive(
            ref,
            f"backend {ref.backend} cannot be reached with {_with(ref)}; {found} {ref.run_dir}",
        )

    def _alive(self, ref: RunRef, why: str) -> str:
        return _alive(ref, why, named_for(self._homes.present))

    def _request_stop(self, attempt: Attempt, try_number: int) -> bool:
        """Write a stop request for an attempt without a known gang, unless a later try owns it; False: that failed."""
        home = self._homes.at(attempt.place.backend)
        if self._is_claimed(home, attempt, try_number):
            return True
        return (home or self._homes.present).directories.request_stop(
            attempt.key, attempt.run_dir, self._stop
        )


def _of_each(
    homes: Iterable[Backend], look: Callable[[Backend], Sequence[Item]], otherwise: str
) -> tuple[list[Item], Messages]:
    """Return what `look` returns of all homes, and a message that begins with `otherwise` for each that fails."""
    found: list[Item] = []
    messages: Messages = []
    for home in homes:
        try:
            found += look(home)
        except BackendError as error:
            messages.append(f"{otherwise}: {error}")
    return found, messages


def _with(ref: RunRef) -> str:
    return "this connection" if ref.conn_id is None else f"connection {ref.conn_id!r}"


def _alive(ref: RunRef, why: str, named: str | None = None) -> str:
    runs = ", ".join(dict.fromkeys(run_id for run_id in ref.run_ids if run_id)) or "no run known"
    return f"{ref.key.name} may still be running ({runs}; {why}): end it with {how_to_end(ref, named=named)}"


def _begun(attempt: Attempt) -> str:
    words = words_of(attempt.place.backend)
    return (
        f"attempt {attempt.key.name} may still be running, and no stop request could be written to "
        f"{attempt.place.run_dir}: look for a {words.gang} of this name, and delete it {words.where}"
    )


def _may_live(attempt: Attempt, try_number: int) -> bool:
    return attempt.may_live and not _is_of_a_later_try(attempt, try_number)


def _is_of_a_later_try(attempt: Attempt, try_number: int) -> bool:
    return attempt.tries is not None and attempt.tries.try_number > try_number


def cancel_noted(
    reach: Callable[[str | None], Backend],
    key: RunKey,
    try_number: int,
    why: BaseException,
    notes: TaskStateStore | None,
    log: TaskLog,
    claim_patience: float = GIVE_UP_CLAIM_PATIENCE,
) -> list[str]:
    """Cancel the gangs of earlier tries of a task whose job cannot be read, by the attempts that are noted in Airflow.

    `reach` returns the backend of a kind; of None, the usual one. `claim_patience`: as for `cancel_earlier`.
    """
    noted = noted_in(notes, None, log)
    homes = Homes(_first_of([each.place.backend for each in noted], reach), reach, log)
    ending = given_up(why, now_at(homes.present))
    return cancel_earlier(homes, key, None, noted, ending, try_number, claim_patience)


def _first_of(kinds: Iterable[str], reach: Callable[[str | None], Backend]) -> Backend:
    """Return the first backend of these kinds that can be connected, else the usual one."""
    for kind in kinds:
        with contextlib.suppress(Exception):
            return reach(kind)
    return reach(None)
