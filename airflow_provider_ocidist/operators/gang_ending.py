"""GangEnding: a task that is killed or gives up ends its gang before itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.claims import CLAIM_PATIENCE, GIVE_UP_CLAIM_PATIENCE
from airflow_provider_ocidist.errors import BackendError, Cause, GaveUp, JobFileError, Overtaken
from airflow_provider_ocidist.gangs.backoff import Backoff
from airflow_provider_ocidist.gangs.earlier_tries import cancel_noted
from airflow_provider_ocidist.gangs.kills import (
    KILLED_PATIENCE,
    Killer,
    end_before_giving_up,
    killer_of,
)
from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.gangs.task_watch import TaskWatch
from airflow_provider_ocidist.model.run import RunKey, RunRef
from airflow_provider_ocidist.operators.task_jobs import TaskConnection

CancelEarlier = Callable[[RunKey, int, BaseException], list[str]]
"""Function that ends the gangs of earlier tries for a reason, and returns what may still be running."""


class GangEnding:
    """Ends the gang of one try of a task, unless the gang has already ended."""

    def __init__(self, try_number: int, stop: StopFlag, connection: TaskConnection, log: TaskLog) -> None:
        self._try_number = try_number
        self._stop = stop
        self._connection = connection
        self._log = log
        self._killer: Killer | None = None
        self._end_begun: Callable[[BaseException], object] | None = None
        """Function that ends the gang that this try has created, until `of_what_is_given_up` answers for it."""

    def kill_from_handler(self) -> None:
        """End the gang. Takes no lock: see `gangs.kills`."""
        if self._killer is not None:
            self._killer.kill_from_handler()

    def arm(self, backend: Backend, ref: RunRef) -> None:
        """Let a kill end this gang from now on."""
        before, self._killer = self._killer, killer_of(backend, ref, self._try_number, self._log)
        if before is not None:
            before.close()

    @contextlib.contextmanager
    def of_all_tries_when_killed(self, gang: GangSubmitter, key: RunKey) -> Iterator[None]:
        """Let a kill end the gangs that this try has begun and earlier tries have left, also during a request.

        That goes on until `arm` if the try has created a gang, or was interrupted (`of_what_is_begun`).
        """
        why = BackendError("the task was killed while it looked for its gang", cause=Cause.CANCELED)
        self._killer = Killer(gang.earlier_canceller(key, self._try_number, why))
        self._end_begun = lambda error: gang.end_asked(key, self._try_number, error)
        try:
            yield
        except Exception:
            self._disarm()
            raise

    @contextlib.contextmanager
    def of_what_is_begun(self) -> Iterator[None]:
        """End the gang that this try has created if it fails before `of_what_is_given_up` answers for it."""
        try:
            yield
        except BaseException as error:
            if self._end_begun is not None:
                if self._stop.is_set():
                    self._end_killed()
                else:
                    self._end_begun(error)
                self._disarm()
            raise

    @contextlib.contextmanager
    def of_what_is_given_up(self, watch: TaskWatch) -> Iterator[None]:
        """End the gang, which may be running, before its task fails for any reason."""
        try:
            # Not before: an interruption just now is met here, or by `of_what_is_begun`.
            self._end_begun = None
            yield
        except TaskDeferred:
            # The trigger waits from here; a kill that still reaches this process ends the gang.
            raise
        except BaseException as error:
            if self._stop.is_set() and self._killer is not None:
                self._end_killed()
            elif watch.status is None or not watch.status.ended:
                self.give_up(watch.backend, watch.record.ref, error)
            self._disarm()
            raise
        else:
            self._disarm()

    @contextlib.contextmanager
    def of_earlier_tries(self, key: RunKey, cancel_earlier: CancelEarlier) -> Iterator[None]:
        """End what earlier tries may have left where this one fails and none comes after it.

        Adds to the error the gangs that may still be running.
        """
        try:
            yield
        except BaseException as error:
            # A first try that gives up has waited for what it had begun.
            may_have_left = self._try_number > 1 or isinstance(error, GaveUp)
            if may_have_left and self._is_last(key, error):
                self._log.warning("this try is the last: ending the gangs that earlier tries may have left")
                if left := _left_after(cancel_earlier, key, self._try_number, error):
                    error.args = (
                        f"{error}; these gangs may still be running: {'; '.join(left)}",
                        *error.args[1:],
                    )
            raise

    def cancel_noted(self, notes: Any) -> CancelEarlier:
        """Return a function that ends gangs of earlier tries without this try's job, whose file may be broken by now.

        `notes`: Airflow's store of the task's state, if it has one.
        """

        def cancel_earlier(key: RunKey, try_number: int, why: BaseException) -> list[str]:
            patience = CLAIM_PATIENCE if self._stop.is_set() else GIVE_UP_CLAIM_PATIENCE
            return cancel_noted(self._connection.backend, key, try_number, why, notes, self._log, patience)

        return cancel_earlier

    def give_up(self, backend: Backend, ref: RunRef, why: BaseException) -> None:
        """End a gang that this try no longer waits for. Raises nothing."""
        reconnect = partial(self._connection.reconnect, ref)
        end_before_giving_up(backend, ref, self._try_number, why, self._log, self._stop, reconnect)

    def leave_if_killed(self) -> None:
        """Raise AirflowFailException where the task was killed, after its gang was cancelled."""
        if self._stop.is_set():
            self._end_killed()
            raise AirflowFailException("the task was killed, and its run cancelled")

    def backend_of(self, ref: RunRef) -> Backend:
        """Return the backend of a live gang; wait while the connection cannot be read."""
        backoff = Backoff(self._stop, self._log)
        while True:
            try:
                return self._connection.backend_of(ref)
            except Exception as error:  # noqa: BLE001 - Airflow's own, or the network's
                backoff.take(error, lambda: None)

    def _disarm(self) -> None:
        """Stop the killer thread: the gang has ended."""
        self._end_begun = None
        killer, self._killer = self._killer, None
        if killer is not None:
            killer.close()

    def _end_killed(self) -> None:
        """Wait until the gang of a killed task is cancelled; Airflow kills this process if that takes too long."""
        assert self._killer is not None
        if not self._killer.kill(KILLED_PATIENCE):
            self._log.warning(
                "the run of this killed task could not be cancelled (%s); its nodes end by limits.lease",
                self._killer.error or "no answer",
            )

    def _is_last(self, key: RunKey, error: BaseException) -> bool:
        """Whether no try follows this one after an error."""
        if isinstance(error, Overtaken):
            return False
        hopeless = isinstance(error, JobFileError) or (
            isinstance(error, BackendError) and not error.retryable
        )
        return hopeless or self._try_number > key.generation or self._stop.is_set()


def _left_after(cancel_earlier: CancelEarlier, key: RunKey, try_number: int, why: BaseException) -> list[str]:
    """Return the gangs that may still be running; an error of this look-up never replaces the task's own."""
    try:
        return cancel_earlier(key, try_number, why)
    except Exception as error:  # noqa: BLE001 - Airflow's own, as of a connection that cannot be read
        return [f"the gangs of earlier tries cannot be looked up: {error}"]
