"""RecordedGangs: finds the gangs of a task by what is recorded of its attempts, for any backend."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from airflow_provider_ocidist.errors import BackendError, Cause, Overtaken
from airflow_provider_ocidist.model.attempts import Attempt, End, Place, merged_records
from airflow_provider_ocidist.model.report import StopRequest
from airflow_provider_ocidist.model.run import Plan, RunKey, RunRef
from airflow_provider_ocidist.work_dir.attempt_index import AttemptIndex, work_dir_of
from airflow_provider_ocidist.work_dir.parallel import Pending, in_parallel
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories

log = logging.getLogger(__name__)

CALLED_OFF = StopRequest(cause=Cause.CANCELED, message="its task has given this attempt up")


class RecordedGangs:
    """Finds the gangs of tasks for one connection.

    Each attempt is recorded in the work directory before anything of it is created, so no gang is without a record.
    """

    def __init__(
        self,
        run_dirs: RunDirStores,
        look: Callable[[Attempt], list[RunRef]],
        work_dir: Callable[[], str | None] = lambda: None,
        urgent: RunDirStores | None = None,
    ) -> None:
        """`look` returns the gangs of one attempt. Raises BackendError where the service does not show them.

        `work_dir` returns the connection's work directory, for callers without a plan. `urgent` is for ending nodes: no
        other request delays it; None: there is none.
        """
        self._run_dirs = run_dirs
        self._urgent = urgent or run_dirs
        self.look = look
        """Function that returns the gangs of one attempt at this connection."""
        self.work_dir = work_dir
        self._not_recorded: dict[str, Attempt] = {}
        """Attempts whose gang could not be recorded when it was created, by its job."""
        self._recording: dict[str, Pending[None]] = {}
        self.conn_id: str | None = None
        """Connection whose service it looks at; None: the task's own."""
        self._of_connection: Callable[[str | None], RecordedGangs] | None = None

    def join(self, conn_id: str | None, others: Callable[[str | None], RecordedGangs]) -> None:
        """Take the finders of the other connections of the same task; `others` raises BackendError."""
        self.conn_id, self._of_connection = conn_id, others

    # what is recorded

    def attempts(self, plan: Plan, noted: Sequence[Attempt] = ()) -> list[Attempt]:
        """Return what is recorded of the plan's task: the attempts that may live, and the newest of all, oldest first.

        `noted`: the attempts that Airflow keeps for the task; their records may be in another work directory.
        Raises BackendError when the records cannot be read.
        """
        return self.recorded(plan.key, Place.of(plan), noted)

    def recorded(self, key: RunKey, place: Place | None, noted: Sequence[Attempt]) -> list[Attempt]:
        """Return the recorded attempts of a task whose gangs are created in `place`; None: in the connection's."""
        places = [each.place for each in noted if place is None or each.place.backend == place.backend]
        indexes = {
            (id(gangs := self.at(each)), work_dir_of(each.run_dir)): gangs
            for each in (*([place] if place else []), *places)
        }
        if place is None and (usual := self.work_dir()) is not None:
            indexes.setdefault((id(self), usual.rstrip("/")), self)
        return merged_records(
            noted, *(gangs.index(work_dir).read(key) for (_, work_dir), gangs in indexes.items())
        )

    def at(self, place: Place) -> RecordedGangs:
        """Return the finder that reads and writes the work directory of a place: itself, or at OCI that of a region.

        All connections of a task share its work directory, so this reaches no other service.
        """
        if place.conn_id is None and self.conn_id is not None and self._of_connection is not None:
            return self._of_connection(None).at(place)
        return self

    def index(self, work_dir: str) -> AttemptIndex:
        """Return the records of a work directory."""
        return AttemptIndex(self._run_dirs, work_dir)

    def index_of(self, attempt: Attempt) -> AttemptIndex:
        """Return the records of the work directory that an attempt belongs to."""
        return self.at(attempt.place).index(work_dir_of(attempt.place.run_dir))

    def record(self, attempt: Attempt) -> None:
        """Record an attempt, or what is known of it now. Raises BackendError."""
        self.index(work_dir_of(attempt.place.run_dir)).write(attempt)

    def record_created(self, plan: Plan, ref: RunRef) -> None:
        """Record what was created for a plan; where that fails, `record_again` does it later.

        The record from before leads to the gang as well, but not once the service has deleted what has ended.
        """
        attempt = Attempt.of(plan, ref)
        self._not_recorded[ref.job_id] = attempt
        try:
            self.record(attempt)
        except BackendError as error:
            log.warning(
                "%s: its nodes' ids could not be written to the work directory yet: %s",
                ref.key.name,
                error,
            )
        else:
            self._not_recorded.pop(ref.job_id, None)

    def record_again(self, ref: RunRef) -> None:
        """Record a gang that could not be recorded when it was created, in a thread of its own. Raises nothing."""
        attempt, running = self._not_recorded.get(ref.job_id), self._recording.get(ref.job_id)
        if attempt is not None and (running is None or running.is_made(0.0)):
            self._recording[ref.job_id] = Pending(lambda: self._record_late(attempt, ref.job_id))

    def is_recorded(self, ref: RunRef) -> bool:
        """Whether `record_again` has nothing to do for a gang, as far as this process knows."""
        return ref.job_id not in self._not_recorded

    def _record_late(self, attempt: Attempt, job_id: str) -> None:
        try:
            self.index(work_dir_of(attempt.run_dir)).complete(attempt)
        except BackendError as error:
            log.info(
                "%s: its nodes' ids still cannot be written to the work directory: %s",
                attempt.key.name,
                error,
            )
        else:
            self._not_recorded.pop(job_id, None)
            log.info("%s: its nodes' ids are in the work directory now", attempt.key.name)

    def renew(self, ref: RunRef, end: End | None = None) -> None:
        """Record the present nodes of a gang in the record of its attempt. Raises BackendError.

        `end`: the end of an attempt of which only a node that took no part still lives.
        """
        attempt = self._attempt_of(ref)
        if attempt is not None:
            self.index(work_dir_of(ref.run_dir)).write(replace(attempt, ref=ref, end=end))

    def close(self, ref: RunRef, end: End) -> None:
        """Record how a gang has ended. Later tries look for its nodes only if one may still live (`End.alive`)."""
        try:
            if end.alive:
                self.renew(ref, end)
            else:
                self.index(work_dir_of(ref.run_dir)).end(ref.key, Place.of_gang(ref), end)
        except BackendError as error:
            log.warning("%s: its end is not recorded: %s", ref.key.name, error)

    def close_ended(self, ref: RunRef) -> None:
        """Record that no node of a gang lives any more, after another try has ended it; a success stays a success."""
        try:
            known = self._attempt_of(ref)
        except BackendError as error:
            log.warning("%s: its end is not recorded: %s", ref.key.name, error)
        else:
            self.close(ref, _end_of(known))

    def _attempt_of(self, ref: RunRef) -> Attempt | None:
        """Return what is recorded of a gang. Raises BackendError."""
        found = self.index(work_dir_of(ref.run_dir)).read(ref.key)
        wanted = ref.key, ref.run_dir
        return next((each for each in found if (each.key, each.place.run_dir) == wanted), None)

    def ends(self, gang: Plan | RunRef) -> list[End]:
        """Return how the attempts of a gang's task and generation have ended. Raises BackendError."""
        return self.index(work_dir_of(gang.run_dir)).ends(gang.key)

    # what exists

    def find(self, plan: Plan) -> list[RunRef]:
        """Return the gangs of the plan's task that may live, and the newest, of any generation, oldest first."""
        return self.found(plan.key, self.attempts_here(plan, None))

    def found(self, key: RunKey, known: Iterable[Attempt]) -> list[RunRef]:
        """Return the gangs of attempts at any place, oldest first. Raises BackendError."""
        refs = in_parallel(self._seen, known)
        return by_age(ref for some in refs for ref in some if ref.key.task_digest == key.task_digest)

    def require_connections(self, plan: Plan, known: Sequence[Attempt]) -> None:
        """Raise BackendError where an attempt, on the plan's backend, is at a connection that cannot be had.

        Asks no service.
        """
        for attempt in self.attempts_here(plan, known):
            self._finder(attempt)

    def _seen(self, attempt: Attempt) -> list[RunRef]:
        """Return the gangs of an attempt, as the service of its connection shows them. Raises BackendError."""
        return self._finder(attempt).look(attempt)

    def _finder(self, attempt: Attempt) -> RecordedGangs:
        """Return the finder for an attempt's connection. Raises BackendError where that cannot be had."""
        conn_id = attempt.place.conn_id
        if conn_id == self.conn_id:
            return self
        try:
            if self._of_connection is None:
                raise BackendError("it cannot be reached from here", cause=Cause.CONFIG)
            return self._of_connection(conn_id)
        except BackendError as error:
            raise _without_connection(attempt, error) from error

    # begin

    def begin(self, plan: Plan, known: Sequence[Attempt] | None = None) -> list[RunRef]:
        """Record the plan's attempt, unless it is recorded already; return the gangs of the task as `find` does.

        `known`: the result of `attempts`, if the caller has it: it saves the requests for it. The plan's own gang may
        be in the result, without a node. Raises BackendError; Overtaken if another try has recorded an attempt since.
        """
        known = self.attempts_here(plan, known)
        own = next((each for each in known if each.is_that_of(plan)), None)
        found = self.found(plan.key, known)
        unanswered = [each for each in known if each.ref is None and each is not own]
        found = by_age([*found, *self.call_off(plan.key, unanswered, found)])
        elsewhere = any(each.key == plan.key and each is not own for each in known)
        if elsewhere or any(ref.key == plan.key for ref in found):
            return found
        begun = Attempt.of(plan)
        self.record(begun)
        if others := self.unknown(begun, known):
            raise self.give_way(plan, others, lambda: self.withdraw(begun, known))
        return by_age([*found, *self.look(begun)])

    def attempts_here(self, plan: Plan, known: Sequence[Attempt] | None) -> list[Attempt]:
        """Return the attempts of a plan's task on this backend, which cannot see those on another.

        `known`: all that are recorded; None: they are read. Raises BackendError.
        """
        known = self.attempts(plan) if known is None else known
        return [each for each in known if each.place.backend == plan.backend]

    def unknown(self, begun: Attempt, known: Sequence[Attempt]) -> list[Attempt]:
        """Return the attempts that other tries have recorded meanwhile.

        Each try records its attempt before it looks: of two concurrent tries at least one sees the other.
        """
        return self.index_of(begun).unknown(begun.key, [*known, begun])

    @staticmethod
    def give_way(plan: Plan, others: Sequence[Attempt], withdraw: Callable[[], object]) -> Overtaken:
        """Return the error for a try that finds another's attempt; call `withdraw` if it is the earlier of the two."""
        overtaken = _overtaken(plan, others)
        if plan.tries is not None and overtaken.try_number > plan.tries.try_number:
            withdraw()
        return overtaken

    def withdraw(
        self, begun: Attempt, known: Sequence[Attempt], remove: Callable[[], object] = lambda: None
    ) -> None:
        """Remove the record of an attempt that this try has just begun, unless it is among those known before."""
        if any(each.key == begun.key and each.place.digest == begun.place.digest for each in known):
            return
        try:
            remove()
            self.index_of(begun).forget(begun)
        except BackendError as error:
            # The later try finds it by its record, and cancels it.
            log.info("%s: %s", begun.key.name, error)

    def leave(self, attempt: Attempt) -> Attempt:
        """Request a stop of an attempt's nodes in its run directory, and record its end. Raises BackendError."""
        self.stop_unseen(attempt)
        end = _end_of(attempt)
        self.index_of(attempt).end(attempt.key, attempt.place, end)
        return replace(attempt, end=end)

    def write_off(self, plan: Plan) -> None:
        """Record that the service has refused a plan's attempt: it has ended without success. Raises BackendError."""
        refused = Attempt.of(plan)
        self.stop_unseen(refused)
        self.index_of(refused).end(plan.key, refused.place, End(succeeded=False))

    def call_off(
        self, key: RunKey, unanswered: Sequence[Attempt], found: Sequence[RunRef], settle: float = 0.0
    ) -> list[RunRef]:
        """Write stop requests for attempts of which nothing was found; look again `settle` seconds later.

        Return the gangs that are found then. The end of each other attempt is recorded: nodes that a try still creates
        in it find the stop request. Raises BackendError where no stop request can be written.
        """
        hidden = [attempt for attempt in unanswered if not _is_among(attempt, found)]
        if not hidden:
            return []
        for attempt in hidden:
            self.stop_unseen(attempt)
        time.sleep(settle)
        late = self.found(key, hidden)
        for attempt in hidden:
            if not _is_among(attempt, late):
                self.index_of(attempt).end(attempt.key, attempt.place, _end_of(attempt))
        return late

    def stop_unseen(self, attempt: Attempt) -> None:
        """Write a stop request for nodes that no list shows. Raises BackendError if that fails: they may train on."""
        place = attempt.place
        if not self.at(place).leave_stop_request(place.run_dir, attempt.key):
            raise BackendError(
                f"{attempt.key.name}, an earlier attempt of this task, may still be running, and no stop request could "
                f"be written to {place.run_dir}; a retry tries again",
                retryable=True,
            )

    def stop_at_once(self, attempts: Sequence[Attempt]) -> None:
        """Write stop requests for the nodes of attempts, which wait for no other request. Raises nothing.

        Where a store throttles, each waits for its turn after all.
        """
        in_parallel(lambda each: self.at(each.place).stop_one_at_once(each), attempts)

    def stop_one_at_once(self, attempt: Attempt) -> None:
        """Write a stop request for the nodes of an attempt at this place, as `stop_at_once`."""
        urgent, run_dir = RunDirectories(self._run_dirs, self._urgent), attempt.place.run_dir
        if not urgent.request_stop(attempt.key, run_dir, CALLED_OFF):
            self.leave_stop_request(run_dir, attempt.key)

    def leave_stop_request(self, run_dir: str, key: RunKey) -> bool:
        """Write a stop request for nodes that are just starting, that get no signal, or that no list shows.

        With all the patience that other requests have. Return False where it could not be written.
        """
        return RunDirectories(self._run_dirs, self._run_dirs).request_stop(key, run_dir, CALLED_OFF)


def by_age(refs: Iterable[RunRef]) -> list[RunRef]:
    """Return each gang once, the oldest first."""
    found = {ref.job_id: ref for ref in refs}
    return sorted(found.values(), key=lambda ref: (ref.key.generation, ref.key.attempt))


def _end_of(attempt: Attempt | None) -> End:
    """Return the end of an attempt of which no node lives any more: a success stays a success."""
    known = None if attempt is None else attempt.end
    return replace(known, alive=False) if known is not None and known.succeeded else End(succeeded=False)


def _is_among(attempt: Attempt, refs: Iterable[RunRef]) -> bool:
    wanted = (attempt.key, attempt.place.compartment_id, attempt.place.conn_id)
    return any((ref.key, ref.compartment_id, ref.conn_id) == wanted for ref in refs)


def _without_connection(attempt: Attempt, error: BackendError) -> BackendError:
    """Return the error for an attempt that may live at a connection that cannot be had."""
    return BackendError(
        f"{attempt.key.name}, an earlier attempt of this task, may still be running, and was created with connection "
        f"{attempt.place.conn_id or 'of the task'!r}: {error}; define that connection again, until its gang has ended",
        retryable=True,
    )


def _overtaken(plan: Plan, others: Sequence[Attempt]) -> Overtaken:
    try_number = max(attempt.tries.try_number if attempt.tries else 0 for attempt in others)
    return Overtaken(
        f"{plan.key.name}: try {try_number} of its task has begun {others[-1].key.name} meanwhile", try_number
    )
