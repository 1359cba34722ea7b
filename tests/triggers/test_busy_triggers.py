"""Kills are first: many triggers that begin under 429 keep no gang alive whose task was killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.model.run import NodeState, RunRecord
from airflow_provider_ocidist.triggers import DistributedTrainingTrigger
from airflow_provider_ocidist.triggers.connections import SharedConnection
from airflow_provider_ocidist.triggers.threads import THREADS
from scripts.emulator_process import Access
from scripts.idle_gangs import IdleGangs, idle_gangs
from tests.http_client import http

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.since_airflow("3.3", "a trigger gets to know that its task was killed"),
]

BEGINNING = 100
KILLED = 15
OWNER = {"dag_id": "dag", "run_id": "run", "task_id": "train", "map_index": -1}
USER_ACTION = "__airflow_user_action__"
PATIENCE_ASKED_FOR = 15
"""Seconds, of each request that is no cancel; all threads of the triggers sleep them out."""


class Trigger(DistributedTrainingTrigger):
    """A trigger whose task is not deferred any more."""

    def _still_owned(self, record: RunRecord) -> bool:
        return False


def test_a_cancel_is_sent_with_the_old_connection_where_the_new_one_cannot_be_read() -> None:
    connection = SharedConnection("no_such_connection", "oci_data_science")
    connection._backend = backend = OciDataScience.connect({})
    assert asyncio.run(connection.at_once(anew=True)) is backend


@pytest.fixture
def idle(emulator: Access) -> Iterator[IdleGangs]:
    with idle_gangs(emulator, BEGINNING) as gangs:
        yield gangs


@pytest.fixture
def patience(idle: IdleGangs) -> Iterator[None]:
    """The service asks everybody to wait, and each who would cancel once."""
    url = f"{idle.emulator.url}/_emulator/faults"
    more = {"status": 429, "code": "TooManyRequests", "retry_after_s": PATIENCE_ASKED_FOR}
    cancels = {"path": ".*/actions/cancelJobRun", "times": KILLED, **more}
    # With the reads that a start takes, and no cancel, nor the stop requests in the run directories.
    for rule in (cancels, {"path": "/20190101/.*", "method": "GET", **more}):
        http.post(url, json=rule).raise_for_status()
    yield
    http.delete(url).raise_for_status()


def has_begun(trigger: DistributedTrainingTrigger) -> bool:
    return not isinstance(trigger._gang, str)


async def _watch(trigger: DistributedTrainingTrigger) -> None:
    async for event in trigger.run():
        raise AssertionError(f"nothing was to happen, but {event}")


async def _kill_some(triggers: list[Trigger]) -> int:
    """Begin all, kill the last ones, which wait for a thread; return how many had begun when all those had ended."""
    watching = [asyncio.create_task(_watch(trigger)) for trigger in triggers]
    await asyncio.sleep(1.0)
    killed = triggers[-KILLED:]
    for task in watching[-KILLED:]:
        task.cancel(USER_ACTION)
    await asyncio.wait(watching[-KILLED:])
    await asyncio.gather(*(trigger._ending for trigger in killed if trigger._ending))
    begun = sum(map(has_begun, triggers))
    for task in watching:
        task.cancel()
    await asyncio.wait(watching)
    return begun


def test_gangs_are_ended_while_all_threads_wait_for_a_service_that_asks_for_patience(
    idle: IdleGangs, patience: None, conn_id: str
) -> None:
    triggers = [Trigger(conn_id, record.to_json(), OWNER, 0.5) for record in idle.records]
    assert all(record.ref.log_group_id for record in idle.records)
    idle.forget_calls()
    begun = asyncio.run(_kill_some(triggers))
    # Those who were killed came last: had their ends waited for a thread, others would have begun before.
    assert begun < BEGINNING - KILLED - THREADS
    cancels = idle.calls(".*/actions/cancelJobRun")
    assert sorted(call["status"] for call in cancels) == [204] * KILLED + [429] * KILLED
    http.delete(f"{idle.emulator.url}/_emulator/faults").raise_for_status()
    deadline = time.monotonic() + 60
    refs = [record.ref for record in idle.records]
    while True:
        states = [status.nodes[0].state for status in idle.backend.status(refs)]
        over = [state.terminal or state is NodeState.ENDING for state in states]
        if over == [False] * (BEGINNING - KILLED) + [True] * KILLED:
            break
        assert time.monotonic() < deadline, states
        time.sleep(0.2)
