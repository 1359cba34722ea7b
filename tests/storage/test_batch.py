"""Many copies at once: all looked at before anything is copied, all reported, within one budget."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import batch, locations
from airflow_provider_ocidist.storage.batch import copy_all
from airflow_provider_ocidist.storage.batch_reports import BatchReport, error_text
from airflow_provider_ocidist.storage.copy_items import read_items
from airflow_provider_ocidist.storage.copying import resuming
from airflow_provider_ocidist.storage.copying.lanes import Width, next_width
from airflow_provider_ocidist.storage.copying.selection import fits
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.storage.survey import Sides
from airflow_provider_ocidist.storage.transfer import CopyRules, copy
from tests.storage.trees import make_tree, read_store, read_tree
from tests.storage.unruly_proxy import Fault, UnrulyProxy

ROOT = Path(__file__).parents[2]
PART = 256 << 10
BATCH = """
import json, sys
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.batch import copy_all
from airflow_provider_ocidist.storage.copy_items import read_items, rules_of
from airflow_provider_ocidist.storage.survey import Sides
access = OciAccess(config_file=sys.argv[2], endpoint=sys.argv[3], max_attempts=4)
copy_all(
    read_items(sys.argv[1], rules_of()),
    sides=Sides.of(access, access),
    write=print,
    part_size=int(sys.argv[4]),
    threads=4,
)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ocidist" / "transfers"


def copy_items(data: Any, access: OciAccess | None = None, **options: Any) -> BatchReport:
    written: list[str] = options.pop("written", [])
    return copy_all(
        read_items(data, CopyRules()), sides=Sides.of(access, access), write=written.append, **options
    )


# Before anything is copied


def test_what_is_not_there_is_reported_of_all_items_before_anything_is_copied(tmp_path: Path) -> None:
    make_tree(tmp_path / "a", {"x": 5})
    (tmp_path / "file").write_bytes(b"")
    places = {"a": "b", "no": "c", "a/": "file"}
    data = {f"{tmp_path}/{source}": f"{tmp_path}/{target}" for source, target in places.items()}
    with pytest.raises(StorageError) as raised:
        copy_items(data)
    assert "2 of 3 items cannot be copied, and so nothing was" in str(raised.value)
    assert f"item 2: {tmp_path}/no -> {tmp_path}/c: there is nothing at" in str(raised.value)
    assert "is a file, and the source is a folder" in str(raised.value)
    assert not (tmp_path / "b").exists()


# Patterns


@pytest.mark.parametrize(
    "name, pattern, expected",
    [
        ("a.csv", "*.csv", True),
        ("sub/a.csv", "*.csv", False),
        ("run-1/sub/a", "run-*", True),
        ("run-1/a.csv", "run-*/*.csv", True),
        ("run-1/sub/a.csv", "run-*/*.csv", False),
        ("run-1/sub/a.csv", "**/*.csv", True),
        ("a.csv", "**/*.csv", True),
        ("b1", "b[12]", True),
    ],
)
def test_a_pattern_fits_part_by_part(name: str, pattern: str, expected: bool) -> None:
    assert fits(name, pattern.split("/")) is expected


def test_a_source_may_be_a_pattern_and_what_fits_keeps_its_path(
    access: OciAccess, bucket: str, tmp_path: Path
) -> None:
    tree = {"run-1/a.csv": 5, "run-1/b.txt": 5, "run-2/a.csv": 5, "other/a.csv": 5}
    make_tree(tmp_path / "s", tree)
    copy(str(tmp_path / "s"), bucket, access=access)
    copy(f"{bucket}/run-*/*.csv", str(tmp_path / "t"), access=access)
    assert set(read_tree(tmp_path / "t")) == {"run-1/a.csv", "run-2/a.csv"}
    copy(f"{tmp_path}/s/run-1/*.csv", f"{tmp_path}/s/run-1/kept/")
    assert set(read_tree(tmp_path / "s/run-1/kept")) == {"a.csv"}
    with pytest.raises(StorageError, match=r"nothing at .* matches run-\*/\*\.json"):
        copy(f"{bucket}/run-*/*.json", str(tmp_path / "u"), access=access)


def test_a_name_that_looks_like_a_pattern_is_taken_as_it_is(tmp_path: Path) -> None:
    make_tree(tmp_path / "s", {"[a]*.txt": 5, "a1.txt": 5})
    copy(f"{tmp_path}/s/[a]*.txt", f"{tmp_path}/t/")
    assert set(read_tree(tmp_path / "t")) == {"[a]*.txt"}


def test_a_pattern_that_would_read_what_it_writes_is_refused(tmp_path: Path) -> None:
    make_tree(tmp_path / "s", {"x": 5})
    with pytest.raises(StorageError, match="a tree cannot be copied into itself"):
        copy(f"{tmp_path}/s/*", f"{tmp_path}/s/new/")


# Copies


def test_many_items_arrive_and_each_is_reported(access: OciAccess, bucket: str, tmp_path: Path) -> None:
    for number in range(10):
        make_tree(tmp_path / f"s{number}", {"x": 100, "sub/y": 50})
    written: list[str] = []
    report = copy_items({f"{tmp_path}/s{n}/": f"{bucket}/{n}/" for n in range(10)}, access, written=written)
    assert report.error is None
    value = report.to_json()
    assert (value["files"], value["bytes"], value["failed"]) == (20, 1500, 0)
    assert [item["item"] for item in value["items"]] == list(range(1, 11))
    assert written[0] == "copy: 10 items, 20 files, 1500 bytes"
    assert sum("2 files, 150 bytes in" in line for line in written) == 10
    assert len(read_store(open_store(bucket, access))) == 20


def test_an_item_that_fails_does_not_end_the_others(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path
) -> None:
    make_tree(tmp_path / "s", {"x": 100})
    proxy.faults = [Fault(method="PUT", path="refused", status=403, times=10)]
    report = copy_items({f"{tmp_path}/s/": f"{bucket}/refused", f"{tmp_path}/s/x": f"{bucket}/good"}, unruly)
    assert read_store(open_store(bucket, unruly)).keys() == {"good"}
    assert report.error is not None
    assert "1 of 2 items failed, the others have arrived:\n  item 1" in str(report.error)
    assert "403" in report.to_json()["items"][0]["error"]
    assert report.to_json()["items"][1]["files"] == 1


def test_what_is_handed_on_stays_small(tmp_path: Path) -> None:
    make_tree(tmp_path / "s", {f"{number:03}": 1 for number in range(130)})
    report = copy_items([{"source": f"{tmp_path}/s/{n:03}", "target": f"{tmp_path}/t/"} for n in range(130)])
    value = report.to_json()
    assert (value["files"], len(value["items"]), value["items_left_out"]) == (130, 100, 30)


def test_one_line_shows_how_far_all_items_are(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "LOGGED_EVERY_S", 0.2)
    make_tree(tmp_path / "s", {f"{number:02}": 1000 for number in range(40)})
    proxy.faults = [Fault(method="PUT", delay_s=0.2, times=100)]
    written: list[str] = []
    data = {f"{tmp_path}/s/": f"{bucket}/a", f"{tmp_path}/s/00": f"{bucket}/b"}
    copy_items(data, unruly, written=written, threads=8)
    lines = [line for line in written if " of 41 kB" in line]
    assert lines
    assert all(line.startswith("copy: ") and "/2 items, " in line and "/41 files" in line for line in lines)


def test_all_items_together_use_no_more_streams_than_one(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path
) -> None:
    make_tree(tmp_path / "s", {f"{number:02}": 1000 for number in range(12)})
    proxy.faults = [Fault(method="PUT", delay_s=0.1, times=1000)]
    copy_items({f"{tmp_path}/s/": f"{bucket}/a", f"{tmp_path}/s": f"{bucket}/b"}, unruly, threads=4)
    # A copy that began alone keeps what it had open until its next measure.
    assert proxy.busiest <= 4 + 2


def test_lanes_close_when_another_copy_wants_its_share() -> None:
    assert next_width(Width(lanes=64), 100.0, 16).lanes == 16


def test_the_two_sides_may_have_credentials_of_their_own(
    access: OciAccess, unruly: OciAccess, proxy: UnrulyProxy, bucket: str
) -> None:
    store = open_store(bucket, access)
    store.write("x", b"123")
    proxy.seen.clear()
    report = copy(f"{bucket}/x", f"{bucket}/y", access=access, target_access=unruly)
    assert report.files == 1
    assert (proxy.count("PUT"), proxy.count("GET", "/o/x")) == (1, 0)
    assert store.read("y") == b"123"


def test_a_query_and_a_password_in_a_web_address_are_not_shown() -> None:
    assert locations.shown("https://me:secret@host/x?signature=secret") == "https://host/x"
    item = read_items({"https://me:secret@host/x?sig=secret": "/t"}, CopyRules())[0]
    assert "secret" not in item.shown


def test_the_token_of_a_preauthenticated_request_is_not_shown() -> None:
    address = "https://objectstorage.eu-frankfurt-1.oraclecloud.com/p/TOKEN-x_1/n/ns/b/bucket/o/file"
    bare = address.replace("TOKEN-x_1", "***")
    assert locations.shown(address) == bare
    assert locations.shown("https://host/data/p/file") == "https://host/data/p/file"
    error = StorageError(f"reading '{address}?sig=abc', then http://me:word@host/x#y failed")
    assert error_text(error) == f"reading '{bare}', then http://host/x failed"


# Verified, and made the same


def test_verify_finds_a_byte_that_turned_at_the_target(tmp_path: Path) -> None:
    make_tree(tmp_path / "s", {"x": 5000, "y": 5000})
    target = tmp_path / "t"
    target.mkdir()

    def damage(now: Any) -> None:
        if now.files_done == now.files_total:
            path = target / "x"
            path.write_bytes(b"?" + path.read_bytes()[1:])

    with pytest.raises(StorageError, match=r"1 of 2 files at .* differ from those at .*: x"):
        copy(f"{tmp_path}/s/", str(target), verify=True, on_progress=damage)
    report = copy(f"{tmp_path}/s/", str(target), verify=True, mode="changed")
    assert (report.files, report.unverified) == (1, ())


def test_verify_reports_what_could_be_compared_by_size_only(tmp_path: Path) -> None:
    make_tree(tmp_path / "s", {"x": 50})
    report = copy(f"{tmp_path}/s/", f"memory://{tmp_path.name}/t", verify=True)
    assert report.unverified == ("x",)


@pytest.mark.parametrize("place", ["local", "oci"])
def test_delete_extra_makes_the_target_the_same_and_spares_what_is_excluded(
    place: str, access: OciAccess, bucket: str, tmp_path: Path
) -> None:
    make_tree(tmp_path / "s", {"x": 5, "sub/y": 5})
    make_tree(tmp_path / "old", {"x": 5, "gone": 5, "sub/gone": 5, "notes.txt": 5})
    target = f"{tmp_path}/t" if place == "local" else bucket
    copy(f"{tmp_path}/old/", target, access=access)
    report = copy(f"{tmp_path}/s/", target, access=access, delete_extra=True, exclude=["*.txt"])
    assert sorted(report.deleted) == ["gone", "sub/gone"]
    assert read_store(open_store(target, access)).keys() == {"x", "sub/y", "notes.txt"}


@pytest.mark.parametrize("place", ["local", "oci", "memory"])
def test_delete_extra_refuses_a_source_that_lies_in_its_target(
    place: str, access: OciAccess, bucket: str, tmp_path: Path
) -> None:
    make_tree(tmp_path / "t", {"keep": 5, "src/a": 5})
    local, (there, at, rest) = f"{tmp_path}/t", bucket.partition("@")
    target, spelled = {
        "local": (local, f"file://{tmp_path}/link/src/"),
        "oci": (bucket, f"{there}/{rest.partition('/')[2]}/src/" if at else f"{bucket}/src/"),
        "memory": (f"memory://{tmp_path.name}-in", f"memory:///{tmp_path.name}-in/src/"),
    }[place]
    if place == "local":
        (tmp_path / "link").symlink_to(tmp_path / "t")
    else:
        copy(f"{local}/", target, access=access)
    for source in (f"{target}/src/", spelled):
        with pytest.raises(StorageError, match="would delete the source"):
            copy(source, f"{target}/", access=access, delete_extra=True)
        with pytest.raises(StorageError, match="would delete the source"):
            copy_items([{"source": source, "target": f"{target}/", "delete_extra": True}], access)
    assert read_store(open_store(target, access)).keys() == {"keep", "src/a"}


def test_delete_extra_spares_what_the_source_got_while_it_was_copied(tmp_path: Path) -> None:
    make_tree(tmp_path / "s", {"x": 5})
    make_tree(tmp_path / "t", {"gone": 5})

    def newer_copy(now: Any) -> None:
        if now.files_done == now.files_total:
            for place in ("s", "t"):
                (tmp_path / place / "new").write_bytes(b"new")

    report = copy(f"{tmp_path}/s/", f"{tmp_path}/t", delete_extra=True, on_progress=newer_copy)
    assert report.deleted == ("gone",)
    assert read_tree(tmp_path / "t").keys() == {"x", "new"}


def test_delete_extra_never_empties_a_target(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_tree(tmp_path / "t", {"x": 5})
    for source, why in (
        ("empty/", "would empty the target"),
        ("t/x", "needs a folder"),
        ("t/*", "needs a folder"),
    ):
        with pytest.raises(StorageError, match=why):
            copy(f"{tmp_path}/{source}", f"{tmp_path}/u/", delete_extra=True)
    with pytest.raises(StorageError, match="would empty the target"):
        copy(f"{tmp_path}/empty/", f"{tmp_path}/t", delete_extra=True)
    assert (tmp_path / "t/x").exists()


# Broken off


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, "it has not come so far within 60 s"
        time.sleep(0.02)


def batch_and_kill(data: Any, access: OciAccess, happened: Callable[[], bool]) -> None:
    """Copy in a process of its own and kill it in the middle."""
    arguments = [json.dumps(data), str(access.config_file), str(access.endpoint), str(PART)]
    with subprocess.Popen([sys.executable, "-c", BATCH, *arguments], cwd=ROOT) as process:
        try:
            until(happened)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"


@pytest.mark.parametrize("machine", ["same", "other"])
def test_a_killed_batch_goes_on_on_any_machine(
    machine: str, unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path, cache: Path
) -> None:
    tree = make_tree(tmp_path / "tree", {f"{number:03}": 5000 for number in range(60)})
    (tmp_path / "file").write_bytes(os.urandom(40 * PART))
    (tmp_path / "first").write_bytes(os.urandom(3 * PART))
    data = {
        str(tmp_path / "first"): f"{bucket}/first",
        str(tmp_path / "file"): f"{bucket}/file",
        f"{tmp_path}/tree/": f"{bucket}/tree/",
    }
    proxy.faults = [Fault(method="PUT", delay_s=0.2, times=10_000)]
    batch_and_kill(
        data, unruly, lambda: proxy.count("PUT", "file") >= 15 and proxy.count("PUT", "tree") >= 40
    )
    if machine == "other":
        shutil.rmtree(cache)
    proxy.calm_down()
    before = len([name for name in read_store(open_store(f"{bucket}/tree", unruly)) if name in tree])
    proxy.seen.clear()
    report = copy_items(data, unruly, repeated=True, part_size=PART)
    assert report.error is None
    assert before >= 20
    assert proxy.count("PUT", "tree") <= 60 - before
    assert proxy.count("PUT", "first") == 0
    if machine == "same":
        # Of 40 parts, 25 had begun; at most one on each of four streams is sent again.
        assert proxy.count("PUT", "/u/") <= 40 - 25 + 4
        assert list(cache.iterdir()) == []
    assert open_store(bucket, unruly).read("file") == (tmp_path / "file").read_bytes()
    assert read_store(open_store(f"{bucket}/tree", unruly)) == tree


def test_what_breaks_off_goes_on_by_itself_as_long_as_it_gets_further(
    unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "PAUSE_S", 0.01)
    (tmp_path / "x").write_bytes(os.urandom(20 * PART))
    proxy.faults = [Fault(method="PUT", path="/u/", status=503, skip=10, times=1)]
    written: list[str] = []
    once = replace(unruly, max_attempts=1)
    report = copy_items({str(tmp_path / "x"): f"{bucket}/x"}, once, written=written, part_size=PART)
    assert report.error is None
    assert any("item 1 was interrupted" in line and line.endswith("resuming") for line in written)
    assert report.to_json()["items"][0]["resumed_bytes"] > 0
    proxy.faults = [Fault(method="PUT", path="/u/", status=503, times=1000)]
    failed = copy_items({str(tmp_path / "x"): f"{bucket}/y"}, once, part_size=PART)
    assert failed.error is not None
    assert failed.error.retryable


@pytest.mark.parametrize("mode", ["all", "changed"])
def test_a_tree_that_breaks_off_again_and_again_goes_on_with_what_it_has(
    mode: str,
    unruly: OciAccess,
    proxy: UnrulyProxy,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each attempt moves fewer files than the first, and gets further all the same."""
    monkeypatch.setattr(resuming, "PAUSE_S", 0.01)
    tree = make_tree(tmp_path / "tree", {f"{number:02}": 1000 for number in range(20)})
    proxy.faults = [Fault(method="PUT", path="/o/", status=503, skip=skip, times=1) for skip in (12, 15, 17)]
    once = replace(unruly, max_attempts=1)
    data = [{"source": f"{tmp_path}/tree/", "target": f"{bucket}/tree/", "mode": mode}]
    written: list[str] = []
    report = copy_items(data, once, written=written, part_size=PART, threads=1)
    assert report.error is None
    assert sum("was interrupted" in line for line in written) == 3
    assert read_store(open_store(f"{bucket}/tree", unruly)) == tree


@pytest.mark.parametrize("how", ["cancelled", "interrupted"])
def test_cancelled_leaves_nothing_and_interrupted_leaves_what_the_next_attempt_needs(
    how: str, unruly: OciAccess, proxy: UnrulyProxy, bucket: str, tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "x").write_bytes(os.urandom(40 * PART))
    proxy.faults = [Fault(method="PUT", path="/u/", delay_s=0.1, times=10_000)]
    cancel = threading.Event()

    def is_under_way() -> bool:
        return proxy.count("PUT", "/u/") >= 8

    if how == "cancelled":
        threading.Thread(target=lambda: (until(is_under_way), cancel.set())).start()
        report = copy_items(
            {f"{tmp_path}/x": f"{bucket}/x"}, unruly, part_size=PART, threads=4, cancel=cancel
        )
        assert "was cancelled" in str(report.error)
        assert list(cache.iterdir()) == []
        return
    threading.Thread(target=lambda: (until(is_under_way), os.kill(os.getpid(), signal.SIGINT))).start()
    with pytest.raises(KeyboardInterrupt):
        copy_items({f"{tmp_path}/x": f"{bucket}/x"}, unruly, part_size=PART, threads=4)
    assert len(list(cache.iterdir())) == 1


# Patterns that choose nothing


def test_an_include_that_fits_none_of_the_files_is_an_error_and_nothing_is_copied(tmp_path: Path) -> None:
    make_tree(tmp_path / "s", {"a.csv": 5, "sub/b.csv": 5})
    data = [
        {"source": f"{tmp_path}/s/", "target": f"{tmp_path}/t"},
        {"source": f"{tmp_path}/s/", "target": f"{tmp_path}/u", "include": ["*.parquet", "*.json"]},
    ]
    with pytest.raises(StorageError, match=r"item 2.*none of its 2 files fits include") as raised:
        copy_items(data)
    assert "'*.parquet', '*.json'" in str(raised.value)
    assert not (tmp_path / "t").exists()
    assert not (tmp_path / "u").exists()


def test_of_several_sources_one_with_a_fitting_file_is_enough(tmp_path: Path) -> None:
    make_tree(tmp_path / "a", {"x.csv": 5})
    make_tree(tmp_path / "b", {"y.bin": 5})
    sources = [f"{tmp_path}/a/", f"{tmp_path}/b/"]
    report = copy_items([{"source": sources, "target": f"{tmp_path}/t/", "include": "*.csv"}])
    assert report.error is None
    assert read_tree(tmp_path / "t").keys() == {"x.csv"}


def test_an_empty_source_and_one_that_is_all_excluded_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_tree(tmp_path / "s", {"a.csv": 5})
    data = [
        {"source": f"{tmp_path}/empty/", "target": f"{tmp_path}/t", "include": "*.csv"},
        {"source": f"{tmp_path}/s/", "target": f"{tmp_path}/u", "include": "*.csv", "exclude": "a*"},
    ]
    assert copy_items(data).error is None
