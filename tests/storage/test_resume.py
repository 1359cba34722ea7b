"""A copy that was killed goes on where it was; whatever is half done never looks whole."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.stores.base import Origin
from airflow_provider_ocidist.storage.stores.journal import Journal, places_digest
from airflow_provider_ocidist.storage.stores.local_upload import gaps, merged_ranges
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.storage.transfer import copy
from tests.storage.trees import make_tree, read_store, read_tree
from tests.storage.unruly_proxy import Fault, UnrulyProxy

ROOT = Path(__file__).parents[2]
PART = 256 << 10
COPY = """
import sys
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.transfer import copy
access = OciAccess(config_file=sys.argv[3], endpoint=sys.argv[4], max_attempts=4)
told = lambda now: print(now.bytes_done, flush=True)
copy(sys.argv[1], sys.argv[2], access=access, part_size=int(sys.argv[5]), threads=4, on_progress=told)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own, for its processes too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ocidist" / "transfers"


def copy_and_kill(source: str, target: str, access: OciAccess, after: int, part_size: int = PART) -> None:
    """Copy in a process of its own and kill it as soon as it has moved so many bytes."""
    arguments = [source, target, str(access.config_file), str(access.endpoint), str(part_size)]
    command = [sys.executable, "-c", COPY, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= after:
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"


def slow(proxy: UnrulyProxy, method: str, path: str) -> None:
    proxy.faults = [Fault(method=method, path=path, delay_s=0.3, times=10_000)]


def test_a_killed_download_goes_on_where_it_was(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path, access: OciAccess
) -> None:
    content = os.urandom(40 * PART)
    (tmp_path / "x").write_bytes(content)
    copy(str(tmp_path / "x"), f"{bucket}/x", access=access, part_size=PART)
    slow(proxy, "GET", "/o/")
    target = tmp_path / "in" / "x"
    copy_and_kill(f"{bucket}/x", str(target), unruly, len(content) // 2)
    assert open_store(str(target.parent)).list() == []
    proxy.calm_down()
    report = copy(f"{bucket}/x", str(target), access=unruly, part_size=PART)
    assert target.read_bytes() == content
    assert report.bytes == len(content)
    assert report.resumed_bytes >= len(content) // 2
    assert proxy.count("GET", "/o/") <= 20
    assert [path.name for path in target.parent.iterdir()] == ["x"]


def test_a_resumed_download_of_another_version_starts_anew(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path, access: OciAccess
) -> None:
    store = open_store(bucket, access)
    store.write("x", os.urandom(40 * PART))
    slow(proxy, "GET", "/o/")
    target = tmp_path / "in" / "x"
    copy_and_kill(f"{bucket}/x", str(target), unruly, 20 * PART)
    content = os.urandom(40 * PART)
    store.write("x", content)
    report = copy(f"{bucket}/x", str(target), access=access, part_size=PART)
    assert target.read_bytes() == content
    assert report.resumed_bytes == 0
    assert [path.name for path in target.parent.iterdir()] == ["x"]


def test_a_resumed_download_is_checked_as_a_whole(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path, access: OciAccess
) -> None:
    content = os.urandom(40 * PART)
    (tmp_path / "x").write_bytes(content)
    copy(str(tmp_path / "x"), f"{bucket}/parts", access=access, part_size=PART)
    open_store(bucket, access).write("whole", content)
    slow(proxy, "GET", "/o/")
    for name in ("parts", "whole"):
        target = tmp_path / name / "x"
        copy_and_kill(f"{bucket}/{name}", str(target), unruly, 20 * PART)
        (part,) = (path for path in target.parent.iterdir() if "journal" not in path.name)
        with part.open("r+b") as file:
            file.write(b"damaged")
        with pytest.raises(StorageError, match="checksum"):
            copy(f"{bucket}/{name}", str(target), access=access, part_size=PART)
        assert list(target.parent.iterdir()) == []


def test_a_killed_upload_sends_only_the_parts_that_are_missing(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path, cache: Path
) -> None:
    content = os.urandom(40 * PART)
    (tmp_path / "x").write_bytes(content)
    slow(proxy, "PUT", "/u/")
    copy_and_kill(str(tmp_path / "x"), f"{bucket}/x", unruly, len(content) // 2)
    assert open_store(bucket, unruly).list() == []
    proxy.calm_down()
    report = copy(str(tmp_path / "x"), f"{bucket}/x", access=unruly, part_size=PART)
    assert open_store(bucket, unruly).read("x") == content
    assert report.resumed_bytes >= len(content) // 2
    assert proxy.count("PUT", "/u/") <= 20
    assert list(cache.iterdir()) == []


def test_an_upload_whose_source_has_changed_since_is_aborted_and_starts_anew(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(os.urandom(40 * PART))
    slow(proxy, "PUT", "/u/")
    copy_and_kill(str(tmp_path / "x"), f"{bucket}/x", unruly, 20 * PART)
    content = os.urandom(40 * PART)
    (tmp_path / "x").write_bytes(content)
    report = copy(str(tmp_path / "x"), f"{bucket}/x", access=replace(unruly, max_attempts=2), part_size=PART)
    assert report.resumed_bytes == 0
    assert open_store(bucket, unruly).read("x") == content
    place = locations.parse(bucket)
    uploads = clients.client(unruly, "object_storage").list_multipart_uploads(place.namespace, place.bucket)
    assert [item for item in uploads.data if item.object.startswith(place.path)] == []


@pytest.mark.parametrize("exists", [False, True])
def test_a_killed_tree_goes_on_file_by_file(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path, exists: bool
) -> None:
    tree = make_tree(tmp_path / "s", {f"{number % 7}/{number:03}": 5000 for number in range(120)})
    copy(str(tmp_path / "s"), bucket, access=unruly)
    target = tmp_path / "in" / "t"
    if exists:
        make_tree(target, {"other": 5})
    slow(proxy, "GET", "/o/")
    copy_and_kill(f"{bucket}/", str(target), unruly, 60 * 5000)
    assert target.exists() == exists
    proxy.calm_down()
    report = copy(f"{bucket}/", str(target), access=unruly)
    assert (report.files, report.bytes) == (120, 120 * 5000)
    assert report.resumed_bytes >= 50 * 5000
    assert proxy.count("GET", "/o/") <= 70
    assert {name: data for name, data in read_tree(target).items() if name != "other"} == tree
    assert [path.name for path in target.parent.iterdir()] == ["t"]


def test_a_killed_tree_that_lost_a_file_since_does_not_bring_it(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path
) -> None:
    make_tree(tmp_path / "s", {f"{number:03}": 5000 for number in range(60)})
    copy(str(tmp_path / "s"), bucket, access=unruly)
    slow(proxy, "GET", "/o/")
    copy_and_kill(f"{bucket}/", str(tmp_path / "t"), unruly, 30 * 5000)
    proxy.faults = []
    store = open_store(bucket, unruly)
    store.delete("000")
    store.write("001", b"new")
    copy(f"{bucket}/", str(tmp_path / "t"), access=unruly)
    assert read_tree(tmp_path / "t") == read_store(store)


def test_a_killed_upload_of_a_tree_goes_on_file_by_file(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path, cache: Path
) -> None:
    tree = make_tree(tmp_path / "s", {f"{number:03}": 5000 for number in range(120)})
    slow(proxy, "PUT", "/o/")
    copy_and_kill(str(tmp_path / "s"), bucket, unruly, 60 * 5000)
    proxy.calm_down()
    copy(str(tmp_path / "s"), bucket, access=unruly)
    assert proxy.count("PUT", "/o/") <= 70
    assert read_store(open_store(bucket, unruly)) == tree
    assert list(cache.iterdir()) == []


def test_a_copy_that_the_network_ended_goes_on_too(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path
) -> None:
    content = os.urandom(20 * PART)
    (tmp_path / "x").write_bytes(content)
    proxy.faults = [Fault(method="PUT", path="/u/", status=503, skip=10, times=1000)]
    with pytest.raises(StorageError, match="503"):
        copy(str(tmp_path / "x"), f"{bucket}/x", access=replace(unruly, max_attempts=1), part_size=PART)
    proxy.faults = []
    report = copy(str(tmp_path / "x"), f"{bucket}/x", access=unruly, part_size=PART)
    assert report.resumed_bytes >= 8 * PART
    assert open_store(bucket, unruly).read("x") == content


def test_without_resume_nothing_is_left_for_later(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path, cache: Path
) -> None:
    open_store(bucket, unruly).write("x", os.urandom(20 * PART))
    proxy.faults = [Fault(method="GET", path="/o/", status=503, skip=5, times=1000)]
    with pytest.raises(StorageError, match="503"):
        copy(
            f"{bucket}/x",
            str(tmp_path / "in/x"),
            access=replace(unruly, max_attempts=1),
            part_size=PART,
            resume=False,
        )
    assert list((tmp_path / "in").iterdir()) == []
    assert not cache.exists()


# The journal


def test_a_journal_is_of_one_subject_and_forgets_a_line_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "new" / "journal"
    journal = Journal.open(path, {"of": "this"})
    assert journal is not None
    journal.add([1, 2])
    journal.add([3, 4])
    journal.close()
    with path.open("ab") as file:
        file.write(b"[5, ")
    again = Journal.open(path, {"of": "this"})
    assert again is not None
    assert again.records == [[1, 2], [3, 4]]
    again.add([6, 7])
    again.close()
    other = Journal.open(path, {"of": "that"})
    assert other is not None
    assert (other.records, other.stale) == ([], [[1, 2], [3, 4], [6, 7]])
    other.remove()
    assert not path.exists()


def test_an_upload_that_could_not_be_resumed_just_now_is_resumed_a_moment_later(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "x").write_bytes(os.urandom(8 * PART))
    store = open_store(bucket, replace(unruly, max_attempts=1))
    origin = Origin(uri=str(tmp_path / "x"), etag="1", size=8 * PART)
    begun = store.upload("x", 8 * PART, PART, origin)
    begun.write(0, 0, os.urandom(PART))
    begun.suspend()
    proxy.faults = [Fault(method="GET", path="/u/", status=503)]
    with pytest.raises(StorageError) as failure:
        store.upload("x", 8 * PART, PART, origin)
    # As long as somebody looks at the error, what it comes from is still there.
    resumed = store.upload("x", 8 * PART, PART, origin)
    assert resumed.missing(0, PART) == [], str(failure.value)
    resumed.abort()


def test_a_journal_holds_no_secret_and_is_found_again_with_another_token(tmp_path: Path) -> None:
    def subject(token: str) -> dict[str, object]:
        return {"from": f"https://me:{token}@host/p/{token}/n/ns/b/bucket/o/x", "size": 3}

    path = tmp_path / "journal"
    journal = Journal.open(path, subject("first-secret"))
    assert journal is not None
    journal.add([0, 3])
    assert "secret" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    journal.close()
    again = Journal.open(path, subject("second-secret"))
    assert again is not None
    assert again.records == [[0, 3]]
    again.forget()
    assert "secret" not in path.read_text()
    again.close()
    keys = {places_digest(str(subject(token)["from"]), "/target") for token in ("first", "second")}
    assert len(keys) == 1
    of_before = hashlib.sha256(b"oci://b@n/x\0/target").hexdigest()[:8]
    assert places_digest("oci://b@n/x", "/target") == of_before


def test_a_journal_in_use_or_in_no_writable_place_is_done_without(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal", {})
    assert journal is not None
    assert Journal.open(tmp_path / "journal", {}) is None
    journal.close()
    (tmp_path / "file").write_bytes(b"")
    assert Journal.open(tmp_path / "file" / "journal", {}) is None


@pytest.mark.parametrize(
    "written, missing",
    [
        ([], [(10, 20)]),
        ([(0, 40)], []),
        ([(0, 12), (11, 15)], [(15, 15)]),
        ([(25, 60)], [(10, 15)]),
        ([(12, 14), (20, 22)], [(10, 2), (14, 6), (22, 8)]),
        ([(30, 40), (0, 10)], [(10, 20)]),
    ],
)
def test_what_is_missing_of_a_part_is_what_was_not_written(
    written: Sequence[tuple[int, int]], missing: Sequence[tuple[int, int]]
) -> None:
    assert gaps(merged_ranges(written), 10, 20) == missing
