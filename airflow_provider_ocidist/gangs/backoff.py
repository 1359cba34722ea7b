"""Backoff: waits out refusals and outages amid the requests of a task, while its gang may be running. No Airflow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from airflow_provider_ocidist.errors import BackendError, Cause, GaveUp, Overtaken, StillAlive, refusal_in
from airflow_provider_ocidist.gangs.reconnection import read_again
from airflow_provider_ocidist.gangs.stopwatch import Stopwatch
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.model.evidence import ANSWERED

FIRST_PAUSE = 10.0
"""Seconds between the first refusal and the next request."""
AMID_REFUSALS = 4
AMID_FOR = 120.0
"""Number of refusals, and seconds, for which a refusal amid a first submission is not believed. By then the service
had accepted the job, and no gang runs that would be worth a longer wait."""


def may_pass(error: BackendError) -> bool:
    """Whether an error may pass: its reason is neither the request itself, nor running nodes, nor a later try."""
    if error.is_refused:
        return True
    return error.retryable and error.cause is Cause.SERVICE and not isinstance(error, StillAlive | Overtaken)


class Backoff:
    """Waits out refusals and outages while a gang may be running, until the evidence is conclusive."""

    def __init__(self, stop: threading.Event, log: TaskLog) -> None:
        self._stop = stop
        self._log = log
        self._evidence = ANSWERED
        self._after_acceptance = False
        """Whether the service had accepted a part of a submission, or a gang, before one of the errors."""
        self._asked = Stopwatch(time.monotonic)

    def is_worth_another(self, error: BackendError, try_number: int) -> bool:
        """Whether try `try_number` asks again after an error; a first try has no gang yet that may be running.

        Its first refusal may be wrong, or of credentials that are just being renewed: with those of then it asks once
        more, and believes the second.
        """
        if not may_pass(error):
            return False
        if try_number > 1:
            return True
        # After one error amid the submission, the first request of the next round is not the first of the try.
        if error.after_acceptance or self._after_acceptance:
            return not self._is_believed(error)
        return refusal_in(error) is not None and self._evidence.questions == 0

    def _is_believed(self, error: BackendError) -> bool:
        """Whether a first submission fails with an error: with a refusal after others, never with an outage."""
        met = self._evidence
        were_refused = met.refused_in_all >= AMID_REFUSALS and met.seconds >= AMID_FOR
        return were_refused and refusal_in(error) is not None

    def take(self, error: Exception, reconnect: Callable[[], object]) -> None:
        """Wait before the next request. Raises GaveUp when there is none, and BackendError when the task was killed."""
        self._evidence = self._evidence.met(refusal_in(error), self._asked.lap())
        self._after_acceptance |= isinstance(error, BackendError) and error.after_acceptance
        if self._evidence.is_conclusive:
            last = error if isinstance(error, BackendError) else BackendError(str(error))
            what = "refused" if self._evidence.is_refused else "not answered"
            raise GaveUp(f"{what} for {self._evidence.seconds:.0f} s; last error: {error}", last) from error
        pause = self._evidence.pause(FIRST_PAUSE)
        why = "one answer may be wrong, or a gang of this task may be running"
        self._log.warning("%s; %s: asking again in %.0f s", error, why, pause)
        if self._stop.wait(pause):
            why = f"the task was killed while it waited for the service to recover: {error}"
            raise BackendError(why, cause=Cause.CANCELED) from error
        if read_again(reconnect, self._log.warning):
            self._evidence = self._evidence.with_new_credentials()
