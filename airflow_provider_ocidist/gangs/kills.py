"""Kills: ends a gang whose task was killed or gives up, wherever its thread was interrupted. No Airflow.

Airflow calls `on_kill` in a signal handler, between any two bytecodes of the main thread, which may hold any lock: of
a logging handler, of an Event that it waits for, of a connection pool, of the import system. A handler that waited
for one of them would deadlock. So it takes none: it sets a flag through `SimpleQueue.put`, which is reentrant, and
then waits for a bounded time. A thread started before, with its own connections, does the work. If that thread needs
a lock of the interrupted one, as for its log line, it gets it when the handler has returned.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import PreparesCancels, now_at
from airflow_provider_ocidist.backends.claims import GIVE_UP_CLAIM_PATIENCE, overtaken_by
from airflow_provider_ocidist.backends.connections import named_for
from airflow_provider_ocidist.errors import BackendError, CancelFailed, StorageError
from airflow_provider_ocidist.gangs.canceller import end_unless_claimed, given_up
from airflow_provider_ocidist.gangs.reconnection import read_again
from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.model.homes import how_to_end
from airflow_provider_ocidist.model.run import RunRef

HANDLER_PATIENCE = 1.5
"""Seconds that a signal handler waits for the cancel: the interrupted thread needs some of the 5 s before SIGKILL."""
KILLED_PATIENCE = 60.0
"""Seconds that a killed task waits for its cancel; Airflow sends SIGKILL long before."""
AGAIN_AFTER = 0.5
"""Seconds between a failed cancel and the next."""
GIVE_UP_WITHIN = 600.0
"""Seconds for which a task that gives up tries to end its gang while neither service nor nodes can be reached."""
GIVE_UP_PAUSE = 15.0
"""Seconds between two of these cancels."""


class Killer:
    """A thread that ends one gang on request."""

    def __init__(self, end: Callable[[], object], patience: float = KILLED_PATIENCE) -> None:
        """`end` is called again after an error, for `patience` seconds."""
        self._end = end
        self._patience = patience
        self._asked, self._over = StopFlag(), StopFlag()
        self._wanted = False
        self.error: Exception | None = None
        """Error of the last call of `end`; None once it has succeeded."""
        # A daemon: starting any other thread waits for a lock that the interrupted thread may hold.
        threading.Thread(target=self._run, name="ocidist-killer", daemon=True).start()

    def kill(self, within: float) -> bool:
        """End the gang; return whether that was done within `within` seconds. For signal handlers too."""
        self._wanted = True
        self._asked.set()
        return self._over.wait(within) and self.error is None

    def kill_from_handler(self) -> None:
        """End the gang; return when that is done, or when the interrupted thread has to continue."""
        self.kill(HANDLER_PATIENCE)

    def close(self) -> None:
        """Let the thread end; a kill requested before is done first."""
        self._asked.set()

    def _run(self) -> None:
        self._asked.wait()
        if not self._wanted:
            return
        give_up_at = time.monotonic() + self._patience
        while True:
            try:
                self._end()
                self.error = None
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, the nodes must end
                self.error = error
            if time.monotonic() >= give_up_at:
                break
            time.sleep(AGAIN_AFTER)
        self._over.set()


def killer_of(backend: Backend, ref: RunRef, try_number: int, log: TaskLog) -> Killer:
    """Return a thread that can end a gang, unless a later try of its task waits for it."""
    make_ready(backend, ref, log)
    return Killer(lambda: end_unless_claimed(backend, ref, try_number, log))


def make_ready(backend: Backend, ref: RunRef, log: TaskLog) -> None:
    """Prepare what a cancel needs: during a kill there is no time for it. Raises nothing."""
    if not isinstance(backend, PreparesCancels):
        return
    try:
        backend.ready_to_cancel(ref)
    except (BackendError, StorageError) as error:
        log.warning("the credentials cannot be loaded now; a cancel will load them again: %s", error)


def end_before_giving_up(
    backend: Backend,
    ref: RunRef,
    try_number: int,
    why: BaseException,
    log: TaskLog,
    stop: threading.Event,
    reconnect: Callable[[], object],
) -> None:
    """End a gang that try `try_number` of its task no longer waits for, unless a later try does.

    By the service or by a stop request, whichever can be reached.
    Raises nothing: `why` is about to be raised. If neither is reached for ten minutes, the lease ends the gang.
    """
    ending = given_up(why, now_at(backend))
    give_up_at = time.monotonic() + GIVE_UP_WITHIN
    later = overtaken_by(backend.directories, ref, try_number, GIVE_UP_CLAIM_PATIENCE)
    if later is not None:
        log.info("%s", later)
        return None
    log.warning("ending %s because its task gives up: %s", ref.key.name, why)
    while True:
        try:
            return backend.cancel(ref, ending)
        except CancelFailed as error:
            if error.stop_requested:
                log.warning(
                    "%s: %s; a node that does not read it runs until its lease ends (limits.lease); %s",
                    ref.key.name,
                    error,
                    _runs_and_how_to_end(ref, named_for(backend)),
                )
                return None
            failed: Exception = error
        except Exception as error:  # noqa: BLE001 - the task fails with another
            failed = error
        if time.monotonic() >= give_up_at or stop.is_set():
            log.warning(
                "%s: its nodes may still run, until their lease ends (limits.lease): %s; %s",
                ref.key.name,
                failed,
                _runs_and_how_to_end(ref, named_for(backend)),
            )
            return None
        log.warning("%s: could not be ended yet (%s); trying again", ref.key.name, failed)
        stop.wait(GIVE_UP_PAUSE)
        read_again(reconnect, log.warning)


def _runs_and_how_to_end(ref: RunRef, named: str | None) -> str:
    runs = ", ".join(dict.fromkeys(run_id for run_id in ref.run_ids if run_id))
    return f"runs: {runs}; to end them: {how_to_end(ref, named=named)}"
