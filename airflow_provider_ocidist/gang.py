"""Exactly once: the gang of a task is found if it lives or has succeeded, else created. No Airflow."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.run import Plan, RunKey, RunRecord, RunRef
from airflow_provider_ocidist.supervisor import CANCEL_AGAIN_AFTER, Fail, decide
from airflow_provider_ocidist.watch import TaskLog

NOTE = "ocidist_run"
"""Key in the store under which the attempt that was begun last is noted."""


class Notes(Protocol):
    """What Airflow's task state store (3.3) offers; it survives retries, and clears too."""

    def get(self, key: str) -> Any: ...

    def set(self, key: str, value: Any) -> None: ...


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

    def adopt_or_submit(self, key: RunKey, task_deadline: float | None) -> RunRecord:
        """Return the record of the gang; `task_deadline` is a Unix time. Raises BackendError, also when stopped."""
        noted = self._noted_attempt(key)
        plan = self._backend.plan(self._job, replace(key, attempt=noted or 1))
        # Noted before anything is created: whoever comes after a crash looks at this attempt first.
        self._note_attempt(plan.key)
        found = self._backend.begin(plan)
        self._end([ref for ref in found if ref.key.generation != key.generation])
        latest = max(
            (ref for ref in found if ref.key.generation == key.generation), key=_attempt, default=None
        )
        attempt = max(latest.key.attempt if latest else 1, noted or 1)
        if latest is not None and latest.key.attempt == attempt and not self._worth_waiting_for(latest, plan):
            self._end([latest])
            attempt += 1
        return self._submit(replace(key, attempt=attempt), task_deadline, found)

    def _submit(self, key: RunKey, task_deadline: float | None, found: Sequence[RunRef]) -> RunRecord:
        self._note_attempt(key)
        plan = self._backend.plan(self._job, key)
        ref = self._backend.submit(plan, self._stop, found)
        if self._stop.is_set():
            self._backend.cancel(ref)
            raise BackendError(
                "stopped just when the gang was complete; it has been cancelled", cause=Cause.CANCELED
            )
        return RunRecord.of(ref, self._job, plan.expects, task_deadline)

    def _worth_waiting_for(self, ref: RunRef, plan: Plan) -> bool:
        """Return whether a gang that exists may yet succeed, or has; one that lost a node half-made cannot."""
        if not ref.complete and (ref.topology, ref.nodes) != (plan.topology, plan.nodes):
            return False
        if not any(ref.run_ids):
            return True
        (status,) = self._backend.status([ref])
        if not ref.complete:
            return not any(node.state.terminal for node in status.nodes if node.run_id)
        self._log.info("found %s of an earlier attempt", ref.key.name)
        return not isinstance(decide(RunRecord.of(ref, self._job, plan.expects), status, time.time()), Fail)

    def _end(self, refs: Sequence[RunRef]) -> None:
        """End gangs and wait until they have ended: two of one task must not train at once."""
        told_at: dict[str, float] = {}
        while live := [ref for ref in refs if self._lives(ref)]:
            for ref in live:
                if time.monotonic() - told_at.get(ref.job_id, -math.inf) >= CANCEL_AGAIN_AFTER:
                    self._log.warning(
                        "ending %s, left over from before this task was cleared or retried", ref.key.name
                    )
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

    def _noted_attempt(self, key: RunKey) -> int | None:
        noted = self._notes.get(NOTE) if self._notes is not None else None
        if isinstance(noted, dict) and noted.get("generation") == key.generation:
            return int(noted["attempt"])
        return None

    def _note_attempt(self, key: RunKey) -> None:
        if self._notes is not None:
            self._notes.set(NOTE, {"generation": key.generation, "attempt": key.attempt})


def _attempt(ref: RunRef) -> int:
    return ref.key.attempt
