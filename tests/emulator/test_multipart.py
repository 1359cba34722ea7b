"""Multipart uploads: by hand, with the upload manager, broken off and resumed."""

from __future__ import annotations

import base64
import hashlib
import io

import oci
import pytest
from oci.object_storage import models

from tests.emulator.test_object_storage import MIB, md5, names, read, refusal


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
    assert list((emulator.folder / "objects").iterdir()) == []


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


def test_each_part_is_either_committed_or_excluded(cloud, emulator):
    upload_id, (second, first) = multipart(cloud, [b"a", b"b"])
    assert refusal(commit, cloud, upload_id, [first]) == (400, "InvalidUploadPart")
    both = models.CommitMultipartUploadDetails(parts_to_commit=[first, second], parts_to_exclude=[2])
    place = (*cloud.place, "big", upload_id)
    assert refusal(cloud.objects.commit_multipart_upload, *place, both) == (400, "InvalidUploadPart")
    some = models.CommitMultipartUploadDetails(parts_to_commit=[first], parts_to_exclude=[2])
    cloud.objects.commit_multipart_upload(*place, some)
    assert read(cloud, "big") == b"a"
    assert len(list((emulator.folder / "objects").iterdir())) == 1


def test_a_commit_must_commit_something(cloud):
    upload_id, _ = multipart(cloud, [b"a"])
    assert refusal(commit, cloud, upload_id, []) == (400, "InvalidUploadPart")


def test_conditions_hold_for_parts(cloud):
    upload_id, (only,) = multipart(cloud, [b"old"])
    put = cloud.objects.upload_part
    where = (*cloud.place, "big", upload_id, 1, b"new")
    assert refusal(put, *where, if_none_match="*") == (412, "IfNoneMatchFailed")
    assert refusal(put, *where, if_match="other") == (412, "IfMatchFailed")
    assert put(*where, if_match=only.etag).headers["etag"] != only.etag


@pytest.mark.parametrize("number", [0, 10_001])
def test_part_numbers_have_bounds(cloud, number):
    upload_id, _ = multipart(cloud, [b"a"])
    wrong = refusal(cloud.objects.upload_part, *cloud.place, "big", upload_id, number, b"")
    assert wrong == (400, "InvalidParameter")


def test_parts_and_uploads_come_in_pages(cloud):
    upload_id, _ = multipart(cloud, [b"x"] * 5)
    multipart(cloud, [b"x"], name="another")
    listed = oci.pagination.list_call_get_all_results(
        cloud.objects.list_multipart_upload_parts, *cloud.place, "big", upload_id, limit=2
    )
    assert [part.part_number for part in listed.data] == [1, 2, 3, 4, 5]
    first = cloud.objects.list_multipart_uploads(*cloud.place, limit=1)
    second = cloud.objects.list_multipart_uploads(*cloud.place, limit=1, page=first.next_page)
    assert [each.object for each in first.data + second.data] == ["another", "big"]
    assert not second.has_next_page


def test_an_upload_that_broke_off_is_resumed_where_it_was(cloud, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 4 * 1024 * 5)
    sent = []

    def break_off(_: int) -> None:
        sent.append(1)
        if len(sent) == 2:
            cloud.control("POST", "/faults", method="PUT", path=".*/u/.*", status=400)

    manager = oci.object_storage.UploadManager(cloud.objects, allow_parallel_uploads=False)
    with pytest.raises(oci.exceptions.ServiceError):
        manager.upload_file(*cloud.place, "o", str(path), part_size=MIB, progress_callback=break_off)
    cloud.control("DELETE", "/faults")
    (upload,) = cloud.objects.list_multipart_uploads(*cloud.place).data
    cloud.control("DELETE", "/calls")
    manager.resume_upload_file(*cloud.place, "o", str(path), upload.upload_id, part_size=MIB)
    assert read(cloud, "o") == path.read_bytes()
    calls = [call["path"] for call in cloud.control("GET", "/calls") if call["method"] == "PUT"]
    assert sorted(call.rpartition("=")[2] for call in calls) == ["3", "4", "5"]


def test_metadata_that_no_header_can_carry_is_refused(cloud):
    details = models.CreateMultipartUploadDetails(object="o", metadata={"who": "mé\n"})
    assert refusal(cloud.objects.create_multipart_upload, *cloud.place, details) == (400, "InvalidMetadata")
