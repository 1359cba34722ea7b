"""DistributedTrainingTrigger: watches a gang while no worker slot is taken."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_ocidist.beside_loop import in_thread, keep

# What only a running trigger needs is imported there, as in operators.py.
if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.run import RunRecord
    from airflow_provider_ocidist.watch import Watch

log = logging.getLogger(__name__)

FIRST_EVENT_AFTER = 10.0
"""Seconds; the executor notices up to 5 s late that a task has deferred, and fails a task whose event came first."""
CAN_KILL = hasattr(BaseTrigger, "on_kill")
"""Whether this Airflow (3.3 or later) tells a trigger that its task was killed."""

END_ATTEMPTS = 8
END_PAUSE = 1.0
"""Seconds after the first attempt to end a gang that failed; doubles each time, so that eight take two minutes."""


class DistributedTrainingTrigger(BaseTrigger):
    """Fires when there is something to do about a gang; the task then does it. Never creates or cancels by itself,
    but for `on_kill`.

    :param conn_id: connection of the gang's backend
    :param record: what is known of the gang, as JSON
    :param owner: dag_id, run_id, task_id and map_index of the task; empty for watchers that own nothing
    :param poll_interval: seconds between two looks
    """

    def __init__(
        self, conn_id: str, record: Mapping[str, Any], owner: Mapping[str, Any], poll_interval: float
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.conn_id = conn_id
        self.record = dict(record)
        self.owner = dict(owner)
        self.poll_interval = poll_interval
        self._connected: Backend | None = None
        self._ending: asyncio.Task[None] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {
            "conn_id": self.conn_id,
            "record": self.record,
            "owner": self.owner,
            "poll_interval": self.poll_interval,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            record = await self._watch_until_action()
        except asyncio.CancelledError as cancel:
            # A message means that a user acted; a triggerer that only stops gives none. Not left to `on_kill` alone:
            # Airflow does not reach it when its next cancel, a second later, comes before it has logged the first.
            if cancel.args and CAN_KILL:
                self._begin_ending()
            raise
        yield TriggerEvent(record.to_json())

    async def _watch_until_action(self) -> RunRecord:
        earliest = time.monotonic() + FIRST_EVENT_AFTER
        watch: Watch = await in_thread(self._watch)
        while not await self._wants_action(watch):  # noqa: ASYNC110 - the event is at the service
            await asyncio.sleep(watch.pause(self.poll_interval))
        await asyncio.sleep(max(0.0, earliest - time.monotonic()))
        return watch.record

    def _watch(self) -> Watch:
        from airflow_provider_ocidist.watch import Watch

        return Watch(self._backend(), self._record(), self.log)

    def _record(self) -> RunRecord:
        from airflow_provider_ocidist.run import RunRecord

        return RunRecord.from_json(self.record)

    async def _wants_action(self, watch: Watch) -> bool:
        from airflow_provider_ocidist.errors import BackendError
        from airflow_provider_ocidist.supervisor import Wait

        try:
            return not isinstance(await in_thread(lambda: watch.look(time.time())), Wait)
        except BackendError as error:
            # The task asks once more and fails with this error in the right place.
            self.log.warning("%s", error)
            return True

    async def on_kill(self) -> None:
        """End the gang; called when a user fails, clears or marks the task while it is deferred.

        Airflow 3.3 cancels this coroutine again every second, without a trace, and also calls it when the trigger
        has only moved to another triggerer.
        """
        await asyncio.shield(self._begin_ending())

    def _begin_ending(self) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = keep(self._end_gang_at_last())
        return self._ending

    async def _end_gang_at_last(self) -> None:
        """Try until it has worked: nobody else will."""
        for attempt in range(END_ATTEMPTS):
            try:
                return await self._end_gang()
            except Exception as error:
                name = self._record().ref.key.name
                if attempt == END_ATTEMPTS - 1:
                    log.exception("%s: could not be cancelled; its nodes may still run", name)
                    raise
                log.warning("%s: could not be cancelled yet (%s); trying again", name, error)
                await asyncio.sleep(END_PAUSE * 2**attempt)
        return None

    async def _end_gang(self) -> None:
        record = self._record()
        if not self.owner or await in_thread(lambda: self._still_owned(record)):
            log.info("%s goes on: its task waits for it elsewhere", record.ref.key.name)
            return
        await in_thread(lambda: self._backend().cancel(record.ref))
        log.info("%s: cancelled, since its task was killed", record.ref.key.name)

    def _still_owned(self, record: RunRecord) -> bool:
        """Return whether the task is deferred for this very gang: then the trigger was moved, not killed.

        A task that is "running" is none: after a clear the next attempt runs with the old XCom for a moment.
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

    def _backend(self) -> Backend:
        """Return the connected backend; made once, so that `on_kill` finds it warm."""
        if self._connected is None:
            from airflow_provider_ocidist.hooks import OciHook

            self._connected = OciHook(self.conn_id).backend(self._record().ref.backend)
        return self._connected
