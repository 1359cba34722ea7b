"""The control API: reset, recorded calls, faults, what happens to nodes."""

from __future__ import annotations

import time

import oci
import pytest
from oci.exceptions import ServiceError

from tests.emulator.conftest import HTTP


def test_reset_returns_to_a_fresh_start(cloud):
    run_id = cloud.start(cloud.job("import time; time.sleep(600)"))
    cloud.wait(run_id, "IN_PROGRESS")
    cloud.objects.put_object(*cloud.place, "o", b"x")
    cloud.control("POST", "/faults", status=500)
    cloud.control("POST", "/reset")
    assert cloud.control("GET", "/calls") == []
    assert cloud.objects.list_objects(*cloud.place).data.objects == []
    assert cloud.jobs.list_jobs(cloud.access.compartment_id).data == []
    with pytest.raises(ServiceError) as caught:
        cloud.jobs.get_job_run(run_id)
    assert caught.value.status == 404


def test_calls_are_recorded(cloud):
    cloud.objects.get_namespace()
    call = cloud.control("GET", "/calls")[-1]
    assert (call["method"], call["path"], call["status"]) == ("GET", "/n", 200)
    assert abs(call["time"] - time.time()) < 60


def test_the_overview_needs_no_signature(cloud):
    overview = cloud.control("GET", "")
    assert overview["url"] == cloud.access.url
    assert overview["ids"]["compartment_id"] == cloud.access.compartment_id
    assert HTTP.get(f"{cloud.access.url}/health").json() == {"status": "ok"}


def test_a_fault_answers_in_place_of_the_service(cloud):
    cloud.control("POST", "/faults", method="GET", path="/n", status=429, code="TooManyRequests", times=2)
    for _ in range(2):
        with pytest.raises(ServiceError) as caught:
            cloud.objects.get_namespace()
        assert (caught.value.status, caught.value.code) == (429, "TooManyRequests")
    assert cloud.objects.get_namespace().status == 200


def test_the_sdk_retries_over_injected_faults(cloud):
    cloud.control("POST", "/faults", path="/n", status=503, code="ServiceUnavailable", times=2)
    retry = oci.retry.RetryStrategyBuilder(retry_base_sleep_time_seconds=0.01).get_retry_strategy()
    assert cloud.objects.get_namespace(retry_strategy=retry).data == cloud.access.namespace


def test_latency_can_be_added(cloud):
    cloud.control("POST", "/faults", path="/n", latency_s=0.3, times=1)
    started = time.monotonic()
    cloud.objects.get_namespace()
    assert time.monotonic() - started >= 0.3


@pytest.mark.parametrize("drop,jobs", [("before", 0), ("after", 1)])
def test_a_connection_is_cut_before_or_after_the_effect(cloud, drop, jobs):
    cloud.control("POST", "/faults", method="POST", path="/20190101/jobs", drop=drop, times=1)
    with pytest.raises((oci.exceptions.RequestException, oci._vendor.requests.exceptions.ConnectionError)):
        cloud.jobs.create_job(cloud.job_details(), opc_retry_token="t")
    assert len(cloud.jobs.list_jobs(cloud.access.compartment_id).data) == jobs
    cloud.jobs.create_job(cloud.job_details(), opc_retry_token="t")
    assert len(cloud.jobs.list_jobs(cloud.access.compartment_id).data) == 1


def test_a_body_is_cut_in_the_middle(cloud):
    cloud.objects.put_object(*cloud.place, "o", b"x" * 3_000_000)
    cloud.control("POST", "/faults", method="GET", path=".*/o/o", drop="body", body_bytes=1_500_000, times=1)
    with pytest.raises(oci._vendor.requests.exceptions.ChunkedEncodingError):
        cloud.objects.get_object(*cloud.place, "o").data.content  # noqa: B018 - reading it is the point
    assert len(cloud.objects.get_object(*cloud.place, "o").data.content) == 3_000_000


@pytest.mark.parametrize(
    "rule", [{}, {"status": 500, "colour": "red"}, {"drop": "maybe"}, {"path": "(", "status": 500}]
)
def test_a_rule_that_makes_no_sense_is_refused(cloud, rule):
    assert HTTP.post(f"{cloud.access.url}/_emulator/faults", json=rule).status_code == 400


def test_a_node_can_be_without_capacity(cloud):
    cloud.control("POST", "/nodes", display_name="rank-1", failure="Out of host capacity.", times=1)
    job_id = cloud.job("pass")
    runs = [cloud.start(job_id, display_name=f"rank-{rank}") for rank in range(2)]
    ended = [cloud.wait(run_id) for run_id in runs]
    assert [run.lifecycle_state for run in ended] == ["SUCCEEDED", "FAILED"]
    assert (ended[1].lifecycle_details, ended[1].time_started) == ("Out of host capacity.", None)
    assert cloud.wait(cloud.start(job_id, display_name="rank-1")).lifecycle_state == "SUCCEEDED"


def test_a_node_can_start_late(cloud):
    cloud.control("POST", "/nodes", display_name="late", delay_s=0.4)
    run_id = cloud.start(cloud.job("pass"), display_name="late")
    assert cloud.jobs.get_job_run(run_id).data.lifecycle_state == "ACCEPTED"
    run = cloud.wait(run_id)
    assert (run.time_started - run.time_accepted).total_seconds() >= 0.4


def test_a_node_that_never_starts_can_be_canceled(cloud):
    cloud.control("POST", "/nodes", display_name=".*", never_starts=True)
    run_id = cloud.start(cloud.job("pass"))
    time.sleep(0.2)
    assert cloud.jobs.get_job_run(run_id).data.lifecycle_state == "ACCEPTED"
    cloud.jobs.cancel_job_run(run_id)
    assert cloud.wait(run_id).lifecycle_state == "CANCELED"
