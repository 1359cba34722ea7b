"""copy: server-side, from the web in ranges, only what has changed, never into itself, as wide as pays."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.copying.lanes import Lanes, Width, next_width
from airflow_provider_ocidist.storage.stores.base import Buffer
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.local_upload import LocalUpload
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.storage.transfer import copy, copy_entries
from tests.storage.trees import make_tree, read_store, read_tree
from tests.storage.unruly_proxy import Fault, UnrulyProxy

PART = 64 << 10
LARGE = (1 << 20) + 5
SEED = int(os.environ.get("COPYING_SEED", "20261128"))


# Into itself


def test_a_tree_is_not_copied_into_itself(access: OciAccess, bucket: str, tmp_path: Path) -> None:
    make_tree(tmp_path / "s", {"a": 3, "b/c": 3})
    open_store(f"{bucket}/s", access).write("a", b"1")
    (tmp_path / "link").symlink_to("s")
    for source, target in (
        (tmp_path / "s", tmp_path / "s"),
        (tmp_path / "s", tmp_path / "s" / "b" / "new"),
        (tmp_path / "link", tmp_path / "s" / "b"),
        (f"{bucket}/s/", f"{bucket}/s/below"),
    ):
        with pytest.raises(StorageError, match="into itself"):
            copy(str(source), str(target), access=access)
    assert sorted(read_tree(tmp_path / "s")) == ["a", "b/c"]
    copy(f"{bucket}/s/", f"{bucket}/s2", access=access)


def test_a_file_is_not_copied_onto_itself_nor_a_tree_over_its_own_files(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "s", {"a": 3, "s/a": 4})
    for source, target in ((tmp_path / "s/a", tmp_path / "s"), (tmp_path / "s", tmp_path)):
        with pytest.raises(StorageError, match="of which it is a source"):
            copy(str(source), str(target))
    assert read_tree(tmp_path / "s") == tree


# Between buckets


def test_large_objects_are_copied_by_the_service_small_ones_through_here(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str
) -> None:
    source = open_store(f"{bucket}/one", unruly)
    tree = {"large": os.urandom(LARGE), "sub/small": b"1", "empty": b""}
    for name, content in tree.items():
        source.write(name, content)
    proxy.seen.clear()
    report = copy(f"{bucket}/one/", f"{bucket}/two", access=unruly)
    assert (report.files, report.bytes) == (3, LARGE + 1)
    assert proxy.count("POST", "copyObject") == 1
    assert proxy.count("GET", "one%2Flarge") == 0
    assert read_store(open_store(f"{bucket}/two", unruly)) == tree


def test_what_the_service_will_not_copy_goes_through_here(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str
) -> None:
    content = os.urandom(LARGE)
    open_store(bucket, unruly).write("x", content)
    proxy.faults = [Fault(method="POST", path="copyObject", status=400, times=10)]
    copy(f"{bucket}/x", f"{bucket}/y", access=unruly, part_size=PART)
    assert open_store(bucket, unruly).read("y") == content


@pytest.mark.parametrize("method, path", [("POST", "copyObject"), ("GET", "workRequests")])
def test_an_object_replaced_before_or_while_the_service_copies_is_an_error(
    method: str, path: str, unruly: OciAccess, proxy: UnrulyProxy, bucket: str
) -> None:
    store = open_store(bucket, unruly)
    store.write("x", os.urandom(LARGE))
    proxy.faults = [
        Fault(method=method, path=path, meanwhile=lambda: store.write("x", os.urandom(LARGE))),
    ]
    with pytest.raises(StorageError, match="changed while"):
        copy(f"{bucket}/x", f"{bucket}/y", access=unruly)


# Only what has changed


@pytest.mark.parametrize("kind", ["down", "up", "local", "between"])
def test_mode_changed_copies_what_differs_and_says_what_it_left(
    kind: str, unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path
) -> None:
    places = {
        "down": (f"{bucket}/s", str(tmp_path / "t")),
        "up": (str(tmp_path / "s"), f"{bucket}/t"),
        "local": (str(tmp_path / "s"), str(tmp_path / "t")),
        "between": (f"{bucket}/s", f"{bucket}/t"),
    }
    source, target = places[kind]
    store = open_store(source, unruly)
    make_tree(tmp_path / "made", {"same": 100, "parts": 5 * PART, "other size": 5, "other bytes": 50, "e": 0})
    copy(str(tmp_path / "made"), source, access=unruly, part_size=PART)
    copy(f"{source}/", target, access=unruly, part_size=PART)
    store.write("other size", b"123456")
    store.write("other bytes", b"x" * 50)
    store.write("new", b"1")
    proxy.seen.clear()
    report = copy(f"{source}/", target, access=unruly, part_size=PART, mode="changed")
    assert report.files == 3
    assert report.unchanged == ("e", "parts", "same")
    assert proxy.count("GET", "same") == proxy.count("GET", "parts") == 0
    assert read_store(open_store(target, unruly)) == read_store(store)
    again = copy(f"{source}/", target, access=unruly, part_size=PART, mode="changed")
    assert (again.files, len(again.unchanged)) == (0, 6)


def test_mode_changed_holds_for_a_single_file(access: OciAccess, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"123")
    assert copy(str(tmp_path / "x"), f"{bucket}/y", access=access, mode="changed").files == 1
    assert copy(str(tmp_path / "x"), f"{bucket}/y", access=access, mode="changed").unchanged == ("x",)
    (tmp_path / "x").write_bytes(b"124")
    assert copy(str(tmp_path / "x"), f"{bucket}/y", access=access, mode="changed").files == 1
    with pytest.raises(StorageError, match="mode is 'some'"):
        copy(str(tmp_path / "x"), f"{bucket}/y", access=access, mode="some")


# From the web


class Web:
    """A web server with ranges, redirections and moods."""

    def __init__(self) -> None:
        self.content = os.urandom(20 * PART + 11)
        self.etag = '"one"'
        self.ranges = True
        self.shifted: Callable[[int], int] = lambda _first: 0
        self.cut_after: list[int] = []
        self.statuses: list[int] = []
        self.asked: list[tuple[str, str | None]] = []
        self.busiest = self.active = 0


@pytest.fixture
def server() -> Iterator[tuple[str, Web]]:
    web = Web()
    handler = type("Handler", (_WebHandler,), {"web": web})
    with _serving(handler) as url:
        yield url, web


@contextmanager
def _serving(handler: Any) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _WebHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: Web

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        web, wanted = self.web, self.headers.get("range")
        web.asked.append((self.path, wanted))
        web.active += 1
        web.busiest = max(web.busiest, web.active)
        try:
            self._serve(wanted)
        finally:
            web.active -= 1

    def _serve(self, wanted: str | None) -> None:
        web = self.web
        status = web.statuses.pop(0) if web.statuses else 200
        if self.path.startswith("/from"):
            return self._send(302, b"", {"location": "/x?" + self.path.partition("?")[2]})
        if self.path.startswith("/missing") or status != 200:
            return self._send(404 if status == 200 else status, b"", {})
        data, headers = web.content, {"etag": web.etag}
        if wanted and web.ranges:
            time.sleep(0.01)
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            if first >= len(data):
                return self._send(416, b"", {"content-range": f"bytes */{len(data)}"})
            first, last = first - web.shifted(first), last - web.shifted(first)
            headers["content-range"] = f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"
            return self._send(206, data[first : last + 1], headers)
        return self._send(200, data, headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        cut = self.web.cut_after.pop(0) if self.web.cut_after and len(body) > 1 else None
        self.wfile.write(body if cut is None else body[:cut])
        self.close_connection = cut is not None


def test_ranges_of_a_web_server_are_read_in_parallel(server: tuple[str, Web], tmp_path: Path) -> None:
    url, web = server
    copy(f"{url}/x", str(tmp_path / "x"), part_size=PART)
    assert (tmp_path / "x").read_bytes() == web.content
    assert web.busiest > 4


def test_a_web_server_without_ranges_sends_one_stream(server: tuple[str, Web], tmp_path: Path) -> None:
    url, web = server
    web.ranges = False
    copy(f"{url}/x", str(tmp_path / "x"), part_size=PART)
    assert (tmp_path / "x").read_bytes() == web.content
    assert len(web.asked) == 2


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_stream_of_a_web_server_goes_on(
    server: tuple[str, Web], tmp_path: Path, ranges: bool
) -> None:
    url, web = server
    web.ranges = ranges
    web.cut_after = [0, PART // 2, PART // 3, 7] if ranges else [0, 7, 5 * PART, 9 * PART]
    copy(f"{url}/x", str(tmp_path / "x"), part_size=PART)
    assert (tmp_path / "x").read_bytes() == web.content


def test_a_passing_fault_of_a_web_server_is_ridden_out(server: tuple[str, Web], tmp_path: Path) -> None:
    url, web = server
    web.statuses = [503, 200, 429, 502]
    copy(f"{url}/x", str(tmp_path / "x"), part_size=PART)
    assert (tmp_path / "x").read_bytes() == web.content


def test_redirections_are_followed_once_and_a_query_is_no_part_of_the_name(
    server: tuple[str, Web], tmp_path: Path
) -> None:
    url, web = server
    (tmp_path / "in").mkdir()
    copy(f"{url}/from?signature=a/b#part", str(tmp_path / "in"), part_size=PART)
    assert read_tree(tmp_path / "in") == {"from": web.content}
    assert [path for path, _ in web.asked].count("/from?signature=a/b") == 1


def test_a_file_that_changes_on_the_web_server_is_never_mixed(
    server: tuple[str, Web], tmp_path: Path
) -> None:
    url, web = server

    def change(_: object) -> None:
        web.etag, web.content = '"two"', os.urandom(len(web.content))

    with pytest.raises(StorageError, match="changed while"):
        copy(f"{url}/x", str(tmp_path / "x"), part_size=1 << 14, threads=1, on_progress=change)
    assert list(tmp_path.iterdir()) == []


def test_a_local_file_that_changes_is_never_mixed(tmp_path: Path) -> None:
    source, target = tmp_path / "in" / "x", tmp_path / "out"
    source.parent.mkdir()
    size = 4 * PART
    replaced, log = tmp_path / "new", source.with_name("log")

    def overwrite() -> None:
        with source.open("r+b") as file:
            file.write(b"b" * size)

    def replace() -> None:
        replaced.write_bytes(b"b" * 2 * size)
        replaced.replace(source)

    for change in (overwrite, replace):
        source.write_bytes(b"a" * size)
        with pytest.raises(StorageError, match="changed while it was read"):
            _copied_with(change, source.parent, target)
        assert not (target / "x").exists()

    def append() -> None:
        with log.open("ab") as file:
            file.write(b"more")

    source.unlink()
    log.write_bytes(b"a" * size)
    _copied_with(append, source.parent, target)
    assert (target / "log").read_bytes() == b"a" * size


@pytest.mark.parametrize("number", range(6))
def test_a_local_file_that_is_written_again_and_longer_is_never_mixed(tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    source, target = tmp_path / "in" / "x", tmp_path / "out"
    source.parent.mkdir()
    size = draw.choice([1, 3, 4]) * PART + draw.randrange(PART)
    before = draw.randbytes(size)
    # As torch.save does, or a program that keeps the file open; some of what was read then may be as before.
    kept = draw.choice([0, draw.randrange(PART)])
    after = before[:kept] + draw.randbytes(size - kept + draw.randrange(1, 2 * PART))
    mode = draw.choice(["wb", "r+b"])
    source.write_bytes(before)

    def write_again() -> None:
        with source.open(mode) as file:
            file.write(after)

    # Of one that is short for a moment, as it is opened to be written again, another part may find the end too early.
    with pytest.raises(StorageError, match=f"{source}.* changed while it was read"):
        _copied_with(write_again, source.parent, target)
    assert not (target / "x").exists()


def _copied_with(change: Callable[[], object], source: Path, target: Path) -> None:
    """Copy the one file of a folder, which changes when its first part has been read."""

    class Changing(LocalUpload):
        def write(self, index: int, offset: int, data: Buffer) -> None:
            super().write(index, offset, data)
            if offset == 0:
                change()

    class Target(LocalStore):
        def upload(self, name: str, *_: object) -> LocalUpload:
            return Changing(target / name)

    store = LocalStore(source)
    copy_entries(store, Target(target), store.list(), part_size=PART)


def test_another_range_of_a_web_server_than_was_asked_for_is_no_part_of_the_file(
    server: tuple[str, Web], tmp_path: Path
) -> None:
    url, web = server
    # As a cache on the way that has mixed up its blocks: of the right length, version and size of the whole.
    web.shifted = lambda first: PART if first >= 2 * PART else 0
    with pytest.raises(StorageError, match=r"was asked for, and the answer has bytes \d+-\d+/\d+"):
        copy(f"{url}/x", str(tmp_path / "x"), part_size=PART)
    assert not (tmp_path / "x").exists()


def test_what_a_web_server_refuses_is_one_clear_error(server: tuple[str, Web], tmp_path: Path) -> None:
    url, web = server
    for status, text in ((403, r"it refuses \(403"), (401, "credentials"), (500, r"it failed \(500")):
        web.statuses = [status] * 10
        with pytest.raises(StorageError, match=text):
            copy(f"{url}/x", str(tmp_path / "x"))
    web.statuses = []
    with pytest.raises(StorageError, match="nothing at"):
        copy(f"{url}/missing", str(tmp_path / "x"))
    with pytest.raises(StorageError, match="read only"):
        copy(__file__, f"{url}/x")


def test_an_empty_file_of_a_web_server_is_an_empty_file(server: tuple[str, Web], tmp_path: Path) -> None:
    url, web = server
    web.content = b""
    copy(f"{url}/x", str(tmp_path / "x"))
    assert (tmp_path / "x").read_bytes() == b""


# Faults of the emulator, memory, width


def test_faults_of_the_service_are_ridden_out_both_ways(
    emulator: dict[str, str], access: OciAccess, bucket: str, tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "s", {"large": 40 * PART, **{f"{number:02}": 500 for number in range(40)}})
    faults = [
        {"path": ".*/[ou]/.*", "method": "PUT|GET", "status": 503, "times": 5},
        {"path": ".*/[ou]/.*", "method": "PUT|GET", "status": 429, "code": "TooManyRequests", "times": 5},
        {"path": ".*/[ou]/.*", "method": "PUT|GET", "drop": "before", "times": 5},
        {"path": ".*/[ou]/.*", "method": "PUT|GET", "drop": "after", "times": 5},
        {"path": ".*/o/.*", "method": "GET", "drop": "body", "body_bytes": 1000, "times": 5},
    ]
    for source, target in ((str(tmp_path / "s"), bucket), (f"{bucket}/", str(tmp_path / "t"))):
        _control(emulator, "DELETE")
        for fault in faults:
            _control(emulator, "POST", fault)
        try:
            copy(source, target, access=access, part_size=PART)
        finally:
            _control(emulator, "DELETE")
    assert read_tree(tmp_path / "t") == tree


def _control(emulator: dict[str, str], method: str, body: object = None) -> None:
    request = urllib.request.Request(
        f"{emulator.url}/_emulator/faults",
        method=method,
        data=json.dumps(body).encode() if body else None,
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request):
        pass


def test_memory_stays_below_150_mb_with_large_files_both_ways(
    access: OciAccess, bucket: str, tmp_path: Path
) -> None:
    program = (
        "import pathlib, re, sys\n"
        "from airflow_provider_ocidist.oci_client.credentials import OciAccess\n"
        "from airflow_provider_ocidist.storage.transfer import copy\n"
        "access = OciAccess(config_file=sys.argv[3], endpoint=sys.argv[4])\n"
        "copy(sys.argv[1], sys.argv[2], access=access)\n"
        "# not ru_maxrss: that begins with what the test's own process has\n"
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1]) // 1000)\n"
    )
    (tmp_path / "s").mkdir()
    (tmp_path / "s/large").write_bytes(os.urandom(160 << 20))
    for number in range(20):
        (tmp_path / "s" / str(number)).write_bytes(os.urandom(3 << 20))
    for source, target in ((str(tmp_path / "s"), bucket), (f"{bucket}/", str(tmp_path / "t"))):
        command = [
            sys.executable,
            "-c",
            program,
            source,
            target,
            str(access.config_file),
            str(access.endpoint),
        ]
        done = subprocess.run(
            command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
        )
        assert int(done.stdout) < 150


def test_lanes_open_while_that_pays_and_close_when_it_does_not() -> None:
    width = Width(lanes=16)
    width = next_width(width, 100.0, 64)
    assert width.lanes == 32
    width = next_width(width, 190.0, 64)
    assert width.lanes == 64
    settled = next_width(width, 195.0, 64)
    assert (settled.lanes, settled.hold > 0) == (32, True)
    assert next_width(settled, 195.0, 64).lanes == 32
    full = next_width(width, 400.0, 64)
    assert (full.lanes, full.hold > 0) == (64, True)


def test_lanes_run_everything_and_report_the_first_error() -> None:
    lanes = Lanes(64)
    done = []
    for number in range(500):
        lanes.put(lambda number=number: done.append(number))
    while lanes.pending:
        lanes.reap(0.1)
    assert sorted(done) == list(range(500))
    lanes.put(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lanes.reap(5)
    lanes.close()
