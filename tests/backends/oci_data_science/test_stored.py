"""Successes and failures that the reports alone do not show, on the emulator with real nodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Action, Fail, Succeed
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.model.report import Phase
from airflow_provider_ocidist.model.run import NodeState, RunRecord, RunRef, TrainingResult
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import a_job, a_key, wait_until

Ends = Callable[[RunRef], RunRef]
PRINTS_AN_ERROR = "print('error: no GPU found, nothing to do')\n"


def test_a_last_report_that_was_throttled_away_costs_no_success(
    backend: OciDataScience, emulator: Access, ends: Ends
) -> None:
    job = a_job(nodes=1, seconds=3)
    plan = backend.plan(job, a_key())
    ref = ends(backend.submit(plan))
    wait_until(backend, ref, lambda status: any(node.report for node in status.nodes))
    place = f".*{plan.key.name}.*nodes.*0\\.json"
    rule = {"path": place, "method": "PUT", "status": 429, "times": 10_000}
    http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()
    try:
        status = wait_until(backend, ref, lambda status: status.ended)
    finally:
        http.delete(f"{emulator.url}/_emulator/faults")
    (node,) = status.nodes
    assert node.report
    assert (node.state, node.report.phase is Phase.DONE) == (NodeState.SUCCEEDED, False)
    assert status.checkpoint
    assert status.checkpoint.step == 6, "found in the store: no report has it"
    assert decide(RunRecord.of(ref, job, plan.expects), status, time.time()) == Succeed()


def verdict(
    backend: OciDataScience, ends: Ends, tmp_path: Any, **changes: Any
) -> tuple[Action, RunRecord, Any]:
    (tmp_path / "train.py").write_text(PRINTS_AN_ERROR)
    program = {"source": str(tmp_path), "script": "train.py"}
    job = a_job(nodes=1, program=program, checkpoints=None, **changes)
    plan = backend.plan(job, a_key())
    ref = ends(backend.submit(plan))
    status = wait_until(backend, ref, lambda status: status.ended)
    record = RunRecord.of(ref, job, plan.expects)
    assert backend.open(ref.job_id).expects == plan.expects, "a process that finds it again judges alike"
    return decide(record, status, time.time()), record, status


def test_a_program_that_prints_an_error_and_exits_0_is_warned_of(
    backend: OciDataScience, ends: Ends, tmp_path: Any
) -> None:
    action, record, status = verdict(backend, ends, tmp_path)
    assert isinstance(action, Succeed)
    assert action.warning
    assert "trained nothing" in action.warning
    assert TrainingResult.of(record, status, action.warning).to_json()["warning"] == action.warning


@pytest.mark.parametrize("said", ["true", True])
def test_it_is_a_failure_where_the_connection_requires_a_training(
    fields: dict[str, Any], ends: Ends, tmp_path: Any, said: object
) -> None:
    backend = OciDataScience.connect({**fields, "require_training": said})
    action, _, _ = verdict(backend, ends, tmp_path)
    assert isinstance(action, Fail)
    assert action.cause is Cause.USER
    logging.getLogger("test").info(action.message)


def test_the_job_wins_over_the_connection(fields: dict[str, Any]) -> None:
    backend = OciDataScience.connect({**fields, "require_training": "true"})
    key = a_key()
    assert backend.plan(a_job(), key).expects.training
    assert not backend.plan(a_job(require_training=False), key).expects.training
    lenient = OciDataScience.connect({**fields, "require_training": "false"})
    assert not lenient.plan(a_job(), key).expects.training
    assert lenient.plan(a_job(require_training=True), key).expects.training
