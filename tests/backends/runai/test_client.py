"""The client of a control plane, against the stand-in: tokens, retries, refusals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from airflow_provider_ocidist.backends.runai.client import Client, error_of
from airflow_provider_ocidist.backends.runai.options import Fields
from airflow_provider_ocidist.emulator.runai.server import RunaiAccess, RunaiServer
from airflow_provider_ocidist.emulator.runai_settings import RunaiOptions
from airflow_provider_ocidist.errors import BackendError, Cause, RunNotFound, refusal_in
from tests.emulator.runai.clusters import PaperCluster
from tests.emulator.runai.conftest import Plane

LIST = "/api/v1/workloads"


def fields(access: RunaiAccess, **changes: str) -> Fields:
    given = Fields(url=access.url, client_id=access.client_id, client_secret=access.client_secret)
    return replace(given, **changes)


class Clock:
    """A clock that a test sets, and that sleeping moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(scope="module")
def access() -> Iterator[RunaiAccess]:
    with RunaiServer(PaperCluster(), RunaiOptions(lag_s=0.0)) as found:
        yield found


@pytest.fixture
def plane(access: RunaiAccess) -> Iterator[Plane]:
    found = Plane(access)
    found.http.post("/_emulator/reset")
    yield found
    found.http.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(access: RunaiAccess, plane: Plane, clock: Clock) -> Iterator[Client]:
    del plane
    found = Client(fields(access), clock, clock.sleep)
    yield found
    found.close()


def calls(plane: Plane, path: str) -> int:
    return sum(call["path"].partition("?")[0] == path for call in plane.http.get("/_emulator/calls").json())


def test_one_token_serves_all_requests_until_shortly_before_its_end(
    client: Client, plane: Plane, clock: Clock
) -> None:
    for _ in range(3):
        client.get(LIST, "listing")
    assert calls(plane, "/api/v2/token") == 1
    clock.now += 3600 - 61
    client.get(LIST, "listing")
    assert calls(plane, "/api/v2/token") == 1
    clock.now += 2
    client.get(LIST, "listing")
    assert calls(plane, "/api/v2/token") == 2


def test_threads_share_one_token(client: Client, plane: Plane) -> None:
    barrier = threading.Barrier(8)

    def ask(_: int) -> object:
        barrier.wait()
        return client.get(LIST, "listing")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert calls(plane, "/api/v2/token") == 1


def test_a_token_that_is_refused_once_is_renewed_and_that_is_no_failure(client: Client, plane: Plane) -> None:
    client.get(LIST, "listing")
    plane.http.delete("/_emulator/tokens")
    assert client.get(LIST, "listing") == {"workloads": []}
    assert calls(plane, "/api/v2/token") == 2


def test_a_token_that_is_refused_again_is_a_refusal(client: Client, plane: Plane) -> None:
    plane.fault(path=LIST, status=401, message="Issuer is not familiar.")
    with pytest.raises(BackendError, match=r"401.*service account") as caught:
        client.get(LIST, "listing")
    assert refusal_in(caught.value) == "401"


def test_where_the_new_endpoint_is_missing_the_old_one_is_asked(clock: Clock) -> None:
    with RunaiServer(PaperCluster(), RunaiOptions(token_versions=("v1",))) as old:
        client = Client(fields(old), clock, clock.sleep)
        assert client.get(LIST, "listing") == {"workloads": []}
        client.close()


def test_a_wrong_secret_is_a_fault_of_the_connection_and_not_shown(access: RunaiAccess, clock: Clock) -> None:
    client = Client(fields(access, client_secret="wrong-secret"), clock, clock.sleep)
    with pytest.raises(BackendError) as caught:
        client.get(LIST, "listing")
    assert caught.value.cause is Cause.CONFIG
    assert not caught.value.retryable
    assert "wrong-secret" not in str(caught.value)
    client.close()


def test_a_connection_without_a_secret_names_what_it_lacks() -> None:
    with pytest.raises(BackendError, match=r"host, login \(client id\), password \(client secret\)"):
        Client(Fields())


def test_an_outage_of_seconds_is_waited_out_and_a_longer_one_is_an_outage(
    client: Client, plane: Plane, clock: Clock
) -> None:
    plane.fault(path=LIST, status=503, times=4)
    assert client.get(LIST, "listing") == {"workloads": []}
    plane.fault(path=LIST, status=503)
    began = clock.now
    with pytest.raises(BackendError) as caught:
        client.get(LIST, "listing")
    assert refusal_in(caught.value) is None
    assert clock.now - began < 30


def test_the_service_says_how_long_to_wait(client: Client, plane: Plane, clock: Clock) -> None:
    client.get(LIST, "listing")
    plane.fault(path=LIST, status=429, times=1, retry_after_s=5)
    began = clock.now
    client.get(LIST, "listing")
    assert clock.now - began >= 5


def test_a_cut_connection_is_asked_again(client: Client, plane: Plane) -> None:
    plane.fault(path=LIST, drop="before", times=2)
    assert client.get(LIST, "listing") == {"workloads": []}


def test_a_list_is_read_to_its_end(client: Client, plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.backends.runai.client.PAGE", 3)
    wanted = sorted(plane.submit(f"run-{number}") for number in range(7))
    assert sorted(item["id"] for item in client.pages(LIST, "workloads", "listing")) == wanted


def test_what_cannot_be_reached_is_named(clock: Clock) -> None:
    client = Client(Fields(url="http://127.0.0.1:1", client_id="i", client_secret="s"), clock, clock.sleep)
    with pytest.raises(BackendError, match=r"cannot reach http://127\.0\.0\.1:1") as caught:
        client.get(LIST, "listing")
    assert caught.value.retryable
    client.close()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 429, 500, 502, 503, 504])
def test_every_refusal_is_an_outage_or_a_refusal_and_has_its_words(status: int) -> None:
    error = error_of(status, '{"code": 0, "message": "because"}', "creating the workload")
    assert "because" in str(error)
    assert error.status_code == status
    assert error.retryable == (status == 429 or status >= 500)
    assert (refusal_in(error) is None) == error.retryable
    assert isinstance(error, RunNotFound) == (status == 404)


def test_what_a_policy_forbids_is_named_by_field() -> None:
    text = (
        '{"code": 400, "message": "does not comply with the policy", "complianceIssues": '
        '[{"field": "compute.gpuDevicesRequest", "details": "value must be no less than 3", "rule": "min"}]}'
    )
    error = error_of(400, text, "creating the workload")
    assert "compute.gpuDevicesRequest: value must be no less than 3" in str(error)


@pytest.mark.parametrize("text", ["", "<html>502</html>", "[]", "null", '{"error": "invalid_client"}'])
def test_a_refusal_without_a_reason_is_one_line(text: str) -> None:
    assert "\n" not in str(error_of(400, text, "asking"))
