"""Requests that no well-behaved client sends: refused in a sentence, and nothing is broken for the others."""

from __future__ import annotations

import json
import re
import socket
from urllib.parse import urlsplit

import pytest
from oci._vendor import requests
from oci.exceptions import ServiceError
from oci.object_storage.models import CreateMultipartUploadDetails

from airflow_provider_ocidist.emulator import connections
from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.status_page.log_tail import read_window
from airflow_provider_ocidist.emulator.wire import page_token
from tests.emulator.conftest import HTTP

PROJECTS = "/20190101/projects"


def refused(cloud, path, body):
    """Send a signed POST that is to be refused and return (status, code)."""
    answer = requests.post(f"{cloud.access.url}{path}", data=body, auth=cloud.jobs.base_client.signer)
    return answer.status_code, answer.json()["code"]


@pytest.mark.parametrize(
    "value",
    [b'"\\ud800"', b'"\xed\xa0\x80"', b"NaN", b"-Infinity", b"9" * 5000, b"[" * 200_000 + b"]" * 200_000],
)
def test_json_that_no_answer_could_hold_is_refused(cloud, value):
    compartment = cloud.access.compartment_id
    body = b'{"compartmentId": "%s", "description": %s}' % (compartment.encode(), value)
    assert refused(cloud, PROJECTS, body) == (400, "InvalidParameter")
    assert len(cloud.jobs.list_projects(compartment).data) == 1


def test_text_beyond_the_basic_plane_comes_back(cloud):
    body = b'{"compartmentId": "%s", "displayName": "\\ud83d\\ude80"}' % cloud.access.compartment_id.encode()
    answer = requests.post(cloud.access.url + PROJECTS, data=body, auth=cloud.jobs.base_client.signer)
    assert answer.json()["displayName"] == "\N{ROCKET}"


def test_a_body_in_chunks_is_not_held_without_limit(emulator):
    chunks = (b"[" * 1_000_000 for _ in range(40))
    answer = HTTP.post(f"{emulator.url}/_emulator/faults", content=chunks)
    assert (answer.status_code, answer.json()["code"]) == (413, "RequestEntityTooLarge")


def test_a_download_cannot_ask_for_headers_that_end_early(cloud):
    cloud.objects.put_object(*cloud.place, "o", b"x")
    with pytest.raises(ServiceError) as caught:
        cloud.objects.get_object(*cloud.place, "o", http_response_content_type="text/html\r\nset-cookie: a=b")
    assert (caught.value.status, caught.value.code) == (400, "InvalidParameter")


@pytest.mark.parametrize("headers", [{"content_type": "a\r\nb: c"}, {"cache_control": "\N{ROCKET}"}])
def test_a_multipart_upload_cannot_begin_with_headers_that_no_download_could_send(cloud, headers):
    details = CreateMultipartUploadDetails(object="o", **headers)
    with pytest.raises(ServiceError) as caught:
        cloud.objects.create_multipart_upload(*cloud.place, details)
    assert caught.value.status == 400


def test_metadata_that_is_no_text_is_refused(cloud):
    namespace, bucket = cloud.place
    body = b'{"object": "o", "metadata": {"a": 5}}'
    assert refused(cloud, f"/n/{namespace}/b/{bucket}/u", body) == (400, "InvalidMetadata")


def test_a_year_beyond_all_clocks_is_refused(emulator):
    headers = {
        "date": "Mon, 01 Jan 9999999999 00:00:00 GMT",
        "authorization": 'Signature keyId="a/b/c",algorithm="rsa-sha256",headers="date (request-target) host",'
        'signature="YQ=="',
    }
    assert HTTP.get(f"{emulator.url}/n", headers=headers).status_code == 401


@pytest.mark.parametrize("lifetime", ["soon", "60", True, None, [1], 1e400])
def test_a_session_lives_for_a_number_of_seconds(cloud, lifetime):
    body = json.dumps({"lifetime_s": lifetime}).replace("Infinity", "1e400")
    answer = requests.post(
        f"{cloud.access.url}/_emulator/sessions", data=body, auth=cloud.jobs.base_client.signer
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParameter")
    assert "lifetime_s" in answer.json()["message"]


def is_cut_off(drip):
    """Send a byte now and then; return whether the other side ends it within half a minute."""
    drip.settimeout(0.05)
    for _ in range(600):
        try:
            drip.sendall(b"z")
            return drip.recv(1) == b""
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


def test_a_request_that_never_says_what_it_wants_is_cut_off(emulator, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    place = urlsplit(emulator.url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as drip:
        drip.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert drip.recv(4096).startswith(b"HTTP/1.1 200")
        drip.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nx-slow: ")
        assert is_cut_off(drip)
    assert HTTP.get(f"{emulator.url}/health").status_code == 200


@pytest.mark.parametrize("path", ["/health", "/_emulator/faults", "/n/a/b/c/o/d"])
@pytest.mark.parametrize(
    "chunk", [b"ZZ\r\n", b"-1\r\n", b"5\r\nabcdefgh\r\n", b"1\r\na\r\nx" * 9, b"\xff\r\n"]
)
def test_a_body_that_is_no_http_is_answered_in_the_services_form(emulator, path, chunk):
    place = urlsplit(emulator.url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as client:
        client.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        client.sendall(chunk)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert re.match(rb"HTTP/1.1 4\d\d ", head)
    assert b"opc-request-id: " in head
    assert {"code", "message"} <= json.loads(body).keys()
    assert HTTP.get(f"{emulator.url}/health").status_code == 200


def test_a_failure_is_logged_without_the_secret_of_a_url(emulator, monkeypatch, caplog):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("airflow_provider_ocidist.emulator.wire.Router.find", fail)
    assert HTTP.get(f"{emulator.url}/p/the-secret/n/x/b/ocidist/o/y").status_code == 500
    assert "/p/(hidden)/n/x" in caplog.text
    assert "the-secret" not in caplog.text


EDGES = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59.9999999Z")


@pytest.mark.parametrize("moment", EDGES)
def test_a_time_at_the_edge_of_all_times_breaks_nothing(cloud, moment):
    namespace, bucket = cloud.place
    compartment = cloud.access.compartment_id
    grants = f"/n/{namespace}/b/{bucket}/p"
    point = {"timestamp": moment, "value": 1}
    metric = {"namespace": "a", "compartmentId": compartment, "name": "b", "dimensions": {"c": "d"}}
    entry = {"data": "x", "id": "1", "time": moment}
    bodies = {
        grants: {"name": "p", "accessType": "AnyObjectRead", "timeExpires": moment},
        "/20190909/search": {
            "searchQuery": f'search "{compartment}"',
            "timeStart": moment,
            "timeEnd": moment,
        },
        "/20180401/metrics": {"metricData": [{**metric, "datapoints": [point]}]},
        f"/20180401/metrics/actions/summarizeMetricsData?compartmentId={compartment}": {
            "namespace": "a",
            "query": "b[1m].mean()",
            "startTime": moment,
            "endTime": moment,
        },
        f"/20200831/logs/{cloud.access.log_id}/actions/push": {
            "specversion": "1.0",
            "logEntryBatches": [
                {"entries": [entry], "source": "s", "type": "t", "defaultlogentrytime": moment}
            ],
        },
        f"/20180608/secrets/{cloud.access.secret_id}/actions/scheduleDeletion": {"timeOfDeletion": moment},
    }
    for path, body in bodies.items():
        answer = requests.post(
            f"{cloud.access.url}{path}", data=json.dumps(body), auth=cloud.jobs.base_client.signer
        )
        assert answer.status_code < 500, (path, answer.text)
    for grant in cloud.objects.list_preauthenticated_requests(*cloud.place).data:
        assert grant.time_expires.year == 9999


@pytest.mark.parametrize("place", [[1, -5], [0, 10**30], [-1, 0], [True, 1], [1]])
def test_a_place_in_a_search_that_was_not_given_out_is_refused(cloud, place):
    body = {
        "searchQuery": f'search "{cloud.access.compartment_id}"',
        "timeStart": "2026-01-01T00:00:00Z",
        "timeEnd": "2026-01-02T00:00:00Z",
    }
    path = f"/20190909/search?page={page_token(place)}"
    assert refused(cloud, path, json.dumps(body).encode()) == (400, "InvalidParameter")


@pytest.mark.parametrize("window", [[10**17, 10**17 + 9, None], [-1, 5, None], [0, 10**30, None]])
def test_a_stretch_of_a_log_that_was_not_given_out_is_refused(window):
    with pytest.raises(ApiError) as caught:
        read_window(page_token(window))
    assert caught.value.status == 400
