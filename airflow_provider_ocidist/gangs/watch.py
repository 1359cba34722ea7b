"""One look at a gang, or at many together: state, new log lines, progress, and what to do next. No Airflow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from airflow_provider_ocidist.backends.base import Backend, LogLine, LogPart
from airflow_provider_ocidist.errors import (
    BackendError,
    CancelFailed,
    Cause,
    GaveUp,
    StorageError,
    refusal_in,
)
from airflow_provider_ocidist.gangs.decisions import CANCEL_AGAIN_AFTER, Action, Cancel, Wait, decide, unread
from airflow_provider_ocidist.gangs.leases import Renewals
from airflow_provider_ocidist.gangs.log_cursor import LogFollower
from airflow_provider_ocidist.gangs.unchanged import observe
from airflow_provider_ocidist.model.evidence import ANSWERED
from airflow_provider_ocidist.model.kept_evidence import Kept
from airflow_provider_ocidist.model.masking import masked_text
from airflow_provider_ocidist.model.report import Phase
from airflow_provider_ocidist.model.run import Ending, NodeState, RunRecord, RunStatus

log = logging.getLogger(__name__)

NEAR_THE_END = (Phase.SAVING, Phase.DONE)
NEAR_THE_END_INTERVAL = 1.0
SAME_WARNING_AFTER = 60.0
"""Seconds after which a warning is worth repeating."""
UNFORESEEN = 3
"""Looks in a row that fail for a reason nobody has thought of, before whoever waits is told."""
LAST_LINES_AFTER = 2.0
"""Seconds; the last lines of a run can be found a moment later than its end."""
LAST_LINES_PATIENCE = 60.0
"""Seconds for which a service that gives no lines is asked for the last ones."""
RENEW_EVERY = 30.0
"""Seconds between two times that a refusal is answered with new credentials."""


class TaskLog(Protocol):
    """What Airflow's loggers and the standard library's have in common."""

    def info(self, msg: Any, /, *args: Any) -> Any: ...

    def warning(self, msg: Any, /, *args: Any) -> Any: ...


class Watch:
    """Looks at one gang again and again; tells a logger what is new."""

    def __init__(
        self,
        backend: Backend,
        record: RunRecord,
        logger: TaskLog,
        *,
        leaves_the_end: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`leaves_the_end`: what is new when there is something to do, whoever then does it will see and report.

        `clock` never jumps; its zero does not matter.
        """
        self.backend = backend
        self.record = record
        self.leaves_the_end = leaves_the_end
        self._clock = clock
        self._observed_at: float | None = None
        self.reconnect: Callable[[], object] | None = None
        """Reads the connection anew, after a refusal; None: whoever looks at several watches together does that."""
        self.status: RunStatus | None = None
        self._log = logger
        self.follower = LogFollower(record.logs_since)
        self._renewals = Renewals(backend, logger.warning)
        self._said: str | None = None
        self._logged: str | None = None
        self._has_lines = False
        self._warned = ("", 0.0)
        self._unforeseen = 0
        self.refusal: BackendError | None = None
        """What the service said instead of an answer, when it was asked last."""
        self._asked_at: float | None = None
        """When the service was asked last in vain, by its clock; None: it has answered since."""
        self._renewed_at = -RENEW_EVERY

    def go_on_after(self, kept: Kept, seconds: float) -> None:
        """Go on with what an earlier process was refused, at least so many seconds after its last look."""
        self.record = replace(self.record, unanswered=kept.unanswered)
        self.backend.recall_missed(kept.after(seconds).missed)
        if kept.unanswered.questions:
            self._asked_at = self._clock() - seconds

    @property
    def kept(self) -> Kept:
        """What the next process is to go on with."""
        return Kept(unanswered=self.record.unanswered, missed=self.backend.missed(self.record.ref))

    def look(self, now: float) -> Action:
        """Return what to do next. A service that cannot answer now is waited for: silence is no failure.

        Raises GaveUp when it has refused, or said nothing, for so long that to ask again is of no use (`evidence`).
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
        """Show the nodes, when it is time, that somebody waits for them; return False where the store refused."""
        return self._renewals.keep_up(self.record)

    def save_cursor(self) -> None:
        """Leave word up to where the log has come: none here, for nobody goes on with this watch."""

    def observe(self, status: RunStatus, part: LogPart | None, now: float) -> Action:
        """Take the state and the lines (None: not read) that were found; tell what is new, return what to do next."""
        self.status = status
        self._unforeseen = 0
        self._note_answer()
        self.record = observe(self.record, status, self._elapsed())
        at = now if status.at is None else status.at
        self._note_unread(status, at)
        action = decide(self.record, status, at)
        if self.record.unread_since is not None and isinstance(action, Wait):
            what = StorageError(f"the nodes have ended, but {unread(self.record, status)}")
            self.warn("%s; will ask again", what, now)
        if self.leaves_the_end and not isinstance(action, Wait):
            return action
        if part is not None:
            self._take(part, now)
        self._say_progress(status)
        return action

    def _elapsed(self) -> float:
        """Return the seconds since the look before, 0 at the first."""
        before, self._observed_at = self._observed_at, self._clock()
        return 0.0 if before is None else self._observed_at - before

    def _note_unread(self, status: RunStatus, now: float) -> None:
        is_unread = status.ended and not (status.reports_readable and status.checkpoint_readable)
        if is_unread != (self.record.unread_since is not None):
            self.record = replace(self.record, unread_since=now if is_unread else None)

    def tell_the_rest(self) -> None:
        """Pass on the lines that the look which saw the end did not find. Raises nothing: the outcome stands.

        Takes two seconds, and more only while the service gives no answer (a minute at most) or more lines than fit
        into one look.
        """
        if self.record.ref.log_group_id is None:
            return
        give_up_at = time.monotonic() + LAST_LINES_PATIENCE
        while True:
            time.sleep(LAST_LINES_AFTER)
            now = time.time()
            try:
                since = self.follower.since(now, again=True)
                (part,) = self.backend.logs_of([(self.record.ref, since)])
                self._take(part, now)
            except Exception as error:  # noqa: BLE001 - the outcome is known, and must not change
                passes = isinstance(error, BackendError) and error.retryable
                if not passes or time.monotonic() > give_up_at:
                    self._log.warning("%s; lines may be missing here: the service's log has them", error)
                    return
                self.warn("%s; waiting for the last lines", error, now)
                continue
            if not self.follower.is_behind:
                return
            give_up_at = time.monotonic() + LAST_LINES_PATIENCE

    def lines_since(self, now: float) -> list[float]:
        """Return from when on the lines of each node are to be read at `now`. Unix times, by rank."""
        return self.follower.since(now)

    def warn(self, message: str, error: Exception, now: float) -> None:
        """Pass on what is wrong, unless the same was said a moment ago: an outage lasts many looks."""
        # What follows the first bracket is the id of a request, another each time.
        subject = str(error).partition(" (")[0]
        said, at = self._warned
        if subject != said or now - at >= SAME_WARNING_AFTER:
            self._warned = (subject, now)
            self._log.warning(message, error)

    def after_failure(self, error: BackendError, now: float) -> Action | Exception:
        """Return what comes of a look at which the service did not say how the gang is: one answer ends nothing."""
        asked_at = self._clock()
        seconds = 0.0 if self._asked_at is None else asked_at - self._asked_at
        self._asked_at = asked_at
        refusal = refusal_in(error)
        evidence = self.record.unanswered.met(refusal, seconds)
        self.record = replace(self.record, unanswered=evidence)
        self.refusal = None if refusal is None else error
        if evidence.is_conclusive or (self.record.ending is not None and evidence.is_long):
            return GaveUp(
                f"{self.record.ref.key.name}: the service has not said for {evidence.seconds:.0f} s how its nodes are "
                f"(asked {evidence.questions} times); at last: {error}",
                error,
            )
        self.warn("%s; will ask again", error, now)
        return self._past_deadline(self.backend.now()) or Wait()

    def note_new_credentials(self) -> None:
        """Note that what was refused is asked again with credentials that were read anew."""
        self.record = replace(self.record, unanswered=self.record.unanswered.with_new_credentials())

    def _past_deadline(self, now: float) -> Cancel | None:
        """Return what is due by time alone; the nodes find a stop request though the service does not answer."""
        record = self.record
        if record.deadline is None or now < record.deadline or record.ending is not None:
            return None
        limit = record.deadline - record.ref.submitted_at
        message = f"not finished within {limit:.0f} s (limits.max_runtime or the task's execution_timeout)"
        return Cancel(Ending(cause=Cause.DEADLINE, message=message, since=now))

    def _note_answer(self) -> None:
        self._asked_at = self.refusal = None
        if self.record.unanswered != ANSWERED:
            self.record = replace(self.record, unanswered=ANSWERED)

    def _renew_credentials(self, now: float) -> None:
        if self.reconnect is None or self._clock() - self._renewed_at < RENEW_EVERY:
            return
        self._renewed_at = self._clock()
        try:
            self.reconnect()
        except Exception as error:  # noqa: BLE001 - Airflow's or the network's; the old connection may still do
            self.warn("the connection could not be read again: %s", error, now)
        else:
            self.note_new_credentials()

    def after_unforeseen(self, error: Exception, now: float) -> Action | Exception:
        """Return what comes of a look that failed for a reason nobody has thought of: the next may be as always."""
        self._unforeseen += 1
        if self._unforeseen >= UNFORESEEN:
            return error
        self.warn(f"{type(error).__name__}: %s; will look again", error, now)
        return Wait()

    def end(self, ending: Ending) -> bool:
        """Cancel the gang and remember why; False when nothing reaches its nodes now: then the next look asks again."""
        self._log.warning("%s: ending all nodes: %s", ending.cause, ending.message)
        try:
            self.backend.cancel(self.record.ref, ending)
        except BackendError as error:
            self._log.warning("%s; will cancel again", error)
            if not error.retryable:
                self._renew_credentials(time.time())
            if not (isinstance(error, CancelFailed) and error.stop_requested):
                # Due again at the next look, and the time that the end may take counts from the first refusal.
                due = ending.since - CANCEL_AGAIN_AFTER
                self.record = replace(self.record, ending=replace(ending, since=due, began=ending.first))
                return False
        self.record = replace(self.record, ending=ending)
        return True

    def pause(self, interval: float) -> float:
        """Return the seconds until the next look: fewer when nodes are saving, more when nobody answers."""
        if self.record.unanswered.questions:
            return self.record.unanswered.pause(interval)
        nodes = self.status.nodes if self.status is not None else ()
        saving = any(node.report is not None and node.report.phase in NEAR_THE_END for node in nodes)
        return min(interval, NEAR_THE_END_INTERVAL) if saving else interval

    def tell_line(self, line: LogLine) -> None:
        """Pass on a line that a node wrote."""
        self._log.info("[node %d] %s", line.rank, masked_text(line.text))

    def tell_status(self, status: RunStatus, said: str) -> None:
        """Pass on that the gang is not as it was at the last look; `said` is one line for a person."""
        if self._has_lines and status.progress and status.progress.printed:
            # Whoever reads the program's own lines here reads the step there.
            said = describe(status, with_step=False)
        if said == self._logged:
            return
        self._logged = said
        self._log.info("%s", said)

    def _take(self, part: LogPart, now: float) -> None:
        self._pass_on(self.follower.take(part.lines, now, part.unread_from))

    def _pass_on(self, lines: Sequence[LogLine]) -> None:
        for line in lines:
            self.tell_line(line)
        if lines:
            self._has_lines = True
            self.record = replace(self.record, logs_since=self.follower.cursor)

    def _say_progress(self, status: RunStatus) -> None:
        said = describe(status)
        if said != self._said:
            self._said = said
            self.tell_status(status, said)


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look at several gangs has found."""

    outcomes: tuple[Action | Exception, ...]
    """In the order of the gangs; an exception where asking again cannot help."""
    trouble: BackendError | None = None
    """Of the service: a reason to ask less often, where it is likely to pass or concerns the states."""
    unanswered: bool = False
    """Whether the service did not say how some of the gangs are."""


def look_together(backend: Backend, watches: Sequence[Watch], now: float) -> Looked:
    """Look at gangs of one backend in as few calls as it allows; what befalls one does not touch the others."""
    outcomes: dict[Watch, Action | Exception] = {}
    statuses: dict[Watch, RunStatus] = {}
    lines: dict[Watch, LogPart] = {}
    trouble: BackendError | None = None
    unanswered = False
    for group in _grouped(watches, _compartment):
        try:
            statuses.update(zip(group, backend.status([watch.record.ref for watch in group]), strict=True))
        except BackendError as error:
            trouble, unanswered = error, True
            outcomes.update((watch, watch.after_failure(error, now)) for watch in group)
        except Exception as error:
            log.exception("the states of %d gangs could not be made out", len(group))
            outcomes.update((watch, watch.after_unforeseen(error, now)) for watch in group)
    for group in _grouped(statuses, _log_place):
        try:
            found = backend.logs_of([(watch.record.ref, watch.lines_since(now)) for watch in group])
            lines.update(zip(group, found, strict=True))
        except BackendError as error:
            trouble = error
            for watch in group:
                watch.warn("%s; the lines will come later", error, now)
        except Exception as error:
            log.exception("the lines of %d gangs could not be made out", len(group))
            for watch in group:
                watch.warn("its lines could not be made out (%s); will try again", error, now)
    for watch, status in statuses.items():
        outcomes[watch] = _attempt(watch.observe, status, lines.get(watch), now)
    return Looked(tuple(outcomes[watch] for watch in watches), trouble, unanswered)


def _attempt(work: Callable[..., Any], *args: Any) -> Any:
    try:
        return work(*args)
    except Exception as error:  # noqa: BLE001 - the others' look goes on
        return error


def _grouped(watches: Iterable[Watch], key: Callable[[Watch], Hashable]) -> list[list[Watch]]:
    groups: dict[Hashable, list[Watch]] = {}
    for watch in watches:
        groups.setdefault(key(watch), []).append(watch)
    return list(groups.values())


def _compartment(watch: Watch) -> Hashable:
    return watch.record.ref.compartment_id


def _log_place(watch: Watch) -> Hashable:
    ref = watch.record.ref
    return ref.compartment_id, ref.log_group_id, ref.log_id


def describe(status: RunStatus, *, with_step: bool = True) -> str:
    """Return one line for a person, as `nodes: 2 RUNNING (TRAINING); step 40/300, loss 2.31`."""
    parts = ["nodes: " + ", ".join(f"{count} {state}" for state, count in _tally(status).items())]
    progress = status.progress
    if with_step and progress is not None and progress.step is not None:
        total = f"/{progress.steps}" if progress.steps else ""
        loss = f", loss {progress.loss:.4g}" if progress.loss is not None else ""
        parts.append(f"step {progress.step}{total}{loss}")
    if status.checkpoint is not None:
        parts.append(f"checkpoint at {status.checkpoint.label}")
    return "; ".join(parts)


def _tally(status: RunStatus) -> dict[str, int]:
    tally: dict[str, int] = {}
    for node in status.nodes:
        phase = f" ({node.report.phase})" if node.report and node.state is NodeState.RUNNING else ""
        tally[f"{node.state}{phase}"] = tally.get(f"{node.state}{phase}", 0) + 1
    return tally
