"""Gangs whose nodes are all in one job run, with real nodes on the emulator."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Cancel, Fail, Succeed
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRecord, RunRef, TrainingResult
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import BACKEND, PROGRAMS, a_job, a_key, wait_until

Ends = Callable[[RunRef], RunRef]


class Lines(logging.Handler):
    """What a task log would show."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def multi_node(nodes: int = 2, seconds: float = 0.5, *arguments: str, **limits: float) -> TrainingJob:
    program = {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", str(seconds), *arguments]}
    return a_job(
        nodes=nodes,
        program=program,
        limits={"stop_grace": 1, **limits},
        backend={**BACKEND, "topology": "multi_node"},
    )


def submit(backend: OciDataScience, job: TrainingJob, key: RunKey) -> RunRecord:
    gang = GangSubmitter(backend, job, logging.getLogger("test"), None, threading.Event())
    return gang.adopt_or_submit(key, None)


def to_the_end(backend: OciDataScience, record: RunRecord, logger: logging.Logger) -> tuple[Watch, Any]:
    """Do what a task does until its gang has ended; return what it saw and its last action."""
    watch = Watch(backend, record, logger)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        action = watch.look(time.time())
        if isinstance(action, Cancel):
            backend.cancel(record.ref)
            watch.record = dataclasses.replace(watch.record, ending=action.ending)
        if isinstance(action, Succeed | Fail):
            return watch, action
        time.sleep(0.2)
    raise AssertionError(f"no end: {watch.status}")


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("multi_node")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


LOGGER = logging.getLogger("multi_node")


def test_three_nodes_train_in_one_run_and_each_line_is_logged_once_as_its_nodes(
    backend: OciDataScience, ends: Ends, lines: Lines
) -> None:
    key, job = a_key(), multi_node(3, 1.0)
    record = submit(backend, job, key)
    ref = ends(record.ref)
    assert len(backend._client.list_job_runs(ref.compartment_id, job_id=ref.job_id).data) == 1
    assert submit(backend, job, key).ref == ref
    watch, action = to_the_end(backend, record, LOGGER)
    assert action == Succeed()
    assert watch.status is not None
    result = TrainingResult.of(watch.record, watch.status)
    assert result.checkpoint is not None
    assert result.checkpoint.step == 2
    assert [(node["rank"], node["state"], node["exit_code"]) for node in result.nodes] == [
        (rank, "SUCCEEDED", 0) for rank in range(3)
    ]
    to_the_end(backend, watch.record, LOGGER)  # a later watch repeats no line
    for rank in range(3):
        told = [text for text in lines.texts if text.startswith(f"[node {rank}] step ")]
        assert [text.split()[3] for text in told] == ["1/2", "2/2"], lines.texts


def test_the_failure_of_one_node_is_the_cause_and_ends_all(backend: OciDataScience, ends: Ends) -> None:
    record = submit(backend, multi_node(3, 60, "--fail-rank", "1"), a_key())
    ends(record.ref)
    watch, action = to_the_end(backend, record, LOGGER)
    assert action == Fail(Cause.USER, "node 1: ValueError: boom (exit code 1)")
    assert watch.status is not None
    reports = [node.report for node in watch.status.nodes]
    assert [report is not None and report.cause for report in reports] == [None, Cause.USER, None]


def test_cancel_ends_the_one_run_by_one_request_and_may_be_repeated(
    backend: OciDataScience, emulator: Access
) -> None:
    ref = submit(backend, multi_node(2, 120), a_key()).ref
    wait_until(backend, ref, lambda status: all(node.state is NodeState.RUNNING for node in status.nodes))
    backend.cancel(ref)
    status = wait_until(backend, ref, lambda status: status.ended, seconds=15)
    assert {node.state for node in status.nodes} == {NodeState.CANCELED}
    calls = http.get(f"{emulator.url}/_emulator/calls").json()
    cancels = [call for call in calls if call["path"].endswith(f"{ref.main_run_id}/actions/cancelJobRun")]
    assert len(cancels) == 1
    backend.cancel(ref)


def test_a_node_that_was_lost_is_named(backend: OciDataScience, ends: Ends) -> None:
    record = submit(backend, multi_node(2, 60), a_key())
    ref = ends(record.ref)
    wait_until(backend, ref, lambda status: all(node.state is NodeState.RUNNING for node in status.nodes))
    kill_node(ref.main_run_id, 1)
    _, action = to_the_end(backend, record, LOGGER)
    assert isinstance(action, Fail)
    assert action.cause is Cause.NODE
    assert action.message.startswith("node 1 was lost in phase ")


def kill_node(run_id: str, rank: int) -> None:
    """End all processes of a node without a warning, as a machine does that breaks."""
    marks = {f"JOB_RUN_OCID={run_id}".encode(), f"NODE_RANK={rank}".encode()}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marks <= set((folder / "environ").read_bytes().split(b"\0")):
                os.kill(int(folder.name), signal.SIGKILL)


def test_a_gang_whose_submitter_died_before_the_run_is_completed(
    backend: OciDataScience, fields: dict[str, Any], ends: Ends
) -> None:
    key, job = a_key(), multi_node(2, 0.2)
    plan = backend.plan(job, key)
    cut = backend.submit(dataclasses.replace(plan, requests=plan.requests[:2]))
    assert (cut.run_ids, cut.complete) == (("", ""), False)
    other = OciDataScience.connect(fields)
    ref = ends(submit(other, job, key).ref)
    assert ref.job_id == cut.job_id
    assert ref.complete
    assert len(set(ref.run_ids)) == 1
    assert other.gangs.find(plan) == [ref]
    wait_until(other, ref, lambda status: status.ended)
    assert submit(backend, job, key).ref == ref


def test_half_a_gang_of_another_topology_is_given_up(backend: OciDataScience, ends: Ends) -> None:
    key = a_key()
    plan = backend.plan(a_job(seconds=60), key)
    half = ends(backend.submit(dataclasses.replace(plan, requests=plan.requests[:3])))
    record = submit(backend, multi_node(2, 0.2), key)
    ref = ends(record.ref)
    assert (ref.key.attempt, ref.topology) == (2, "multi_node")
    (status,) = backend.status([half])
    assert status.ended
