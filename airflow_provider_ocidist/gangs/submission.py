"""Exactly once: adopt the gang of a task if it lives or has succeeded, else create it. No Airflow."""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import near, now_at
from airflow_provider_ocidist.errors import (
    BackendError,
    CancelFailed,
    Cause,
    JobFileError,
    LeftRuns,
    Overtaken,
    StillAlive,
)
from airflow_provider_ocidist.gangs.earlier_tries import cancel_earlier
from airflow_provider_ocidist.gangs.candidates import Candidates
from airflow_provider_ocidist.gangs.decisions import CANCEL_AGAIN_AFTER, Fail, decide
from airflow_provider_ocidist.gangs.watch import TaskLog
from airflow_provider_ocidist.model.attempts import Attempt, End, Place, generation_of, newest_attempt
from airflow_provider_ocidist.model.causes import MEANINGS, Retry
from airflow_provider_ocidist.model.homes import words_of
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.kept_evidence import TaskStateStore
from airflow_provider_ocidist.model.masking import masked_text
from airflow_provider_ocidist.model.refusal import NO_MACHINE
from airflow_provider_ocidist.model.run import (
    Ending,
    NodeState,
    Plan,
    RunKey,
    RunRecord,
    RunRef,
    RunStatus,
    Tries,
)

NOTE = "ocidist_run"
"""Key in the task state store of the attempt begun last."""
LONGEST_NOTE = 60_000
"""Characters; Airflow's task state store is made for values of up to 64 KB."""
END_WITHIN = 1800.0
"""Seconds that a left-over gang has to end, including `limits.stop_grace` and its last checkpoint."""
CLAIM_PATIENCE = 1.5
"""Seconds of the five that Airflow leaves a process which it kills; a gang must not live on because no answer
comes."""
LEFT_OVER = "left over from before this task was cleared or retried"


class Canceller:
    """Ends gangs, and waits until every node of theirs has ended."""

    def __init__(self, backend: Backend, log: TaskLog, stop: threading.Event) -> None:
        self._backend = backend
        self._log = log
        self._stop = stop
        self._begun: dict[str, float] = {}
        """By job: when its end was begun, on the clock `time.monotonic`; an error amid it grants no more time."""

    def end(self, refs: Sequence[RunRef], why: str, *, within: float = END_WITHIN) -> None:
        """End the live ones. Raises BackendError, also when stopped, or if nodes still live after `within` seconds."""
        now = time.monotonic()
        deadline = max((self._begun.setdefault(ref.job_id, now) for ref in refs), default=now) + within
        cancelled_at: dict[str, float] = {}
        while live := self._living(refs):
            if time.monotonic() > deadline:
                raise _still_alive(live, within)
            for ref, _ in live:
                if time.monotonic() - cancelled_at.get(ref.job_id, -math.inf) >= CANCEL_AGAIN_AFTER:
                    self._log.warning("ending %s, %s", ref.key.name, why)
                    if self._cancel(ref):
                        cancelled_at[ref.job_id] = time.monotonic()
            self._pause()
        for ref in refs:
            if not ref.complete:
                self._remove(ref, deadline, within)
            near(self._backend, ref).gangs.close(ref, End(succeeded=False))

    def _remove(self, ref: RunRef, deadline: float, within: float) -> None:
        """Delete the job of an incomplete gang: an earlier try may still be creating nodes in it."""
        while True:
            try:
                return near(self._backend, ref).delete(ref)
            except BackendError as error:
                if error.status_code == 404:
                    return None
                if error.status_code != 409:
                    raise
                if time.monotonic() > deadline:
                    raise _not_removed(ref, within) from error
            # A node was created since the last look.
            self._cancel(ref)
            self._pause()

    def _cancel(self, ref: RunRef) -> bool:
        """Return whether the service accepted the cancel; if not, the next look cancels again."""
        try:
            near(self._backend, ref).cancel(ref)
        except CancelFailed as error:
            self._log.warning("%s; will cancel again", error)
            return False
        return True

    def _pause(self) -> None:
        if self._stop.wait(1.0):
            raise BackendError("stopped while an earlier gang was ending", cause=Cause.CANCELED)

    def _living(self, refs: Sequence[RunRef]) -> list[tuple[RunRef, RunStatus]]:
        statuses = [(ref, near(self._backend, ref).status([ref])[0]) for ref in refs]
        return [(ref, status) for ref, status in statuses if not status.ended]


def _still_alive(live: Sequence[tuple[RunRef, RunStatus]], after: float) -> BackendError:
    states = {
        node.run_id: node.state for _, status in live for node in status.nodes if not node.state.terminal
    }
    runs = ", ".join(f"{run_id} ({state})" for run_id, state in states.items() if run_id)
    jobs, words = " ".join(ref.job_id for ref, _ in live), words_of(live[0][0].backend)
    return StillAlive(
        f"cancelled nodes have not ended within {after:.0f} s: {runs}; end them with ocidist cancel "
        f"{jobs}, or delete the {words.gang} {words.where}; the next try of this task waits for them again",
        retryable=True,
    )


def _not_removed(ref: RunRef, after: float) -> BackendError:
    words = words_of(ref.backend)
    return StillAlive(
        f"{ref.key.name} was never complete, and its {words.gang} {ref.job_id} could not be deleted "
        f"within {after:.0f} s: it still has nodes. Cancel and delete it {words.where}; the next try of "
        "this task tries again",
        retryable=True,
    )


class GangSubmitter:
    """Brings about the one gang of a task, whatever happened to those who tried before and whichever settings changed.

    The records in the work directory and in Airflow name the gangs that may live; the service says which do.
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
    ) -> None:
        """`plans`: those that the backend has made of this job already, in the order of its choices."""
        self._backend = backend
        self._job = job
        self._log = log
        self._notes = notes
        self._stop = stop
        self._canceller = Canceller(backend, log, stop)
        self._candidates = Candidates(backend, job, log, plans)
        self._chosen: dict[RunKey, int] = {}
        self._asked: Plan | None = None
        """What this try has last asked the service for."""

    def adopt_or_submit(
        self, key: RunKey, task_deadline: float | None, try_number: int = 1, retries: int | None = None
    ) -> RunRecord:
        """Return the record of the gang. Raises BackendError, also when stopped; Overtaken if a later try owns it.

        `key.generation` is Airflow's `max_tries`; the gang's own follows from the records of earlier tries.
        `task_deadline` is a Unix time, `try_number` that of the task's try: if Airflow begins another try while an
        earlier one still lives, it ends the earlier one, whose gang must live on. `retries` is the task's.
        """
        tries = Tries(try_number=try_number, max_tries=key.generation, retries=retries)
        while True:
            try:
                return self._adopt_or_submit(key, task_deadline, tries)
            except Overtaken as error:
                if error.try_number > try_number:
                    raise
                # An earlier try has begun an attempt since this try looked.
                self._log.info("%s; looking again", error)
            except BackendError as error:
                if not self._has_another(error):
                    raise
                self._log.warning("%s; asking for another candidate", error)

    def submit_or_end(self, key: RunKey, try_number: int = 1, retries: int | None = None) -> RunRecord:
        """Do what `adopt_or_submit` does, for a caller that nobody follows: whatever this raises, no node runs on."""
        try:
            return self.adopt_or_submit(key, None, try_number, retries)
        except BaseException as error:
            if self._asked is not None:
                left = self.cancel_earlier(key, try_number, error)
                self._log.warning("%s", "; ".join(left) or "its nodes are cancelled")
            raise

    def _has_another(self, error: BackendError) -> bool:
        """Remember what the service has just refused; return whether the job has another candidate."""
        plan = self._asked
        if plan is None or not self._candidates.several or isinstance(error, StillAlive | LeftRuns):
            return False
        if error.cause not in NO_MACHINE or self._stop.is_set():
            return False
        # Each candidate is an attempt of its own: a token must not stand for two requests.
        try:
            self._backend.gangs.write_off(plan)
        except BackendError as problem:
            self._log.warning("%s: no other candidate: its end is not recorded: %s", plan.key.name, problem)
            return False
        return self._candidates.refuse(plan.key, plan.candidate, error.cause, str(error))

    def _adopt_or_submit(self, key: RunKey, task_deadline: float | None, tries: Tries) -> RunRecord:
        try_number = tries.try_number
        draft = self._plan(key, tries)
        known = self._backend.gangs.attempts(draft, noted_in(self._notes, draft, self._log))
        self._give_way(draft, known, try_number)
        known = [self._left(each, draft) for each in known]
        key = replace(key, generation=generation_of(tries, known))
        latest = newest_attempt(attempt for attempt in known if attempt.key.generation == key.generation)
        attempt = _next(latest)
        key = replace(key, attempt=attempt)
        plan = self._plan(key, tries, self._choice(key, known))
        # Saved before anything is created: after a crash the next try looks at this attempt first.
        to_look_at = _to_look_at(known, key.generation)
        self._note([*to_look_at, Attempt.of(plan)])
        self._stop_earlier(to_look_at, key.generation, try_number)
        self._asked = plan
        found = self._backend.gangs.begin(plan, to_look_at)
        adopted = self._adopted(found, plan, known)
        if adopted is not None and (try_number > 1 or any(adopted.run_ids)):
            # Claim before ending the others: one of them may be a later try's.
            self._claim(adopted, try_number)
        self._canceller.end([ref for ref in found if ref is not adopted], LEFT_OVER)
        if adopted is not None:
            whole = self._plan(adopted.key, tries, self._choice(adopted.key, known))
            return self._submit(whole, task_deadline, found, try_number)
        taken = [ref.key.attempt for ref in found if ref.key.generation == key.generation]
        taken += [
            each.key.attempt for each in known if each.key == plan.key and not each.place.is_that_of(plan)
        ]
        key = replace(key, attempt=max(attempt, *(each + 1 for each in taken)) if taken else attempt)
        return self._submit(self._plan(key, tries, self._choice(key, known)), task_deadline, [], try_number)

    def _choice(self, key: RunKey, known: Sequence[Attempt]) -> int:
        """Return which of the job's choices an attempt is of: that which it was begun with, else the one to ask now."""
        begun = next((each for each in known if each.key == key), None)
        number = self._candidates.number_of(begun.candidate) if begun else None
        if number is not None:
            return number
        if key not in self._chosen:
            self._chosen[key] = self._candidates.chosen(key)
        return self._chosen[key]

    def cancel_earlier(self, key: RunKey, try_number: int, why: BaseException) -> list[str]:
        """End gangs that earlier tries may have left: this try gives up, and is the last (`earlier_tries`)."""
        return self.earlier_canceller(key, try_number, why)()

    def earlier_canceller(self, key: RunKey, try_number: int, why: BaseException) -> Callable[[], list[str]]:
        """Return what does so later, also while this try waits for an answer; it asks nothing of Airflow."""
        try:
            draft = self._plan(key, Tries(try_number=try_number, max_tries=key.generation))
        except JobFileError:
            draft = None
        noted, ending = noted_in(self._notes, draft, self._log), _given_up(why)
        place = Place.of(draft) if draft else None
        return lambda: cancel_earlier(self._backend, key, place, noted, ending, try_number)

    def _adopted(self, found: Sequence[RunRef], plan: Plan, known: Sequence[Attempt]) -> RunRef | None:
        """Return the newest gang of the plan's generation if it is worth waiting for."""
        mine = [ref for ref in found if ref.key.generation == plan.key.generation]
        latest = max(mine, key=lambda ref: ref.key.attempt, default=None)
        return latest if latest is not None and self._worth_waiting_for(latest, plan, known) else None

    def _submit(
        self, plan: Plan, task_deadline: float | None, found: Sequence[RunRef], try_number: int
    ) -> RunRecord:
        self._note([Attempt.of(plan)])
        if not any(ref.key == plan.key for ref in found) and try_number > 1:
            self._claim(plan, try_number)
        self._asked = plan
        ref = self._backend.submit(plan, self._stop, found)
        ref = replace(ref, candidate=plan.candidate, price=plan.price)
        self._note_created(Attempt.of(plan, ref), ref, try_number)
        if self._stop.is_set():
            end_unless_claimed(self._backend, ref, try_number, self._log)
            raise BackendError("stopped just when the gang was complete", cause=Cause.CANCELED)
        return RunRecord.of(ref, self._job, plan.expects, self._at_the_service(task_deadline))

    def _stop_earlier(self, known: Sequence[Attempt], generation: int, try_number: int) -> None:
        """Leave stop requests for gangs from before a clear: they end also while the service does not answer."""
        for attempt in known:
            is_of_a_later_try = attempt.tries is not None and attempt.tries.try_number > try_number
            if attempt.end is None and attempt.key.generation < generation and not is_of_a_later_try:
                gangs = self._backend.gangs.at(attempt.place)
                gangs.leave_stop_request(attempt.place.run_dir, attempt.key)

    def _give_way(self, draft: Plan, known: Sequence[Attempt], try_number: int) -> None:
        """Raise Overtaken if a later try has recorded an attempt that lives, or is just being created.

        Airflow has then begun the later try because it took this one for dead, or because the task was cleared.
        """
        later = [each for each in known if each.end is None and each.tries and each.tries.try_number > try_number]
        if not later:
            return
        found = [ref for ref in self._backend.gangs.find(draft) if any(ref.key == each.key for each in later)]
        living = [ref for ref in found if not near(self._backend, ref).status([ref])[0].ended]
        unseen = [
            each
            for each in later
            if (each.ref is None or each.place.backend != draft.backend)
            and not any(ref.key == each.key for ref in found)
        ]
        if living or unseen:
            latest = max(later, key=lambda each: each.tries.try_number if each.tries else 0)
            assert latest.tries is not None
            raise _given_way(latest, living, try_number)

    def _left(self, attempt: Attempt, draft: Plan) -> Attempt:
        """Stop what may live of an attempt where the job no longer runs: this backend cannot see another's gangs."""
        backend = attempt.place.backend
        if attempt.end is not None or backend == draft.backend:
            return attempt
        self._log.warning(
            "%s may run on backend %s, and the job now names %s: its nodes are asked to end, at once and on their own",
            attempt.key.name,
            backend,
            draft.backend,
        )
        return self._backend.gangs.leave(attempt)

    def _claim(self, gang: Plan | RunRef, try_number: int) -> None:
        """Record that this try now owns a gang. Raises Overtaken if a later try owns it."""
        # The first try has no earlier one to protect the gang from, but it may be late.
        directories = self._backend.directories
        ask = directories.claimed_by if try_number == 1 else partial(directories.claim, try_number=try_number)
        holder = ask(gang)
        if holder > try_number:
            raise Overtaken(
                f"try {holder} of this task waits for {gang.key.name}, and this is try {try_number}: it gives up and "
                "does not end the gang",
                holder,
            )

    def _at_the_service(self, time_here: float | None) -> float | None:
        """Convert a time of this machine's clock to the service's, which records use on every machine."""
        return None if time_here is None else time_here - time.time() + now_at(self._backend)

    def _plan(self, key: RunKey, tries: Tries, choice: int = 0) -> Plan:
        return replace(self._candidates.plan(key, choice), tries=tries)

    def _worth_waiting_for(self, ref: RunRef, plan: Plan, known: Sequence[Attempt]) -> bool:
        """Return whether a gang has succeeded or may yet; an incomplete one that lost a node, or is to stop, cannot."""
        if not ref.complete and not _can_complete(ref, plan):
            return False
        if near(self._backend, ref) is not self._backend:
            # The settings now name another region, from which this gang is not watched.
            return False
        if any(attempt.key == ref.key and _was_called_off(attempt, plan) for attempt in known):
            return False
        if not any(ref.run_ids):
            return True
        (status,) = self._backend.status([ref])
        states = [node.state for node in status.nodes if node.run_id]
        if NodeState.ENDING in states:
            # The earlier try was killed, and cancelled the gang.
            return False
        if not ref.complete:
            lost = any(state.terminal for state in states)
            return not lost and not self._backend.directories.stop_requested(ref)
        at = now_at(self._backend) if status.at is None else status.at
        action = decide(RunRecord.of(ref, self._job, plan.expects), status, at)
        if isinstance(action, Fail):
            seen = any(attempt.key == ref.key and attempt.end is not None for attempt in known)
            # Nobody waited for this failure yet. If another gang would fail in the same way, the task fails with
            # it.
            if seen or not status.ended or MEANINGS[action.cause].retry is not Retry.NEVER:
                return False
        elif status.ended and any(state is not NodeState.SUCCEEDED for state in states):
            return False
        self._log.info("found %s of an earlier attempt", ref.key.name)
        return True

    def _note_created(self, attempt: Attempt, ref: RunRef, try_number: int) -> None:
        """Save a live gang in Airflow; a failure is harmless, since the work directory records it too."""
        try:
            self._note([attempt])
        except Exception as error:  # noqa: BLE001 - Airflow's, or the network's
            self._log.warning("%s: could not be saved in Airflow: %s", ref.key.name, error)
        except BaseException:
            # Airflow's timeout: this try no longer waits for the gang.
            end_unless_claimed(self._backend, ref, try_number, self._log)
            raise

    def _note(self, attempts: Sequence[Attempt]) -> None:
        """Save where to find the gangs of this task: the newest, and those to be ended first."""
        if self._notes is None:
            return
        value = {"attempts": [attempt.to_json() for attempt in attempts]}
        if len(json.dumps(value)) > LONGEST_NOTE:
            # The ids of the runs are recorded in the work directory too.
            value = {"attempts": [replace(attempt, ref=None).to_json() for attempt in attempts]}
        self._notes.set(NOTE, value)


def noted_in(notes: TaskStateStore | None, draft: Plan | None, log: TaskLog) -> list[Attempt]:
    """Return the attempts that Airflow has noted of a task; `draft`: any plan of it, None where its job is unknown."""
    noted = notes.get(NOTE) if notes is not None else None
    if not isinstance(noted, dict):
        return []
    try:
        return _attempts_in(noted, draft)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        log.warning("the saved state of this task cannot be read from Airflow, and is ignored: %s", error)
        return []


def _attempts_in(noted: Mapping[str, Any], draft: Plan | None) -> list[Attempt]:
    if "attempts" in noted:
        return [Attempt.from_json(each) for each in noted["attempts"]]
    if draft is None:
        raise ValueError("it is of an earlier version, which has noted no place")
    # As the version before this one has noted it.
    key = replace(draft.key, generation=int(noted["generation"]), attempt=int(noted["attempt"]))
    return [Attempt.of(replace(draft, key=key, run_dir=_run_dir(draft, key), tries=None))]


def cancel_noted(
    backend: Backend, key: RunKey, try_number: int, why: BaseException, notes: TaskStateStore | None, log: TaskLog
) -> list[str]:
    """Do what `GangSubmitter.cancel_earlier` does, for a task whose job cannot be read: by its noted attempts."""
    return cancel_earlier(backend, key, None, noted_in(notes, None, log), _given_up(why), try_number)


def _given_up(why: BaseException) -> Ending:
    message = masked_text(f"its task has given up: {type(why).__name__}: {why}")[:500]
    return Ending(cause=Cause.SERVICE, message=message, since=time.time())


def _given_way(latest: Attempt, living: Sequence[RunRef], try_number: int) -> Overtaken:
    assert latest.tries is not None
    key, jobs = latest.key, " ".join(ref.job_id for ref in living)
    record = f"g{key.generation}-a{key.attempt}-*.json below attempts/{key.task_digest}/ of its work_dir"
    remedy = f"end it with ocidist cancel {jobs}" if jobs else f"remove its record, {record}"
    return Overtaken(
        f"try {latest.tries.try_number} of this task has begun {key.name}, and this is try {try_number}: it gives up "
        "and does not end that gang. If the DAG run was deleted and created again, so that tries count from 1, "
        f"{remedy}, then clear the task",
        latest.tries.try_number,
    )


def _next(latest: Attempt | None) -> int:
    """Return the attempt of its generation that a try looks at first: the newest, unless recorded as failed."""
    if latest is None:
        return 1
    failed = latest.end is not None and not latest.end.succeeded
    return latest.key.attempt + 1 if failed else latest.key.attempt


def _to_look_at(known: Sequence[Attempt], generation: int) -> list[Attempt]:
    """Return the attempts that may still have nodes, and the success that may be adopted."""
    return [
        attempt
        for attempt in known
        if attempt.end is None or (attempt.end.succeeded and attempt.key.generation == generation)
    ]


def _can_complete(ref: RunRef, plan: Plan) -> bool:
    """Return whether the plan creates the nodes that a gang lacks."""
    return (ref.topology, ref.nodes, ref.run_dir, ref.compartment_id) == (
        plan.topology,
        plan.nodes,
        plan.run_dir,
        plan.compartment_id,
    )


def _was_called_off(attempt: Attempt, plan: Plan) -> bool:
    """Return whether a stop request was written before its nodes were found: its creation was never answered."""
    return attempt.ref is None and not attempt.place.is_that_of(plan)


def _run_dir(draft: Plan, key: RunKey) -> str:
    return draft.run_dir.removesuffix(draft.key.name) + key.name


def end_unless_claimed(backend: Backend, ref: RunRef, try_number: int, log: TaskLog) -> None:
    """End the gang of a killed try, unless a later try waits for it."""
    if (later := _claimed_by(backend, ref)) > try_number:
        log.info("%s continues: try %d of its task waits for it", ref.key.name, later)
        return
    backend.cancel(ref)
    log.info("%s: cancelled because its task was killed", ref.key.name)


def _claimed_by(backend: Backend, ref: RunRef) -> int:
    """Return which try waits for a gang; 0 if the answer takes too long."""
    answer: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=lambda: answer.put(backend.directories.claimed_by(ref)), daemon=True).start()
    try:
        return answer.get(timeout=CLAIM_PATIENCE)
    except queue.Empty:
        return 0
