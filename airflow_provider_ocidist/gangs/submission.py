"""Exactly once: adopt the gang of a task if it lives or has succeeded, else create it. No Airflow."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import now_at
from airflow_provider_ocidist.backends.claims import CLAIM_PATIENCE, GIVE_UP_CLAIM_PATIENCE
from airflow_provider_ocidist.backends.connections import beside
from airflow_provider_ocidist.backends.interruptions import when_interrupted
from airflow_provider_ocidist.errors import (
    BackendError,
    Cause,
    JobFileError,
    LeftRuns,
    Overtaken,
    StillAlive,
)
from airflow_provider_ocidist.gangs import another_gang
from airflow_provider_ocidist.gangs.adoption import (
    Adoption,
    at_the_place_of,
    attempts_to_look_at,
    is_called_off,
    looked_at_first,
)
from airflow_provider_ocidist.gangs.attempt_notes import note, noted_in
from airflow_provider_ocidist.gangs.canceller import Canceller, end_unless_claimed, given_up
from airflow_provider_ocidist.gangs.candidates import Candidates
from airflow_provider_ocidist.gangs.earlier_tries import Homes, Reach, cancel_earlier
from airflow_provider_ocidist.gangs.ownership import claim, give_way
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.model.attempts import Attempt, Place
from airflow_provider_ocidist.model.job import Restarts, TrainingJob
from airflow_provider_ocidist.model.kept_evidence import TaskStateStore
from airflow_provider_ocidist.model.refusal import NO_MACHINE
from airflow_provider_ocidist.model.run import (
    Plan,
    RunKey,
    RunRecord,
    RunRef,
    Tries,
)

LEFT_OVER = "left over from before this task was cleared or retried"


class GangSubmitter:
    """Adopts or creates the one gang of a task, whatever earlier tries did and whichever settings have changed.

    The records in the work directory and in Airflow name the gangs that may be running; the service reports which are.
    """

    def __init__(
        self,
        backend: Backend,
        job: TrainingJob,
        log: TaskLog,
        notes: TaskStateStore | None,
        stop: threading.Event,
        *,
        plans: Iterable[Plan] = (),
        reach: Reach | None = None,
    ) -> None:
        """`plans`: those that the backend has made of this job already, in the order of its choices.

        `reach` connects the homes that the job has named before; None: they cannot be reached.
        """
        self._backend = backend
        self._job = job
        self._log = log
        self._notes = notes
        self._stop = stop
        self._reach = reach
        self._canceller = Canceller(backend, log, stop)
        self._candidates = Candidates(backend, job, log, plans)
        self._adoption = Adoption(backend, job, log, stop, self._candidates)
        self._chosen: dict[RunKey, int] = {}
        self._asked: Plan | None = None
        """Plan that this try has last asked the service for."""
        self._submitted: Attempt | None = None
        """Attempt whose gang this try has last asked for; with the gang once the service has returned it."""

    def adopt_or_submit(
        self, key: RunKey, task_deadline: float | None, try_number: int = 1, retries: int | None = None
    ) -> RunRecord:
        """Return the record of the gang. Raises BackendError, also when stopped; Overtaken if a later try owns it.

        `key.generation` is Airflow's `max_tries`; the gang's own follows from the records of earlier tries.
        `task_deadline` is a Unix time, `try_number` that of the task's try: if Airflow begins another try while an
        earlier one still lives, it ends the earlier one, whose gang must live on. `retries` is the task's.
        """
        tries = Tries(try_number=try_number, max_tries=key.generation, retries=retries)
        with self.ended_if_interrupted(key, try_number):
            return self._adopted_or_submitted(key, task_deadline, tries)

    def submit_and_leave(self, key: RunKey) -> RunRecord:
        """Do what `adopt_or_submit` does for a caller that leaves the gang: a further call completes what it began."""
        return self._adopted_or_submitted(key, None, Tries(try_number=1, max_tries=key.generation))

    def ended_if_interrupted(self, key: RunKey, try_number: int) -> AbstractContextManager[None]:
        """End what this try has begun where Airflow's timeout or Ctrl-C arrives, which are no Exceptions.

        Until the next try looks, nobody looks for what a request has just created.
        """
        return when_interrupted(lambda error: self.end_asked(key, try_number, error))

    def _adopted_or_submitted(self, key: RunKey, task_deadline: float | None, tries: Tries) -> RunRecord:
        while True:
            try:
                return self._adopt_or_submit(key, task_deadline, tries)
            except Overtaken as error:
                if error.try_number > tries.try_number:
                    raise
                # An earlier try has begun an attempt since this try looked.
                self._log.info("%s; looking again", error)
            except BackendError as error:
                if not self._note_refused_request(error):
                    raise
                self._log.warning("%s; asking for another candidate", error)

    def submit_or_end(self, key: RunKey, try_number: int = 1, retries: int | None = None) -> RunRecord:
        """Do what `adopt_or_submit` does for a caller without a later try: whatever this raises, no node runs on."""
        try:
            return self.adopt_or_submit(key, None, try_number, retries)
        except Exception as error:
            self.end_asked(key, try_number, error)
            raise

    def end_asked(self, key: RunKey, try_number: int, why: BaseException) -> None:
        """End what this try has begun, if it has asked the service for anything. Raises no Exception."""
        if self._asked is None:
            return
        try:
            left = self.cancel_earlier(key, try_number, why)
        except Exception as error:  # noqa: BLE001 - what has ended the submission is raised
            left = [
                f"the nodes that this try has created may still be running, and cannot be looked up: {error}"
            ]
        self._asked = self._submitted = None
        self._log.warning(
            "%s", "; ".join(left) or f"{key.name}: the nodes that this try has created are cancelled"
        )

    def _note_refused_request(self, error: BackendError) -> bool:
        """Record what the service has just refused; return whether the job has another candidate."""
        plan = self._asked
        if plan is None or not self._candidates.several or isinstance(error, StillAlive | LeftRuns):
            return False
        if error.cause not in NO_MACHINE or self._stop.is_set():
            return False
        # Each candidate is an attempt of its own: a token must not stand for two requests.
        try:
            self._at(plan).gangs.write_off(plan)
        except BackendError as problem:
            self._log.warning(
                "%s: no other candidate is asked for, since its end could not be recorded: %s",
                plan.key.name,
                problem,
            )
            return False
        return self._candidates.refuse(plan.key, plan.candidate, error.cause, str(error))

    def _adopt_or_submit(self, key: RunKey, task_deadline: float | None, tries: Tries) -> RunRecord:
        try_number = tries.try_number
        draft = self._plan(key, tries)
        known = self._backend.gangs.attempts(draft, noted_in(self._notes, draft, self._log))
        give_way(self._backend, draft, known, try_number)
        known = [self._left(each, draft) for each in known]
        key = looked_at_first(key, tries, known)
        to_look_at = attempts_to_look_at(known, key.generation)
        self._stop_earlier(to_look_at, key.generation, try_number)
        # Before the plan: the job may still name a connection that cannot be had, at which a gang lives.
        self._backend.gangs.require_connections(draft, to_look_at)
        plan = self._plan(key, tries, self._choice(key, known))
        # Saved before anything is created: after a crash the next try looks at this attempt first.
        self._note([*to_look_at, Attempt.of(plan)])
        self._asked = plan
        found = self._at(plan).gangs.begin(plan, to_look_at)
        adopted = self._adoption.adopted(found, plan, known)
        if adopted is not None and (try_number > 1 or any(adopted.run_ids)):
            # Claim before ending the others: one of them may be a later try's.
            claim(self._backend, adopted, try_number)
        self._canceller.end([ref for ref in found if ref is not adopted], LEFT_OVER)
        if adopted is not None:
            whole = at_the_place_of(
                adopted, self._plan(adopted.key, tries, self._choice(adopted.key, known)), known
            )
            if not any(adopted.run_ids):
                # Some services have its job before any node.
                self._hand_on(whole, try_number)
            return self._submit(whole, task_deadline, found, try_number)
        begun, key = plan.key, replace(key, attempt=self._unused_attempt(plan, found, known))
        plan = self._plan(key, tries, self._choice(key, known))
        # `begin` has recorded the other attempt; this one has no record yet.
        if plan.key != begun:
            self._backend.gangs.record(Attempt.of(plan))
        self._hand_on(plan, try_number)
        return self._submit(plan, task_deadline, [], try_number)

    def _hand_on(self, plan: Plan, try_number: int) -> None:
        """Record for a new gang what the program has failed with in the earlier ones of this try; log where that fails.

        So the same failure at the same step ends it at once, as in one gang.
        """
        if plan.key.attempt == 1 or self._job.restarts == Restarts():
            return
        try:
            known = another_gang.of_program(self._backend.gangs.ends(plan), try_number)
            # Also none: a try that died before it had any node may have written others for the same attempt.
            self._backend.directories.hand_on(plan, known)
        except BackendError as error:
            self._log.warning(
                "%s: what ended earlier gangs of this try could not be recorded for its nodes, so a crash loop is "
                "noticed later: %s",
                plan.key.name,
                error,
            )

    def _unused_attempt(self, plan: Plan, found: Sequence[RunRef], known: Sequence[Attempt]) -> int:
        """Return the number of the attempt to create: the plan's, unless it exists, or was called off."""
        key = plan.key
        taken = [ref.key.attempt for ref in found if ref.key.generation == key.generation]
        taken += [each.key.attempt for each in known if each.key == key and not each.place.is_that_of(plan)]
        if not taken and is_called_off(self._backend, plan, known):
            taken = [key.attempt]
        return max([key.attempt, *(each + 1 for each in taken)])

    def _choice(self, key: RunKey, known: Sequence[Attempt]) -> int:
        """Return the choice of machines for an attempt: the one that it was begun with, else the one to ask for now."""
        begun = next((each for each in known if each.key == key), None)
        number = self._candidates.number_of(begun.candidate) if begun else None
        if number is not None:
            return number
        if key not in self._chosen:
            self._chosen[key] = self._candidates.chosen(key)
        return self._chosen[key]

    def cancel_earlier(self, key: RunKey, try_number: int, why: BaseException) -> list[str]:
        """End gangs that earlier tries may have left: this try gives up, and is the last (`earlier_tries`)."""
        return self._earlier_canceller(key, try_number, why)()

    def earlier_canceller(self, key: RunKey, try_number: int, why: BaseException) -> Callable[[], list[str]]:
        """Return a function that does so later, also while this try waits for an answer; it asks nothing of Airflow."""
        return self._earlier_canceller(key, try_number, why, prepared=True)

    def _earlier_canceller(
        self, key: RunKey, try_number: int, why: BaseException, *, prepared: bool = False
    ) -> Callable[[], list[str]]:
        try:
            draft = self._plan(key, Tries(try_number=try_number, max_tries=key.generation))
        except JobFileError:
            draft = None
        noted, ending = noted_in(self._notes, draft, self._log), given_up(why, now_at(self._backend))
        place, homes = Place.of(draft) if draft else None, Homes(self._backend, self._reach, self._log)
        if prepared:
            homes.prepare(each.place for each in noted)
        # Of a killed task seconds are left.
        patience = CLAIM_PATIENCE if prepared or self._stop.is_set() else GIVE_UP_CLAIM_PATIENCE
        return lambda: cancel_earlier(
            homes,
            key,
            place,
            noted,
            ending,
            try_number,
            patience,
            [self._submitted] if self._submitted else [],
        )

    def _submit(
        self, plan: Plan, task_deadline: float | None, found: Sequence[RunRef], try_number: int
    ) -> RunRecord:
        self._note([Attempt.of(plan)])
        if not any(ref.key == plan.key for ref in found) and try_number > 1:
            claim(self._backend, plan, try_number)
        self._asked = plan
        self._submitted = Attempt.of(plan)
        there = self._at(plan)
        ref = there.submit(plan, self._stop, found)
        self._submitted = Attempt.of(plan, ref)
        ref = replace(ref, candidate=plan.candidate, price=plan.price)
        self._note_created(Attempt.of(plan, ref), ref, try_number)
        if self._stop.is_set():
            end_unless_claimed(there, ref, try_number, self._log)
            raise BackendError("stopped just when the gang was complete", cause=Cause.CANCELED)
        deadline = None if task_deadline is None else task_deadline - time.time() + now_at(there)
        return RunRecord.of(ref, self._job, plan.expects, deadline)

    def _at(self, gang: Plan | RunRef) -> Backend:
        """Return the backend of the connection that a gang is created with. Raises BackendError."""
        return beside(self._backend, gang.conn_id)

    def _stop_earlier(self, known: Sequence[Attempt], generation: int, try_number: int) -> None:
        """Write stop requests for gangs from before a clear: they end also if the service does not answer."""
        self._backend.gangs.stop_at_once(
            [
                attempt
                for attempt in known
                if attempt.may_live
                and attempt.key.generation < generation
                and not (attempt.tries is not None and attempt.tries.try_number > try_number)
            ]
        )

    def _left(self, attempt: Attempt, draft: Plan) -> Attempt:
        """Request a stop of an attempt's gang at another backend, since this backend cannot see it."""
        backend = attempt.place.backend
        if not attempt.may_live or backend == draft.backend:
            return attempt
        self._log.warning(
            "%s may be running on backend %s, and the job now names %s: its nodes get a stop request",
            attempt.key.name,
            backend,
            draft.backend,
        )
        return self._backend.gangs.leave(attempt)

    def _plan(self, key: RunKey, tries: Tries, choice: int = 0) -> Plan:
        return replace(self._candidates.plan(key, choice), tries=tries)

    def _note_created(self, attempt: Attempt, ref: RunRef, try_number: int) -> None:
        """Save a live gang in Airflow; a failure is harmless, since the work directory records it too."""
        try:
            self._note([attempt])
        except Exception as error:  # noqa: BLE001 - Airflow's, or the network's
            self._log.warning("%s: could not be saved in Airflow: %s", ref.key.name, error)
        except BaseException:
            # Airflow's timeout: this try no longer waits for the gang.
            with contextlib.suppress(BackendError):
                end_unless_claimed(self._at(ref), ref, try_number, self._log)
                # Else it is tried once more, as for whatever this try has begun.
                self._asked = None
            raise

    def _note(self, attempts: Sequence[Attempt]) -> None:
        note(self._notes, attempts)
