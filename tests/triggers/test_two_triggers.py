"""Two triggerers that run one trigger at once, as when one was thought dead: one effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.model.run import NodeState, RunRecord, RunRef
from airflow_provider_ocidist.triggers import DistributedTrainingTrigger
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import a_job, a_key

OWNER = {"dag_id": "dag", "run_id": "run", "task_id": "train", "map_index": -1, "try_number": 1}


async def event_of(trigger: DistributedTrainingTrigger) -> Any:
    async for event in trigger.run():
        return event.payload
    return None


async def events_of(*triggers: DistributedTrainingTrigger) -> list[Any]:
    return await asyncio.wait_for(asyncio.gather(*map(event_of, triggers)), 180)


@pytest.mark.parametrize("exit_code", [0, 3])
def test_both_report_the_same_end_and_neither_touches_the_gang(
    exit_code: int, backend: OciDataScience, conn_id: str, emulator: Access, ends: Callable[[RunRef], RunRef]
) -> None:
    job = a_job(
        nodes=2,
        seconds=1,
        **({"launcher": {"kind": "command"}, "program": {"script": "false"}} if exit_code else {}),
    )
    plan = backend.plan(job, a_key())
    ref = ends(backend.submit(plan))
    record = RunRecord.of(ref, job, plan.expects).to_json()
    first, second = (DistributedTrainingTrigger(conn_id, record, OWNER, 0.2) for _ in range(2))
    told = [RunRecord.from_json(each) for each in asyncio.run(events_of(first, second))]
    assert [each.ref for each in told] == [ref, ref]
    (status,) = backend.status([ref])
    if not exit_code:
        assert {node.state for node in status.nodes} == {NodeState.SUCCEEDED}
    cancels = http.get(f"{emulator.url}/_emulator/calls", params={"path": ".*cancelJobRun"}).json()
    # A failed node's gang is ended by its task, which is resumed once.
    assert not [call for call in cancels if any(run_id in call["path"] for run_id in ref.run_ids)]
