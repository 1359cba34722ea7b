"""Objects and the server's process: large bodies in little memory, and nothing half done after kill -9."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from oci.object_storage import models

from airflow_provider_ocidist.emulator.store import RecordStore
from tests.emulator.conftest import Cloud
from tests.emulator.test_object_storage import MIB, names, read
from tests.emulator.test_standalone import standing_alone

LARGE = 256 * MIB
MAX_RESIDENT_MIB = 200


class Generated:
    """A body that is made while it is read."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.block = bytes(range(256)) * (4 * MIB // 256)

    def read(self, size: int = -1) -> bytes:
        chunk = self.block[: min(self.left, size if size >= 0 else self.left, len(self.block))]
        self.left -= len(chunk)
        return chunk


def peak_mib(pid: int) -> int:
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) // 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[tuple[int, Cloud]]:
    with standing_alone(tmp_path_factory.mktemp("large") / "state") as (process, access):
        yield process.pid, Cloud.of(access)


def test_a_large_object_goes_in_and_out_in_little_memory(server):
    pid, cloud = server
    cloud.objects.put_object(*cloud.place, "o", Generated(LARGE), content_length=LARGE)
    got = cloud.objects.get_object(*cloud.place, "o")
    assert sum(map(len, got.data.raw.stream(4 * MIB))) == LARGE
    assert peak_mib(pid) < MAX_RESIDENT_MIB


def test_slow_readers_do_not_fill_the_memory(server):
    pid, cloud = server
    cloud.objects.put_object(*cloud.place, "slow", Generated(64 * MIB), content_length=64 * MIB)
    readers = [cloud.objects.get_object(*cloud.place, "slow").data.raw for _ in range(6)]
    for reader in readers:
        reader.read(MIB)
    assert peak_mib(pid) < MAX_RESIDENT_MIB
    for reader in readers:
        reader.close()


def half_a_put(cloud, name: str) -> http.client.HTTPConnection:
    """Send half of what was announced."""
    address = urlsplit(cloud.access.url)
    connection = http.client.HTTPConnection(address.hostname, address.port)
    namespace, bucket = cloud.place
    connection.putrequest("PUT", f"/n/{namespace}/b/{bucket}/o/{name}")
    connection.putheader("content-length", str(8 * MIB))
    connection.endheaders(b"x" * 4 * MIB)
    return connection


def test_a_kill_leaves_nothing_half_done_and_parts_where_they_were(folder):
    with standing_alone(folder, "--no-signatures") as (process, access):
        cloud = Cloud.of(access)
        cloud.objects.put_object(*cloud.place, "old", b"whole")
        details = models.CreateMultipartUploadDetails(object="parts")
        upload_id = cloud.objects.create_multipart_upload(*cloud.place, details).data.upload_id
        first = cloud.objects.upload_part(*cloud.place, "parts", upload_id, 1, b"hello ").headers["etag"]
        connections = [half_a_put(cloud, "old"), half_a_put(cloud, "new")]
        process.kill()
        process.wait()
        for connection in connections:
            connection.close()
    with standing_alone(folder, "--no-signatures") as (_, access):
        cloud = Cloud.of(access)
        assert names(cloud) == ["old"]
        assert read(cloud, "old") == b"whole"
        assert sorted(path.stat().st_size for path in (folder / "objects").iterdir()) == [5, 6]
        (part,) = cloud.objects.list_multipart_upload_parts(*cloud.place, "parts", upload_id).data
        assert (part.part_number, part.etag, part.size) == (1, first, 6)
        second = cloud.objects.upload_part(*cloud.place, "parts", upload_id, 2, b"world").headers["etag"]
        committed = [
            models.CommitMultipartUploadPartDetails(part_num=number, etag=etag)
            for number, etag in ((1, first), (2, second))
        ]
        commit = models.CommitMultipartUploadDetails(parts_to_commit=committed)
        cloud.objects.commit_multipart_upload(*cloud.place, "parts", upload_id, commit)
        assert read(cloud, "parts") == b"hello world"


def test_what_breaks_off_inside_a_transaction_never_was(tmp_path):
    store = RecordStore(tmp_path / "state.sqlite3")
    store.put("object", "a", {"size": 1})

    def rename() -> None:
        with store.transaction():
            store.delete("object", "a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rename()
    assert list(store.load("object")) == [("a", {"size": 1})]
    store.close()
