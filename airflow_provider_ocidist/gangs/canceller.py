"""Canceller: ends gangs for which no task waits any more, and waits until all of their nodes have ended."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import near
from airflow_provider_ocidist.backends.claims import end_unless_overtaken, overtaken_by
from airflow_provider_ocidist.backends.connections import named_for
from airflow_provider_ocidist.errors import BackendError, CancelFailed, Cause, StillAlive
from airflow_provider_ocidist.gangs.decisions import CANCEL_AGAIN_AFTER
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.model.homes import how_to_end, words_of
from airflow_provider_ocidist.model.masking import masked_text
from airflow_provider_ocidist.model.pauses import END_WITHIN, pause_after
from airflow_provider_ocidist.model.run import Ending, RunRef, RunStatus

LONGEST_PAUSE = 10.0
"""Seconds between two looks at a gang that is to end."""
GONE_AFTER = 3
"""Answers 404 in a row after which the job of an incomplete gang counts as gone: one may be wrong while nodes live."""


class Canceller:
    """Ends gangs, and waits until every node of theirs has ended.

    Their time to end does not begin anew after an error, but goes on only once the service answers again: no cancel
    may have reached the nodes meanwhile, and nobody saw them end.
    """

    def __init__(self, backend: Backend, log: TaskLog, stop: threading.Event) -> None:
        self._backend = backend
        self._log = log
        self._stop = stop
        self._begun: dict[str, float] = {}
        """Time at which the end of each job was begun, by `time.monotonic`, later by the time of all outages since."""
        self._answered_at = -math.inf
        self._silent_since: float | None = None
        """Time of the last answer before an error; None: the last look was answered."""

    def end(self, refs: Sequence[RunRef], why: str, *, within: float = END_WITHIN) -> None:
        """End the gangs that run. Raises BackendError, also when stopped, or if nodes run on after `within` seconds."""
        now = time.monotonic()
        for ref in refs:
            self._begun.setdefault(ref.job_id, now)
        try:
            self._end(refs, why, within)
        except BackendError as error:
            if not isinstance(error, StillAlive):
                self._silent_since = self._answered_at
            raise

    def _end(self, refs: Sequence[RunRef], why: str, within: float) -> None:
        cancelled_at: dict[str, float] = {}
        while live := self._living(refs):
            now, deadline = self._answered_at, self._deadline(refs, within)
            if now > deadline:
                raise _still_alive(live, within, named_for(self._backend))
            for ref, _ in live:
                if now - cancelled_at.get(ref.job_id, -math.inf) >= CANCEL_AGAIN_AFTER:
                    self._log.warning("ending %s, %s", ref.key.name, why)
                    if self._cancel(ref):
                        cancelled_at[ref.job_id] = now
            self._pause(now - deadline + within)
        for ref in refs:
            if not ref.complete:
                self._remove(ref, self._deadline(refs, within), within)
            near(self._backend, ref).gangs.close_ended(ref)

    def _remove(self, ref: RunRef, deadline: float, within: float) -> None:
        """Delete the job of an incomplete gang: an earlier try may still be creating nodes in it."""
        missing = 0
        while True:
            try:
                return near(self._backend, ref).delete(ref)
            except BackendError as error:
                missing = missing + 1 if error.status_code == 404 else 0
                if missing == GONE_AFTER:
                    return None
                if error.status_code not in (404, 409):
                    raise
                if time.monotonic() > deadline:
                    raise _not_removed(ref, within) from error
            if not missing:
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

    def _pause(self, waited: float = 0.0) -> None:
        if self._stop.wait(pause_after(waited, 1.0, LONGEST_PAUSE)):
            raise BackendError("stopped while an earlier gang was ending", cause=Cause.CANCELED)

    def _living(self, refs: Sequence[RunRef]) -> list[tuple[RunRef, RunStatus]]:
        statuses = [(ref, near(self._backend, ref).status([ref])[0]) for ref in refs]
        self._note_answer(time.monotonic())
        return [(ref, status) for ref, status in statuses if not status.ended]

    def _deadline(self, refs: Sequence[RunRef], within: float) -> float:
        return max((self._begun[ref.job_id] for ref in refs), default=0.0) + within

    def _note_answer(self, now: float) -> None:
        """Take the time since the last answer, if an error came in between, from that of all gangs."""
        since, self._silent_since, self._answered_at = self._silent_since, None, now
        if since is not None:
            self._begun = {job_id: begun + now - max(begun, since) for job_id, begun in self._begun.items()}


def _still_alive(
    live: Sequence[tuple[RunRef, RunStatus]], after: float, named: str | None = None
) -> BackendError:
    states = {
        node.run_id: node.state for _, status in live for node in status.nodes if not node.state.terminal
    }
    runs = ", ".join(f"{run_id} ({state})" for run_id, state in states.items() if run_id)
    ways = how_to_end(*(ref for ref, _ in live), named=named)
    return StillAlive(
        f"cancelled nodes have not ended within {after:.0f} s: {runs}; end them with {ways}; the next try of this "
        "task waits for them again",
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


def end_unless_claimed(backend: Backend, ref: RunRef, try_number: int, log: TaskLog) -> None:
    """End the gang of a killed try, unless a later try waits for it."""

    def cancel() -> None:
        backend.cancel(ref)
        log.info("%s: cancelled because its task was killed", ref.key.name)

    end_unless_overtaken(overtaken_by(backend.directories, ref, try_number), cancel, log.info)


def given_up(why: BaseException, since: float) -> Ending:
    """Return the ending of a gang whose task gives up for this reason, at a Unix time."""
    message = masked_text(f"its task has given up: {type(why).__name__}: {why}")[:500]
    return Ending(cause=Cause.SERVICE, message=message, since=since)
