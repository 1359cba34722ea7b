"""A gang that is watched, against the emulator."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import httpx

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.run import Ending, Expectations, RunRecord, RunRef
from airflow_provider_ocidist.watch import Watch
from scripts.emulator_process import Access
from tests.training_jobs import a_job, a_key, wait_until


def test_a_gang_that_cannot_be_ended_now_is_ended_later(
    fields: dict[str, Any], emulator: Access, ends: Callable[[RunRef], RunRef]
) -> None:
    backend = OciDataScience.connect({**fields, "max_attempts": 1})
    job = a_job(seconds=60)
    ref = ends(backend.submit(backend.plan(job, a_key())))
    watch = Watch(backend, RunRecord.of(ref, job, Expectations()), logging.getLogger("test"))
    ending = Ending(cause=Cause.DEADLINE, message="too late", since=time.time())
    rule = {"path": f".*/{ref.main_run_id}/actions/cancelJobRun", "status": 503}
    httpx.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()
    try:
        assert not watch.end(ending)
    finally:
        httpx.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    assert watch.record.ending is None
    assert watch.end(ending)
    assert watch.record.ending == ending
    wait_until(backend, ref, lambda status: status.ended)
