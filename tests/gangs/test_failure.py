"""What a failed task hands on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_provider_ocidist.agent.diagnose.symptoms import symptom_of
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Fail
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.diagnoses import diagnose
from airflow_provider_ocidist.gangs.failure import Failure, remedy_of
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunKey, RunRecord, RunRef, RunStatus

RECORD = RunRecord(
    ref=RunRef(
        backend="oci_data_science",
        key=RunKey(dag_id="d", run_id="r", task_id="t"),
        nodes=2,
        job_id="job",
        run_ids=("run-0", "run-1"),
        run_dir="oci://b@n/w",
        submitted_at=0.0,
    )
)


def remedy_of_words(message: str) -> str:
    symptom = symptom_of(message)
    assert symptom is not None
    return symptom.remedy


def ended(*reports: NodeReport) -> RunStatus:
    return RunStatus(
        nodes=tuple(
            NodeStatus(rank=report.rank, run_id=f"run-{report.rank}", state=NodeState.FAILED, report=report)
            for report in reports
        )
    )


def report(rank: int, **more: object) -> NodeReport:
    return NodeReport(rank=rank, phase=Phase.DONE, address="", started_at=0.0, heartbeat_at=9.0, **more)


def test_a_failure_names_the_node_and_what_it_said():
    lines = "\n".join(f"line {number}" for number in range(50))
    checkpoint = CheckpointRef(uri="oci://b@n/c/step-8", step=8)
    status = ended(
        report(0, checkpoint=checkpoint),
        report(1, cause=Cause.USER, message="ValueError: boom", exit_code=1, tail=lines),
    )
    action = decide(RECORD, status, 10.0)
    assert isinstance(action, Fail)
    failure = Failure.of(action.cause, action.message, RECORD, status).to_json()
    assert (failure["cause"], failure["rank"], failure["node"], failure["exit_code"]) == (
        "USER",
        1,
        "run-1",
        1,
    )
    assert failure["last_lines"] == [f"line {number}" for number in range(30, 50)]
    assert failure["checkpoint_uri"] == "oci://b@n/c/step-8"
    assert json.loads(json.dumps(failure)) == failure


def test_a_failure_of_all_names_no_node():
    failure = Failure.of(Cause.DEADLINE, "not finished within 60 s", RECORD, ended(report(0), report(1)))
    assert failure.rank is None
    assert "limits.max_runtime" in failure.remedy


def test_the_sentence_ends_in_what_to_do():
    failure = Failure(
        cause=Cause.CAPACITY, message="no machine was free.", remedy=remedy_of(Cause.CAPACITY, "")
    )
    assert failure.sentence.startswith("no machine was free. Remedy: wait for a later attempt")


@pytest.mark.parametrize("message", ["no machine was free", "no BM.GPU.X", "it said XX", "of 2.5 GiB"])
def test_the_sentence_has_the_whole_message_and_one_full_stop_after_it(message: str) -> None:
    for written in (message, f"{message}.", f"{message}..."):
        failure = Failure(cause=Cause.USER, message=written, remedy="change it")
        assert failure.sentence == f"{message}. Remedy: change it"


def test_what_a_task_hands_on_are_plain_values():
    """XCom stores them, and another process reads them without this package."""
    failure = Failure(cause=Cause.OOM, message="m", remedy="r", last_lines=("a", "b")).to_json()
    assert (type(failure["cause"]), failure["cause"]) == (str, "OOM")
    assert failure["last_lines"] == ["a", "b"]


def test_an_error_whose_words_are_known_has_a_remedy_of_its_own():
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert (
        remedy_of(Cause.OOM, oom) == remedy_of_words(oom) != remedy_of(Cause.OOM, "the kernel has killed it")
    )


def test_every_cause_has_a_remedy():
    assert all(remedy_of(cause, "") for cause in Cause)


def failure_of(node: NodeStatus) -> Failure:
    """Return the failure of a gang whose node 1 has failed like this, while node 0 runs."""
    cause, message = diagnose(node, RECORD)
    status = RunStatus(nodes=(NodeStatus(rank=0, run_id="run-0", state=NodeState.RUNNING), node))
    return Failure.of(cause, message, RECORD, status)


def test_lines_and_words_of_a_failure_hold_no_secret_and_what_is_not_known_is_left_out():
    secret = "password=hunter2hunter2"
    said = report(1, cause=Cause.USER, message=f"it failed: {secret}", exit_code=1, tail=f"a\n{secret}")
    failure = failure_of(NodeStatus(rank=1, run_id="run-1", state=NodeState.FAILED, report=said))
    assert (failure.rank, failure.last_lines[0], len(failure.last_lines), failure.checkpoint_uri) == (
        1,
        "a",
        2,
        None,
    )
    assert "it failed" in failure.message
    assert "hunter2" not in json.dumps(failure.to_json()) + failure.sentence


def test_the_lines_of_a_node_without_a_report_are_those_that_the_service_has():
    node = NodeStatus(rank=1, run_id="run-1", state=NodeState.FAILED, tail="first\nlast", exited=3)
    failure = failure_of(node)
    assert (failure.rank, failure.node, failure.exit_code) == (1, "run-1", 3)
    assert failure.last_lines == ("first", "last")
    assert failure_of(replace(node, tail=None)).last_lines == ()
    # What its agent has reported comes first.
    assert failure_of(
        replace(node, report=report(1, cause=Cause.USER, exit_code=1, tail="own"))
    ).last_lines == ("own",)


def test_a_known_error_of_another_cause_has_the_remedy_of_the_cause():
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert remedy_of(Cause.PREEMPTED, oom) == remedy_of(Cause.PREEMPTED, "") != remedy_of(Cause.OOM, oom)
