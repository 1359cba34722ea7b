"""Questions to Airflow whether the tasks of this process's triggers still wait: a cancel of Airflow's may be lost."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from airflow_provider_ocidist.hooks.ended_states import ENDED_STATES
from airflow_provider_ocidist.triggers.threads import ask_airflow, keep

log = logging.getLogger(__name__)

ASK_EVERY = 60.0
"""Seconds between two questions about a task. Airflow itself cancels the trigger of an ended task within seconds."""
ONE_PART_IN = 20
"""Asking takes at most one part in so many of the time, however many tasks wait: the triggerer answers by itself."""
ANSWERS = 2
"""Number of answers in a row by which a task has ended."""
AT_ONCE = 100
"""Most runs of a task in one question: its URL names each, and the client has a limit of 64 KiB."""


@dataclass(eq=False, slots=True)
class WaitingTask:
    """A task for which a trigger waits, until the block ends."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    ended: Callable[[str | None], object]
    """Function to call with the state, None for a task that is gone, once the task has ended."""
    answers: int = 0
    """Number of answers in a row by which it has ended."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """Context of its trigger, by which Airflow knows whose log a line belongs to."""

    @property
    def name(self) -> str:
        """The key of the task in Airflow's answer."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}_{self.map_index}"

    def take(self, state: str | None) -> None:
        # None: the task has no state, or is gone. Else it goes on with its gang, or its next try adopts or ends it.
        self.answers = self.answers + 1 if state is None or state in ENDED_STATES else 0
        if self.answers == ANSWERS:
            self.context.run(self.ended, state)

    # Not a generator: one for each of a thousand triggers takes 0.5 KB.
    def __enter__(self) -> None:
        _waiting[id(self)] = self
        if all(asking.done() for asking in _asking):  # also those of an earlier event loop
            _asking.clear()
            _asking.add(keep(_ask_while_any_waits()))

    def __exit__(self, *_: object) -> None:
        del _waiting[id(self)]


_waiting: dict[int, WaitingTask] = {}
_asking: set[asyncio.Task[None]] = set()


def asked_for(
    owner: Mapping[str, Any], ended: Callable[[str | None], object]
) -> contextlib.AbstractContextManager[object]:
    """Call `ended` if the task that owns a trigger ends before the block does; ask for nothing without an owner."""
    if not owner:
        return contextlib.nullcontext()
    return WaitingTask(owner["dag_id"], owner["run_id"], owner["task_id"], owner.get("map_index", -1), ended)


async def _ask_while_any_waits() -> None:
    pause = ASK_EVERY
    while _waiting:
        await asyncio.sleep(pause)
        began = time.monotonic()
        for tasks in _questions():
            await _ask_for(tasks)
        pause = max(ASK_EVERY, ONE_PART_IN * (time.monotonic() - began))


def _questions() -> list[list[WaitingTask]]:
    """Return the waiting tasks, those of one question together: runs of one task of a DAG."""
    found: dict[tuple[str, str], list[WaitingTask]] = {}
    for task in _waiting.values():
        found.setdefault((task.dag_id, task.task_id), []).append(task)
    return [
        tasks[start : start + AT_ONCE] for tasks in found.values() for start in range(0, len(tasks), AT_ONCE)
    ]


async def _ask_for(tasks: Sequence[WaitingTask]) -> None:
    runs = sorted({task.run_id for task in tasks})
    try:
        states = await ask_airflow(partial(_states, tasks[0].dag_id, tasks[0].task_id, runs))
    except Exception as error:  # noqa: BLE001 - Airflow's or the network's: no answer ends nothing
        log.debug("Airflow does not say whether %s of %s waits: %s", tasks[0].task_id, tasks[0].dag_id, error)
        return
    for task in tasks:
        if id(task) in _waiting:
            task.take(states.get(task.run_id, {}).get(task.name))


def _states(dag_id: str, task_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
    """Return the states of a task, by run and name. Blocks."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=[task_id], run_ids=run_ids)
