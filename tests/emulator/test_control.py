"""The control API: reset, recorded calls, faults, what happens to nodes."""

from __future__ import annotations

import contextvars
import time

import httpx
import oci
import pytest
from oci.exceptions import ServiceError

from airflow_provider_ocidist.emulator.bodies import Segment
from airflow_provider_ocidist.emulator.faults import FaultRule, Faults
from airflow_provider_ocidist.emulator.store import AS_OF, RecordStore, Table
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


def test_recorded_calls_keep_no_secret_of_a_url(cloud):
    HTTP.get(f"{cloud.access.url}/p/the-secret/n/{cloud.access.namespace}/b/ocidist/o/x")
    (call,) = cloud.control("GET", "/calls")
    assert call["path"] == f"/p/(hidden)/n/{cloud.access.namespace}/b/ocidist/o/x"


def test_the_overview_needs_no_signature(cloud):
    overview = cloud.control("GET", "")
    assert overview["url"] == cloud.access.url
    assert overview["ids"]["compartment_id"] == cloud.access.compartment_id
    assert cloud.access.secret_value not in str(overview)
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
    "rule",
    [
        {},
        {"status": 500, "colour": "red"},
        {"drop": "maybe"},
        {"path": "(", "status": 500},
        {"status": 200},
        {"status": 500, "probability": 2},
        {"status": "500"},
        {"bytes_per_s": 0},
        {"latency_s": "1"},
        {"latency_s": -1},
        {"latency_s": 1, "times": "2"},
        {"status": 500, "path": 5},
    ],
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
    cloud.control("POST", "/nodes", display_name="late", delay_s=2)
    run_id = cloud.start(cloud.job("pass"), display_name="late")
    assert cloud.jobs.get_job_run(run_id).data.lifecycle_state == "ACCEPTED"
    run = cloud.wait(run_id)
    assert (run.time_started - run.time_accepted).total_seconds() >= 2


def test_a_node_that_never_starts_can_be_canceled(cloud):
    cloud.control("POST", "/nodes", display_name=".*", never_starts=True)
    run_id = cloud.start(cloud.job("pass"))
    time.sleep(0.2)
    assert cloud.jobs.get_job_run(run_id).data.lifecycle_state == "ACCEPTED"
    cloud.jobs.cancel_job_run(run_id)
    assert cloud.wait(run_id).lifecycle_state == "CANCELED"


def shares(cloud, rounds: int) -> list[int]:
    """Return the statuses of so many requests; 0 for a lost answer."""
    found = []
    for _ in range(rounds):
        try:
            # A signature would be the larger part of the time.
            found.append(HTTP.get(f"{cloud.access.url}/n").status_code)
        except httpx.RemoteProtocolError:
            found.append(0)
    return found


def test_faults_come_by_chance_with_a_seed(cloud):
    cloud.control("POST", "/faults", probability=0.2, status=429, code="TooManyRequests", retry_after_s=7)
    cloud.control("POST", "/faults", probability=0.1, status=503, code="ServiceUnavailable")
    cloud.control("POST", "/faults", probability=0.1, drop="after")
    cloud.control("POST", "/seed", seed=7)
    first = shares(cloud, 150)
    counts = [first.count(status) for status in (429, 503, 0)]
    assert all(counts)
    assert sum(counts) == pytest.approx(60, abs=25)
    cloud.control("POST", "/seed", seed=7)
    assert shares(cloud, 150) == first
    assert cloud.control("GET", "")["seed"] == 7


def test_shares_of_faults_add_up():
    faults = Faults(seed=1)
    for status in (429, 500, 503):
        faults.add(FaultRule(status=status, probability=0.2))
    ends = [faults.decide("GET", "/n", "h").end for _ in range(10_000)]
    for status in (429, 500, 503):
        share = sum(end is not None and end.status == status for end in ends) / len(ends)
        assert share == pytest.approx(0.2, abs=0.02)


def test_delays_of_all_rules_add_up_and_the_lowest_limit_counts():
    faults = Faults(seed=1)
    faults.add(FaultRule(latency_s=1, bytes_per_s=100))
    faults.add(FaultRule(latency_s=2, path="/n", bytes_per_s=50))
    faults.add(FaultRule(status=500, path="/x"))
    effect = faults.decide("GET", "/n", "h")
    assert (effect.latency_s, effect.bytes_per_s, effect.end) == (3, 50, None)


def test_too_many_requests_says_when_to_come_back(cloud):
    cloud.control("POST", "/faults", status=429, code="TooManyRequests", retry_after_s=7)
    with pytest.raises(ServiceError) as caught:
        cloud.objects.get_namespace()
    assert caught.value.headers["retry-after"] == "7"


def test_a_fault_can_be_for_one_host(cloud):
    cloud.control("POST", "/faults", host=r"logging\..*", status=500)
    url = f"{cloud.access.url}/n"
    assert HTTP.get(url, headers={"host": "logging.us-ashburn-1.oraclecloud.com:443"}).status_code == 500
    assert HTTP.get(url).status_code == 401


@pytest.mark.parametrize("verb", ["put", "get"])
def test_bodies_flow_as_fast_as_the_rule_says(cloud, verb):
    content = b"x" * 1_000_000
    cloud.objects.put_object(*cloud.place, "o", content)
    cloud.control("POST", "/faults", path="/n/.*", bytes_per_s=2_000_000)
    started = time.monotonic()
    if verb == "put":
        cloud.objects.put_object(*cloud.place, "o", content)
    else:
        assert cloud.objects.get_object(*cloud.place, "o").data.content == content
    assert time.monotonic() - started > 0.45


def active_jobs(cloud) -> list[str]:
    found = cloud.jobs.list_jobs(cloud.access.compartment_id, lifecycle_state="ACTIVE").data
    return [job.id for job in found]


def test_a_list_can_be_stale(cloud):
    old = cloud.jobs.create_job(cloud.job_details()).data.id
    cloud.control("POST", "/faults", method="GET", path="/20190101/jobs", stale_s=600)
    new = cloud.jobs.create_job(cloud.job_details()).data.id
    cloud.jobs.delete_job(old)
    assert active_jobs(cloud) == [old]
    assert cloud.jobs.get_job(new).data.lifecycle_state == "ACTIVE"
    cloud.control("DELETE", "/faults")
    assert active_jobs(cloud) == [new]


def test_a_stale_list_is_as_old_as_it_was_to_be(tmp_path):
    store = RecordStore(tmp_path / "store")
    table = Table(store, "file", Segment)
    table.put("before", Segment(tmp_path.name, 1))
    store.keep_history(60)
    table.put("before", Segment(tmp_path.name, 2))
    table.put("gone", Segment(tmp_path.name, 3))
    between = time.time()
    time.sleep(0.01)
    table.put("after", Segment(tmp_path.name, 4))
    table.delete("gone")

    def sizes(moment: float | None) -> list[int]:
        AS_OF.set(moment)
        return sorted(segment.size for segment in table.values())

    seen = [contextvars.copy_context().run(sizes, moment) for moment in (0, between, None)]
    store.close()
    assert seen == [[1], [2, 3], [2, 4]]


def test_calls_can_be_filtered(cloud):
    cloud.objects.get_namespace()
    cloud.objects.list_objects(*cloud.place, prefix="a")
    found = HTTP.get(f"{cloud.access.url}/_emulator/calls", params={"path": r"/n/.*prefix=a.*"}).json()
    assert [call["path"] for call in found] == [f"/n/{cloud.place[0]}/b/{cloud.place[1]}/o?prefix=a"]
    assert HTTP.get(f"{cloud.access.url}/_emulator/calls", params={"path": "("}).status_code == 400
