"""Copies: accepted at once, done later, followed by a work request."""

from __future__ import annotations

import time

from oci.object_storage import models

from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import Cloud
from tests.emulator.test_buckets import create
from tests.emulator.test_object_storage import read, refusal


def copy_details(cloud, name: str, target: str) -> models.CopyObjectDetails:
    namespace, bucket = cloud.place
    return models.CopyObjectDetails(
        source_object_name=name,
        destination_region=cloud.access.region,
        destination_namespace=namespace,
        destination_bucket=bucket,
        destination_object_name=target,
    )


def ended(cloud, request_id: str) -> models.WorkRequest:
    """Return the work request once it has ended."""
    deadline = time.monotonic() + 10
    while (request := cloud.objects.get_work_request(request_id).data).time_finished is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return request


def finished_copy(cloud, details) -> models.WorkRequest:
    accepted = cloud.objects.copy_object(*cloud.place, details)
    assert accepted.status == 202
    return ended(cloud, accepted.headers["opc-work-request-id"])


def test_a_copy_is_done_later(cloud):
    cloud.objects.put_object(*cloud.place, "a", b"1")
    request = finished_copy(cloud, copy_details(cloud, "a", "b"))
    assert (request.status, request.operation_type) == ("COMPLETED", "COPY_OBJECT")
    cloud.objects.delete_object(*cloud.place, "a")
    assert read(cloud, "b") == b"1"


def test_a_copy_fails_when_its_source_is_deleted_meanwhile(cloud):
    cloud.objects.put_object(*cloud.place, "a", b"1")
    accepted = cloud.objects.copy_object(*cloud.place, copy_details(cloud, "a", "b"))
    cloud.objects.delete_object(*cloud.place, "a")
    request = ended(cloud, accepted.headers["opc-work-request-id"])
    assert request.status == "FAILED"
    assert "ObjectNotFound" in cloud.objects.list_work_request_errors(request.id).data[0].message


def test_a_copy_goes_to_another_bucket_with_other_metadata(cloud):
    create(cloud, "target")
    cloud.objects.put_object(*cloud.place, "a", b"1", content_type="text/x", opc_meta={"k": "v"})
    details = copy_details(cloud, "a", "b c")
    details.destination_bucket = "target"
    details.destination_object_metadata = {"other": "w"}
    assert finished_copy(cloud, details).status == "COMPLETED"
    got = cloud.objects.get_object(cloud.access.namespace, "target", "b c")
    assert got.data.content == b"1"
    assert (got.headers["content-type"], got.headers["opc-meta-other"]) == ("text/x", "w")
    assert "opc-meta-k" not in got.headers


def test_a_copy_keeps_conditions(cloud):
    etag = cloud.objects.put_object(*cloud.place, "a", b"1").headers["etag"]
    cloud.objects.put_object(*cloud.place, "b", b"2")
    details = copy_details(cloud, "a", "b")
    details.source_object_if_match_e_tag = "other"
    assert refusal(cloud.objects.copy_object, *cloud.place, details) == (412, "IfMatchFailed")
    details.source_object_if_match_e_tag = etag
    details.destination_object_if_none_match_e_tag = "*"
    request = finished_copy(cloud, details)
    assert request.status == "FAILED"
    (error,) = cloud.objects.list_work_request_errors(request.id).data
    assert error.code == "IfNoneMatchFailed"
    assert read(cloud, "b") == b"2"


def test_what_cannot_be_copied_is_refused_at_once(cloud):
    details = copy_details(cloud, "absent", "b")
    assert refusal(cloud.objects.copy_object, *cloud.place, details) == (404, "ObjectNotFound")
    cloud.objects.put_object(*cloud.place, "a", b"1")
    details = copy_details(cloud, "a", "b")
    details.destination_bucket = "absent"
    assert refusal(cloud.objects.copy_object, *cloud.place, details) == (404, "BucketNotFound")


def test_a_work_request_shows_how_far_it_is():
    with Emulator(options=Options(copy_s=0.8)) as slow:
        cloud = Cloud.of(slow.access)
        cloud.objects.put_object(*cloud.place, "a", b"1")
        accepted = cloud.objects.copy_object(*cloud.place, copy_details(cloud, "a", "b"))
        request_id = accepted.headers["opc-work-request-id"]
        told = cloud.objects.get_work_request(request_id).data
        assert [each.action_type for each in told.resources] == ["READ", "WRITTEN"]
        seen = {told.status: told.percent_complete}
        while told.time_finished is None:
            told = cloud.objects.get_work_request(request_id).data
            seen[told.status] = told.percent_complete
        assert seen == {"ACCEPTED": 0, "IN_PROGRESS": 50, "COMPLETED": 100}
        listed = cloud.objects.list_work_requests(cloud.access.compartment_id).data
        assert [(each.id, each.percent_complete) for each in listed] == [(request_id, 100)]
        messages = [each.message for each in cloud.objects.list_work_request_logs(request_id).data]
        assert messages == ["Accepted", "IN_PROGRESS", "COMPLETED"]


def test_a_canceled_copy_is_not_done():
    with Emulator(options=Options(copy_s=0.2)) as slow:
        cloud = Cloud.of(slow.access)
        cloud.objects.put_object(*cloud.place, "a", b"1")
        accepted = cloud.objects.copy_object(*cloud.place, copy_details(cloud, "a", "b"))
        request_id = accepted.headers["opc-work-request-id"]
        cloud.objects.cancel_work_request(request_id)
        assert cloud.objects.get_work_request(request_id).data.status == "CANCELED"
        assert refusal(cloud.objects.cancel_work_request, request_id) == (409, "IncorrectState")
        assert refusal(cloud.objects.get_object, *cloud.place, "b") == (404, "ObjectNotFound")


def test_a_copy_goes_on_after_a_restart(folder):
    with Emulator(state=folder, options=Options(copy_s=30)) as first:
        cloud = Cloud.of(first.access)
        cloud.objects.put_object(*cloud.place, "a", b"1")
        accepted = cloud.objects.copy_object(*cloud.place, copy_details(cloud, "a", "b"))
    with Emulator(state=folder, options=Options(copy_s=0.01)) as second:
        cloud = Cloud.of(second.access)
        assert ended(cloud, accepted.headers["opc-work-request-id"]).status == "COMPLETED"
        assert read(cloud, "b") == b"1"


def test_encryption_anew_is_a_work_request_too(cloud):
    cloud.objects.put_object(*cloud.place, "a", b"1")
    accepted = cloud.objects.reencrypt_bucket(*cloud.place)
    request = ended(cloud, accepted.headers["opc-work-request-id"])
    assert (request.status, request.operation_type) == ("COMPLETED", "REENCRYPT")
    cloud.objects.reencrypt_object(*cloud.place, "a", models.ReencryptObjectDetails())
    assert read(cloud, "a") == b"1"
