"""copy: whole or not at all, between all places."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.storage import locations, transfer
from airflow_provider_ocidist.storage.stores import http as http_store
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.storage.transfer import copy
from tests.agent.gangs import until
from tests.storage.trees import make_tree, read_store, read_tree
from tests.storage.unruly_proxy import Fault

PART = 64 << 10


def fill(place, tree, access=None):
    store = open_store(place, access)
    for name, content in tree.items():
        store.write(name, content)


@pytest.fixture(params=["local", "oci", "memory"])
def place(request, tmp_path):
    """A place that does not exist yet, and access to it."""
    if request.param == "local":
        return str(tmp_path / "place"), None
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}", None
    return request.getfixturevalue("bucket"), request.getfixturevalue("access")


def test_a_tree_arrives_and_comes_back_byte_for_byte(place, tmp_path):
    uri, access = place
    tree = make_tree(tmp_path / "source")
    report = copy(str(tmp_path / "source"), uri, access=access)
    assert (report.files, report.bytes) == (len(tree), sum(map(len, tree.values())))
    assert read_store(open_store(uri, access)) == tree
    copy(f"{uri}/", str(tmp_path / "back"), access=access)
    assert read_tree(tmp_path / "back") == tree
    assert read_tree(tmp_path / "source") == tree


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 5 * PART, 40 * PART + 17])
def test_files_of_every_size_survive_both_ways(place, tmp_path, size):
    uri, access = place
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    copy(str(tmp_path / "file"), f"{uri}/x.bin", access=access, part_size=PART)
    assert open_store(uri, access).read("x.bin") == content
    report = copy(f"{uri}/x.bin", str(tmp_path / "back"), access=access, part_size=PART)
    assert (tmp_path / "back").read_bytes() == content
    assert (report.files, report.bytes) == (1, size)


def test_a_file_goes_into_a_folder_or_gets_a_new_name(place, tmp_path):
    uri, access = place
    (tmp_path / "x").write_bytes(b"1")
    copy(str(tmp_path / "x"), f"{uri}/into/", access=access)
    copy(str(tmp_path / "x"), f"{uri}/y", access=access)
    assert read_store(open_store(uri, access)) == {"into/x": b"1", "y": b"1"}
    (tmp_path / "there").mkdir()
    copy(f"{uri}/y", str(tmp_path / "there"), access=access)
    assert (tmp_path / "there/y").read_bytes() == b"1"


def test_a_tree_goes_from_bucket_to_bucket_and_to_other_places(access, bucket, tmp_path):
    tree = make_tree(tmp_path / "source", {"a": 10, "b/c": 3 * PART + 5, "b/empty": 0})
    fill(f"{bucket}/one", tree, access)
    for target in (f"{bucket}/two", f"memory://{uuid.uuid4().hex}"):
        copy(f"{bucket}/one", target, access=access, part_size=PART)
        assert read_store(open_store(target, access)) == tree
        copy(target, f"{bucket}/back", access=access, part_size=PART)
        assert read_store(open_store(f"{bucket}/back", access)) == tree


def test_a_copy_by_the_service_of_which_it_knows_nothing_more_goes_through_this_machine(
    unruly, access, proxy, bucket, tmp_path
):
    content = os.urandom(2 << 20)
    open_store(bucket, access).write("x", content)
    proxy.faults = [Fault(method="GET", path="/workRequests/", status=404, times=99)]
    copy(f"{bucket}/x", f"{bucket}/y", access=unruly)
    assert proxy.count("GET", "/o/") == 1
    assert open_store(bucket, access).read("y") == content
    # It would write the name once more when it ends.
    assert proxy.count("DELETE", "/workRequests/") > 0


def test_a_copy_by_the_service_that_is_not_shown_at_once_is_waited_for(unruly, access, proxy, bucket):
    open_store(bucket, access).write("x", os.urandom(2 << 20))
    proxy.faults = [Fault(method="GET", path="/workRequests/", status=404, times=2)]
    copy(f"{bucket}/x", f"{bucket}/y", access=unruly)
    assert proxy.count("GET", "/o/") == 0
    assert open_store(bucket, access).read("y") == open_store(bucket, access).read("x")


@pytest.mark.parametrize("size", [10, 3 * PART])
def test_names_that_look_like_patterns_arrive_at_any_place(place, tmp_path, size):
    target, access = place
    tree = make_tree(tmp_path / "s", dict.fromkeys(("m[1].bin", "a*b?.bin", "[x]/y.bin", "1"), size))
    copy(str(tmp_path / "s"), target, target_access=access, part_size=PART)
    assert read_store(open_store(target, access)) == tree


def test_include_and_exclude_choose_by_name_folder_and_part(tmp_path):
    make_tree(
        tmp_path / "s", dict.fromkeys(["a.py", "b.txt", ".git/x/config", "lib/c.py", "lib/data/d.bin"], 3)
    )

    def chosen(**options):
        target = tmp_path / uuid.uuid4().hex
        copy(str(tmp_path / "s"), str(target), **options)
        return sorted(read_tree(target))

    assert chosen(exclude=[".git"]) == ["a.py", "b.txt", "lib/c.py", "lib/data/d.bin"]
    assert chosen(include=["*.py"]) == ["a.py", "lib/c.py"]
    assert chosen(include=["lib/"], exclude=["lib/data"]) == ["lib/c.py"]
    assert chosen(include=["d.bin"]) == ["lib/data/d.bin"]


def test_an_existing_folder_keeps_its_other_files(tmp_path):
    make_tree(tmp_path / "s", {"a": 5})
    make_tree(tmp_path / "t", {"a": 7, "b": 3})
    copy(str(tmp_path / "s"), str(tmp_path / "t"))
    assert {name: len(content) for name, content in read_tree(tmp_path / "t").items()} == {"a": 5, "b": 3}


def test_nothing_at_the_source_is_an_error(place, tmp_path):
    uri, access = place
    for source in (f"{uri}/nothing", f"{uri}/nothing/"):
        with pytest.raises(StorageError, match="nothing at"):
            copy(source, str(tmp_path / "target"), access=access)
    assert not (tmp_path / "target").exists()


def test_an_empty_local_folder_becomes_an_empty_folder(tmp_path):
    (tmp_path / "s").mkdir()
    assert copy(str(tmp_path / "s"), str(tmp_path / "t")).files == 0
    assert list((tmp_path / "t").iterdir()) == []


def test_two_copies_to_one_place_at_the_same_time_both_succeed(tmp_path):
    tree = make_tree(tmp_path / "s", {f"{number}": 2000 for number in range(50)})
    errors = []

    def run():
        try:
            copy(str(tmp_path / "s"), str(tmp_path / "t"))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert read_tree(tmp_path / "t") == tree
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "t"]


# Links and names


def test_links_are_followed_inside_the_tree_only(tmp_path):
    make_tree(tmp_path / "s", {"a/x": 5, "b": 3})
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "s/inside").symlink_to("a/x")
    (tmp_path / "s/folder").symlink_to("a")
    (tmp_path / "s/outside").symlink_to("../secret")
    (tmp_path / "s/absolute").symlink_to("/etc")
    (tmp_path / "s/dangling").symlink_to("nowhere")
    (tmp_path / "s/a/loop").symlink_to("..")
    os.mkfifo(tmp_path / "s/pipe")
    report = copy(str(tmp_path / "s"), str(tmp_path / "t"))
    assert sorted(read_tree(tmp_path / "t")) == ["a/x", "b", "folder/x", "inside"]
    assert {"outside", "absolute", "dangling", "pipe"} <= set(report.skipped)
    assert (tmp_path / "t/inside").read_bytes() == (tmp_path / "s/a/x").read_bytes()
    assert not (tmp_path / "t/inside").is_symlink()


@pytest.mark.parametrize("name", ["../escape", "a/../../escape", "/absolute", "a//b", "./dot"])
def test_object_names_that_would_escape_are_refused(access, bucket, tmp_path, name):
    place = locations.parse(bucket)
    client = clients.client(access, "object_storage")
    client.put_object(place.namespace, place.bucket, f"{place.path}/fine", b"1")
    client.put_object(place.namespace, place.bucket, f"{place.path}/{name}", b"evil")
    with pytest.raises(StorageError, match="refused"):
        copy(f"{bucket}/", str(tmp_path / "in" / "target"), access=access)
    assert read_tree(tmp_path) == {}


def test_folder_markers_of_consoles_are_no_files(access, bucket, tmp_path):
    place = locations.parse(bucket)
    client = clients.client(access, "object_storage")
    for name in ("", "sub/", "sub/x"):
        client.put_object(place.namespace, place.bucket, f"{place.path}/{name}", b"")
    copy(f"{bucket}/", str(tmp_path / "t"), access=access)
    assert read_tree(tmp_path / "t") == {"sub/x": b""}


# Failure leaves nothing


def open_uploads(access, bucket):
    place = locations.parse(bucket)
    client = clients.client(access, "object_storage")
    found = client.list_multipart_uploads(place.namespace, place.bucket, limit=1000).data
    # Other tests kill uploads, and may have run before on the same emulator.
    return [item.object for item in found if item.object.startswith(place.path)]


def test_an_upload_that_fails_leaves_no_object_and_no_open_upload(unruly, access, proxy, bucket, tmp_path):
    (tmp_path / "x").write_bytes(os.urandom(20 * PART))
    proxy.faults = [Fault(method="PUT", path="/u/", status=400, skip=9)]
    with pytest.raises(StorageError, match="the test wants it so"):
        copy(str(tmp_path / "x"), f"{bucket}/x", access=unruly, part_size=PART)
    assert open_store(bucket, access).list() == []
    assert open_uploads(access, bucket) == []


def test_an_upload_whose_source_shrinks_leaves_nothing(access, bucket, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(os.urandom(400 * PART))

    def shrink(_):
        os.truncate(path, 10)

    with pytest.raises(StorageError, match="changed while"):
        copy(str(path), f"{bucket}/x", access=access, part_size=PART, threads=2, on_progress=shrink)
    assert open_store(bucket, access).list() == []
    assert open_uploads(access, bucket) == []


def test_a_lost_answer_to_the_commit_does_no_harm(unruly, access, proxy, bucket, tmp_path):
    content = os.urandom(3 * PART)
    (tmp_path / "x").write_bytes(content)
    proxy.faults = [Fault(method="POST", path="uploadId=", lose_answer=True)]
    copy(str(tmp_path / "x"), f"{bucket}/x", access=unruly, part_size=PART)
    assert open_store(bucket, access).read("x") == content


def test_cancel_stops_an_upload_and_leaves_nothing(unruly, access, proxy, bucket, tmp_path):
    (tmp_path / "x").write_bytes(os.urandom(200 * PART))
    proxy.faults = [Fault(method="PUT", path="/u/", delay_s=0.2, times=1000)]
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    with pytest.raises(StorageError, match="cancelled"):
        copy(str(tmp_path / "x"), f"{bucket}/x", access=unruly, part_size=PART, cancel=cancel, threads=4)
    assert proxy.count("PUT", "/u/") < 200
    assert open_store(bucket, access).list() == []
    assert open_uploads(access, bucket) == []


def test_a_cancel_does_not_wait_for_a_store_that_accepts_and_never_answers(
    unruly, access, proxy, bucket, tmp_path, monkeypatch
):
    monkeypatch.setattr(transfer, "LEFT_AFTER", 0.3)
    (tmp_path / "x").write_bytes(os.urandom(4 * PART))
    source, target = LocalStore(tmp_path), open_store(bucket, unruly)
    answers, cancel, errors = threading.Event(), threading.Event(), []
    proxy.faults.append(Fault(method="PUT", path="/u/", times=1000, meanwhile=lambda: answers.wait(60)))

    def send():
        try:
            transfer.copy_entries(source, target, source.list(), cancel=cancel, part_size=PART)
        except StorageError as error:
            errors.append(error)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    until(lambda: proxy.count("PUT", "/u/") >= 4)
    cancel.set()
    sending.join(30)
    is_over = not sending.is_alive()
    answers.set()
    assert is_over
    assert "was cancelled" in str(errors[0])
    # Once it answers, what was left behind is cleared up all the same.
    until(lambda: open_uploads(access, bucket) == [])
    assert open_store(bucket, access).list() == []


def test_cancel_stops_a_download_and_leaves_nothing(unruly, access, proxy, bucket, tmp_path):
    fill(bucket, {f"{number:03}": b"x" * 1000 for number in range(200)}, access)
    proxy.faults = [Fault(method="GET", path="/o/", delay_s=0.1, times=1000)]
    cancel = threading.Event()
    threading.Timer(0.5, cancel.set).start()
    with pytest.raises(StorageError, match="cancelled"):
        copy(f"{bucket}/", str(tmp_path / "t"), access=unruly, cancel=cancel, threads=4)
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_fails_leaves_no_target(unruly, access, proxy, bucket, tmp_path):
    fill(bucket, {f"{number:03}": b"x" * 1000 for number in range(50)}, access)
    proxy.faults = [Fault(method="GET", path="/o/", status=400, skip=30)]
    with pytest.raises(StorageError, match="the test wants it so"):
        copy(f"{bucket}/", str(tmp_path / "t"), access=unruly)
    proxy.faults = [Fault(method="GET", path="/o/", status=400, skip=1)]
    with pytest.raises(StorageError, match="the test wants it so"):
        copy(f"{bucket}/000", str(tmp_path / "f"), access=unruly, part_size=100)
    assert list(tmp_path.iterdir()) == []


def test_a_body_that_is_cut_midway_is_continued(unruly, access, proxy, bucket, tmp_path):
    content = os.urandom(10 * PART)
    fill(bucket, {"x": content}, access)
    proxy.faults = [Fault(method="GET", path="/o/", cut_after=PART // 3, times=5)]
    copy(f"{bucket}/x", str(tmp_path / "x"), access=unruly, part_size=PART)
    assert (tmp_path / "x").read_bytes() == content
    proxy.faults = [Fault(method="GET", path="/o/", cut_after=PART, times=3)]
    assert open_store(bucket, unruly).read("x") == content


def test_a_body_that_is_always_cut_is_an_error(unruly, access, proxy, bucket, tmp_path):
    fill(bucket, {"x": b"x" * 1000}, access)
    proxy.faults = [Fault(method="GET", path="/o/", cut_after=0, times=100)]
    with pytest.raises(StorageError, match=r"connection to .* broke"):
        copy(f"{bucket}/x", str(tmp_path / "x"), access=unruly)
    assert list(tmp_path.iterdir()) == []


def test_bytes_damaged_on_the_way_are_noticed(unruly, access, proxy, bucket, tmp_path):
    (tmp_path / "x").write_bytes(os.urandom(5 * PART))
    copy(str(tmp_path / "x"), f"{bucket}/parts", access=access, part_size=PART)
    fill(bucket, {"whole": (tmp_path / "x").read_bytes()}, access)
    for name, part_size in (("parts", PART), ("whole", PART), ("whole", 100 * PART)):
        proxy.faults = [Fault(method="GET", path="/o/", damage=True)]
        with pytest.raises(StorageError, match="checksum"):
            copy(f"{bucket}/{name}", str(tmp_path / "t"), access=unruly, part_size=part_size)
        assert not (tmp_path / "t").exists()


def test_an_object_that_is_replaced_midway_is_never_mixed(unruly, access, proxy, bucket, tmp_path):
    store = open_store(bucket, access)
    store.write("x", b"a" * 40 * PART)
    proxy.faults = [
        Fault(method="GET", path="/o/", skip=5, meanwhile=lambda: store.write("x", b"b" * 40 * PART))
    ]
    with pytest.raises(StorageError, match="changed while"):
        copy(f"{bucket}/x", str(tmp_path / "x"), access=unruly, part_size=PART, threads=2)
    assert list(tmp_path.iterdir()) == []


def put_in_parts(access, uri, content):
    """Write an object in parts as another program does, which leaves no digest that can be checked."""
    place = locations.parse(uri)
    client, bucket = clients.client(access, "object_storage"), (place.namespace, place.bucket)
    upload = client.create_multipart_upload(*bucket, {"object": place.path}).data.upload_id
    parts = []
    for number, offset in enumerate(range(0, len(content), PART), 1):
        part = content[offset : offset + PART]
        answer = client.upload_part(*bucket, place.path, upload, number, part)
        parts.append({"partNum": number, "etag": answer.headers["etag"]})
    client.commit_multipart_upload(*bucket, place.path, upload, {"partsToCommit": parts})


@pytest.mark.parametrize("parts", [2, 4, 9], ids=["shorter", "as long", "longer"])
def test_an_object_that_is_replaced_after_it_was_listed_is_not_copied(
    parts, unruly, access, proxy, bucket, tmp_path
):
    put_in_parts(access, f"{bucket}/x", os.urandom(4 * PART))
    new = os.urandom(parts * PART)
    proxy.faults = [Fault(method="HEAD", meanwhile=lambda: put_in_parts(access, f"{bucket}/x", new))]
    with pytest.raises(StorageError, match="changed since it was listed"):
        copy(f"{bucket}/x", str(tmp_path / "in" / "x"), access=unruly, part_size=PART)
    assert read_tree(tmp_path / "in") == {}
    copy(f"{bucket}/x", str(tmp_path / "in" / "x"), access=unruly, part_size=PART)
    assert read_tree(tmp_path / "in") == {"x": new}


def test_a_missing_bucket_is_one_clear_error(emulator, access, tmp_path):
    uri = f"oci://no-such-bucket@{emulator.namespace}/x"
    (tmp_path / "x").write_bytes(b"1")
    for source, target in ((uri, str(tmp_path / "t")), (str(tmp_path / "x"), uri)):
        with pytest.raises(StorageError, match=r"no-such-bucket.*not found"):
            copy(source, target, access=access)


def test_an_unreachable_endpoint_is_reported_within_seconds(access, bucket, tmp_path):
    started = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot reach http://127\.0\.0\.1:9"):
        copy(bucket, str(tmp_path / "t"), access=replace(access, endpoint="http://127.0.0.1:9"))
    assert time.monotonic() - started < 8


@contextlib.contextmanager
def tiny_disk(path, size):
    path.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path):
    (tmp_path / "big").write_bytes(os.urandom(2_000_000))
    make_tree(tmp_path / "tree", {f"{number}": 100_000 for number in range(20)})
    with tiny_disk(tmp_path / "disk", "1m"):
        for source in ("big", "tree"):
            with pytest.raises(StorageError, match=r"/disk/.*no space left") as caught:
                copy(str(tmp_path / source), str(tmp_path / "disk/target"), part_size=PART)
            assert "disk" in caught.value.uri
            assert list((tmp_path / "disk").iterdir()) == []
            assert open_files_below(tmp_path / "disk") == []


def open_files_below(folder):
    links = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    return [link for link in links if link.startswith(f"{folder}/")]


def test_a_file_limit_is_one_clear_error_and_leaves_nothing(tmp_path):
    (tmp_path / "big").write_bytes(os.urandom(300_000))
    program = (
        "import resource, sys\n"
        "from airflow_provider_ocidist.storage.transfer import copy\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: copy(sys.argv[1], sys.argv[2], part_size=50_000)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    command = [sys.executable, "-B", "-c", program, str(tmp_path / "big"), str(tmp_path / "out/copy")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("StorageError")
    assert "larger than" in done.stdout
    assert list((tmp_path / "out").iterdir()) == []


# How it goes about it


def test_parts_and_small_files_travel_in_parallel(unruly, proxy, bucket, tmp_path):
    make_tree(tmp_path / "s", {f"{number}": 10 for number in range(64)})
    proxy.faults = [Fault(delay_s=0.3, times=1000)]
    copy(str(tmp_path / "s"), f"{bucket}/s", access=unruly)
    assert proxy.busiest >= 12
    proxy.busiest = 0
    (tmp_path / "x").write_bytes(os.urandom(16 * PART))
    copy(str(tmp_path / "x"), f"{bucket}/x", access=unruly, part_size=PART)
    assert 4 <= proxy.busiest <= 8  # so many parts may be in memory


def test_memory_stays_bounded(tmp_path):
    program = (
        "import resource, sys\n"
        "from airflow_provider_ocidist.storage.transfer import copy\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "copy(sys.argv[1], sys.argv[2], part_size=1 << 20)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    (tmp_path / "s").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "s" / name).write_bytes(bytes(40 << 20))
    command = [sys.executable, "-c", program, str(tmp_path / "s"), str(tmp_path / "t")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30


def test_progress_is_reported_now_and_then_and_at_the_end(unruly, proxy, bucket, tmp_path):
    tree = make_tree(tmp_path / "s", {f"{number:02}": 1000 for number in range(60)})
    proxy.faults = [Fault(method="PUT", delay_s=0.05, times=1000)]
    told = []
    started = time.monotonic()
    copy(str(tmp_path / "s"), bucket, access=unruly, threads=2, on_progress=told.append)
    seconds = time.monotonic() - started
    assert 2 <= len(told) <= 4 * seconds + 2
    assert [now.bytes_done for now in told] == sorted(now.bytes_done for now in told)
    last = told[-1]
    assert (last.files_done, last.files_total) == (60, 60)
    assert last.bytes_done == last.bytes_total == sum(map(len, tree.values()))
    assert last.rate > 0
    assert last.eta == 0
    assert told[0].eta is None or told[0].eta > 0


def test_an_error_of_the_callers_own_stops_the_copy(tmp_path):
    make_tree(tmp_path / "s", {"a": 10})

    def fail(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        copy(str(tmp_path / "s"), str(tmp_path / "t"), on_progress=fail)
    assert not (tmp_path / "t").exists()


def test_large_objects_get_parts_that_are_few_enough():
    from airflow_provider_ocidist.storage.stores.oci_upload import part_size_for

    assert part_size_for(1 << 30, transfer.PART_SIZE) == transfer.PART_SIZE
    for size in (10 << 40, (10_000 << 24) + 1):
        part = part_size_for(size, transfer.PART_SIZE)
        assert -(-size // part) <= 10_000


def test_a_web_server_is_a_source_for_files_of_any_size(web, tmp_path):
    url, folder = web
    for name, size in (("small.zip", 10), ("large.zip", 3 * PART + 1), ("empty", 0)):
        content = os.urandom(size)
        (folder / name).write_bytes(content)
        copy(f"{url}/{name}", str(tmp_path / "t" / name), part_size=PART)
        assert (tmp_path / "t" / name).read_bytes() == content
    with pytest.raises(StorageError, match="nothing at"):
        copy(f"{url}/missing", str(tmp_path / "missing"))


def test_a_link_of_a_web_page_that_leads_nowhere_is_skipped_and_named(web, tmp_path, monkeypatch):
    monkeypatch.setattr(http_store, "LOOK_AGAIN_AFTER", 0.05)
    url, folder = web
    tree = make_tree(folder / "d", {"a.bin": 10, "z.bin": 3 * PART})
    links = "".join(f'<a href="{name}">it</a>' for name in ("a.bin", "gone.bin", "z.bin"))
    (folder / "d" / "index.html").write_text(links)
    report = copy(f"{url}/d/", str(tmp_path / "t"), part_size=PART)
    assert report.skipped == ("gone.bin",)
    assert read_tree(tmp_path / "t") == tree


@contextlib.contextmanager
def web_server_with_ranges(answer):
    """Serve by a function that returns the bounds of the body and the `content-range` for a range, None: for all."""
    import http.server

    class Ranges(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            wanted = self.headers.get("range")
            bounds = [int(each) for each in wanted.removeprefix("bytes=").split("-")] if wanted else None
            body, sent = answer(bounds)
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("content-range", sent)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", '"one"')
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/x"
    finally:
        server.shutdown()
        server.server_close()


def test_a_web_server_may_leave_the_size_open_where_it_sends_a_range(tmp_path):
    content = os.urandom(3 * PART + 5)

    def answer(bounds):
        first, last = bounds or (0, len(content) - 1)
        body = content[first : last + 1]
        return body, f"bytes {first}-{first + len(body) - 1}/*"

    with web_server_with_ranges(answer) as url:
        copy(url, str(tmp_path / "x"), part_size=PART)
    assert (tmp_path / "x").read_bytes() == content


@pytest.mark.parametrize("to", ["local", "memory", "bucket"])
def test_a_web_server_that_sends_more_than_a_range_is_one_clear_error(to, request, tmp_path):
    """Caches on the way do so. What is more than the range must not land on the parts beside it."""
    content = os.urandom(5 * (1 << 20))

    def answer(bounds):
        first, last = bounds
        body = content[first:] if last else content[:1]
        return body, f"bytes {first}-{first + len(body) - 1}/{len(content)}"

    access = request.getfixturevalue("access") if to == "bucket" else None
    places = {"local": str(tmp_path / "in"), "memory": f"memory://{uuid.uuid4().hex}"}
    target = request.getfixturevalue("bucket") if to == "bucket" else places[to]
    with web_server_with_ranges(answer) as url, pytest.raises(StorageError, match="expected"):
        copy(url, f"{target}/x", target_access=access, part_size=1 << 20)
    assert open_store(target, access).list() == []


def test_a_source_of_unknown_size_is_copied_to_its_end(tmp_path):
    import http.server

    content = os.urandom(2 * PART + 7)

    class Chunked(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for piece in (content[:100], content[100:]):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Chunked)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        copy(f"http://127.0.0.1:{server.server_port}/x", str(tmp_path / "x"), part_size=PART)
    finally:
        server.shutdown()
        server.server_close()
    assert (tmp_path / "x").read_bytes() == content


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="is not a file"):
        copy(str(tmp_path / "file"), str(tmp_path / "pipe"))
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pipe"]


def test_a_nul_character_names_no_place(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="NUL"):
        copy(str(tmp_path), str(tmp_path / "a\0b"))
