"""What one client may make the emulator hold or compute: bounded, and answered within a second as OCI answers."""

from __future__ import annotations

import json
import socket
import time
from urllib.parse import urlsplit

import pytest
from oci._vendor import requests

from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import HTTP, Cloud
from tests.emulator.other_user import only_as_root, status_for_another_user

HEAD = b"POST /20190101/jobs HTTP/1.1\r\nhost: x\r\n"


def connection(emulator: Emulator) -> socket.socket:
    place = urlsplit(emulator.url)
    return socket.create_connection((place.hostname, place.port), timeout=30)


def answer_to(emulator: Emulator, sent: bytes) -> bytes:
    """Return all that comes back until the other side ends the connection."""
    with connection(emulator) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        received = b""
        while piece := client.recv(65536):
            received += piece
    return received


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"A B C D\r\n\r\n",
        b"\0" * 100,
    ],
)
def test_what_is_not_http_is_answered_as_the_services_answer(emulator: Emulator, sent: bytes) -> None:
    head, _, body = answer_to(emulator, sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"opc-request-id: " in head
    assert json.loads(body)["code"] == "InvalidRequest"


def cut_off_after(emulator: Emulator, begun: bytes, piece: bytes, most: int) -> int:
    """Send pieces until the other side ends it; return how many bytes it has taken."""
    taken = 0
    with connection(emulator) as client:
        client.sendall(begun)
        while taken < most:
            try:
                client.sendall(piece)
            except ConnectionError:
                break
            taken += len(piece)
    return taken


@pytest.mark.parametrize(
    "begun, piece",
    [
        (HEAD, b"x-a: " + b"b" * 1000 + b"\r\n"),
        (HEAD + b"x-endless: ", b"c" * 1000),
        (
            HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
            b"x-trailer: " + b"d" * 1000 + b"\r\n",
        ),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n2;", b"e" * 1000),
    ],
    ids=["headers", "one header", "trailers", "chunk extension"],
)
def test_what_is_no_body_is_not_read_without_end(emulator: Emulator, begun: bytes, piece: bytes) -> None:
    most = 64 * 1024 * 1024
    assert cut_off_after(emulator, begun, piece, most) < most
    assert HTTP.get(f"{emulator.url}/health").status_code == 200


def test_a_request_id_is_echoed_and_one_that_is_too_long_is_replaced(
    cloud: Cloud, emulator: Emulator
) -> None:
    def echoed(given: str) -> str:
        answer = requests.get(
            f"{cloud.access.url}/n", headers={"opc-request-id": given}, auth=cloud.jobs.base_client.signer
        )
        return str(answer.headers["opc-request-id"])

    assert echoed("mine-1") == "mine-1"
    assert len(echoed("x" * 60_000)) < 100
    calls = HTTP.get(f"{emulator.url}/_emulator/calls").json()
    assert all(len(call["request_id"]) <= 255 for call in calls)


def search(cloud: Cloud, query: str) -> int:
    """Return the status of a log search."""
    body = {
        "searchQuery": query,
        "timeStart": "2026-01-01T00:00:00Z",
        "timeEnd": "2026-01-02T00:00:00Z",
    }
    answer = requests.post(
        f"{cloud.access.url}/20190909/search",
        data=json.dumps(body).encode(),
        auth=cloud.jobs.base_client.signer,
    )
    return int(answer.status_code)


@pytest.mark.parametrize(
    "condition",
    [
        " or ".join(["source = 'a'"] * 50_000),
        "(" * 5_000 + "source = 'a'" + ")" * 5_000,
        "not " * 5_000 + "source = 'a'",
        "source in (" + ",".join(["'a'"] * 50_000) + ")",
        " " * 2_000_000,
    ],
    ids=["or", "brackets", "not", "in", "blanks"],
)
def test_a_search_that_is_too_large_is_refused_and_others_are_answered_meanwhile(
    cloud: Cloud, condition: str
) -> None:
    began = time.process_time()
    assert search(cloud, f'search "{cloud.access.compartment_id}" | where {condition}') == 400
    # The emulator is in this process: it costs it no more than to read the request.
    assert time.process_time() - began < 2
    assert search(cloud, f'search "{cloud.access.compartment_id}" | where source = "a"') == 200


def test_a_search_for_the_runs_of_many_gangs_is_not_too_large(cloud: Cloud) -> None:
    condition = " or ".join(
        f"source = '*ocid1.datasciencejobrun.oc1.iad.{'a' * 60}{number}'" for number in range(300)
    )
    assert search(cloud, f'search "{cloud.access.compartment_id}" | where {condition}') == 200


@only_as_root
@pytest.mark.parametrize("path", ["/_emulator", "/_emulator/calls", "/"])
def test_other_users_of_the_machine_do_not_control_the_emulator(emulator: Emulator, path: str) -> None:
    assert status_for_another_user(emulator.url, path) == 403
    assert HTTP.get(f"{emulator.url}{path}").status_code == 200


@pytest.mark.parametrize(
    "authorization",
    [
        "Signature " + "a" * 200_000,
        "Signature " + 'a="' * 60_000,
        "Signature " + ", " * 90_000 + "a",
        'Signature algorithm="rsa-sha256",' + 'headers="' + "host " * 40_000 + '",keyId="x",signature="YQ=="',
    ],
    ids=["a word", "quotes", "commas", "names"],
)
def test_a_long_authorization_is_refused_at_once(emulator: Emulator, authorization: str) -> None:
    began = time.process_time()
    answer = HTTP.get(f"{emulator.url}/n", headers={"authorization": authorization, "x-big": "b" * 30_000})
    assert answer.status_code == 401
    assert time.process_time() - began < 2


def test_a_metric_query_with_many_wildcards_is_answered_at_once(cloud: Cloud) -> None:
    dimensions = {"name": "a" * 250}
    posted = {
        "metricData": [
            {
                "namespace": "training",
                "compartmentId": cloud.access.compartment_id,
                "name": "loss",
                "dimensions": dimensions,
                "datapoints": [
                    {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "value": 1.0}
                ],
            }
        ]
    }
    base, signer = f"{cloud.access.url}/20180401/metrics", cloud.jobs.base_client.signer
    assert requests.post(base, data=json.dumps(posted).encode(), auth=signer).status_code == 200
    began = time.process_time()
    for pattern, found in (("a*" * 100 + "b", 0), ("*a" * 100 + "*", 1), ("b|*a*", 1)):
        query = f'loss[1m]{{name =~ "{pattern}"}}.mean()'
        body = json.dumps({"namespace": "training", "query": query}).encode()
        answer = requests.post(
            f"{base}/actions/summarizeMetricsData?compartmentId={cloud.access.compartment_id}",
            data=body,
            auth=signer,
        )
        assert (answer.status_code, len(answer.json())) == (200, found), pattern
    for query in ("loss[1m]{" + "}" * 2000, "a" * 100_000, "loss[1m]{" + "} " * 900 + "x"):
        body = json.dumps({"namespace": "training", "query": query}).encode()
        answer = requests.post(
            f"{base}/actions/summarizeMetricsData?compartmentId={cloud.access.compartment_id}",
            data=body,
            auth=signer,
        )
        assert answer.status_code == 400
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "query", ["limit=" + "9" * 5000, "limit=" + "0" * 30, "page=" + "W1tb" * 10_000, "limit=\u0661"]
)
def test_numbers_and_pages_that_nobody_has_given_out_are_refused(cloud: Cloud, query: str) -> None:
    answer = requests.get(
        f"{cloud.access.url}/20190101/projects?compartmentId={cloud.access.compartment_id}&{query}",
        auth=cloud.jobs.base_client.signer,
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParameter")


def test_a_number_of_thousands_of_digits_in_a_path_names_nothing(cloud: Cloud) -> None:
    for path in (
        f"/20180608/secrets/{cloud.access.secret_id}/version/{'9' * 5000}",
        f"/20180608/secrets/{cloud.access.secret_id}/version/%C2%B2",
    ):
        answer = requests.get(f"{cloud.access.url}{path}", auth=cloud.jobs.base_client.signer)
        assert (answer.status_code, answer.json()["code"]) == (404, "NotAuthorizedOrNotFound")


@pytest.mark.parametrize("moment", ["9" * 5000, "\u00b2"])
def test_a_search_by_a_time_that_is_none_is_refused(cloud: Cloud, moment: str) -> None:
    assert search(cloud, f'search "{cloud.access.compartment_id}" | where datetime > {moment}') == 400
