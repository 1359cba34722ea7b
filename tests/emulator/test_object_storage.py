"""Object Storage with the real SDK: bytes, ranges, conditions, listings, odd names, multipart, copies."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import io
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import oci
import pytest
import requests
from oci.exceptions import ServiceError
from oci.object_storage import models

MIB = 1024 * 1024
ODD_NAMES = [
    "plain",
    "a/b/c.txt",
    "with space and +plus",
    "ünï/çødé/日本.bin",
    "per%2Fcent%20",
    ".hidden/..",
    "./a/../b",
    "//double//slash/",
    "question?mark=1&b#hash",
    "quote'\"<>;:@[]{}|\\^`~",
    "trailing/",
    "o",
]


def refusal(call, *args, **kwargs) -> tuple[int, str | None]:
    with pytest.raises(ServiceError) as caught:
        call(*args, **kwargs)
    return caught.value.status, caught.value.code


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def read(cloud, name: str, **more) -> bytes:
    return cloud.objects.get_object(*cloud.place, name, **more).data.content


def names(cloud, **more) -> list[str]:
    return [each.name for each in cloud.objects.list_objects(*cloud.place, **more).data.objects]


def test_an_object_reads_back_with_all_that_was_said_about_it(cloud):
    put = cloud.objects.put_object(
        *cloud.place,
        "o",
        b"hello",
        content_type="text/plain",
        opc_meta={"who": "me"},
        content_md5=md5(b"hello"),
    )
    got = cloud.objects.get_object(*cloud.place, "o")
    assert got.data.content == b"hello"
    assert put.headers["opc-content-md5"] == got.headers["content-md5"] == md5(b"hello")
    assert put.headers["etag"] == got.headers["etag"]
    assert got.headers["content-type"] == "text/plain"
    assert got.headers["opc-meta-who"] == "me"
    expected = {"last-modified", "accept-ranges", "version-id", "storage-tier", "content-length"}
    assert expected <= set(got.headers)
    head = cloud.objects.head_object(*cloud.place, "o")
    assert {name: head.headers[name] for name in expected} == {name: got.headers[name] for name in expected}


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_name_works(cloud, name):
    cloud.objects.put_object(*cloud.place, name, name.encode())
    assert read(cloud, name) == name.encode()
    assert names(cloud) == [name]
    assert names(cloud, prefix=name) == [name]
    assert cloud.objects.delete_object(*cloud.place, name).status == 204
    assert names(cloud) == []


def test_an_encoded_slash_is_a_slash_of_the_name(cloud):
    cloud.objects.put_object(*cloud.place, "a/b", b"1")
    assert [call["path"][-5:] for call in cloud.control("GET", "/calls") if call["method"] == "PUT"] == [
        "a%2Fb"
    ]
    assert names(cloud, prefix="a/") == ["a/b"]


@pytest.mark.parametrize(
    "path,name",
    [
        ("a.b", "a.b"),
        ("a%2Eb", "a.b"),
        ("../x", "../x"),
        ("%2e%2E%2fx", "../x"),
        ("a/b", "a/b"),
        ("a+b", "a+b"),
        ("a%2Bb", "a+b"),
        ("100%25", "100%"),
        ("%252F", "%2F"),
        ("%E6%97%A5", "日"),
    ],
)
def test_the_path_is_read_as_it_was_sent(cloud, path, name):
    cloud.objects.put_object(*cloud.place, name, b"hello")
    assert raw(cloud, "GET", path) == (200, b"hello")


@pytest.mark.parametrize("path", ["%FF", "a%0Ab", "x" * 1025])
def test_a_name_that_cannot_be_is_refused(cloud, path):
    status, body = raw(cloud, "PUT", path)
    assert (status, json.loads(body)["code"]) in ((400, "InvalidObjectName"), (400, "InvalidParameter"))
    assert names(cloud) == []


def raw(cloud, method: str, path: str) -> tuple[int, bytes]:
    """Send a path that no client tidies up first."""
    address = urlsplit(cloud.access.url)
    place = "/n/{}/b/{}/o/".format(*cloud.place)
    request = requests.Request(method, cloud.access.url + place).prepare()
    request.url = f"{cloud.access.url}{place}{path}"
    cloud.signer(request, enforce_content_headers=False)
    connection = http.client.HTTPConnection(address.hostname, address.port)
    with contextlib.closing(connection):
        connection.request(method, place + path, headers=dict(request.headers))
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_what_is_not_there_is_distinguished(cloud):
    namespace, bucket = cloud.place
    assert refusal(cloud.objects.get_object, namespace, bucket, "x") == (404, "ObjectNotFound")
    assert refusal(cloud.objects.get_object, namespace, "x", "x") == (404, "BucketNotFound")
    assert refusal(cloud.objects.get_object, "x", bucket, "x") == (404, "NamespaceNotFound")
    assert refusal(cloud.objects.delete_object, namespace, bucket, "x") == (404, "ObjectNotFound")
    with pytest.raises(ServiceError) as caught:
        cloud.objects.head_object(namespace, bucket, "x")
    assert (caught.value.status, caught.value.code, caught.value.message) == (404, None, "")


def test_a_broken_transfer_is_noticed(cloud):
    wrong = refusal(cloud.objects.put_object, *cloud.place, "o", b"hello", content_md5=md5(b"other"))
    assert wrong == (400, "UnmatchedContentMD5")
    assert names(cloud) == []


@pytest.mark.parametrize(
    "header,start,end",
    [
        ("bytes=0-0", 0, 1),
        ("bytes=3-", 3, 10),
        ("bytes=-4", 6, 10),
        ("bytes=2-5", 2, 6),
        ("bytes=5-99", 5, 10),
    ],
)
def test_ranges_are_cut_exactly(cloud, header, start, end):
    body = b"0123456789"
    cloud.objects.put_object(*cloud.place, "o", body)
    got = cloud.objects.get_object(*cloud.place, "o", range=header)
    assert (got.status, got.data.content) == (206, body[start:end])
    assert got.headers["content-range"] == f"bytes {start}-{end - 1}/10"


def test_a_range_outside_the_object_is_refused(cloud):
    cloud.objects.put_object(*cloud.place, "o", b"0123456789")
    assert refusal(cloud.objects.get_object, *cloud.place, "o", range="bytes=10-") == (416, "InvalidRange")


def test_conditions_are_kept(cloud):
    etag = cloud.objects.put_object(*cloud.place, "o", b"1", if_none_match="*").headers["etag"]
    put = cloud.objects.put_object
    assert refusal(put, *cloud.place, "o", b"2", if_none_match="*") == (412, "IfNoneMatchFailed")
    assert refusal(put, *cloud.place, "o", b"2", if_match="other") == (412, "IfMatchFailed")
    assert refusal(put, *cloud.place, "new", b"2", if_match="*") == (412, "IfMatchFailed")
    assert refusal(cloud.objects.get_object, *cloud.place, "o", if_none_match=etag)[0] == 304
    assert read(cloud, "o", if_match=etag) == b"1"
    assert cloud.objects.put_object(*cloud.place, "o", b"2", if_match=etag).headers["etag"] != etag
    assert refusal(cloud.objects.delete_object, *cloud.place, "o", if_match=etag) == (412, "IfMatchFailed")
    assert read(cloud, "o") == b"2"


def test_only_one_of_many_creators_wins(cloud):
    def create(number: int) -> bool:
        try:
            cloud.objects.put_object(*cloud.place, "lock", str(number).encode(), if_none_match="*")
        except ServiceError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(16))) == 1


def test_readers_see_the_old_or_the_new_object_never_a_mix(cloud):
    bodies = [bytes([letter]) * (3 * MIB) for letter in b"ab"]
    cloud.objects.put_object(*cloud.place, "o", bodies[0])
    done = threading.Event()

    def write() -> None:
        for turn in range(12):
            cloud.objects.put_object(*cloud.place, "o", bodies[turn % 2])
        done.set()

    with ThreadPoolExecutor(2) as pool:
        writer = pool.submit(write)
        while not done.is_set():
            assert read(cloud, "o") in bodies
            assert not writer.done() or writer.exception() is None


def test_a_body_that_is_replaced_while_it_is_sent_still_arrives_whole(cloud, emulator):
    first = b"a" * (24 * MIB)
    cloud.objects.put_object(*cloud.place, "o", first)
    stream = cloud.objects.get_object(*cloud.place, "o").data.raw
    head = stream.read(MIB)
    cloud.objects.put_object(*cloud.place, "o", b"new")
    assert head + stream.read() == first
    assert read(cloud, "o") == b"new"
    bodies = list((emulator.folder / "objects").iterdir())
    assert [path.stat().st_size for path in bodies] == [3]


def test_listings_come_in_pages_in_order(cloud):
    for number in range(12):
        cloud.objects.put_object(*cloud.place, f"n/{number:02}", b"x")
    cloud.objects.put_object(*cloud.place, "other", b"")
    page = cloud.objects.list_objects(*cloud.place, prefix="n/", limit=5).data
    assert ([each.name for each in page.objects], page.next_start_with) == (
        [f"n/{number:02}" for number in range(5)],
        "n/05",
    )
    every = oci.pagination.list_call_get_all_results(cloud.objects.list_objects, *cloud.place, limit=5)
    assert len(every.data.objects) == 13
    assert names(cloud, start="n/03", end="n/06") == ["n/03", "n/04", "n/05"]
    assert names(cloud, prefix="n/", start_after="n/09") == ["n/10", "n/11"]
    assert refusal(cloud.objects.list_objects, *cloud.place, limit=1001)[0] == 400


def test_a_delimiter_gives_folders(cloud):
    for name in ("a/1", "a/2", "b/c/3", "d", "e/"):
        cloud.objects.put_object(*cloud.place, name, b"")
    top = cloud.objects.list_objects(*cloud.place, delimiter="/").data
    assert (top.prefixes, [each.name for each in top.objects]) == (["a/", "b/", "e/"], ["d"])
    inside = cloud.objects.list_objects(*cloud.place, delimiter="/", prefix="b/").data
    assert (inside.prefixes, inside.objects) == (["b/c/"], [])


def test_fields_are_given_on_request(cloud):
    cloud.objects.put_object(*cloud.place, "o", b"hello")
    fields = "name,size,md5,etag,timeCreated,timeModified,storageTier"
    entry = cloud.objects.list_objects(*cloud.place, fields=fields).data.objects[0]
    assert (entry.size, entry.md5, entry.storage_tier) == (5, md5(b"hello"), "Standard")
    assert entry.time_modified is not None
    assert cloud.objects.list_objects(*cloud.place).data.objects[0].size is None


def test_a_rename_moves_at_once(cloud):
    cloud.objects.put_object(*cloud.place, "a", b"1", opc_meta={"k": "v"})
    cloud.objects.put_object(*cloud.place, "b", b"2")
    details = models.RenameObjectDetails(source_name="a", new_name="b", new_obj_if_none_match_e_tag="*")
    assert refusal(cloud.objects.rename_object, *cloud.place, details) == (412, "IfNoneMatchFailed")
    details.new_obj_if_none_match_e_tag = None
    cloud.objects.rename_object(*cloud.place, details)
    assert names(cloud) == ["b"]
    assert read(cloud, "b") == b"1"
    assert cloud.objects.head_object(*cloud.place, "b").headers["opc-meta-k"] == "v"


def test_many_objects_are_deleted_in_one_request(cloud):
    cloud.objects.put_object(*cloud.place, "a", b"1")
    wanted = [models.BatchDeleteObjectIdentifier(object_name=name) for name in ("a", "b")]
    details = models.BatchDeleteObjectsDetails(objects=wanted)
    result = cloud.objects.batch_delete_objects(*cloud.place, details).data
    assert [each.object_name for each in result.deleted] == ["a"]
    assert [each.status_code for each in result.failed] == [404]


def test_a_batch_is_deleted_as_far_as_its_conditions_hold(cloud):
    for name in ("a", "b"):
        cloud.objects.put_object(*cloud.place, name, b"1")
    wanted = [
        models.BatchDeleteObjectIdentifier(object_name="a", if_match="other"),
        models.BatchDeleteObjectIdentifier(object_name="b"),
    ]
    details = models.BatchDeleteObjectsDetails(objects=wanted, is_skip_deleted_result=True)
    result = cloud.objects.batch_delete_objects(*cloud.place, details).data
    assert (result.deleted, [each.status_code for each in result.failed]) == ([], [412])
    assert names(cloud) == ["a"]
    details.objects = wanted * 501
    assert refusal(cloud.objects.batch_delete_objects, *cloud.place, details)[0] == 400


def test_an_upload_that_breaks_off_leaves_nothing(cloud, emulator):
    class Broken(io.BytesIO):
        def read(self, size: int = -1) -> bytes:
            if self.tell() > 2 * MIB:
                raise OSError("the disk is gone")
            return super().read(size)

    with pytest.raises(OSError, match="the disk is gone"):
        cloud.objects.put_object(*cloud.place, "o", Broken(b"x" * 5 * MIB), content_length=5 * MIB)
    assert names(cloud) == []
    deadline = time.monotonic() + 5
    while list((emulator.folder / "objects").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
