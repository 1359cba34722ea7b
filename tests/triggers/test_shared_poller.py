"""What the triggers of one connection share: one poller, few calls, and each line in the log of its own task."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.gangs.poller import Poller
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.run import NodeState, RunRecord
from airflow_provider_ocidist.triggers import DistributedTrainingTrigger, training
from airflow_provider_ocidist.triggers.connections import LogOf
from scripts.emulator_process import Access
from scripts.idle_gangs import IdleGangs, idle_gangs
from tests.gangs.test_poller import until
from tests.http_client import http

GANGS = 30
NODES = 2


def test_lines_reach_the_log_of_their_task_from_any_thread() -> None:
    task = contextvars.ContextVar("task")
    written: list[tuple[str, str]] = []

    class Logger:
        def info(self, msg: Any, /, *args: Any) -> None:
            written.append((task.get(), msg % args))

        warning = info

    loggers = []
    for name in ("a", "b"):
        context = contextvars.copy_context()
        context.run(task.set, name)
        loggers.append(context.run(LogOf, Logger()))
    thread = threading.Thread(target=lambda: [each.info("[node %d] %s", 1, "x") for each in loggers])
    thread.start()
    thread.join()
    assert written == [("a", "[node 1] x"), ("b", "[node 1] x")]


@pytest.fixture(scope="module")
def idle(emulator: Access) -> Iterator[IdleGangs]:
    with idle_gangs(emulator, GANGS, NODES) as gangs:
        gangs.report(gangs.records)
        yield gangs


def _connection(idle: IdleGangs, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a connection for one test: what triggers share lives as long as their process."""
    conn_id = f"oci_{uuid.uuid4().hex[:8]}"
    fields = idle.emulator.connection_fields(work_dir=idle.emulator.work_dir)
    extra = json.dumps({"conn_type": "oci", "extra": fields})
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", extra)
    return conn_id


def test_thirty_gangs_are_looked_at_in_three_calls_and_one_client(
    idle: IdleGangs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn_id = _connection(idle, monkeypatch)
    monkeypatch.setattr(training, "FIRST_EVENT_AFTER", 0.0)
    caplog.set_level(logging.INFO)
    victim = idle.records[-1]

    async def wait_for(number: int, record: RunRecord) -> dict[str, Any]:
        trigger = DistributedTrainingTrigger(conn_id, record.to_json(), {}, 1.0)
        trigger._log = logging.getLogger(f"task.{number}")
        async for event in trigger.run():
            return dict(event.payload)
        raise AssertionError("a trigger ended without an event")

    async def scenario() -> tuple[list[dict[str, Any]], list[Any]]:
        tasks = [asyncio.create_task(wait_for(*each)) for each in enumerate(idle.records)]
        names = {f"task.{number}" for number in range(GANGS)}
        await asyncio.to_thread(until, lambda: names <= {record.name for record in caplog.records}, 60)
        await asyncio.to_thread(idle.say, idle.records[7], 1, ["one", "two"])
        await asyncio.to_thread(idle.forget_calls)
        await asyncio.to_thread(until, lambda: len(idle.calls("/20190101/jobRuns.*")) > 4, 60)
        calls = await asyncio.to_thread(idle.calls)
        await asyncio.to_thread(idle.backend.cancel, victim.ref)
        done, waiting = await asyncio.wait(tasks, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return calls, [task.result() for task in done]

    calls, events = asyncio.run(scenario())
    kinds = Counter(_kind(call) for call in calls)
    assert set(kinds) == {"runs", "reports", "log"}
    # One of each kind for a look at all; the first of these calls may be the end of a look, the last the begin of one.
    assert max(kinds.values()) - min(kinds.values()) <= 1
    assert [event["ref"]["run_ids"] for event in events] == [list(victim.ref.run_ids)]
    told = [(record.name, record.getMessage()) for record in caplog.records if "[node" in record.getMessage()]
    assert told == [("task.7", "[node 1] one"), ("task.7", "[node 1] two")]


@pytest.mark.since_airflow("3.3", "the runner of triggers is another before")
def test_airflow_knows_from_the_pollers_thread_whose_line_it_is(
    idle: IdleGangs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow's own runner binds a trigger's id to its context; its supervisor sorts the lines by that."""
    from airflow.executors.workloads.trigger import RunTrigger
    from airflow.jobs.triggerer_job_runner import TriggerRunner
    from airflow.models.trigger import Trigger

    conn_id = _connection(idle, monkeypatch)
    printed = ""

    def both_are_there() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return all(f"[node 0] of {number}" in printed for number in (3, 4))

    async def scenario() -> None:
        runner = TriggerRunner()
        for number in (3, 4):
            record = idle.records[number].to_json()
            arguments = {"conn_id": conn_id, "record": record, "owner": {}, "poll_interval": 0.5}
            runner.to_create.append(
                RunTrigger(
                    id=number,
                    classpath="airflow_provider_ocidist.triggers.DistributedTrainingTrigger",
                    encrypted_kwargs=Trigger.encrypt_kwargs(arguments),
                    ti=None,
                )
            )
        await runner.create_triggers()
        for number in (3, 4):
            await asyncio.to_thread(idle.say, idle.records[number], 0, [f"of {number}"])
        await asyncio.to_thread(until, both_are_there, 60)
        tasks = [each["task"] for each in runner.triggers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())
    for number in (3, 4):
        (line,) = [line for line in printed.splitlines() if f"[node 0] of {number}" in line]
        assert f"trigger_id={number} " in line


def _kind(call: dict[str, Any]) -> str:
    path = call["path"].split("?")[0]
    if path == "/20190101/jobRuns":
        return "runs"
    return (
        "log"
        if path.endswith("/search")
        else "reports"
        if path.endswith("/o")
        else f"{call['method']} {path}"
    )


def test_runs_that_have_ended_are_asked_for_once(idle: IdleGangs) -> None:
    refs = [record.ref for record in idle.records[:5]]
    idle.backend.status(refs)
    idle.backend.cancel(refs[0])
    until(lambda: idle.backend.status(refs)[0].ended)
    idle.forget_calls()
    for _ in range(3):
        assert idle.backend.status(refs)[0].ended
    assert {_kind(call) for call in idle.calls()} == {"runs", "reports"}
    gone = [replace(refs[1], run_ids=("ocid1.datasciencejobrun.oc1.iad.absent", refs[1].run_ids[1])), refs[2]]
    states = [node.state for node in idle.backend.status(gone)[0].nodes]
    assert states == [NodeState.UNKNOWN, NodeState.RUNNING]


def test_under_429_no_gang_fails_and_all_are_looked_at_again(idle: IdleGangs) -> None:
    logger = logging.getLogger("test")
    poller = Poller(_Source(idle.backend))
    told: list[Any] = []
    fault = {"path": "/20190101/jobRuns", "method": "GET", "status": 429, "retry_after_s": 1, "times": 4}
    http.post(f"{idle.emulator.url}/_emulator/faults", json=fault).raise_for_status()
    watches = [Watch(idle.backend, record, logger) for record in idle.records[5:25]]
    began = time.monotonic()
    followed = [poller.follow(watch, 0.5, told.append) for watch in watches]
    try:
        until(lambda: all(watch.status is not None for watch in watches), seconds=40)
    finally:
        http.delete(f"{idle.emulator.url}/_emulator/faults").raise_for_status()
        for each in followed:
            poller.leave(each)
    assert told == []
    # Each of the first four requests was answered: again in a second.
    assert time.monotonic() - began >= 3.0


class _Source:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def refresh(self, *, anew: bool) -> None:
        raise BackendError(f"nobody refuses, so nobody asks for new credentials ({anew})", cause=Cause.CONFIG)
