"""A folder as a store: what of it is listed, how files arrive in it, what an interrupted copy goes on from."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.stores import local, local_upload
from airflow_provider_ocidist.storage.stores.base import Origin
from airflow_provider_ocidist.storage.stores.checksums import in_text, md5_of
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.local_files import READ_SIZE, local_errors
from airflow_provider_ocidist.storage.stores.local_upload import gaps, merged_ranges

MINE = Origin(uri="oci://b@n/x", etag="1", size=6)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def open_below(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if name.startswith(f"{folder}/")]


# Listing


def test_a_prefix_is_one_of_names_and_not_of_folders(store: LocalStore) -> None:
    for name in ("a/b/1", "a/b/2", "a/bc/3", "a/x", "b"):
        store.write(name, b"")
    found = {
        prefix: [entry.name for entry in store.list(prefix)]
        for prefix in ("", "a", "a/", "a/b", "a/b/", "a/b/2", "nothing", "nothing/at/all", "b/")
    }
    assert found == {
        "": ["a/b/1", "a/b/2", "a/bc/3", "a/x", "b"],
        "a": ["a/b/1", "a/b/2", "a/bc/3", "a/x"],
        "a/": ["a/b/1", "a/b/2", "a/bc/3", "a/x"],
        "a/b": ["a/b/1", "a/b/2", "a/bc/3"],
        "a/b/": ["a/b/1", "a/b/2"],
        "a/b/2": ["a/b/2"],
        "nothing": [],
        "nothing/at/all": [],
        "b/": [],
    }


def test_an_entry_has_the_size_and_time_of_its_file_and_another_mark_for_another_content(
    store: LocalStore,
) -> None:
    marks = set()
    for content in (b"", b"one", b"two"):
        mark = store.write("x", content)
        (entry,) = store.list()
        status = (store.folder / "x").stat()
        assert (entry.name, entry.size, entry.modified) == ("x", len(content), status.st_mtime)
        assert entry.etag == store.stat("x").etag == mark
        marks.add(mark)
    assert len(marks) == 3


def test_links_are_followed_inside_and_named_when_they_lead_out_or_nowhere(
    tmp_path: Path, store: LocalStore
) -> None:
    store.write("real/x", b"1")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "y").write_text("2")
    for name, target in (
        ("inner", "real"),
        ("file", "real/x"),
        ("out", "../outside"),
        ("out-file", "../outside/y"),
        ("nowhere", "gone"),
        ("loop", "."),
    ):
        (store.folder / name).symlink_to(target)
    source = store.as_source()
    assert [entry.name for entry in source.list()] == ["file", "inner/x", "real/x"]
    assert source.skipped == ("loop", "nowhere", "out", "out-file")
    assert [entry.name for entry in store.list()] == ["file", "real/x"], (
        "who may write or delete sees one name of each"
    )
    assert store.skipped == ("inner", "loop", "nowhere", "out", "out-file")
    assert {entry.name: entry.behind for entry in store.list()} == {"file": "real/x", "real/x": None}
    assert store.stat("file").behind == "real/x"
    store.list("real/")
    assert store.skipped == (), "of the last listing"


def test_a_folder_whose_name_begins_alike_is_outside(tmp_path: Path, store: LocalStore) -> None:
    store.write("x", b"1")
    (tmp_path / "store-2").mkdir()
    (tmp_path / "store-2" / "y").write_text("2")
    (store.folder / "other").symlink_to("../store-2")
    assert [entry.name for entry in store.list()] == ["x"]
    assert store.skipped == ("other",)


def test_what_is_no_file_is_named_and_what_is_unfinished_is_neither(store: LocalStore) -> None:
    store.write("a/x", b"1")
    os.mkfifo(store.folder / "a" / "pipe")
    upload = store.upload("a/y", 1, 1)
    try:
        assert [entry.name for entry in store.list()] == ["a/x"]
        assert store.skipped == ("a/pipe",)
    finally:
        upload.abort()


def test_what_vanishes_while_it_is_listed_is_left_out(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/1", "b/2"):
        store.write(name, b"")
    scandir = os.scandir

    def and_one_goes(folder: Path) -> list[os.DirEntry[str]]:
        found = sorted(scandir(folder), key=lambda child: child.name)
        if Path(folder).name == "b":
            (store.folder / "b" / "2").unlink()
        return found

    monkeypatch.setattr(local.os, "scandir", and_one_goes)
    assert [entry.name for entry in store.list()] == ["a/1"]


def test_a_store_that_has_not_looked_has_left_nothing_out(store: LocalStore) -> None:
    assert list(store.skipped) == []


def test_a_store_of_a_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert LocalStore(tmp_path / "file").list() == []


# Reading


def test_a_file_is_read_in_ranges(store: LocalStore) -> None:
    content = random.Random(1).randbytes(700_000)
    store.write("x", content)
    download = store.download(store.stat("x"), 1000)
    assert download.part_size == 1000
    for offset, length in ((0, 700_000), (0, 1), (699_999, 1), (123_456, 400_000), (5, 0)):
        pieces = list(download.pieces(offset, length))
        assert b"".join(pieces) == content[offset : offset + length]
        assert all(0 < len(piece) <= 256 << 10 for piece in pieces)
    download.finish()


def test_a_file_that_ends_too_early_is_said_with_the_place(store: LocalStore) -> None:
    store.write("x", b"12345")
    download = store.download(replace(store.stat("x"), size=9), 4)
    with pytest.raises(StorageError, match=r"x: expected 9 bytes, got 5: it changed while it was read$"):
        list(download.pieces(3, 6))


def test_what_changes_while_it_is_read_is_an_error_that_names_it(store: LocalStore) -> None:
    store.write("x", b"12345")
    path = store.folder / "x"
    download = store.download(store.stat("x"), 5)
    assert list(download.pieces(0, 5)) == [b"12345"]
    path.write_bytes(b"123")
    with pytest.raises(StorageError, match=r"/x changed while it was read$") as caught:
        download.finish()
    assert caught.value.uri == str(path)
    path.unlink()
    store.folder.rmdir()
    store.folder.write_bytes(b"no folder")
    with pytest.raises(StorageError, match=str(path)):
        download.finish()


@pytest.mark.parametrize("strict", [True, False])
def test_only_a_strict_store_refuses_what_was_touched_since_it_was_listed(
    tmp_path: Path, strict: bool
) -> None:
    store = LocalStore(tmp_path, strict=strict)
    store.write("x", b"one")
    listed = store.stat("x")
    download = store.download(listed, 3)
    assert b"".join(download.pieces(0, 3)) == b"one"
    download.finish()
    store.write("x", b"two")
    download = store.download(listed, 3)
    for use in (lambda: list(download.pieces(0, 3)), download.finish):
        if strict:
            with pytest.raises(StorageError, match=rf"^{tmp_path}/x changed while it was read$"):
                use()
        else:
            use()


@pytest.mark.parametrize("strict", [True, False])
def test_only_of_what_may_grow_is_a_checksum_taken_as_it_is_read(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, *, strict: bool
) -> None:
    # A checkpoint is large, and a file of one that has grown is refused, whatever it begins with.
    taken: list[int] = []
    monkeypatch.setattr(local, "zlib", SimpleNamespace(crc32=lambda data, _: taken.append(len(data)) or 0))
    store.strict = strict
    store.write("file", b"content")
    (entry,) = store.list("file")
    download = store.download(entry, 1 << 20)
    assert b"".join(download.pieces(0, 7)) == b"content"
    download.finish()
    assert taken == ([] if strict else [7])


@pytest.mark.parametrize("part_size", [None, 100])
@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1000])
def test_checksums_are_those_of_the_content_whole_or_in_parts(
    store: LocalStore, size: int, part_size: int | None
) -> None:
    content = random.Random(size).randbytes(size)
    store.write("x", content)
    found = store.checksum_by_reading(store.stat("x"), part_size)
    step = part_size or max(size, 1)
    parts = [md5_of([content[start : start + step]]) for start in range(0, max(size, 1), step)]
    assert (found.value, found.part_size) == (in_text(parts, whole=part_size is None), part_size)


# Deleting


def test_the_folders_that_a_deletion_empties_leave_up_to_the_store_itself(store: LocalStore) -> None:
    for name in ("a/b/c/x", "a/y"):
        store.write(name, b"")
    store.delete("a/b/c/x")
    assert names(store.folder / "a") == ["y"]
    store.delete("a/y")
    assert store.folder.is_dir()
    assert names(store.folder) == []
    store.delete("a/y")


def test_only_regular_files_are_there(store: LocalStore) -> None:
    store.write("a/x", b"")
    os.mkfifo(store.folder / "pipe")
    for name in ("a", "pipe", "gone"):
        with pytest.raises(FileNotFoundError):
            store.stat(name)
        assert not store.exists(name)


# Arriving


def test_nothing_is_seen_of_a_file_before_it_is_whole(store: LocalStore) -> None:
    upload = store.upload("a/x", 6, 3)
    upload.write(1, 3, b"def")
    upload.write(0, 0, b"abc")
    assert store.list() == []
    assert b"".join(upload.read_back(0, 6)) == b"abcdef"
    assert b"".join(upload.read_back(4, 100)) == b"ef"
    mark = upload.commit()
    assert store.read("a/x") == b"abcdef"
    assert store.stat("a/x").etag == mark
    assert names(store.folder / "a") == ["x"]


def test_a_write_that_fails_leaves_nothing_and_keeps_what_was_there(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("x", b"former")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local.os, "pwrite", full)
    with pytest.raises(StorageError, match=r"x: no space left on the file system$"):
        store.write("x", b"new")
    monkeypatch.undo()
    assert names(store.folder) == ["x"]
    assert store.read("x") == b"former"


def test_a_system_that_writes_a_few_bytes_at_a_time_gets_all_of_them(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(
        local.os, "pwrite", lambda descriptor, data, place: pwrite(descriptor, data[:7], place)
    )
    content = random.Random(2).randbytes(1000)
    store.write("x", content)
    assert store.read("x") == content


@pytest.mark.parametrize("origin", [None, MINE])
@pytest.mark.parametrize("end", ["abort", "suspend", "commit"])
def test_what_stays_of_an_upload_is_what_can_be_gone_on_with(
    store: LocalStore, origin: Origin | None, end: str
) -> None:
    upload = store.upload("x", 6, 3, origin)
    upload.write(0, 0, b"abc")
    getattr(upload, end)()
    expected = {"commit": 1, "abort": 0, "suspend": 2 if origin else 0}[end]
    assert len(names(store.folder)) == expected
    assert store.list() == ([store.stat("x")] if end == "commit" else [])
    assert open_below(store.folder) == []
    upload.abort()
    assert len(names(store.folder)) == (1 if end == "commit" else 0)


def test_a_later_attempt_goes_on_where_the_one_before_was_cut_off(store: LocalStore) -> None:
    first = store.upload("x", 6, 2, MINE)
    assert list(first.missing(0, 6)) == [(0, 6)]
    first.write(2, 4, b"ef")
    first.write(0, 0, b"ab")
    first.suspend()
    again = store.upload("x", 6, 2, MINE)
    assert list(again.missing(0, 6)) == [(2, 2)]
    again.write(1, 2, b"cd")
    again.commit()
    assert store.read("x") == b"abcdef"
    assert names(store.folder) == ["x"]


@pytest.mark.parametrize(
    "change", [{"uri": "oci://b@n/y"}, {"etag": "2"}, {"size": 7}], ids=["place", "content", "size"]
)
def test_what_is_of_another_source_is_begun_anew(store: LocalStore, change: dict[str, object]) -> None:
    first = store.upload("x", 6, 2, MINE)
    first.write(0, 0, b"ab")
    first.suspend()
    other = store.upload("x", 6, 2, replace(MINE, **change))
    assert list(other.missing(0, 6)) == [(0, 6)]
    other.write(0, 0, b"123456")
    other.commit()
    assert store.read("x") == b"123456"


def test_after_a_restart_of_the_machine_it_is_begun_anew(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.upload("x", 6, 2, MINE)
    first.write(0, 0, b"ab")
    first.suspend()
    monkeypatch.setattr(local_upload, "this_boot", lambda: "another")
    again = store.upload("x", 6, 2, MINE)
    assert list(again.missing(0, 6)) == [(0, 6)]
    again.abort()


@pytest.mark.parametrize("left", [b"", b"a"])
def test_where_the_file_is_shorter_than_its_journal_says_it_is_begun_anew(
    store: LocalStore, left: bytes
) -> None:
    first = store.upload("x", 6, 2, MINE)
    first.write(0, 0, b"ab")
    first.suspend()
    first.part.write_bytes(left)
    again = store.upload("x", 6, 2, MINE)
    assert list(again.missing(0, 6)) == [(0, 6)]
    again.write(2, 4, b"ef")
    again.suspend()
    once_more = store.upload("x", 6, 2, MINE)
    assert list(once_more.missing(0, 6)) == [(0, 4)]
    once_more.abort()


def test_bytes_of_which_no_journal_speaks_are_dropped(store: LocalStore) -> None:
    first = store.upload("x", 9, 9, MINE)
    first.suspend()
    first.part.write_bytes(b"of somebody else")
    again = store.upload("x", 3, 3, MINE)
    again.write(0, 0, b"abc")
    again.commit()
    assert store.read("x") == b"abc"


def test_two_at_a_time_do_not_share_what_is_unfinished(store: LocalStore) -> None:
    first, second = (store.upload("x", 3, 3, MINE) for _ in range(2))
    first.write(0, 0, b"one")
    second.write(0, 0, b"two")
    second.commit()
    assert store.read("x") == b"two"
    first.commit()
    assert store.read("x") == b"one"
    assert names(store.folder) == ["x"]


def test_a_name_of_the_greatest_length_can_be_resumed(store: LocalStore) -> None:
    name = "x" * 200
    for end in ("suspend", "commit"):
        upload = store.upload(name, 1, 1, MINE)
        upload.write(0, 0, b"x")
        getattr(upload, end)()
    assert names(store.folder) == [name]


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_is_no_file_is_not_replaced_by_one(store: LocalStore, kind: str) -> None:
    store.folder.mkdir()
    place = store.folder / "x"
    held = socket.socket(socket.AF_UNIX)
    with held:
        if kind == "pipe":
            os.mkfifo(place)
        else:
            held.bind(str(place))
        with pytest.raises(StorageError, match="is not a file, so no file replaces it"):
            store.write("x", b"1")
    assert names(store.folder) == ["x"]
    assert not place.is_file()


@pytest.mark.parametrize(
    "change",
    [
        lambda store, name: store.write(name, b"new"),
        lambda store, name: store.write_if(name, b"new", None),
        lambda store, name: store.delete(name),
        lambda store, name: store.upload(name, 3, 3),
    ],
    ids=["write", "write_if", "delete", "upload"],
)
def test_nothing_behind_a_link_is_written_or_deleted(
    store: LocalStore, change: Callable[[LocalStore, str], object]
) -> None:
    store.write("real/x", b"content")
    (store.folder / "link").symlink_to("real")
    for name in ("link/x", "link/new"):
        with pytest.raises(StorageError, match=r"refused to write or delete .* is a link to real"):
            change(store, name)
    assert names(store.folder / "real") == ["x"]
    assert store.read("real/x") == b"content"


def test_a_link_gives_way_to_a_file(store: LocalStore) -> None:
    store.write("real", b"1")
    (store.folder / "x").symlink_to("real")
    store.write("x", b"2")
    assert (store.read("real"), store.read("x")) == (b"1", b"2")


def test_a_folder_that_vanishes_while_a_file_arrives_is_made_again(store: LocalStore) -> None:
    store.write("a/b/x", b"1")
    store.delete("a/b/x")
    store.write("a/b/x", b"2")
    assert store.read("a/b/x") == b"2"


def test_a_folder_that_keeps_vanishing_is_an_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    with pytest.raises(StorageError, match="its folder keeps disappearing"):
        store.write("a/x", b"1")


# What was begun and not ended


def test_what_was_begun_is_found_by_its_name_and_can_be_aborted(store: LocalStore) -> None:
    began = time.time()
    uploads = {name: store.upload(name, 1, 1) for name in ("a/x", "a/deep/y", "ab", "b/z")}
    store.write("a/whole", b"")
    found = {
        prefix: sorted(each.name for each in store.open_uploads(prefix))
        for prefix in ("", "a", "a/", "a/d", "a/x", "nothing", "nothing/here")
    }
    assert found == {
        "": ["a/deep/y", "a/x", "ab", "b/z"],
        "a": ["a/deep/y", "a/x", "ab"],
        "a/": ["a/deep/y", "a/x"],
        "a/d": ["a/deep/y"],
        "a/x": ["a/x"],
        "nothing": [],
        "nothing/here": [],
    }
    for each in store.open_uploads("a/"):
        assert began - 5 < each.begun_at < time.time() + 5
        store.abort_upload(each)
    assert sorted(each.name for each in store.open_uploads()) == ["ab", "b/z"]
    assert names(store.folder / "a") == ["whole"]
    for upload in uploads.values():
        upload.abort()


# One at a time


def test_a_write_on_condition_is_taken_only_where_nothing_has_changed(store: LocalStore) -> None:
    assert store.write_if("a/x", b"1", None)
    assert not store.write_if("a/x", b"2", None)
    mark = store.stat("a/x").etag
    assert store.write_if("a/x", b"3", mark)
    assert not store.write_if("a/x", b"4", mark)
    assert store.read("a/x") == b"3"


def test_of_many_writers_on_one_condition_one_is_taken(store: LocalStore) -> None:
    store.write("x", b"")
    mark, taken, barrier = store.stat("x").etag, [], threading.Barrier(8)

    def write(number: int) -> None:
        barrier.wait()
        if store.write_if("x", f"{number}".encode(), mark):
            taken.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [f"{number}".encode() for number in taken] == [store.read("x")]


def test_while_somebody_writes_on_condition_others_wait_and_afterwards_nobody_does(store: LocalStore) -> None:
    store.write("x", b"1")
    with local._locked(store.folder):
        descriptor = os.open(store.folder, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    descriptor = os.open(store.folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


# Ranges


@pytest.mark.parametrize("seed", range(30))
def test_what_is_written_and_what_is_missing_are_all_there_is(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(30):
        ranges = [
            (start, start + dice.randint(0, 6))
            for start in (dice.randint(0, 30) for _ in range(dice.randint(0, 6)))
        ]
        found = merged_ranges(ranges)
        written = {place for start, end in ranges for place in range(start, end)}
        assert {place for start, end in found for place in range(start, end)} == written
        assert all(found[at][1] < found[at + 1][0] for at in range(len(found) - 1)), f"seed {seed}: {ranges}"
        offset, length = dice.randint(0, 30), dice.randint(0, 20)
        missing = gaps(found, offset, length)
        places = [place for start, count in missing for place in range(start, start + count)]
        assert places == [place for place in range(offset, offset + length) if place not in written]
        assert all(count > 0 for _, count in missing), f"seed {seed}: {ranges}, {offset}, {length}"


# Errors


def fail(error: BaseException) -> None:
    with local_errors(Path("/x/y")):
        raise error


@pytest.mark.parametrize(
    "number, reason",
    [
        (errno.ENOSPC, "no space left on the file system"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EFBIG, "the file is larger than this process or file system allows"),
        (errno.EACCES, "permission denied"),
    ],
)
def test_what_the_system_says_is_one_error_with_the_place(number: int, reason: str) -> None:
    error = OSError(number, os.strerror(number))
    with pytest.raises(StorageError, match=rf"^/x/y: {reason}$") as caught:
        fail(error)
    assert caught.value.uri == "/x/y"
    assert caught.value.__cause__ is error
    assert not caught.value.retryable


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENOTCONN])
def test_what_a_server_of_a_mount_fails_with_for_a_while_may_be_tried_again(number: int) -> None:
    with pytest.raises(StorageError) as caught:
        fail(OSError(number, os.strerror(number)))
    assert caught.value.retryable


def test_an_error_without_a_number_is_reported_by_its_words() -> None:
    with pytest.raises(StorageError, match=r"^/x/y: odd things$"):
        fail(OSError("Odd things"))


def test_a_name_that_the_system_cannot_write_is_said() -> None:
    with pytest.raises(StorageError, match="its name cannot be written here"):
        fail(UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"))


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), ValueError("not ours")])
def test_absence_and_what_is_no_error_of_the_system_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        fail(error)
    assert caught.value is error


@pytest.mark.parametrize(
    "use", [lambda store: store.read("x"), lambda store: store.stat("x"), lambda store: store.delete("x")]
)
def test_every_way_to_a_file_that_may_not_be_reached_is_one_error(
    tmp_path: Path, use: Callable[[LocalStore], object]
) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="not a directory"):
        use(LocalStore(tmp_path / "file"))


def test_a_file_that_grows_while_it_is_read_is_as_it_was_unless_it_is_another_one(tmp_path: Path) -> None:
    source, size = LocalStore(tmp_path), 3 * READ_SIZE + 7
    (tmp_path / "log").write_bytes(b"a" * size)
    (entry,) = source.list()
    cut = READ_SIZE + 3
    changes = {
        b"a" * size + b"more": True,
        b"b" + b"a" * size: False,
        b"a" * (size - 1) + b"bmore": False,
        b"a" * (cut - 1) + b"b" + b"a" * size: False,
    }
    for written, is_fine in changes.items():
        (tmp_path / "log").write_bytes(b"a" * size)
        download = source.download(entry, cut)
        for offset, length in ((0, cut), (cut, size - cut)):
            assert b"".join(download.pieces(offset, length)) == b"a" * length
        with (tmp_path / "log").open("r+b") as file:
            file.write(written)
        with (
            contextlib.nullcontext()
            if is_fine
            else pytest.raises(StorageError, match="changed while it was read")
        ):
            download.finish()
