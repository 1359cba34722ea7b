"""A region that does not answer holds up nothing at other connections: after a restart of the triggerer many begin."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.model.run import RunRecord
from airflow_provider_ocidist.triggers import (
    CheckpointTrigger,
    DistributedTrainingTrigger,
    storage,
    task_states,
)
from airflow_provider_ocidist.triggers.threads import STORAGE_THREADS, THREADS
from scripts.emulator_process import Access
from scripts.idle_gangs import IdleGangs, idle_gangs
from tests.storage.published import publish

pytestmark = pytest.mark.airflow

SILENT = THREADS + 8
"""Gangs in the silent region: more than it has threads."""
OWNER = {"dag_id": "dag", "run_id": "run", "task_id": "train", "map_index": -1, "try_number": 1}
WITHIN = 30.0
"""Seconds, fewer than one request to the silent region takes."""


class SilentService:
    """Takes connections, and never answers."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                self.asked.append(self._listener.accept()[0])

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for each in self.asked:
            each.close()


class Trigger(DistributedTrainingTrigger):
    """A trigger whose task is not deferred any more."""

    def _still_owned(self, record: RunRecord) -> bool:
        return False


@pytest.fixture(scope="module")
def idle(emulator: Access) -> Iterator[IdleGangs]:
    with idle_gangs(emulator, SILENT + 2) as gangs:
        gangs.report(gangs.records)
        yield gangs


@pytest.fixture
def silent() -> Iterator[SilentService]:
    service = SilentService()
    yield service
    service.close()


def a_connection(idle: IdleGangs, monkeypatch: pytest.MonkeyPatch, **changes: object) -> str:
    conn_id = f"oci_{uuid.uuid4().hex[:8]}"
    fields = {**idle.emulator.connection_fields(work_dir=idle.emulator.work_dir), **changes}
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": "oci", "extra": fields}))
    return conn_id


async def watch(trigger: DistributedTrainingTrigger) -> None:
    async for event in trigger.run():
        raise AssertionError(f"nothing was to happen, but {event}")


def states_of(asked: list[str]) -> Callable[..., dict[str, dict[str, str]]]:
    """Return what Airflow says of tasks, all of which are deferred."""

    def states(dag_id: str, task_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
        asked.append(dag_id)
        return {run_id: {task_id: "deferred"} for run_id in run_ids}

    return states


def has_begun(trigger: DistributedTrainingTrigger) -> bool:
    return not isinstance(trigger._gang, str)


async def until(is_so: Callable[[], object]) -> bool:
    give_up_at = time.monotonic() + WITHIN
    while not is_so():
        if time.monotonic() > give_up_at:
            return False
        await asyncio.sleep(0.05)
    return True


def test_gangs_of_a_silent_region_hold_up_neither_the_looks_nor_the_ends_of_others(
    idle: IdleGangs, silent: SilentService, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = a_connection(idle, monkeypatch, endpoint=silent.url, max_attempts=1)
    here = a_connection(idle, monkeypatch)
    monkeypatch.setattr(task_states, "ASK_EVERY", 0.1)
    asked: list[str] = []
    monkeypatch.setattr(task_states, "_states", states_of(asked))
    away = [Trigger(there, record.to_json(), {}, 0.5) for record in idle.records[:SILENT]]
    *_, watched, ended = (Trigger(here, record.to_json(), OWNER, 0.5) for record in idle.records)

    async def scenario() -> None:
        watching = [asyncio.create_task(watch(trigger)) for trigger in away]
        assert await until(lambda: len(silent.asked) >= THREADS)
        near = [asyncio.create_task(watch(trigger)) for trigger in (watched, ended)]
        assert await until(lambda: has_begun(watched) and has_begun(ended)), "they wait for the silent region"
        refresh = watched._connection.refresh
        await asyncio.wait_for(asyncio.to_thread(lambda: refresh(anew=True)), WITHIN)
        assert await until(lambda: asked), "Airflow was not asked for the states of tasks"
        near[-1].cancel("__airflow_user_action__")
        await asyncio.wait(near[-1:])
        ended._begin_ending()
        assert await until(lambda: ended._ending is None or ended._ending.done())
        assert not any(map(has_begun, away)), "the region was to be silent"
        for task in (*watching, *near):
            task.cancel()
        await asyncio.wait([*watching, *near])
        silent.close()

    asyncio.run(scenario())


async def found_by(trigger: CheckpointTrigger) -> Any:
    async for event in trigger.run():
        return event.payload
    raise AssertionError("it ended without an event")


def test_looks_for_checkpoints_in_a_silent_region_hold_up_no_look_elsewhere(
    idle: IdleGangs, silent: SilentService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(storage, "FIRST_LOOK_AFTER", 0.0)
    (tmp_path / "step-7").mkdir()
    (tmp_path / "step-7" / "model.pt").write_bytes(b"weights")
    publish(tmp_path / "step-7", str(tmp_path / "here"), step=7)
    there, here = (
        a_connection(idle, monkeypatch, endpoint=silent.url, max_attempts=1),
        a_connection(idle, monkeypatch),
    )
    places = [f"{idle.emulator.work_dir}/{number}" for number in range(STORAGE_THREADS + 8)]

    async def scenario() -> Any:
        away = [asyncio.create_task(found_by(CheckpointTrigger(place, there, -1, 0.5))) for place in places]
        assert await until(lambda: silent.asked)
        await asyncio.sleep(1.0)
        near = asyncio.create_task(found_by(CheckpointTrigger(str(tmp_path / "here"), here, -1, 0.5)))
        done, _ = await asyncio.wait({near}, timeout=WITHIN)
        assert done, "it waits for the silent region"
        assert not any(task.done() for task in away), "the region was to be silent"
        for task in away:
            task.cancel()
        await asyncio.wait(away)
        silent.close()
        return near.result()

    assert asyncio.run(scenario())["step"] == 7
