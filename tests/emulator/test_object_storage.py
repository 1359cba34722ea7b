"""Object Storage with the real SDK: bytes, ranges, conditions, listings, odd names, multipart, copies."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
from concurrent.futures import ThreadPoolExecutor

import oci
import pytest
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


def test_what_is_not_there_is_told_apart(cloud):
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


@pytest.mark.parametrize("algorithm", ["CRC32C", "SHA256", "SHA384"])
def test_checksums_are_computed_on_request(cloud, algorithm):
    cloud.objects.put_object(*cloud.place, "o", b"123456789", opc_checksum_algorithm=algorithm)
    name = f"opc-content-{algorithm.lower()}"
    value = cloud.objects.head_object(*cloud.place, "o").headers[name]
    if algorithm == "CRC32C":
        assert base64.b64decode(value).hex() == "e3069283"
    else:
        assert base64.b64decode(value) == hashlib.new(algorithm, b"123456789").digest()


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
    bodies = [path for path in (emulator.folder / "objects").glob("*/*") if path.is_file()]
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


def test_buckets_have_a_life(cloud):
    namespace, _ = cloud.place
    details = models.CreateBucketDetails(
        name="b2", compartment_id=cloud.access.compartment_id, freeform_tags={"a": "b"}
    )
    made = cloud.objects.create_bucket(namespace, details).data
    assert (made.name, made.freeform_tags) == ("b2", {"a": "b"})
    assert refusal(cloud.objects.create_bucket, namespace, details) == (409, "BucketAlreadyExists")
    found = cloud.objects.list_buckets(namespace, cloud.access.compartment_id).data
    assert [bucket.name for bucket in found] == ["b2", "ocidist"]
    cloud.objects.put_object(namespace, "b2", "o", b"")
    assert refusal(cloud.objects.delete_bucket, namespace, "b2") == (409, "BucketNotEmpty")
    cloud.objects.delete_object(namespace, "b2", "o")
    cloud.objects.delete_bucket(namespace, "b2")
    assert refusal(cloud.objects.get_bucket, namespace, "b2") == (404, "BucketNotFound")
    assert cloud.objects.head_bucket(*cloud.place).status == 200


def multipart(cloud, parts: list[bytes], name: str = "big") -> tuple[str, list[dict]]:
    """Send parts in the wrong order; return the upload and what to commit."""
    details = models.CreateMultipartUploadDetails(object=name, metadata={"who": "me"}, content_type="text/x")
    upload_id = cloud.objects.create_multipart_upload(*cloud.place, details).data.upload_id
    commits = []
    for number, part in reversed(list(enumerate(parts, 1))):
        sent = cloud.objects.upload_part(*cloud.place, name, upload_id, number, part, content_md5=md5(part))
        commits.append(models.CommitMultipartUploadPartDetails(part_num=number, etag=sent.headers["etag"]))
    return upload_id, commits


def commit(cloud, upload_id: str, parts: list, name: str = "big", **more):
    details = models.CommitMultipartUploadDetails(parts_to_commit=parts)
    return cloud.objects.commit_multipart_upload(*cloud.place, name, upload_id, details, **more)


def test_parts_become_one_object(cloud):
    parts = [b"a" * MIB, b"b" * 10, b"c" * 2 * MIB]
    upload_id, commits = multipart(cloud, parts)
    listed = cloud.objects.list_multipart_upload_parts(*cloud.place, "big", upload_id).data
    assert [(part.part_number, part.size) for part in listed] == [(1, MIB), (2, 10), (3, 2 * MIB)]
    assert names(cloud) == []
    done = commit(cloud, upload_id, commits)
    whole = b"".join(parts)
    got = cloud.objects.get_object(*cloud.place, "big")
    assert got.data.content == whole
    digest = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).digest()
    assert done.headers["opc-multipart-md5"] == base64.b64encode(digest).decode() + "-3"
    assert (got.headers["opc-meta-who"], got.headers["content-type"]) == ("me", "text/x")
    for start, end in ((MIB - 3, MIB + 12), (0, MIB), (MIB + 2, MIB + 4)):
        assert read(cloud, "big", range=f"bytes={start}-{end - 1}") == whole[start:end]
    assert cloud.objects.list_multipart_uploads(*cloud.place).data == []


def test_a_part_can_be_sent_again(cloud):
    upload_id, _ = multipart(cloud, [b"old"])
    again = cloud.objects.upload_part(*cloud.place, "big", upload_id, 1, b"new").headers["etag"]
    commit(cloud, upload_id, [models.CommitMultipartUploadPartDetails(part_num=1, etag=again)])
    assert read(cloud, "big") == b"new"


def test_a_commit_must_name_the_parts_as_they_are(cloud):
    upload_id, commits = multipart(cloud, [b"a", b"b"])
    commits[0].etag = "other"
    assert refusal(commit, cloud, upload_id, commits) == (400, "InvalidUploadPart")
    assert refusal(commit, cloud, "no-upload", commits)[0] == 404


def test_a_commit_keeps_conditions(cloud):
    upload_id, commits = multipart(cloud, [b"a"])
    cloud.objects.put_object(*cloud.place, "big", b"first")
    assert refusal(commit, cloud, upload_id, commits, if_none_match="*") == (412, "IfNoneMatchFailed")
    assert read(cloud, "big") == b"first"


def test_an_aborted_upload_leaves_nothing(cloud, emulator):
    upload_id, commits = multipart(cloud, [b"a", b"b"])
    cloud.objects.abort_multipart_upload(*cloud.place, "big", upload_id)
    assert refusal(commit, cloud, upload_id, commits)[0] == 404
    assert [path for path in (emulator.folder / "objects").glob("*/*") if path.is_file()] == []


@pytest.mark.parametrize("size", [0, 1, 3 * MIB, 5 * MIB + 1])
def test_the_upload_manager_works(cloud, tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    manager = oci.object_storage.UploadManager(cloud.objects, allow_multipart_uploads=True)
    manager.upload_file(*cloud.place, "o", str(path), part_size=MIB)
    assert read(cloud, "o") == path.read_bytes()
    if size:
        manager.upload_stream(*cloud.place, "s", io.BytesIO(path.read_bytes()), part_size=2 * MIB)
        assert read(cloud, "s") == path.read_bytes()


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


def copy_details(cloud, name: str, target: str) -> models.CopyObjectDetails:
    namespace, bucket = cloud.place
    return models.CopyObjectDetails(
        source_object_name=name,
        destination_region=cloud.access.region,
        destination_namespace=namespace,
        destination_bucket=bucket,
        destination_object_name=target,
    )


def finished_copy(cloud, details):
    accepted = cloud.objects.copy_object(*cloud.place, details)
    assert accepted.status == 202
    request = cloud.objects.get_work_request(accepted.headers["opc-work-request-id"])
    return oci.wait_until(
        cloud.objects,
        request,
        evaluate_response=lambda answer: answer.data.time_finished is not None,
        max_interval_seconds=0.05,
    )


def test_a_copy_is_done_later(cloud):
    cloud.objects.put_object(*cloud.place, "a", b"1")
    request = finished_copy(cloud, copy_details(cloud, "a", "b"))
    assert (request.data.status, request.data.operation_type) == ("COMPLETED", "COPY_OBJECT")
    cloud.objects.delete_object(*cloud.place, "a")
    assert read(cloud, "b") == b"1"


def test_a_copy_fails_when_its_source_is_deleted_meanwhile(cloud):
    cloud.objects.put_object(*cloud.place, "a", b"1")
    accepted = cloud.objects.copy_object(*cloud.place, copy_details(cloud, "a", "b"))
    cloud.objects.delete_object(*cloud.place, "a")
    request = cloud.objects.get_work_request(accepted.headers["opc-work-request-id"])
    ended = oci.wait_until(cloud.objects, request, "status", "FAILED", max_interval_seconds=0.05)
    assert "ObjectNotFound" in cloud.objects.list_work_request_errors(ended.data.id).data[0].message


def test_many_objects_are_deleted_in_one_request(cloud):
    cloud.objects.put_object(*cloud.place, "a", b"1")
    wanted = [models.BatchDeleteObjectIdentifier(object_name=name) for name in ("a", "b")]
    details = models.BatchDeleteObjectsDetails(objects=wanted)
    result = cloud.objects.batch_delete_objects(*cloud.place, details).data
    assert [each.object_name for each in result.deleted] == ["a"]
    assert [each.status_code for each in result.failed] == [404]


def test_an_upload_that_breaks_off_leaves_nothing(cloud, emulator):
    class Broken(io.BytesIO):
        def read(self, size: int = -1) -> bytes:
            if self.tell() > 2 * MIB:
                raise OSError("the disk is gone")
            return super().read(size)

    with pytest.raises(OSError, match="the disk is gone"):
        cloud.objects.put_object(*cloud.place, "o", Broken(b"x" * 5 * MIB), content_length=5 * MIB)
    assert names(cloud) == []
    assert list((emulator.folder / "objects").glob("receiving-*")) == []
