"""Pre-authenticated requests: made with the SDK, used with plain HTTP as anybody would."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import time

import pytest
from oci.object_storage import models

from tests.emulator.conftest import HTTP
from tests.emulator.test_object_storage import read, refusal


def make(cloud, access: str, *, seconds: float = 60, **more) -> models.PreauthenticatedRequest:
    details = models.CreatePreauthenticatedRequestDetails(
        name="par",
        access_type=access,
        time_expires=dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=seconds),
        **more,
    )
    return cloud.objects.create_preauthenticated_request(*cloud.place, details).data


def address(cloud, request: models.PreauthenticatedRequest, name: str = "") -> str:
    assert request.full_path == cloud.access.url + request.access_uri
    return request.full_path + name


@pytest.mark.parametrize(
    "access,may_read,may_write",
    [("ObjectRead", True, False), ("ObjectWrite", False, True), ("ObjectReadWrite", True, True)],
)
def test_an_address_opens_one_object(cloud, access, may_read, may_write):
    cloud.objects.put_object(*cloud.place, "a b/c", b"old")
    cloud.objects.put_object(*cloud.place, "other", b"secret")
    url = address(cloud, make(cloud, access, object_name="a b/c"))
    assert HTTP.get(url).status_code == (200 if may_read else 404)
    assert HTTP.head(url).status_code == (200 if may_read else 404)
    assert HTTP.put(url, content=b"new").status_code == (200 if may_write else 404)
    assert read(cloud, "a b/c") == (b"new" if may_write else b"old")
    assert HTTP.get(url.replace("a%20b/c", "other")).status_code == 404
    assert HTTP.delete(url).status_code == 405


@pytest.mark.parametrize(
    "access,may_read,may_write",
    [("AnyObjectRead", True, False), ("AnyObjectWrite", False, True), ("AnyObjectReadWrite", True, True)],
)
def test_an_address_opens_all_objects_that_begin_so(cloud, access, may_read, may_write):
    cloud.objects.put_object(*cloud.place, "in/a", b"old")
    cloud.objects.put_object(*cloud.place, "out/a", b"secret")
    request = make(cloud, access, object_name="in/")
    assert HTTP.get(address(cloud, request, "in/a")).status_code == (200 if may_read else 404)
    put = HTTP.put(address(cloud, request, "in%2Fb"), content=b"new", headers={"opc-meta-k": "v"})
    assert put.status_code == (200 if may_write else 404)
    assert HTTP.get(address(cloud, request, "out/a")).status_code == 404
    assert HTTP.put(address(cloud, request, "out/b"), content=b"").status_code == 404
    if may_write:
        assert cloud.objects.head_object(*cloud.place, "in/b").headers["opc-meta-k"] == "v"


def test_a_download_is_as_good_as_a_signed_one(cloud):
    cloud.objects.put_object(*cloud.place, "o", b"0123456789")
    url = address(cloud, make(cloud, "ObjectRead", object_name="o"))
    part = HTTP.get(url, headers={"range": "bytes=-3"})
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"789", "bytes 7-9/10")
    assert HTTP.get(url, headers={"if-none-match": part.headers["etag"]}).status_code == 304
    named = HTTP.get(url, params={"httpResponseContentDisposition": "attachment; filename=x.txt"})
    assert named.headers["content-disposition"] == "attachment; filename=x.txt"
    assert HTTP.get(url, headers={"origin": "http://a.page"}).status_code == 200


def test_a_list_is_given_where_it_was_granted(cloud):
    for name in ("in/a", "in/b", "out"):
        cloud.objects.put_object(*cloud.place, name, b"x")
    lists = make(cloud, "AnyObjectRead", object_name="in/", bucket_listing_action="ListObjects")
    listed = HTTP.get(address(cloud, lists), params={"fields": "name,size"}).json()
    assert listed["objects"] == [{"name": "in/a", "size": 1}, {"name": "in/b", "size": 1}]
    assert HTTP.get(address(cloud, lists), params={"prefix": "out"}).status_code == 404
    assert HTTP.get(address(cloud, make(cloud, "AnyObjectRead"))).status_code == 404


def test_a_large_object_is_written_in_parts(cloud):
    url = address(cloud, make(cloud, "ObjectWrite", object_name="a/b c"))
    begun = HTTP.put(url, headers={"opc-multipart": "true", "opc-meta-k": "v", "content-type": "text/x"})
    parts = cloud.access.url + begun.json()["accessUri"]
    for number, part in ((2, b"world"), (1, b"hello ")):
        sum_ = base64.b64encode(hashlib.md5(part).digest()).decode()
        sent = HTTP.put(f"{parts}{number}", content=part, headers={"content-md5": sum_})
        assert sent.headers["opc-content-md5"] == sum_
    assert HTTP.put(f"{parts}3", content=b"x", headers={"content-md5": sum_}).status_code == 400
    done = HTTP.post(parts)
    assert (done.status_code, done.headers["opc-multipart-md5"][-2:]) == (200, "-2")
    got = cloud.objects.get_object(*cloud.place, "a/b c")
    assert got.data.content == b"hello world"
    assert (got.headers["opc-meta-k"], got.headers["content-type"]) == ("v", "text/x")
    assert HTTP.post(parts).status_code == 404


def test_parts_can_be_given_up(cloud):
    url = address(cloud, make(cloud, "AnyObjectWrite"), "o")
    begun = HTTP.put(url, headers={"opc-multipart": "true"}).json()
    parts = cloud.access.url + begun["accessUri"]
    assert HTTP.post(parts).status_code == 400
    HTTP.put(f"{parts}1", content=b"x")
    assert HTTP.delete(parts).status_code == 204
    assert cloud.objects.list_multipart_uploads(*cloud.place).data == []


def test_an_address_expires(cloud):
    cloud.objects.put_object(*cloud.place, "o", b"x")
    url = address(cloud, make(cloud, "ObjectRead", object_name="o", seconds=0.5))
    deadline = time.monotonic() + 5
    while (got := HTTP.get(url)).status_code == 200:
        assert time.monotonic() < deadline
    assert (got.status_code, got.json()["code"]) == (401, "NotAuthenticated")


def test_requests_are_listed_without_their_secrets_and_deleted(cloud):
    cloud.objects.put_object(*cloud.place, "o", b"x")
    request = make(cloud, "ObjectRead", object_name="o")
    make(cloud, "AnyObjectRead", object_name="p/")
    listed = cloud.objects.list_preauthenticated_requests(*cloud.place, object_name_prefix="o").data
    assert [(each.id, each.access_type) for each in listed] == [(request.id, "ObjectRead")]
    shown = cloud.objects.get_preauthenticated_request(*cloud.place, request.id)
    assert shown.data.object_name == "o"
    assert "accessUri" not in HTTP.get(address(cloud, request)).text
    assert cloud.objects.list_preauthenticated_requests(*cloud.place, limit=1).has_next_page
    cloud.objects.delete_preauthenticated_request(*cloud.place, request.id)
    assert HTTP.get(address(cloud, request)).status_code == 401
    gone = refusal(cloud.objects.get_preauthenticated_request, *cloud.place, request.id)
    assert gone == (404, "NotAuthorizedOrNotFound")


@pytest.mark.parametrize(
    "access,more",
    [
        ("ObjectRead", {}),
        ("Everything", {}),
        ("ObjectRead", {"object_name": "o", "seconds": -1}),
        ("AnyObjectWrite", {"bucket_listing_action": "ListObjects"}),
    ],
)
def test_what_cannot_be_granted_is_refused(cloud, access, more):
    details = {
        "name": "par",
        "accessType": access,
        "timeExpires": (
            dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=more.get("seconds", 60))
        ).isoformat(),
        "objectName": more.get("object_name"),
        "bucketListingAction": more.get("bucket_listing_action"),
    }
    status, _ = refusal(cloud.objects.create_preauthenticated_request, *cloud.place, details)
    assert status == 400


def test_a_guessed_address_opens_nothing(cloud):
    namespace, bucket = cloud.place
    cloud.objects.put_object(*cloud.place, "o", b"x")
    url = f"{cloud.access.url}/p/guess/n/{namespace}/b/{bucket}/o/o"
    assert HTTP.get(url).status_code == 401
    assert HTTP.put(url, content=b"y").status_code == 401
