"""Requests that no well-behaved client sends: refused in a sentence, and nothing is broken for the others."""

from __future__ import annotations

import pytest
from oci._vendor import requests
from oci.exceptions import ServiceError
from oci.object_storage.models import CreateMultipartUploadDetails

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
