"""Exactly once: the gang of a task is found if it lives or has succeeded, else created. No Airflow."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.run import NodeState, Plan, RunKey, RunRecord, RunRef
from airflow_provider_ocidist.supervisor import CANCEL_AGAIN_AFTER, Fail, decide
from airflow_provider_ocidist.watch import TaskLog

NOTE = "ocidist_run"
"""Key in the store under which the attempt that was begun last is noted."""
CLAIM_PATIENCE = 1.5
"""Seconds of the five that Airflow leaves a process which it kills; a gang must not live on for want of an answer."""
LEFT_OVER = "left over from before this task was cleared or retried"


class Notes(Protocol):
    """What Airflow's task state store (3.3) offers; it survives retries, and clears too."""

    def get(self, key: str) -> Any: ...

    def set(self, key: str, value: Any) -> None: ...


class Ender:
    """Ends gangs, and waits until every node of theirs has ended."""

    def __init__(self, backend: Backend, log: TaskLog, stop: threading.Event) -> None:
        self._backend = backend
        self._log = log
        self._stop = stop

    def end(self, refs: Sequence[RunRef], why: str, *, within: float = math.inf) -> None:
        """End those that live. Raises BackendError, also when stopped, or when nodes live on after `within` seconds."""
        deadline = time.monotonic() + within
        told_at: dict[str, float] = {}
        while live := [ref for ref in refs if self._lives(ref)]:
            if time.monotonic() > deadline:
                raise _still_alive(live, within)
            for ref in live:
                if time.monotonic() - told_at.get(ref.job_id, -math.inf) >= CANCEL_AGAIN_AFTER:
                    self._log.warning("ending %s, %s", ref.key.name, why)
                    self._backend.cancel(ref)
                    told_at[ref.job_id] = time.monotonic()
            self._pause()
        for ref in refs:
            if not ref.complete:
                self._remove(ref)

    def _remove(self, ref: RunRef) -> None:
        """Remove a gang that was never complete: somebody may still be at it, and shall find no job for more nodes."""
        while True:
            try:
                return self._backend.delete(ref)
            except BackendError as error:
                if error.status_code == 404:
                    return None
                if error.status_code != 409:
                    raise
            # It has got a node since it was looked at.
            self._backend.cancel(ref)
            self._pause()

    def _pause(self) -> None:
        if self._stop.wait(1.0):
            raise BackendError("stopped while an earlier gang was ending", cause=Cause.CANCELED)

    def _lives(self, ref: RunRef) -> bool:
        (status,) = self._backend.status([ref])
        return not status.ended


def _still_alive(refs: Sequence[RunRef], after: float) -> BackendError:
    runs = ", ".join(run_id for ref in refs for run_id in dict.fromkeys(ref.run_ids) if run_id)
    return BackendError(
        f"nodes have not ended within {after:.0f} s, though they were told to; look at these runs: {runs}",
        retryable=True,
    )


class Gang:
    """Brings about the one gang of a task, whatever happened to those who tried before.

    The service's own lists and tags are the truth; the notes only bridge the moments in which those lists are stale.
    """

    def __init__(
        self, backend: Backend, job: TrainingJob, log: TaskLog, notes: Notes | None, stop: threading.Event
    ) -> None:
        self._backend = backend
        self._job = job
        self._log = log
        self._notes = notes
        self._stop = stop
        self._ender = Ender(backend, log, stop)

    def adopt_or_submit(self, key: RunKey, task_deadline: float | None, number: int = 1) -> RunRecord:
        """Return the record of the gang. Raises BackendError, also when stopped.

        `task_deadline` is a Unix time, `number` that of the task's try: where Airflow has begun another one while an
        earlier one still lived, it ends the earlier one, whose gang must not go with it.
        """
        noted = self._noted_attempt(key)
        plan = self._backend.plan(self._job, replace(key, attempt=noted or 1))
        # Noted before anything is created: whoever comes after a crash looks at this attempt first.
        self._note_attempt(plan.key)
        found = self._backend.begin(plan)
        self._ender.end([ref for ref in found if ref.key.generation != key.generation], LEFT_OVER)
        latest = max(
            (ref for ref in found if ref.key.generation == key.generation), key=_attempt, default=None
        )
        attempt = max(latest.key.attempt if latest else 1, noted or 1)
        if latest is not None and latest.key.attempt == attempt and not self._worth_waiting_for(latest, plan):
            self._ender.end([latest], LEFT_OVER)
            attempt += 1
        elif latest is not None and number > 1:
            self._backend.claim(latest, number)
        return self._submit(replace(key, attempt=attempt), task_deadline, found, number)

    def _submit(
        self, key: RunKey, task_deadline: float | None, found: Sequence[RunRef], number: int
    ) -> RunRecord:
        self._note_attempt(key)
        plan = self._backend.plan(self._job, key)
        ref = self._backend.submit(plan, self._stop, found)
        if self._stop.is_set():
            end_unless_claimed(self._backend, ref, number, self._log)
            raise BackendError("stopped just when the gang was complete", cause=Cause.CANCELED)
        return RunRecord.of(ref, self._job, plan.expects, task_deadline)

    def _worth_waiting_for(self, ref: RunRef, plan: Plan) -> bool:
        """Return whether a gang that exists may yet succeed, or has; one that lost a node half-made cannot."""
        if not ref.complete and (ref.topology, ref.nodes) != (plan.topology, plan.nodes):
            return False
        if not any(ref.run_ids):
            return True
        (status,) = self._backend.status([ref])
        states = [node.state for node in status.nodes if node.run_id]
        if NodeState.ENDING in states:
            # Whoever tried before was killed, and its last deed was to end it.
            return False
        if not ref.complete:
            return not any(state.terminal for state in states)
        self._log.info("found %s of an earlier attempt", ref.key.name)
        return not isinstance(decide(RunRecord.of(ref, self._job, plan.expects), status, time.time()), Fail)

    def _noted_attempt(self, key: RunKey) -> int | None:
        noted = self._notes.get(NOTE) if self._notes is not None else None
        if isinstance(noted, dict) and noted.get("generation") == key.generation:
            return int(noted["attempt"])
        return None

    def _note_attempt(self, key: RunKey) -> None:
        if self._notes is not None:
            self._notes.set(NOTE, {"generation": key.generation, "attempt": key.attempt})


def end_unless_claimed(backend: Backend, ref: RunRef, number: int, log: TaskLog) -> None:
    """End the gang of a task's try that was killed, unless a later try waits for it."""
    if (later := _claimed_by(backend, ref)) > number:
        log.info("%s goes on: try %d of its task waits for it", ref.key.name, later)
        return
    backend.cancel(ref)
    log.info("%s: cancelled, since its task was killed", ref.key.name)


def _claimed_by(backend: Backend, ref: RunRef) -> int:
    """Return which try waits for a gang; 0 where the answer takes too long."""
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=lambda: told.put(backend.claimed_by(ref)), daemon=True).start()
    try:
        return told.get(timeout=CLAIM_PATIENCE)
    except queue.Empty:
        return 0


def _attempt(ref: RunRef) -> int:
    return ref.key.attempt
