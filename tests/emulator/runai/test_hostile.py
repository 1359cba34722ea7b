"""The stand-in for Run:ai under hostile hands: refused in its own form, and nothing is broken for the others."""

from __future__ import annotations

import json
import os
import random
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from airflow_provider_ocidist.emulator import control_rules, recorded_calls
from airflow_provider_ocidist.emulator.runai import submissions
from airflow_provider_ocidist.emulator.runai.server import RunaiServer
from tests.emulator.fuzz import runai_bodies
from tests.emulator.other_user import only_as_root, status_for_another_user
from tests.emulator.runai.clusters import PaperCluster
from tests.emulator.runai.conftest import Plane

CONTROLS = [
    ("POST", "/_emulator/reset"),
    ("POST", "/_emulator/faults"),
    ("DELETE", "/_emulator/tokens"),
    ("PUT", "/_emulator/projects/1"),
    ("PUT", "/_emulator/node-pools/default"),
    ("GET", "/_emulator/calls"),
]
CASES = int(os.environ.get("FUZZ_CASES", "100"))
"""Bodies for each kind of workload."""


def refused(answer: httpx.Response, status: int = 400) -> str:
    """Return why a request is refused, in the form of the control plane."""
    assert answer.status_code == status, answer.text
    assert answer.json()["code"] == status
    return str(answer.json()["message"])


def goes_on(plane: Plane, cluster: PaperCluster) -> None:
    """A workload of somebody else gets to run."""
    plane.submit("next")
    plane.until(lambda: cluster.names("Pod"), lambda pods: any(pod.startswith("next") for pod in pods))
    assert plane.call("GET", "/api/v1/workloads").status_code == 200


# who may control it


@only_as_root
@pytest.mark.parametrize("method, path", CONTROLS)
def test_other_users_of_the_machine_do_not_control_the_stand_in(plane: Plane, method: str, path: str) -> None:
    workload_id = plane.submit()
    assert status_for_another_user(plane.access.url, path, method) == 403
    assert plane.call("GET", f"/api/v1/workloads/{workload_id}").status_code == 200


@pytest.mark.parametrize("method, path", CONTROLS)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://example.com"},
        {"host": "example.com"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ],
    ids=["origin", "host", "site"],
)
def test_pages_of_others_do_not_control_the_stand_in(
    plane: Plane, method: str, path: str, headers: dict[str, str]
) -> None:
    workload_id = plane.submit()
    refused(plane.http.request(method, path, headers=headers), 403)
    assert plane.call("GET", f"/api/v1/workloads/{workload_id}").status_code == 200


# what it keeps


def test_of_calls_the_newest_are_kept_and_of_each_the_beginning(
    cluster: PaperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_calls, "MAX_CALLS", 3)
    with RunaiServer(cluster) as access, httpx.Client(base_url=access.url, trust_env=False) as http:
        for number in range(5):
            http.get(f"/api/v1/workloads/{number}?x={'y' * 50_000}", headers={"host": "h" * 50_000})
        calls = http.get("/_emulator/calls").json()
    assert [call["path"].partition("?")[0][-1] for call in calls] == ["2", "3", "4"]
    assert all(len(json.dumps(call)) < 10_000 for call in calls)


@pytest.mark.parametrize("path", ["/api/v2/token", "/api/v1/token", "/_emulator/faults"])
def test_a_body_is_not_held_without_limit(plane: Plane, path: str) -> None:
    refused(plane.http.post(path, content=(b"a" * 1_000_000 for _ in range(40))), 413)


def test_rules_are_not_taken_without_end(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_rules, "MAX_RULES", 3)
    rule = {"path": "/none", "status": 503}
    answers = [plane.http.post("/_emulator/faults", json=rule).status_code for _ in range(4)]
    assert answers == [200, 200, 200, 400]


# what it is sent


@pytest.mark.parametrize(
    "rule",
    [
        {"latency_s": "x"},
        {"latency_s": 10**400},
        {"status": 503, "times": "x"},
        {"status": 503, "path": "("},
        {"status": 503, "path": None},
        {"status": "503"},
        {"stale_s": "x"},
        {"status": 503, "message": "x" * 1_000_000},
        {"unknown": 1},
        [],
        "x",
    ],
    ids=lambda rule: json.dumps(rule)[:40],
)
def test_a_rule_that_is_none_is_refused_and_not_kept(plane: Plane, rule: Any) -> None:
    raw = json.dumps(rule).encode()
    refused(plane.http.post("/_emulator/faults", content=raw))
    assert plane.call("GET", "/api/v1/workloads").status_code == 200


@pytest.mark.parametrize(
    "change", [{"limit": "x"}, {"gpus": []}, {"limit": 10**400}, {"limit": -1}, {"x": 1}, []]
)
def test_a_quota_that_is_none_is_refused_and_not_kept(
    plane: Plane, cluster: PaperCluster, change: Any
) -> None:
    refused(plane.http.put("/_emulator/projects/1", content=json.dumps(change).encode()))
    if "limit" not in change:
        refused(plane.http.put("/_emulator/node-pools/default", content=json.dumps(change).encode()))
    goes_on(plane, cluster)


SHAPES: list[dict[str, Any]] = [
    *(
        {name: members}
        for name in ("labels", "annotations", "tolerations", "imagePullSecrets", "environmentVariables")
        for members in ([1], [None], [{}], [{"name": 1}])
        if (name, members) != ("tolerations", [{}])
    ),
    {"nodePools": [1]},
    {"ports": ["x"]},
    {"labels": [{"name": "a", "value": 1}]},
    {"tolerations": [{"key": 1}]},
    {"storage": {"pvc": [{"path": "/a"}]}},
    {"storage": {"pvc": [1]}},
    {"storage": {"hostPath": [{"path": "/a"}]}},
    {"storage": {"nfs": ["x"]}},
    {"security": {"hostNetwork": []}},
    {"compute": {"extendedResources": [1]}},
    {"compute": {"extendedResources": [{"resource": "a", "quantity": []}]}},
    {"compute": {"cpuMemoryRequest": "1.2.3G"}},
    {"compute": {"cpuMemoryRequest": "1e999999999"}},
    {"compute": {"cpuCoreRequest": 10**400}},
    {"compute": {"cpuCoreRequest": -1}},
    {"compute": {"gpuDevicesRequest": 10**12}},
    {"environmentVariables": [{"name": "A", "podFieldRef": {}}]},
    {"environmentVariables": [{"name": "A", "secret": {"name": 1}}]},
    {"command": "'"},
    {"args": '"'},
    {"numWorkers": 1_000_000_000},
    {"numWorkers": 10**300},
]


@pytest.mark.parametrize("spec", SHAPES, ids=lambda spec: json.dumps(spec)[:60])
def test_members_of_another_type_are_refused_by_their_path(
    plane: Plane, cluster: PaperCluster, spec: dict[str, Any]
) -> None:
    answer = plane.call("POST", "/api/v1/workloads/distributed", json=plane.body(**spec))
    (field, value), *_ = spec.items()
    assert f"spec.{field}" in refused(answer), value
    assert plane.get("/api/v1/workloads")["workloads"] == []


@pytest.mark.parametrize("kind", ["distributed", "trainings"])
def test_no_body_is_answered_with_a_fault_of_the_stand_in(
    plane: Plane, cluster: PaperCluster, kind: submissions.Kind
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    for number in range(CASES):
        body = runai_bodies.body(kind, random.Random(f"{seed} {kind} {number}"), plane.access)
        answer = plane.call("POST", f"/api/v1/workloads/{kind}", content=json.dumps(body).encode())
        assert answer.status_code in (202, 400, 409), (body, answer.text)
        if answer.status_code != 202:
            refused(answer, answer.status_code)
    assert plane.call("GET", "/api/v1/workloads").status_code == 200


def test_what_the_cluster_refuses_fails_and_is_not_tried_for_ever(
    plane: Plane, cluster: PaperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def refuse(obj: dict[str, Any]) -> dict[str, Any]:
        tried.append(obj)
        raise ValueError("no such field")

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "create", refuse)
        workload = plane.becomes(plane.submit(), "Failed")
    assert "no such field" in workload["phaseMessage"]
    assert len(tried) == 1
    goes_on(plane, cluster)


# who it is from


@pytest.mark.parametrize(
    "authorization",
    [
        b"Bearer a.b.\xe9",
        b"Bearer \xe9.b.c",
        b"Bearer ..",
        b"Bearer " + b"." * 100_000,
        b"Bearer",
        b"\xff",
    ],
    ids=lambda text: repr(text[:15]),
)
def test_a_token_that_is_none_is_refused(plane: Plane, authorization: bytes) -> None:
    headers = [(b"authorization", authorization)]
    refused(plane.http.get("/api/v1/workloads", headers=headers), 401)


def test_a_secret_beyond_ascii_is_a_wrong_one(plane: Plane) -> None:
    own = {"client_id": plane.access.client_id, "client_secret": "\N{ROCKET}é"}
    answer = plane.http.post("/api/v2/token", data={"grant_type": "client_credentials", **own})
    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")
    old = {"grantType": "client_credentials", "clientID": plane.access.client_id, "clientSecret": "é"}
    refused(plane.http.post("/api/v1/token", json=old))


@pytest.mark.parametrize(
    "form",
    [
        b"\xff\xfe=1",
        b"grant_type=%ff",
        b"grant_type=client_credentials&client_id=%ff&client_secret=%00",
        b"&" * 100_000,
        b"=" * 9,
    ],
    ids=lambda form: repr(form[:15]),
)
def test_a_form_that_is_none_is_refused_as_oauth_does(plane: Plane, form: bytes) -> None:
    answer = plane.http.post("/api/v2/token", content=form)
    assert answer.status_code in (400, 401)
    assert isinstance(answer.json()["error"], str)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 500 + b"1" + b"}" * 500, b"\xff", b"[]", b"NaN"])
@pytest.mark.parametrize("path", ["/api/v1/token", "/api/v1/workloads/distributed", "/_emulator/faults"])
def test_json_that_is_none_or_too_deep_is_refused(plane: Plane, path: str, body: bytes) -> None:
    refused(plane.call("POST", path, content=body))


@pytest.mark.parametrize(
    "query",
    [
        "limit=" + "9" * 5_000,
        "offset=" + "9" * 5_000,
        "limit=%C2%B2",
        "limit=-1",
        "filterBy=" + "a" * 9_000,
        "filterBy=%ff",
    ],
    ids=lambda query: query[:15],
)
def test_numbers_and_filters_that_are_none_are_refused(plane: Plane, query: str) -> None:
    refused(plane.call("GET", f"/api/v1/workloads?{query}"))


# the form of refusals


@pytest.mark.parametrize(
    "method, path, status",
    [
        ("GET", "/", 404),
        ("GET", "/api/v1/none", 404),
        ("PATCH", "/api/v1/workloads", 405),
        ("GET", "/_emulator/none", 404),
        ("PUT", "/_emulator/projects/none", 404),
        ("GET", "/api/v1/workloads/%ff", 400),
    ],
)
def test_what_is_not_served_is_refused_in_the_form_of_the_control_plane(
    plane: Plane, method: str, path: str, status: int
) -> None:
    refused(plane.call(method, path, content=b"{}"), status)


def test_what_is_not_http_is_refused_in_the_form_of_the_control_plane(plane: Plane) -> None:
    place = urlsplit(plane.access.url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=30) as client:
        client.sendall(b"GET\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["code"] == 400
