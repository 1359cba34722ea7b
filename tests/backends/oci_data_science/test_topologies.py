"""How a gang is laid out over job runs, and how the answers are read. No service."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from oci.data_science.models import JobRunSummary

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.answers import log_line
from airflow_provider_ocidist.backends.oci_data_science.multi_node import MULTI_NODE
from airflow_provider_ocidist.backends.oci_data_science.refs import runs_of, with_runs
from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.errors import Cause, JobFileError
from airflow_provider_ocidist.gangs.actions import Cancel, Fail, Succeed, Wait
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.durations import observe
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import Expectations, NodeState, Plan, RunRecord, RunRef, RunStatus
from tests.training_jobs import BACKEND, a_job, a_key

CONNECTION = {
    "compartment_id": "ocid1.compartment.oc1..a",
    "project_id": "ocid1.p",
    "work_dir": "oci://b@n/w",
    "log_group_id": "ocid1.lg",
}
NOW = time.time()

# What Oracle ADS 2.16.1 sends for ContainerRuntime().with_replica(3), recorded; less its own environment and command.
ADS_JOB = {
    "projectId": "ocid1.p",
    "compartmentId": "ocid1.compartment.oc1..a",
    "jobLogConfigurationDetails": {
        "enableLogging": True,
        "enableAutoLogCreation": True,
        "logGroupId": "ocid1.lg",
    },
    "jobNodeConfigurationDetails": {
        "jobNodeType": "MULTI_NODE",
        "startupOrder": "IN_PARALLEL",
        "jobNetworkConfiguration": {"jobNetworkType": "CUSTOM_NETWORK", "subnetId": "ocid1.subnet.s"},
        "jobNodeGroupConfigurationDetailsList": [
            {
                "name": "node-group",
                "replicas": 3,
                "minimumSuccessReplicas": 3,
                "jobInfrastructureConfigurationDetails": {
                    "jobInfrastructureType": "MULTI_NODE",
                    "shapeName": "VM.Standard.E4.Flex",
                    "jobShapeConfigDetails": {"ocpus": 8.0, "memoryInGBs": 64.0},
                    "blockStorageSizeInGBs": 50,
                },
                "jobConfigurationDetails": {"jobType": "DEFAULT"},
                "jobEnvironmentConfigurationDetails": {
                    "jobEnvironmentType": "OCIR_CONTAINER",
                    "image": "iad.ocir.io/ns/img:1",
                },
            }
        ],
    },
}


def a_plan(nodes: int = 3, topology: str = "multi_node", job: Any = None, **connection: str) -> Plan:
    backend = OciDataScience.connect({**CONNECTION, **connection})
    changes = {"backend": {**BACKEND, "topology": topology}, **(job or {})}
    return backend.plan(a_job(nodes=nodes, **changes), a_key())


def group_of(plan: Plan) -> dict[str, Any]:
    (group,) = plan.requests[0].body["jobNodeConfigurationDetails"]["jobNodeGroupConfigurationDetailsList"]
    return dict(group)


# the plan


def test_a_multi_node_job_has_the_form_that_oracle_ads_sends() -> None:
    backend = {**BACKEND, "topology": "multi_node", "ocpus": 8, "memory_gb": 64}
    plan = a_plan(job={"backend": backend, "image": "iad.ocir.io/ns/img:1"}, subnet_id="ocid1.subnet.s")
    body = dict(plan.requests[0].body)
    ours = {name: body[name] for name in ADS_JOB}
    group = group_of(plan)
    assert set(group["jobConfigurationDetails"].pop("environmentVariables")) == {
        "OCIDIST_BOOT",
        "OCIDIST_CONFIG",
        "OCIDIST_KEY",
    }
    assert group["jobEnvironmentConfigurationDetails"].pop("entrypoint")
    assert ours == ADS_JOB
    assert set(body) - set(ADS_JOB) == {"displayName", "freeformTags"}


def test_one_run_holds_all_nodes_and_overrides_nothing() -> None:
    plan = a_plan(nodes=5)
    assert [request.verb for request in plan.requests] == ["CreateJob", "CreateJobArtifact", "CreateJobRun"]
    run = plan.requests[2].body
    assert run["displayName"] == plan.key.name
    assert not [name for name in run if "Override" in name]


def test_without_a_subnet_the_service_makes_the_network() -> None:
    details = a_plan().requests[0].body["jobNodeConfigurationDetails"]
    assert details["jobNetworkConfiguration"] == {"jobNetworkType": "DEFAULT_NETWORK"}


def test_the_limit_counts_for_the_run_as_a_whole() -> None:
    plan = a_plan(job={"limits": {"max_runtime": "1h"}})
    assert plan.requests[0].body["jobNodeConfigurationDetails"]["maximumRuntimeInMinutes"] == 61
    assert "maximumRuntimeInMinutes" not in group_of(plan)["jobConfigurationDetails"]


def test_nodes_of_one_run_mark_their_lines_in_the_log_they_share() -> None:
    def config(plan: Plan, environment: dict[str, str]) -> AgentConfig:
        return AgentConfig.from_env(environment)

    shared = a_plan()
    assert config(shared, group_of(shared)["jobConfigurationDetails"]["environmentVariables"]).one_run
    apart = a_plan(topology="job_runs", subnet_id="s")
    environment = apart.requests[0].body["jobConfigurationDetails"]["environmentVariables"]
    assert not config(apart, environment).one_run


@pytest.mark.parametrize(
    "nodes, wanted, subnet, chosen, because",
    [
        (1, "auto", None, "job_runs", "for one node"),
        (4, "auto", "s", "job_runs", "there is a subnet"),
        (4, "auto", None, "multi_node", "there is no subnet"),
        (4, "multi_node", "s", "multi_node", "the job asks for it"),
        (1, "multi_node", None, "multi_node", "the job asks for it"),
    ],
)
def test_a_plan_says_which_topology_it_is_and_why(
    nodes: int, wanted: str, subnet: str | None, chosen: str, because: str
) -> None:
    plan = a_plan(nodes, wanted, **({"subnet_id": subnet} if subnet else {}))
    assert plan.topology == chosen
    assert plan.reason.startswith(f"topology {chosen}, ")
    assert because in plan.reason


def test_several_runs_without_a_subnet_are_refused_with_the_way_out() -> None:
    with pytest.raises(JobFileError, match="topology multi_node needs none"):
        a_plan(topology="job_runs")


def test_a_plan_with_an_image_uploads_no_artifact() -> None:
    plan = a_plan(nodes=2, job={"image": "iad.ocir.io/ns/img:1"})
    assert [request.verb for request in plan.requests] == ["CreateJob", "CreateJobRun"]


# the reference


def a_ref(nodes: int = 3, topology: str = "multi_node", run_ids: tuple[str, ...] | None = None) -> RunRef:
    return RunRef(
        backend="oci_data_science",
        key=a_key(),
        nodes=nodes,
        topology=topology,
        job_id="job",
        run_ids=run_ids or ("run",) * nodes,
        run_dir="/run",
        submitted_at=NOW - 100,
    )


def test_nodes_of_one_run_share_its_id() -> None:
    ref = with_runs(a_ref(run_ids=("", "", "")), {0: "run"})
    assert ref.run_ids == ("run", "run", "run")
    assert ref.complete
    assert runs_of(ref) == {0: "run"}


def test_nodes_with_runs_of_their_own_have_ids_of_their_own() -> None:
    ref = with_runs(a_ref(topology="job_runs", run_ids=("", "", "")), {0: "a", 2: "c"})
    assert ref.run_ids == ("a", "", "c")
    assert runs_of(ref) == {0: "a", 2: "c"}


def test_a_reference_from_before_there_were_topologies_is_one_of_job_runs() -> None:
    value = a_ref(topology="job_runs").to_json()
    assert "topology" not in value
    assert RunRef.from_json(value).topology == "job_runs"


# states of nodes: from the run, and from what the nodes report


def a_run(state: str, details: str | None = None) -> Any:
    at = datetime.fromtimestamp(NOW - 90, UTC)
    over = datetime.fromtimestamp(NOW, UTC) if state in ("FAILED", "SUCCEEDED", "CANCELED") else None
    return JobRunSummary(
        lifecycle_state=state, lifecycle_details=details, time_started=at, time_finished=over
    )


def a_report(rank: int, phase: Phase = Phase.TRAINING, **changes: Any) -> NodeReport:
    return NodeReport(
        rank=rank, phase=phase, address="10.0.0.1", started_at=NOW - 80, heartbeat_at=NOW - 1, **changes
    )


def done(rank: int, exit_code: int = 0, ago: float = 1.0, **changes: Any) -> NodeReport:
    return a_report(rank, Phase.DONE, exit_code=exit_code, finished_at=NOW - ago, **changes)


def status(run: Any, *reports: NodeReport, nodes: int = 3) -> RunStatus:
    found = MULTI_NODE.nodes(a_ref(nodes), {"run": run}, {report.rank: report for report in reports})
    return RunStatus(nodes=tuple(found))


def states(found: RunStatus) -> list[str]:
    return [str(node.state) for node in found.nodes]


def verdict(found: RunStatus) -> Any:
    record = RunRecord(ref=a_ref(len(found.nodes)), expects=Expectations(), lost_timeout=60)
    return decide(record, found, NOW)


def test_before_the_run_has_begun_all_nodes_are_pending() -> None:
    assert states(status(a_run("ACCEPTED"))) == ["PENDING"] * 3


def test_a_node_of_which_nothing_was_heard_is_pending_though_the_run_is_in_progress() -> None:
    found = status(a_run("IN_PROGRESS"), a_report(0), a_report(2))
    assert states(found) == ["RUNNING", "PENDING", "RUNNING"]
    assert verdict(found) == Wait()


def test_without_the_reports_all_nodes_are_what_the_run_is() -> None:
    found = MULTI_NODE.nodes(a_ref(), {"run": a_run("IN_PROGRESS")}, None)
    assert [node.state for node in found] == [NodeState.RUNNING] * 3


def test_nodes_that_are_done_have_not_ended_before_the_service_says_so() -> None:
    found = status(a_run("IN_PROGRESS"), done(0), done(1), done(2))
    assert states(found) == ["ENDING"] * 3
    assert verdict(found) == Wait()
    assert verdict(status(a_run("SUCCEEDED"), done(0), done(1), done(2))) == Succeed()


def test_the_failure_of_one_node_ends_the_others_and_is_the_cause() -> None:
    failed = done(1, exit_code=1, cause=Cause.USER, message="ValueError: boom")
    found = status(a_run("IN_PROGRESS"), a_report(0), failed, a_report(2))
    assert states(found) == ["RUNNING", "FAILED", "RUNNING"]
    action = verdict(found)
    assert isinstance(action, Cancel)
    assert action.ending.message == "node 1: ValueError: boom (exit code 1)"


def test_when_every_node_is_done_the_run_is_left_to_end_by_itself() -> None:
    failed = done(1, exit_code=1, cause=Cause.USER, message="ValueError: boom")
    assert verdict(status(a_run("IN_PROGRESS"), done(0, 143), failed, done(2, 143))) == Wait()


def test_the_node_that_failed_by_itself_explains_the_failed_run() -> None:
    reports = (done(0, 143, message="node 1 ended the run"), done(1, 1, cause=Cause.USER, message="boom"))
    action = verdict(status(a_run("FAILED", "exit code 1"), *reports, nodes=2))
    assert action == Fail(Cause.USER, "node 1: boom (exit code 1)")


def test_a_node_that_fell_silent_explains_the_failed_run_before_those_that_were_asked_to_stop() -> None:
    silent = a_report(2)
    told = [done(rank, 143, ago=0.5, message="stopped by SIGTERM") for rank in (0, 1)]
    action = verdict(status(a_run("FAILED", "a node was lost"), *told, silent))
    assert action == Fail(Cause.NODE, "node 2 was lost in phase TRAINING: a node was lost")


def test_a_node_that_was_never_heard_of_explains_the_failed_run() -> None:
    told = [done(rank, 143, ago=0.5, message="stopped by SIGTERM") for rank in (0, 1)]
    action = verdict(status(a_run("FAILED", "Out of host capacity."), *told))
    assert action == Fail(Cause.CAPACITY, "node 2: Out of host capacity.")


def test_a_node_that_shows_no_sign_of_life_ends_the_gang() -> None:
    silent = NodeReport(
        rank=1, phase=Phase.TRAINING, address="", started_at=NOW - 200, heartbeat_at=NOW - 100
    )
    record = RunRecord(ref=a_ref(2), lost_timeout=60)
    for beat in (NOW - 62, NOW - 1):
        beating = replace(a_report(0), heartbeat_at=beat)
        found = status(a_run("IN_PROGRESS"), beating, silent, nodes=2)
        record = observe(record, found, 61.0)
    action = decide(record, found, NOW)
    assert isinstance(action, Cancel)
    assert action.ending.message.startswith("node 1 has sent no heartbeat for 61 s")


def test_a_run_that_is_gone_takes_all_nodes_with_it() -> None:
    assert states(status(None, done(0))) == ["MISSING"] * 3


# lines of the log


def entry(message: str) -> dict[str, Any]:
    content = {"id": "x", "time": "2026-01-01T00:00:00Z", "data": {"message": message}}
    return {"logContent": content}


@pytest.mark.parametrize(
    "message, rank, text",
    [
        ("[node 2] step 1/4", 2, "step 1/4"),
        ("[node 0] [node 2] twice", 0, "[node 2] twice"),
        ("python: No module named x", 0, "python: No module named x"),
    ],
)
def test_a_line_of_a_shared_log_is_logged_as_its_nodes(message: str, rank: int, text: str) -> None:
    line = log_line([0, 1, 2], entry(message))
    assert (line.rank, line.text) == (rank, text)


def test_a_line_of_a_log_of_ones_own_is_left_as_it_is() -> None:
    line = log_line([3], entry("[node 2] said the program"))
    assert (line.rank, line.text) == (3, "[node 2] said the program")
