"""KillableTask: ends its gang when it is killed or gives up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.operators.outcome_tasks import OutcomeTask

# Imports that only a running task needs are made there, as in job_tasks.py.
if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.gangs.kills import Killer
    from airflow_provider_ocidist.gangs.stop_flag import StopFlag
    from airflow_provider_ocidist.gangs.submission import GangSubmitter
    from airflow_provider_ocidist.gangs.task_watch import TaskWatch
    from airflow_provider_ocidist.model.run import RunKey, RunRef

    CallOff = Callable[[RunKey, int, BaseException], list[str]]
    """Ends gangs of earlier tries, for this reason; returns what may live all the same."""


class KillableTask(OutcomeTask):
    """A task that ends its gang before it ends itself, unless the gang has already ended."""

    _stop: StopFlag
    _killer: Killer | None

    def on_kill(self) -> None:
        """End the remote runs; Airflow kills this process five seconds after this call.

        Airflow calls it in a signal handler: it neither calls Airflow nor logs (see `kills`). If a gang is just being
        created or opened, the interrupted thread ends it afterwards.
        """
        self._stop.set()
        if self._killer is not None:
            self._killer.kill_from_handler()

    @contextlib.contextmanager
    def _calling_off_when_killed(self, gang: GangSubmitter, key: RunKey) -> Iterator[None]:
        """Let a kill end what earlier tries have left, also while this one waits for what the service says of it."""
        if self._number == 1:
            yield
            return
        from airflow_provider_ocidist.errors import Cause
        from airflow_provider_ocidist.gangs.kills import Killer

        why = BackendError("the task was killed while it looked for its gang", cause=Cause.CANCELED)
        self._killer = Killer(gang.calling_off(key, self._number, why))
        try:
            yield
        finally:
            self._disarm()

    @contextlib.contextmanager
    def _ending_what_is_given_up(self, watch: TaskWatch) -> Iterator[None]:
        """End a gang that may live before its task fails for any reason."""
        from airflow.providers.common.compat.sdk import TaskDeferred

        from airflow_provider_ocidist.gangs.kills import end_before_giving_up

        try:
            yield
        except TaskDeferred:
            # The trigger waits from here; a kill that still reaches this process ends the gang.
            raise
        except BaseException as error:
            if self._stop.is_set():
                self._end_killed()
            elif watch.status is None or not watch.status.ended:
                ref, number = watch.record.ref, self._number
                end_before_giving_up(watch.backend, ref, number, error, self.log, self._stop, self._reconnect)
            self._disarm()
            raise
        else:
            self._disarm()

    def _disarm(self) -> None:
        """Stop the killer thread: the gang has ended."""
        killer, self._killer = self._killer, None
        if killer is not None:
            killer.close()

    def _leave_if_killed(self) -> None:
        if self._stop.is_set():
            self._end_killed()
            raise AirflowFailException("the task was killed, and its run cancelled")

    def _end_killed(self) -> None:
        """Wait until the gang of a killed task is cancelled; Airflow kills this process if that takes too long."""
        from airflow_provider_ocidist.gangs.kills import KILLED_PATIENCE

        assert self._killer is not None
        if not self._killer.kill(KILLED_PATIENCE):
            self.log.warning(
                "the run of this killed task could not be cancelled (%s); its nodes end by limits.lease",
                self._killer.error or "no answer",
            )

    def _reached(self, ref: RunRef) -> Backend:
        """Return the backend of a live gang; wait while the connection cannot be read."""
        from airflow_provider_ocidist.gangs.kills import Patience

        patience = Patience(self._stop, self.log)
        while True:
            try:
                return self._backend(ref.backend)
            except Exception as error:  # noqa: BLE001 - Airflow's own, or the network's
                patience.take(error, lambda: None)

    @contextlib.contextmanager
    def _calling_off(self, key: RunKey, call_off: CallOff) -> Iterator[None]:
        """End what earlier tries may have left where this one fails and none comes after it.

        Adds to the error what may live all the same.
        """
        try:
            yield
        except BaseException as error:
            if self._number > 1 and self._is_last(key, error):
                self.log.warning("this try is the last: ending the gangs that earlier tries may have left")
                if left := _left_after(call_off, key, self._number, error):
                    error.args = (f"{error}; STILL THERE, PERHAPS: {'; '.join(left)}", *error.args[1:])
            raise

    def _is_last(self, key: RunKey, error: BaseException) -> bool:
        """Whether no try of the task comes after this one, which an error ends."""
        from airflow_provider_ocidist.errors import JobFileError, Overtaken

        if isinstance(error, Overtaken):
            return False
        hopeless = isinstance(error, JobFileError) or (
            isinstance(error, BackendError) and not error.retryable
        )
        return hopeless or self._number > key.generation or self._stop.is_set()

    def _call_off_noted(self, context: Context) -> CallOff:
        """Return what ends gangs of earlier tries without the job of this one: its file may be broken by now."""
        from airflow_provider_ocidist.gangs.submission import call_off_noted, noted_in

        def call_off(key: RunKey, number: int, why: BaseException) -> list[str]:
            notes = context.get("task_state_store")
            kind = next((each.place.backend for each in noted_in(notes, None, self.log)), None)
            backend = self._connected or OciHook(self.conn_id, kind=kind).backend()
            return call_off_noted(backend, key, number, why, notes, self.log)

        return call_off


def _left_after(call_off: CallOff, key: RunKey, number: int, why: BaseException) -> list[str]:
    """Return what may live all the same; that it could not be looked for is no reason to fail with another error."""
    try:
        return call_off(key, number, why)
    except Exception as error:  # noqa: BLE001 - Airflow's own, as of a connection that cannot be read
        return [f"what earlier tries have left is not known: {error}"]
