"""One contract for every place: local folder, OCI bucket, fsspec."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import oci
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_provider_ocidist.errors import StorageError, Unopenable
from airflow_provider_ocidist.oci_client.request import Caller, Signer
from airflow_provider_ocidist.oci_client.rest import ObjectStorageClient
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.stores import base
from airflow_provider_ocidist.storage.stores.fsspec import FsspecStore
from airflow_provider_ocidist.storage.stores.oci import OciStore
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.storage.trees import ODD_NAMES, read_tree
from tests.storage.unruly_proxy import Fault


def open_without_sdk(uri, access):
    config = oci.config.from_file(access.config_file, access.profile)
    key_id = "/".join(config[name] for name in ("tenancy", "user", "fingerprint"))
    signer = Signer(lambda: (key_id, Path(config["key_file"]).read_text()))
    client = ObjectStorageClient(Caller(signer, access.endpoint, access.max_attempts))
    place = locations.parse(uri)
    return OciStore(client, place.namespace, place.bucket, place.path)


@pytest.fixture(params=["local", "oci", "oci without its SDK", "memory"])
def store(request, tmp_path):
    if request.param == "local":
        return open_store(str(tmp_path / "store"))
    if request.param == "memory":
        return open_store(f"memory://{uuid.uuid4().hex}")
    if request.param == "oci without its SDK":
        return open_without_sdk(request.getfixturevalue("bucket"), request.getfixturevalue("access"))
    return open_store(request.getfixturevalue("bucket"), request.getfixturevalue("access"))


def test_what_was_written_is_read_back(store):
    for content in (b"hello", b"", os.urandom(100_000)):
        store.write("a/b.json", content)
        assert store.read("a/b.json") == content


def test_odd_names_keep_their_content(store):
    for name in ODD_NAMES:
        store.write(name, name.encode())
    assert [entry.name for entry in store.list()] == sorted(ODD_NAMES)
    for name in ODD_NAMES:
        assert store.read(name) == name.encode()


def test_list_shows_files_of_subfolders_below_a_prefix(store):
    for name in ("a/1", "a/2", "a/b/3", "ab", "c"):
        store.write(name, b"x" * len(name))
    assert [entry.name for entry in store.list()] == ["a/1", "a/2", "a/b/3", "ab", "c"]
    assert [entry.name for entry in store.list("a/")] == ["a/1", "a/2", "a/b/3"]
    assert [entry.name for entry in store.list("a")] == ["a/1", "a/2", "a/b/3", "ab"]
    assert store.list("nothing/") == []
    assert [entry.size for entry in store.list()] == [3, 3, 5, 2, 1]


def test_entries_have_the_time_of_their_last_write(store):
    before = time.time()
    store.write("x", b"1")
    (entry,) = store.list()
    assert before - 3 < entry.modified < time.time() + 3


def test_a_store_that_does_not_exist_yet_is_empty(store):
    assert store.list() == []
    assert not store.exists("x")


def test_absence_is_file_not_found(store):
    with pytest.raises(FileNotFoundError):
        store.read("nothing")
    with pytest.raises(FileNotFoundError):
        store.stat("nothing")


def test_a_folder_is_not_a_file(store):
    store.write("folder/x", b"1")
    assert not store.exists("folder")
    assert store.exists("folder/x")


def test_delete_removes_and_may_be_repeated(store):
    store.write("a/x", b"1")
    store.write("y", b"1")
    store.delete("a/x")
    store.delete("a/x")
    assert [entry.name for entry in store.list()] == ["y"]


class Bucket(MemoryFileSystem):
    """A bucket whose key may read and write objects, and nothing else."""

    protocol = ("s3", "s3a")

    def makedirs(self, path, exist_ok=False):
        raise PermissionError(f"the bucket of {path} cannot be looked at")


WRITTEN_AT = datetime(2026, 11, 27, 22, 48, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "time_as_listed, found",
    [
        ({"LastModified": WRITTEN_AT}, WRITTEN_AT.timestamp()),
        ({"mtime": WRITTEN_AT.timestamp()}, WRITTEN_AT.timestamp()),
        ({"modify": "20261127224812"}, WRITTEN_AT.timestamp()),
        ({"modify": "20261127224812.25"}, WRITTEN_AT.timestamp() + 0.25),
        ({"modify": "Nov 27 22:48"}, None),
        ({"modificationTime": 1000 * int(WRITTEN_AT.timestamp()) + 250}, WRITTEN_AT.timestamp() + 0.25),
        ({}, None),
    ],
    ids=["object store", "file system", "ftp", "ftp, exact", "ftp without MLSD", "webhdfs", "unknown"],
)
def test_the_time_of_a_file_is_read_in_whichever_form_a_driver_lists_it(time_as_listed, found):
    class Listed(MemoryFileSystem):
        def find(self, path, **more):
            infos = super().find(path, detail=True).values()
            return {
                each["name"]: {"name": each["name"], "size": 1, "type": "file", **time_as_listed}
                for each in infos
            }

    place = f"/{uuid.uuid4().hex}"
    store = FsspecStore(f"memory:/{place}", Listed(), place)
    store.write("x", b"1")
    assert [entry.modified for entry in store.list()] == [found]


def test_of_a_bucket_no_folder_is_asked_for():
    store = FsspecStore("s3://bucket/work", Bucket(), f"/{uuid.uuid4().hex}/work")
    store.write("a/b.json", b"hello")
    upload = store.upload("a/c.bin", 5, 5)
    upload.write(0, 0, b"whole")
    upload.commit()
    assert [(entry.name, store.read(entry.name)) for entry in store.list()] == [
        ("a/b.json", b"hello"),
        ("a/c.bin", b"whole"),
    ]


class NoBucket(Bucket):
    """An object store without the bucket: s3fs and gcsfs answer a write to it as they do a read of a missing file."""

    refused = "pipe_file"

    def pipe_file(self, path, value, mode="overwrite", **options):
        raise FileNotFoundError("The specified bucket does not exist")

    def open(self, path, mode="rb", **options):
        stream = super().open(path, mode, **options)
        if self.refused == "open":
            raise FileNotFoundError("The specified bucket does not exist")
        if self.refused == "write":
            stream.write = self._refuse
        if self.refused == "close":
            stream.close = self._refuse
        return stream

    def _refuse(self, *_):
        raise FileNotFoundError("The specified bucket does not exist")


def _write_whole(store):
    store.write("x", b"1")


def _write_parts(store):
    upload = store.upload("x", 1, 1)
    try:
        upload.write(0, 0, b"1")
        upload.commit()
    finally:
        upload.abort()


@pytest.mark.parametrize(
    "refused, use",
    [
        ("pipe_file", _write_whole),
        ("open", _write_parts),
        ("write", _write_parts),
        ("close", _write_parts),
    ],
)
def test_a_write_to_a_missing_bucket_says_so_and_is_no_absence(refused, use):
    driver = type(f"Without{refused}", (NoBucket,), {"refused": refused})()
    store = FsspecStore("s3://bucket/work", driver, f"/{uuid.uuid4().hex}/work")
    with pytest.raises(
        StorageError, match=r"s3://bucket/work/x: .*no such bucket or folder: create it"
    ) as caught:
        use(store)
    assert not caught.value.retryable
    assert not store.exists("x")
    with pytest.raises(FileNotFoundError):
        store.read("x")


def test_names_cannot_escape(store):
    for name in ("../x", "/etc/passwd", "a/../../x"):
        for use in (store.read, store.delete, store.stat, lambda name: store.write(name, b"")):
            with pytest.raises(StorageError, match="refused"):
                use(name)


def test_a_reader_never_sees_half_a_report(store):
    """Heartbeats are rewritten while others read them."""
    contents = [json.dumps({"n": digit * 20_000}).encode() for digit in "0123"]
    store.write("nodes/0.json", contents[0])
    ended = threading.Event()
    failures = []

    def rewrite():
        try:
            for count in range(40):
                store.write("nodes/0.json", contents[count % 4])
        except Exception as error:
            failures.append(error)
        finally:
            ended.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    reads = 0
    while not ended.is_set() or not reads:
        assert store.read("nodes/0.json") in contents
        assert [entry.name for entry in store.list()] == ["nodes/0.json"]
        reads += 1
    writer.join()
    assert not failures


def test_many_threads_share_one_store(store):
    names = [f"nodes/{number}.json" for number in range(48)]
    errors = []

    def beat(name):
        try:
            for _ in range(3):
                store.write(name, name.encode())
                assert store.read(name) == name.encode()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=beat, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(store.list("nodes/")) == 48


def test_another_process_sees_new_files_at_once(store):
    """A listing is never answered from a cache: a stale heartbeat would look like a dead node."""
    other = open_store(store.uri, None) if store.uri.startswith(("/", "memory")) else store
    assert other.list() == []
    store.write("x", b"1")
    assert [entry.name for entry in other.list()] == ["x"]
    store.write("x", b"22")
    assert other.read("x") == b"22"
    assert other.stat("x").size == 2


# Local folders


def test_a_local_write_leaves_nothing_when_the_disk_is_full(tmp_path):
    program = (
        "import resource, sys\n"
        "from airflow_provider_ocidist.storage.stores.opening import open_store\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: open_store(sys.argv[1]).write('x', b'1' * 5000)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        # -B: modules that are imported under the limit would leave cut-off bytecode in the package.
        [sys.executable, "-B", "-c", program, str(tmp_path / "s")],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("StorageError")
    assert str(tmp_path / "s") in done.stdout
    assert read_tree(tmp_path) == {}


def test_a_local_delete_leaves_no_empty_folders(tmp_path):
    store = open_store(str(tmp_path))
    store.write("a/b/x", b"1")
    store.delete("a/b/x")
    assert list(tmp_path.iterdir()) == []


def test_permission_denied_is_a_storage_error_not_absence(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    store = open_store(str(tmp_path / "file"))
    with pytest.raises(StorageError, match="not a directory"):
        store.read("x")
    with pytest.raises(StorageError):
        store.exists("x")


# OCI


def test_the_namespace_is_looked_up_when_the_uri_names_none(emulator, access):
    store = open_store(f"oci://{emulator.bucket}/some/{uuid.uuid4().hex}", access)
    store.write("x", b"1")
    assert f"@{emulator.namespace}/" in store.uri
    assert store.read("x") == b"1"


def test_a_missing_bucket_is_an_error_not_absence(emulator, access):
    store = open_store(f"oci://no-such-bucket@{emulator.namespace}/x", access)
    for use in (
        store.read,
        store.exists,
        store.delete,
        lambda _: store.list(),
        lambda name: store.write(name, b"1"),
    ):
        with pytest.raises(StorageError, match="or these credentials may not see it") as caught:
            use("x")
        assert caught.value.__cause__.status_code == 404


def test_an_outage_is_never_taken_for_absence(unruly, proxy, bucket):
    store = open_store(bucket, replace(unruly, max_attempts=1))
    store.write("x", b"1")
    proxy.faults = [Fault(status=503, times=10)]
    for use in (store.exists, store.read, lambda _: store.list()):
        with pytest.raises(StorageError, match="503"):
            use("x")


def test_a_passing_outage_is_ridden_out(unruly, proxy, bucket):
    store = open_store(bucket, unruly)
    proxy.faults = [Fault(status=503, times=2), Fault(status=429)]
    store.write("x", b"1")
    proxy.faults = [Fault(method="GET", lose_answer=True)]
    assert store.read("x") == b"1"


def test_an_object_whose_body_breaks_is_read_whole_all_the_same(unruly, proxy, bucket):
    store, content = open_store(bucket, unruly), os.urandom(300_000)
    store.write("x", content)
    proxy.faults = [Fault(method="GET", cut_after=cut) for cut in (1000, 200_000)]
    assert store.read("x") == content
    proxy.faults = [Fault(method="GET", cut_after=0, times=100)]
    with pytest.raises(StorageError):
        store.read("x")


def test_an_object_that_is_written_anew_while_its_body_breaks_is_not_mixed(unruly, proxy, bucket):
    store = open_store(bucket, unruly)
    store.write("x", b"1" * 100_000)
    proxy.faults = [
        Fault(method="GET", cut_after=1000),
        Fault(method="GET", meanwhile=lambda: store.write("x", b"2" * 100_000)),
    ]
    with pytest.raises(StorageError, match="changed while it was read"):
        store.read("x")
    assert store.read("x") == b"2" * 100_000


def test_a_heartbeat_costs_one_request(unruly, proxy, bucket):
    store = open_store(bucket, unruly)
    proxy.seen.clear()
    store.write("nodes/0.json", b"{}")
    store.read("nodes/0.json")
    store.list("nodes/")
    store.exists("nodes/0.json")
    assert [method for method, _ in proxy.seen] == ["PUT", "GET", "GET", "GET"]


def test_a_damaged_body_is_noticed(unruly, proxy, bucket):
    store = open_store(bucket, unruly)
    store.write("x", b"hello")
    proxy.faults = [Fault(method="GET", damage=True)]
    with pytest.raises(StorageError, match="checksum"):
        store.read("x")


def test_more_objects_than_one_page_are_listed(access, bucket):
    store = open_store(bucket, access)
    _write_many(store, 1050)
    assert len(store.list()) == 1050


def _write_many(store, count):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: store.write(f"{number:05}", b""), range(count)))


# Anything else


def test_a_web_server_can_be_read(web):
    url, folder = web
    (folder / "x.txt").write_bytes(b"hello")
    store = open_store(url)
    assert store.read("x.txt") == b"hello"
    assert store.stat("x.txt").size == 5
    assert not store.exists("y.txt")


def test_a_web_server_that_is_down_is_an_error_not_absence():
    store = open_store("http://127.0.0.1:9/folder")
    with pytest.raises(StorageError):
        store.exists("x")
    with pytest.raises(StorageError):
        store.read("x")


class HalfGone(BaseHTTPRequestHandler):
    """A page with a file and a folder, whose own page breaks off."""

    def do_GET(self):
        if self.path != "/":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        page = b'<a href="x.txt">x</a> <a href="sub/">sub</a>'
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *arguments):
        pass


def test_a_folder_that_cannot_be_listed_is_an_error_not_an_empty_one():
    with ThreadingHTTPServer(("127.0.0.1", 0), HalfGone) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            with pytest.raises(StorageError):
                FsspecStore.connect(locations.parse(f"http://127.0.0.1:{server.server_port}/")).list()
        finally:
            server.shutdown()
            thread.join(10)


@pytest.mark.parametrize("fails", ["read", "stat", "list", "write"])
def test_no_error_of_a_store_shows_what_opens_a_web_address(fails):
    address = "http://me:pass@word@127.0.0.1:9/p/the-secret/n/ns/b/bucket/o"
    store = open_store(address)
    arguments = {"read": ["x"], "stat": ["x"], "list": [], "write": ["x", b""]}
    with pytest.raises(StorageError, match=r"http://127\.0\.0\.1:9/p/\*\*\*/n/ns/b/bucket/o") as caught:
        getattr(store, fails)(*arguments[fails])
    assert not [secret for secret in ("secret", "word") if secret in str(caught.value)]


def test_an_unknown_scheme_is_one_clear_error():
    with pytest.raises(StorageError, match="nonsense"):
        open_store("nonsense://a/b")


@pytest.mark.skipif(
    sys.version_info < (3, 10), reason="before Python 3.10 nothing lists the standard library"
)
def test_opening_stores_loads_neither_oci_nor_fsspec():
    program = (
        "import sys\n"
        "import airflow_provider_ocidist.storage.transfer, airflow_provider_ocidist.storage.checkpoints\n"
        "import airflow_provider_ocidist.storage.progress\n"
        "from airflow_provider_ocidist.storage.stores.opening import open_store\n"
        "open_store('/tmp').exists('x')\n"
        "known = set(sys.stdlib_module_names) | {'airflow_provider_ocidist', '__main__'}\n"
        "print([name for name in sys.modules if name.split('.')[0] not in known])\n"
    )
    root = Path(base.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_server_of_another_kind_that_is_not_there_may_be_there_later() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(StorageError) as caught:
        open_store(f"ftp://127.0.0.1:{port}/folder").list()
    assert caught.value.retryable
    assert not isinstance(caught.value, Unopenable)


@pytest.mark.parametrize(
    "uri",
    ["", "nosuch://bucket/x", "oci:///x", "oci://@ns/x", "oci:/b@ns/x", "s3:b/x", "https:host/x", "a\0b"],
    ids=ascii,
)
def test_a_uri_that_names_no_place_is_distinguished_from_a_place_that_is_not_there(uri: str) -> None:
    with pytest.raises(Unopenable) as caught:
        open_store(uri)
    assert not caught.value.retryable
    assert caught.value.uri == uri


@pytest.mark.parametrize("path", ["s3", "oci", "runs:of-today/x", "./oci:x", "file:///tmp/x"])
def test_a_folder_of_this_machine_may_have_a_colon_in_its_name(path: str) -> None:
    assert locations.parse(path).kind == "local"
