"""Checksums beside MD5: verified on the way in, sent on the way out, right for objects made of parts."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import random

import crc32c
import oci
import pytest
from oci.object_storage import models
from oci.object_storage.transfer.internal.download.DownloadConfiguration import DownloadConfiguration
from oci.object_storage.transfer.internal.download.DownloadManager import DownloadManager

from airflow_provider_ocidist.emulator.object_storage.checksums import combined_crc32c
from tests.emulator.test_object_storage import MIB, names, read, refusal

ALGORITHMS = ["CRC32C", "SHA256", "SHA384"]


def checksum(algorithm: str, data: bytes) -> str:
    if algorithm == "CRC32C":
        return base64.b64encode(crc32c.crc32c(data).to_bytes(4, "big")).decode()
    return base64.b64encode(hashlib.new(algorithm, data).digest()).decode()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_checksums_are_computed_on_request(cloud, algorithm):
    put = cloud.objects.put_object(*cloud.place, "o", b"123456789", opc_checksum_algorithm=algorithm)
    name, value = f"opc-content-{algorithm.lower()}", checksum(algorithm, b"123456789")
    assert put.headers[name] == value
    assert cloud.objects.head_object(*cloud.place, "o").headers[name] == value
    assert cloud.objects.get_object(*cloud.place, "o").headers[name] == value


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_body_must_have_the_checksum_that_came_with_it(cloud, algorithm):
    def put(data: bytes):
        stated = {f"opc_content_{algorithm.lower()}": checksum(algorithm, b"hello")}
        return cloud.objects.put_object(*cloud.place, "o", data, opc_checksum_algorithm=algorithm, **stated)

    assert refusal(put, b"hallo") == (400, f"UnmatchedContent{algorithm}")
    assert names(cloud) == []
    put(b"hello")
    assert read(cloud, "o") == b"hello"


def test_an_unknown_algorithm_is_refused(cloud):
    wrong = refusal(cloud.objects.put_object, *cloud.place, "o", b"", opc_checksum_algorithm="MD4")
    assert wrong == (400, "InvalidParameter")


def test_the_crc_of_pieces_gives_the_crc_of_the_whole():
    random.seed(1)
    data = random.randbytes(100_000)
    cuts = [0, 0, 1, 33_000, 66_000, 99_999, 100_000, 100_000]
    pieces = [data[start:end] for start, end in itertools.pairwise(cuts)]
    assert combined_crc32c((checksum("CRC32C", each), len(each)) for each in pieces) == checksum(
        "CRC32C", data
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_upload_manager_has_its_checksums_verified(cloud, tmp_path, algorithm):
    path = tmp_path / "file"
    path.write_bytes(random.randbytes(2 * MIB + 12345))
    manager = oci.object_storage.UploadManager(cloud.objects)
    done = manager.upload_file(*cloud.place, "o", str(path), part_size=MIB, opc_checksum_algorithm=algorithm)
    data = path.read_bytes()
    told = cloud.objects.head_object(*cloud.place, "o").headers
    if algorithm == "CRC32C":
        assert done.headers["opc-content-crc32c"] == checksum("CRC32C", data)
        assert told["opc-content-crc32c"] == checksum("CRC32C", data)
    else:
        parts = [data[at : at + MIB] for at in range(0, len(data), MIB)]
        joined = b"".join(hashlib.new(algorithm, part).digest() for part in parts)
        assert told[f"opc-multipart-{algorithm.lower()}"] == f"{checksum(algorithm, joined)}-3"
    assert "content-md5" not in told


def test_a_part_must_have_its_checksum(cloud):
    details = models.CreateMultipartUploadDetails(object="o")
    upload_id = cloud.objects.create_multipart_upload(*cloud.place, details).data.upload_id
    stated = {"opc_checksum_algorithm": "CRC32C", "opc_content_crc32c": checksum("CRC32C", b"other")}
    wrong = refusal(cloud.objects.upload_part, *cloud.place, "o", upload_id, 1, b"part", **stated)
    assert wrong == (400, "UnmatchedContentCRC32C")
    assert cloud.objects.list_multipart_upload_parts(*cloud.place, "o", upload_id).data == []


@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_the_download_manager_finds_its_checksums(cloud, algorithm):
    data = random.randbytes(3 * MIB + 7)
    more = {"opc_checksum_algorithm": algorithm} if algorithm else {}
    cloud.objects.put_object(*cloud.place, "o", data, **more)
    assert downloaded(cloud, parallel=algorithm == "CRC32C") == data


def test_the_download_manager_verifies_an_object_made_of_parts(cloud, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(random.randbytes(3 * MIB + 7))
    manager = oci.object_storage.UploadManager(cloud.objects)
    manager.upload_file(*cloud.place, "o", str(path), part_size=MIB, opc_checksum_algorithm="CRC32C")
    assert downloaded(cloud, parallel=True) == path.read_bytes()


def downloaded(cloud, *, parallel: bool) -> bytes:
    """Return the object as the SDK's download manager gets it, which insists on a checksum that fits."""
    configuration = DownloadConfiguration(
        allow_multipart=parallel, part_size_in_bytes=MIB, is_enforce_data_integrity_for_download=True
    )
    stream = io.BytesIO()
    manager = DownloadManager(configuration, cloud.objects)
    manager.get_object_to_stream(*cloud.place, "o", stream)
    return stream.getvalue()


def test_a_range_comes_without_the_checksums_of_the_whole(cloud):
    cloud.objects.put_object(*cloud.place, "o", b"0123456789", opc_checksum_algorithm="CRC32C")
    told = cloud.objects.get_object(*cloud.place, "o", range="bytes=2-4").headers
    assert not {"content-md5", "opc-content-crc32c"} & set(told)
