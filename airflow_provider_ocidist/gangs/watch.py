"""Watch: looks at one gang again and again: what is new is logged, and the next action decided. No Airflow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.backends.base import Backend, LogPart
from airflow_provider_ocidist.backends.capabilities import CountsMissing, EndsLeftovers, near, now_at
from airflow_provider_ocidist.backends.connections import named_for
from airflow_provider_ocidist.errors import BackendError, CancelFailed, GaveUp, StorageError, refusal_in
from airflow_provider_ocidist.gangs.actions import Action, Cancel, Wait
from airflow_provider_ocidist.gangs.decisions import CANCEL_AGAIN_AFTER, decide, unread
from airflow_provider_ocidist.gangs.durations import observe
from airflow_provider_ocidist.gangs.gang_log import GangLog
from airflow_provider_ocidist.gangs.last_lines import RestOfLog
from airflow_provider_ocidist.gangs.leases import Renewals
from airflow_provider_ocidist.gangs.limits import past_deadline
from airflow_provider_ocidist.gangs.reconnection import RefusedCredentials
from airflow_provider_ocidist.gangs.shared_look import look_together
from airflow_provider_ocidist.gangs.spending_log import SpendingLog
from airflow_provider_ocidist.gangs.stopwatch import Stopwatch
from airflow_provider_ocidist.gangs.task_log import RareWarnings, TaskLog
from airflow_provider_ocidist.model.evidence import ANSWERED
from airflow_provider_ocidist.model.kept_evidence import Kept
from airflow_provider_ocidist.model.pauses import pause_after
from airflow_provider_ocidist.model.run import Ending, Lacking, RunRecord, RunStatus, TrainingResult

NEAR_THE_END_INTERVAL = 1.0
"""Seconds between two looks at nodes that save or have ended, at first; it grows with the time that this takes."""
UNFORESEEN = 3
"""Number of consecutive looks with an unforeseen error after which the caller gets it."""
AFTER_NO_ANSWER = 10.0
"""Most seconds that count as silence between a look without an answer and the next one: what kept the service from
answering may have kept the nodes from writing."""


class Watch:
    """Looks at one gang repeatedly; logs what is new."""

    def __init__(
        self,
        backend: Backend,
        record: RunRecord,
        logger: TaskLog,
        *,
        gang_log: GangLog | None = None,
        leaves_the_end: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gang_log`: takes the nodes' lines and states; None: `logger` does. `clock` never jumps.

        `leaves_the_end`: if the decision is not Wait, the new log lines are left to the caller that acts on it.
        """
        self.backend = backend
        # An earlier process may have had another.
        self.record = replace(record, named=named_for(backend))
        self.leaves_the_end = leaves_the_end
        self._clock = clock
        self._read = Stopwatch(clock)
        """Stopwatch of the ends of the service's answers, and of the requests that it left open."""
        self._between = 0.0
        """Seconds between the last two states that were read, at least."""
        self._is_after_no_answer = False
        self._near_the_end_since: float | None = None
        self.reconnect: Callable[[], object] | None = None
        """Function that reads the connection again after a refusal; None: the poller does that for all its watches."""
        self.status: RunStatus | None = None
        self._log = logger
        self._gang_log = gang_log or GangLog(logger, record.logs_since)
        self._renewals = Renewals(backend, logger.warning)
        self._warnings = RareWarnings(logger)
        self._unforeseen = 0
        self.refusal: BackendError | None = None
        """Refusal that the service returned to the last request, if any."""
        self._asked = Stopwatch(clock)
        """Stopwatch of the requests that were not answered, since the last answer."""
        self._credentials = RefusedCredentials(clock, -math.inf)
        self._unreplaced = ANSWERED
        """Failed requests for the replacement of lost nodes, since one last succeeded."""
        self._asked_to_replace = Stopwatch(clock)
        self.spending_log = SpendingLog(logger, clock)

    def go_on_after(self, kept: Kept, seconds: float) -> None:
        """Take over an earlier process's refusals; its last look was at least `seconds` ago."""
        self.record = replace(self.record, unanswered=kept.unanswered, unread_since=kept.unread_since)
        if isinstance(self.backend, CountsMissing):
            self.backend.recall_missed(kept.after(seconds).missed)
        if kept.unanswered.questions:
            self._asked.go_on_after(seconds)

    @property
    def kept(self) -> Kept:
        """The evidence for the next process."""
        missed = self.backend.missed(self.record.ref) if isinstance(self.backend, CountsMissing) else {}
        return Kept(unanswered=self.record.unanswered, missed=missed, unread_since=self.record.unread_since)

    def look(self, now: float) -> Action:
        """Return the next action. A service that cannot answer now is waited for: silence is no failure.

        Raises GaveUp when it has refused, or not answered, for so long that asking again is of no use (`evidence`).
        """
        (outcome,) = look_together(self.backend, [self], now).outcomes
        if self.record.unanswered.is_refused:
            self._renew_credentials(now)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def lease_due_at(self) -> float:
        return self._renewals.due_at(self.record)

    def keep_lease(self) -> bool:
        """Renew the nodes' lease when it is due; return False if the store refused."""
        return self._renewals.keep_up(self.record)

    def save_cursor(self) -> None:
        """Save the log's cursor: not here, since no other process continues this watch."""

    def hand_over(self) -> RunRecord:
        """Return the record for the next process."""
        return self.record

    def begin_look(self) -> None:
        """Measure how long nothing was read, up to now: who is held up amid a look does not see what nodes write."""
        passed = self._read.lap()
        self._between = min(passed, AFTER_NO_ANSWER) if self._is_after_no_answer else passed

    def end_look(self, *, answered: bool) -> None:
        """Note that a state was just read, or that there was none."""
        self._read.lap()
        self._is_after_no_answer = not answered

    def observe(self, status: RunStatus, part: LogPart | None, now: float, read_at: float) -> Action:
        """Log what is new in a state and lines (None: not read); return the next action.

        `read_at`: when the lines were read, by the clock that stamps them.
        """
        status = self.status = self._as_proved(status)
        self._unforeseen = 0
        self._note_answer()
        self.record = observe(self.record, status, self._between)
        self._note_phases(status)
        at = now if status.at is None else status.at
        self._note_unread(status, at)
        action = decide(self.record, status, at)
        if self.record.unread_since is not None and isinstance(action, Wait):
            what = StorageError(f"the nodes have ended, but {unread(self.record, status)}")
            self.warn("%s; will ask again", what, now)
        if self.leaves_the_end and not isinstance(action, Wait):
            return action
        if part is not None:
            self._take(part, read_at)
        self._gang_log.take_status(status)
        self.spending_log.add(status, at, self.record.ref.price)
        return action

    def _as_proved(self, status: RunStatus) -> RunStatus:
        """Return a state with what an earlier process has proved: this one sees it for the first time.

        Otherwise a trigger and its task would each have to see it anew, and hand over to each other for ever.
        """
        proved = {each for each in status.doubtful if each in self.record.proved}
        if proved:
            # Of the other nothing is proved: it may be an outage.
            return replace(
                status,
                reports_readable=status.reports_readable or Lacking.REPORT in proved,
                checkpoint_readable=status.checkpoint_readable or Lacking.CHECKPOINT in proved,
            )
        if status.ended and status.reports_readable and status.checkpoint_readable:
            self.record = replace(self.record, proved=status.proved)
        return status

    def _note_phases(self, status: RunStatus) -> None:
        near_the_end = any(
            node.report is not None and node.report.program_has_ended
            for node in status.only(self.record.members).nodes
        )
        if not near_the_end:
            self._near_the_end_since = None
        elif self._near_the_end_since is None:
            self._near_the_end_since = self._clock()

    def _note_unread(self, status: RunStatus, now: float) -> None:
        is_unread = status.ended and not (status.reports_readable and status.checkpoint_readable)
        if is_unread != (self.record.unread_since is not None):
            self.record = replace(self.record, unread_since=now if is_unread else None)

    def write_the_rest(self) -> None:
        """Log the lines that the last look did not find; see `RestOfLog`. Raises nothing: the outcome is decided."""
        if not self.record.ref.has_log:
            return
        RestOfLog(
            backend=self.backend,
            ref=self.record.ref,
            follower=self._gang_log.follower,
            take=self._take,
            log=self._log,
            warn=self.warn,
        ).write()

    def lines_since(self, now: float) -> list[float]:
        """Return the time from which to read the lines of each node at `now`, both by the service's clock."""
        return self._gang_log.follower.since(now)

    def warn(self, message: str, error: Exception, now: float) -> None:
        """Log a warning, unless the same was logged a moment ago: an outage lasts many looks."""
        self._warnings.warn(message, error, now)

    def after_failure(self, error: BackendError, now: float) -> Action | Exception:
        """Return the action, or the error, after a look without the gang's state: one refusal ends nothing."""
        refusal = refusal_in(error)
        evidence = self.record.unanswered.met(refusal, self._asked.lap())
        self.record = replace(self.record, unanswered=evidence)
        self.refusal = None if refusal is None else error
        if evidence.is_conclusive or (self.record.ending is not None and evidence.is_long):
            return GaveUp(
                f"{self.record.ref.key.name}: no state of its nodes from the service for {evidence.seconds:.0f} s "
                f"(asked {evidence.questions} times); last error: {error}",
                error,
            )
        self.warn("%s; will ask again", error, now)
        return self._past_deadline(now_at(self.backend)) or Wait()

    def note_new_credentials(self) -> None:
        """Record that the next request uses credentials read again after the refusal."""
        self.record = replace(self.record, unanswered=self.record.unanswered.with_new_credentials())

    def _past_deadline(self, now: float) -> Cancel | None:
        """Return Cancel past the deadline: the nodes find a stop request even if the service does not answer."""
        finding = past_deadline(self.record, now) if self.record.ending is None else None
        if finding is None:
            return None
        cause, message = finding
        return Cancel(Ending(cause=cause, message=message, since=now))

    def _note_answer(self) -> None:
        self.refusal = None
        self._asked.reset()
        if self.record.unanswered != ANSWERED:
            ending, unanswered = self.record.ending, self.record.unanswered.seconds
            if ending is not None:
                # A cancel may not have reached the nodes meanwhile, nor what they had to save the store.
                ending = replace(ending, began=ending.first + unanswered)
            self.record = replace(self.record, unanswered=ANSWERED, ending=ending)

    def _renew_credentials(self, now: float) -> bool:
        """Read refused credentials again, unless that was just tried; return whether they were read."""
        if self.reconnect is None:
            return False
        renewed = self._credentials.renew(self.reconnect, lambda text, error: self.warn(text, error, now))
        if renewed:
            self.note_new_credentials()
        return renewed

    def note_unreplaced(self, error: BackendError) -> bool:
        """Count a request for a replacement that has failed; return whether to ask again.

        A refusal is believed as one of a gang's state is: after several over minutes, with credentials read again.
        """
        refusal = refusal_in(error) if error.is_refused else None
        self._unreplaced = self._unreplaced.met(refusal, self._asked_to_replace.lap())
        if not error.is_refused:
            return error.retryable
        if self._renew_credentials(time.time()):
            self._unreplaced = self._unreplaced.with_new_credentials()
        return not self._unreplaced.is_conclusive

    def note_replaced(self) -> None:
        """Forget the failed requests for replacements: one has succeeded."""
        self._unreplaced = ANSWERED
        self._asked_to_replace.reset()

    def after_unforeseen(self, error: Exception, now: float) -> Action | Exception:
        """Return the action, or the error, after a look that failed with an unforeseen error: the next may succeed."""
        self._unforeseen += 1
        if self._unforeseen >= UNFORESEEN:
            return error
        self.warn(f"{type(error).__name__}: %s; will look again", error, now)
        return Wait()

    def end(self, ending: Ending) -> bool:
        """Cancel the gang and record why; False if its nodes cannot be reached: then the next look cancels again."""
        if self.record.ending is None:
            self._begin_the_last_hour()
        self._log.warning("%s: ending all nodes: %s", ending.cause, ending.message)
        try:
            self.backend.cancel(self.record.ref, ending)
        except BackendError as error:
            self._log.warning("%s; will cancel again", error)
            if not error.retryable:
                self._renew_credentials(time.time())
            if not (isinstance(error, CancelFailed) and error.stop_requested):
                # Due again at the next look; the time limit of the end counts from the first cancel.
                due = ending.since - CANCEL_AGAIN_AFTER
                self.record = replace(self.record, ending=replace(ending, since=due, began=ending.first))
                return False
        self.record = replace(self.record, ending=ending)
        return True

    def _begin_the_last_hour(self) -> None:
        """Count requests without an answer from the gang's cancel on: an outage before it has used up none of its hour.

        The nodes may save for as long as they always may, and the reason of the cancel is the task's.
        """
        is_amid_outage = self.record.unanswered != ANSWERED
        self.record = replace(self.record, unanswered=ANSWERED)
        self._asked.reset()
        if is_amid_outage:
            self._asked.lap()

    def end_leftovers(self) -> None:
        """End what may still run of a gang whose nodes have all ended. Raises nothing."""
        backend = near(self.backend, self.record.ref)
        if self.status is None or not self.status.ended or not isinstance(backend, EndsLeftovers):
            return
        try:
            backend.end_leftovers(self.record.ref)
        except BackendError as error:
            self._log.warning("what still runs of the gang could not be ended: %s", error)

    def pause(self, interval: float) -> float:
        """Return the seconds until the next look: fewer when nodes are saving, more without an answer."""
        if self.record.unanswered.questions:
            return self.record.unanswered.pause(interval)
        if self._near_the_end_since is None:
            return interval
        waited = self._clock() - self._near_the_end_since
        return pause_after(waited, NEAR_THE_END_INTERVAL, interval)

    @property
    def spent(self) -> dict[str, Any]:
        """The node-hours of the gang up to the last look, and their cost, for XCom."""
        spending = self.spending_log.newest
        return spending.to_json() if spending else {}

    def result(self, warning: str | None) -> dict[str, Any]:
        """Return the result of a gang that has succeeded, for XCom: the same to its task and to sensors."""
        assert self.status is not None
        return {**TrainingResult.of(self.record, self.status, warning).to_json(), **self.spent}

    def _take(self, part: LogPart, now: float) -> None:
        if self._gang_log.take_lines(part, now):
            self.record = replace(self.record, logs_since=self._gang_log.follower.cursor)
