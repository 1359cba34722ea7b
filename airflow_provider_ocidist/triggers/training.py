"""DistributedTrainingTrigger: watches a gang while no worker slot is taken."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_ocidist.hooks.metrics import publish_spending
from airflow_provider_ocidist.hooks.task_context import mask_secrets_of_nodes
from airflow_provider_ocidist.model.homes import how_to_end
from airflow_provider_ocidist.model.pauses import END_WITHIN, next_pause
from airflow_provider_ocidist.provider_info import DEFAULT_CONN_ID
from airflow_provider_ocidist.triggers import log_channel
from airflow_provider_ocidist.triggers.connections import (
    LogOf,
    SharedConnection,
    location_of,
    shared_connection,
)
from airflow_provider_ocidist.triggers.task_states import asked_for
from airflow_provider_ocidist.triggers.threads import ask_airflow, in_thread, keep

# DAG files load this module for the triggers: what only a running trigger needs is imported where it is used.
if TYPE_CHECKING:
    from airflow_provider_ocidist.gangs.spending import Spending
    from airflow_provider_ocidist.gangs.watch import Watch
    from airflow_provider_ocidist.model.run import RunRecord

log = logging.getLogger(__name__)

FIRST_EVENT_AFTER = 10.0
"""Seconds until the first event; the executor notices a deferral up to 5 s late, and fails a task whose event came
first."""
CAN_KILL = hasattr(BaseTrigger, "on_kill")
"""Whether this Airflow (3.3 or later) informs a trigger that its task was killed."""
SAVE_CURSOR_LIMIT = 5.0
"""Seconds for which a stopping triggerer may wait until the log's cursor is saved."""

END_PAUSE = 1.0
"""Seconds of the pause after the first failed cancel; it doubles each time."""
LONGEST_END_PAUSE = 30.0
ASK_WITHIN = 120.0
"""Seconds in which Airflow has to say whether a task waits elsewhere; then its gang is ended.

Not fewer: Airflow gives the same message when it has moved the trigger to another triggerer, which happens on machines
that are overloaded, where its API server is slow too.
"""
ASK_INTERVAL = 1.0
"""Seconds between two looks whether Airflow has answered."""


class DistributedTrainingTrigger(BaseTrigger):
    """Fires when a gang needs an action, which its task then takes. Creates nothing, and cancels only when a user has
    ended the task.

    :param conn_id: connection of the gang's backend
    :param record: the gang's record, as JSON
    :param owner: dag_id, run_id, task_id, map_index and try_number of the task that owns the gang; empty for a sensor,
        which only watches it
    :param poll_interval: seconds between two looks
    """

    def __init__(
        self, conn_id: str, record: Mapping[str, Any], owner: Mapping[str, Any], poll_interval: float
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's has no types
        self.conn_id = sys.intern(conn_id)
        self._gang: str | Watch = json.dumps(record)
        """Record of the gang as text until a watch exists, to save memory: a thousand triggers wait in one process."""
        # As `RunRef.sharing_texts` does it, for the same reason.
        self.owner: dict[str, Any] = {
            name: sys.intern(value) if isinstance(value, str) else value for name, value in owner.items()
        }
        self.poll_interval = poll_interval
        self._ending: asyncio.Task[None] | None = None
        self._user_acted = False
        """Whether Airflow has reported an action of a user; it reports the same when it moves the trigger to another
        triggerer."""

    @property
    def record(self) -> dict[str, Any]:
        gang = self._gang
        return dict(json.loads(gang)) if isinstance(gang, str) else gang.record.to_json()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {
            "conn_id": self.conn_id,
            "record": self.record,
            "owner": self.owner,
            "poll_interval": self.poll_interval,
        }
        return classpath(self), arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            record = await self._watch_until_action()
        except asyncio.CancelledError as cancel:
            # A message means that a user acted; a stopping triggerer gives none. Not left to `on_kill` alone: Airflow
            # does not call it if its next cancel, a second later, comes before it has logged the first.
            if cancel.args and CAN_KILL:
                self._user_acted = True
                self._begin_ending()
            else:
                await self._save_cursor()
            raise
        except Exception:
            # Its task continues waiting on a worker.
            if not isinstance(self._gang, str):
                await self._finish(partial(self._hand_over, self._gang))
            raise
        yield TriggerEvent(record.to_json())

    async def _watch_until_action(self) -> RunRecord:
        earliest = time.monotonic() + FIRST_EVENT_AFTER
        poller = await self._connection.open()
        watch: Watch = await in_thread(self._watch, place=self._connection)
        self._gang = watch
        with asked_for(self.owner, self._end_ownerless):
            outcome = await poller.until_action(watch, self.poll_interval)
        if isinstance(outcome, Exception):
            # The task asks once more and fails with this error in its own log.
            self.log.warning("%s", outcome)
        await self._finish(partial(self._hand_over, watch))
        await asyncio.sleep(max(0.0, earliest - time.monotonic()))
        return watch.record

    def _watch(self) -> Watch:
        from airflow_provider_ocidist.gangs.kills import make_ready
        from airflow_provider_ocidist.gangs.task_watch import TaskWatch
        from airflow_provider_ocidist.gangs.watch import Watch

        backend, record = self._connection.backend, self._record()
        if self.owner:
            make_ready(backend, record.ref, self.log)
        if record.ref.has_log:  # else there are no lines to log
            mask_secrets_of_nodes(backend, record.ref)
        # Airflow drops lines that a trigger logs just before its event.
        watched = backend, record, LogOf(self.log)
        try_number = self.owner.get("try_number")
        if try_number is None:
            return Watch(*watched, leaves_the_end=True)
        watch = TaskWatch(
            *watched,
            try_number,
            leaves_the_end=True,
            is_written=log_channel.is_written,
            may_be_lost=log_channel.is_uploaded(),
        )
        watch.spending_log.publish = self._publish_spending
        return watch.go_on()

    def _publish_spending(self, spending: Spending) -> None:
        publish_spending(spending, self.owner)

    def _hand_over(self, watch: Watch) -> None:
        watch.hand_over()
        if self.task_instance is not None and not log_channel.is_uploaded():
            log_channel.set_aside(self.task_instance)

    async def _save_cursor(self) -> None:
        """Save the cursor of the task's log, for a triggerer that takes over."""
        if not isinstance(self._gang, str):
            await self._finish(self._gang.save_cursor)

    async def _finish(self, saving: Callable[[], object]) -> None:
        # Not `wait_for`: in Python 3.11 it can swallow a cancel, and so a user's kill.
        saved = keep(in_thread(saving, place=self._connection))
        await asyncio.wait({saved}, timeout=SAVE_CURSOR_LIMIT)

    def _record(self) -> RunRecord:
        from airflow_provider_ocidist.model.run import RunRecord

        return RunRecord.from_json(self.record)

    async def on_kill(self) -> None:
        """End the gang; called when a user fails, clears or marks the task while it is deferred.

        Airflow 3.3 cancels this coroutine again every second, without a trace, and also calls it when the trigger
        has only moved to another triggerer.
        """
        await asyncio.shield(self._begin_ending())

    def _end_ownerless(self, state: str | None) -> None:
        """End the gang of a task that has ended although Airflow has not cancelled its trigger."""
        name = self._record().ref.key.name
        self.log.warning("%s: its task is %s; ending all nodes", name, state or "gone")
        self._user_acted = True
        self._begin_ending()

    def _begin_ending(self) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = keep(self._cancel_with_retries())
        return self._ending

    async def _cancel_with_retries(self) -> None:
        """Retry until it succeeds: no other process will."""
        began = time.monotonic()
        give_up_at = began + END_WITHIN
        pause, anew = END_PAUSE, False
        while True:
            try:
                return await self._cancel_unless_waited_for(anew=anew, ask_until=began + ASK_WITHIN)
            except Exception as error:
                ref = self._record().ref
                if time.monotonic() >= give_up_at:
                    log.exception(
                        "%s: could not be cancelled; its nodes may run until their lease ends (limits.lease); "
                        "to end them: %s",
                        ref.key.name,
                        how_to_end(ref, named=None if self.conn_id == DEFAULT_CONN_ID else self.conn_id),
                    )
                    raise
                log.warning("%s: could not be cancelled yet (%s); trying again", ref.key.name, error)
            await asyncio.sleep(pause)
            pause, anew = next_pause(pause, LONGEST_END_PAUSE), True

    async def _cancel_unless_waited_for(self, *, anew: bool, ask_until: float) -> None:
        record = self._record()
        if not self.owner or await self._is_owned(record, ask_until):
            log.info("%s is left running: its task waits for it elsewhere", record.ref.key.name)
            self._ending = None
            return
        connection = self._connection
        backend = await connection.at_once(anew=anew)
        await in_thread(lambda: backend.cancel(record.ref), place=connection, ends_a_gang=True)
        log.info("%s: cancelled because its task was killed", record.ref.key.name)

    async def _is_owned(self, record: RunRecord, ask_until: float) -> bool:
        """Return Airflow's answer; False if a user has acted, and there was no answer until then."""

        def is_enough() -> bool:
            return self._user_acted and time.monotonic() >= ask_until

        if is_enough():
            return False
        asking = keep(ask_airflow(lambda: self._still_owned(record), ends_a_gang=True))
        while not asking.done():
            await asyncio.wait({asking}, timeout=ASK_INTERVAL)
            if not asking.done() and is_enough():
                log.warning(
                    "%s: Airflow does not answer whether its task waits elsewhere", record.ref.key.name
                )
                return False
        return bool(asking.result())

    def _still_owned(self, record: RunRecord) -> bool:
        """Return whether the task is deferred for this very gang: then the trigger was moved, not killed.

        A task that is "running" does not count: after a clear the next attempt briefly runs with the old XCom.
        """
        from airflow.providers.common.compat.sdk import XCom
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        owner = self.owner
        mapped = owner["map_index"] >= 0
        states = RuntimeTaskInstance.get_task_states(
            dag_id=owner["dag_id"],
            task_ids=[owner["task_id"]],
            run_ids=[owner["run_id"]],
            map_index=owner["map_index"] if mapped else None,
        ).get(owner["run_id"], {})
        state = states.get(owner["task_id"]) or states.get(f"{owner['task_id']}_{owner['map_index']}")
        if state != "deferred":
            return False
        run = XCom.get_one(
            key="run",
            dag_id=owner["dag_id"],
            run_id=owner["run_id"],
            task_id=owner["task_id"],
            map_index=owner["map_index"] if mapped else -1,
        )
        return isinstance(run, dict) and run.get("job_id") == record.ref.job_id

    @property
    def _connection(self) -> SharedConnection:
        ref = self.record["ref"]
        place = location_of(ref["backend"], ref["job_id"], ref.get("compartment_id"))
        return shared_connection(self.conn_id, ref["backend"], place, ref.get("conn_id"))


class PauseTrigger(BaseTrigger):
    """Fires after a pause, when a task asks for machines again.

    :param until: Unix time, by the clock of the worker that has begun the pause: it counts only without `seconds`
    :param seconds: how long it takes, by this triggerer's clock; another triggerer that takes over begins again
    """

    def __init__(self, until: float, seconds: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's has no types
        self.until = until
        self.seconds = seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        known = {} if self.seconds is None else {"seconds": self.seconds}
        return classpath(self), {"until": self.until, **known}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(max(0.0, self.until - time.time()) if self.seconds is None else self.seconds)
        yield TriggerEvent(None)


def classpath(trigger: BaseTrigger) -> str:
    """Return the name by which Airflow imports a trigger: its public module's, wherever the class is defined."""
    cls = type(trigger)
    return f"{__package__ if cls.__module__ == __name__ else cls.__module__}.{cls.__qualname__}"
