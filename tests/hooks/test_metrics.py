"""Airflow's metrics of a training: what it has used and costs, from whichever process waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, Stats

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.gangs import watch
from airflow_provider_ocidist.model.run import NodeState, RunRecord, RunRef
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.triggers import DistributedTrainingTrigger
from tests.killed_tasks import WAITING
from tests.training_jobs import a_job, a_key, wait_until

TAGS = {name: WAITING[name] for name in ("dag_id", "task_id")}
Gauges = list[tuple[str, float, Any]]


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> Gauges:
    """Record the gauges that are set: without a metrics backend Airflow sends them nowhere."""
    noted: Gauges = []

    def gauge(stat: str, value: float, *_: Any, tags: Any = None, **__: Any) -> None:
        noted.append((stat, value, tags))

    monkeypatch.setattr(Stats, "gauge", gauge)
    return noted


@pytest.fixture
def record(backend: OciDataScience, ends: Callable[[RunRef], RunRef]) -> RunRecord:
    """Return the record of a gang whose node runs, for 7200 an hour: two a second."""
    job = a_job(nodes=1, seconds=60)
    plan = backend.plan(job, a_key())
    ref = ends(backend.submit(plan))
    wait_until(backend, ref, lambda status: status.nodes[0].state is NodeState.RUNNING)
    return RunRecord.of(replace(ref, price=7200.0), job, plan.expects)


def require_both(gauges: Gauges) -> None:
    """Raise AssertionError unless the gauges are those of one look: hours, and what they cost."""
    (hours, cost) = gauges[-2:]
    assert (hours[0], cost[0]) == ("ocidist.node_hours", "ocidist.cost")
    assert hours[2] == cost[2] == TAGS
    assert cost[1] > 0
    assert cost[1] == pytest.approx(hours[1] * 7200, abs=1.0), "hours are rounded"


def test_a_task_that_waits_on_a_worker_sets_them(
    backend: OciDataScience, conn_id: str, record: RunRecord, gauges: Gauges
) -> None:
    backend.cancel(record.ref)
    wait_until(backend, record.ref, lambda status: status.ended)
    task = DistributedTrainingOperator(task_id="train", job="unused.yaml", conn_id=conn_id, deferrable=False)
    ti = SimpleNamespace(**WAITING, xcom_push=lambda **_: None, try_number=1)
    context: Any = {"ti": ti}
    with pytest.raises(AirflowFailException):
        task.resume(context, record.to_json())
    require_both(gauges)


def test_a_trigger_sets_them_while_the_training_goes_on(
    conn_id: str, record: RunRecord, gauges: Gauges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SPENDING_EVERY", 0.0)
    owner = {name: WAITING[name] for name in ("dag_id", "run_id", "task_id", "map_index")}
    trigger = DistributedTrainingTrigger(conn_id, record.to_json(), {**owner, "try_number": 1}, 0.1)

    async def watched() -> None:
        events = trigger.run()
        waiting = asyncio.ensure_future(anext(events))
        while not gauges:
            await asyncio.sleep(0.02)
            assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(asyncio.wait_for(watched(), 60))
    require_both(gauges)
