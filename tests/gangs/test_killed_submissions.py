"""A try that is killed at any request of its submission leaves nothing that the next try does not complete or end."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.calls import pages
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.run import RunKey
from scripts.emulator_process import Access
from tests.http_client import http
from tests.killed_submitters import killed_submitter
from tests.training_jobs import a_job, a_key

pytestmark = pytest.mark.usefixtures("no_node_starts")

ROOT = Path(__file__).parents[2]
SEED = random.randrange(10_000)
REQUESTS = 14
"""More than a submission of two nodes takes, without those that are asked again."""
LIVE = {"ACCEPTED", "IN_PROGRESS", "NEEDS_ATTENTION"}


@pytest.fixture(scope="module")
def submitter() -> Iterator[Callable[[dict[str, Any]], int]]:
    """Submits in a process that is killed; returns how that ended."""
    with killed_submitter() as send:
        yield send


def live_runs(backend: OciDataScience, key: RunKey, compartment_id: str) -> set[str]:
    return {
        run.id
        for run in pages(backend._client.list_job_runs, compartment_id)
        if (run.freeform_tags or {}).get("ocidist-task") == key.task_digest and run.lifecycle_state in LIVE
    }


@pytest.mark.parametrize("request_number", range(REQUESTS))
def test_whatever_a_killed_try_has_created_the_next_one_completes_or_ends(
    backend: OciDataScience,
    emulator: Access,
    fields: dict[str, Any],
    faults: Callable[..., None],
    submitter: Callable[[dict[str, Any]], int],
    monkeypatch: pytest.MonkeyPatch,
    request_number: int,
) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.backends.oci_data_science.gangs.STALE", 0.2)
    seed = SEED + request_number
    print("seed", seed)
    dice = random.Random(seed)
    key, nodes = a_key(), dice.randint(2, 4)
    throttled = dice.random() < 0.6
    if throttled:
        # As at the worst moment: one run is there, and the others are asked for again.
        times = nodes - 1
        faults(method="POST", path="/20190101/jobRuns", status=429, code="TooManyRequests", times=times)
    case = {
        "fields": fields,
        "key": asdict(key),
        "request": request_number,
        "after": dice.random() < 0.5,
        "nodes": nodes,
    }
    assert submitter(case) in (-9, 0)
    if dice.random() < 0.5:
        http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    is_cleared = dice.random() < 0.5
    asked = replace(key, generation=2) if is_cleared else key
    gang = GangSubmitter(
        backend, a_job(nodes=nodes, seconds=60), logging.getLogger("test"), None, threading.Event()
    )
    ref = gang.adopt_or_submit(asked, None, 2).ref
    assert ref.complete
    assert ref.key.generation == asked.generation
    assert live_runs(backend, key, emulator.compartment_id) == set(ref.run_ids), (
        "one gang lives, and it is whole"
    )
    backend.cancel(ref)
