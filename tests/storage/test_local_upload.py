"""A file that arrives in a folder: what stays of it however it ends, and what is said where the system refuses."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.stores import local_upload
from airflow_provider_ocidist.storage.stores.base import Origin
from airflow_provider_ocidist.storage.stores.local_files import etag_of, local_errors
from airflow_provider_ocidist.storage.stores.local_upload import LocalUpload

MINE = Origin(uri="oci://b@n/x", etag="1", size=6)
each_way = pytest.mark.parametrize("origin", [None, MINE], ids=["once", "to be resumed"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def journals(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if ".journal." in path.name]


# The end


@each_way
@pytest.mark.parametrize("end", ["abort", "suspend", "commit"])
def test_what_has_ended_is_closed_once_and_nothing_else_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, origin: Origin | None, end: str
) -> None:
    upload = LocalUpload(folder / "x", origin)
    descriptor, closed = upload.descriptor, []
    close = os.close

    def noted(number: int) -> None:
        closed.append(number)
        if number > 2:
            close(number)

    monkeypatch.setattr(local_upload.os, "close", noted)
    getattr(upload, end)()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    upload.abort()
    upload.suspend()
    assert closed.count(descriptor) == 1
    assert min(closed) > 2


@each_way
def test_a_system_that_reports_an_error_as_a_file_is_closed_does_not_keep_what_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, origin: Origin | None
) -> None:
    upload = LocalUpload(folder / "x", origin)
    close = os.close

    def late(number: int) -> None:
        close(number)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(local_upload.os, "close", late)
    upload.abort()
    monkeypatch.undo()
    assert list(folder.iterdir()) == []


@each_way
def test_what_cannot_be_deleted_of_an_upload_that_is_given_up_is_no_error(
    folder: Path, origin: Origin | None
) -> None:
    upload = LocalUpload(folder / "x", origin)
    upload.part.unlink()
    upload.part.mkdir()
    upload.abort()
    assert list(folder.iterdir()) == [upload.part]


@each_way
def test_a_disk_that_is_full_as_a_file_is_closed_keeps_what_was_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, origin: Origin | None
) -> None:
    (folder / "x").write_bytes(b"former")
    upload = LocalUpload(folder / "x", origin)
    upload.write(0, 0, b"new")
    close = os.close

    def full(number: int) -> None:
        close(number)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(local_upload.os, "close", full)
    with pytest.raises(StorageError, match=rf"^{folder}/x: the disk quota is used up$") as caught:
        upload.commit()
    monkeypatch.undo()
    assert caught.value.uri == f"{folder}/x"
    assert (folder / "x").read_bytes() == b"former"
    upload.abort()


@each_way
def test_a_folder_is_not_replaced_by_a_file(folder: Path, origin: Origin | None) -> None:
    (folder / "x").mkdir()
    upload = LocalUpload(folder / "x", origin)
    with pytest.raises(StorageError, match=rf"^{folder}/x: is a directory$") as caught:
        upload.commit()
    assert caught.value.uri == f"{folder}/x"
    upload.abort()
    assert (folder / "x").is_dir()


def test_a_pipe_is_not_replaced_by_a_file(folder: Path) -> None:
    os.mkfifo(folder / "x")
    upload = LocalUpload(folder / "x")
    with pytest.raises(StorageError, match=rf"^{folder}/x: is not a file") as caught:
        upload.commit()
    assert caught.value.uri == f"{folder}/x"
    upload.abort()


@pytest.fixture
def no_mask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_mask")
@each_way
def test_who_may_read_a_file_is_what_the_process_lets_them(folder: Path, origin: Origin | None) -> None:
    for mask in (0, 0o027):
        os.umask(mask)
        LocalUpload(folder / f"x-{mask}", origin).commit()
        assert stat.S_IMODE((folder / f"x-{mask}").stat().st_mode) == 0o666 & ~mask


# The beginning


@each_way
def test_a_folder_that_somebody_else_makes_at_the_same_moment_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, origin: Origin | None
) -> None:
    mkdir = Path.mkdir

    def both(path: Path, *given: Any, **named: Any) -> None:
        with suppress(FileExistsError):
            mkdir(path, parents=True)
        mkdir(path, *given, **named)

    monkeypatch.setattr(Path, "mkdir", both)
    upload = LocalUpload(folder / "a" / "b" / "x", origin)
    upload.commit()
    assert (folder / "a" / "b" / "x").is_file()


@each_way
def test_where_no_file_can_be_begun_the_place_is_said(folder: Path, origin: Origin | None) -> None:
    (folder / "file").write_text("x")
    with pytest.raises(StorageError, match=rf"^{folder}/file/x: not a directory$") as caught:
        LocalUpload(folder / "file" / "x", origin)
    assert caught.value.uri == f"{folder}/file/x"


def test_a_folder_that_keeps_vanishing_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    with pytest.raises(StorageError, match=r"^cannot create .*: its folder keeps disappearing$") as caught:
        LocalUpload(folder / "a" / "x")
    assert caught.value.uri == f"{folder}/a/x"


def test_what_cannot_be_begun_leaves_no_journal_that_another_attempt_would_believe(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    # What fails in it fails for the journal too, which is then not begun.
    monkeypatch.setattr(LocalUpload, "_open_part", fails)
    with pytest.raises(StorageError, match=rf"^{folder}/x: input/output error$"):
        LocalUpload(folder / "x", MINE)
    monkeypatch.undo()
    assert journals(folder) == []
    again = LocalUpload(folder / "x", MINE)
    assert again.journal is not None
    again.abort()


# Going on


def resumed(path: Path, origin: Origin) -> list[tuple[int, int]]:
    """Return what is missing of six bytes in the eyes of a later attempt, which leaves all as it is."""
    upload = LocalUpload(path, origin)
    try:
        return [*upload.missing(0, 6)]
    finally:
        upload.suspend()


LONG = "x" * 60


@pytest.mark.parametrize(
    "others",
    [
        [(f"{LONG}-1", MINE), (f"{LONG}-2", MINE)],
        [("x", MINE), ("x", replace(MINE, uri="oci://b@n/y"))],
    ],
    ids=["places", "sources"],
)
def test_what_is_unfinished_of_two_is_gone_on_with_each_by_itself(
    folder: Path, others: list[tuple[str, Origin]]
) -> None:
    for number, (name, origin) in enumerate(others):
        upload = LocalUpload(folder / name, origin)
        upload.write(0, 2 * number, b"ab")
        upload.suspend()
    assert [resumed(folder / name, origin) for name, origin in others] == [
        [(2, 4)],
        [(0, 2), (4, 2)],
    ]
    assert len(journals(folder)) == 2
    for name, origin in others:
        LocalUpload(folder / name, origin).abort()
    assert list(folder.iterdir()) == []


def test_a_content_that_has_changed_since_is_begun_anew_and_then_gone_on_with(folder: Path) -> None:
    first = LocalUpload(folder / "x", MINE)
    first.write(0, 0, b"ab")
    first.suspend()
    changed = replace(MINE, etag="2")
    assert resumed(folder / "x", changed) == [(0, 6)]
    again = LocalUpload(folder / "x", changed)
    again.write(0, 4, b"ef")
    again.suspend()
    assert resumed(folder / "x", changed) == [(0, 4)]
    assert resumed(folder / "x", MINE) == [(0, 6)], "what was begun is of the other content now"


def test_what_is_written_in_one_piece_is_read_back_in_small_ones(folder: Path) -> None:
    content = os.urandom(600_001)
    upload = LocalUpload(folder / "x")
    upload.write(0, 0, content)
    pieces = [*upload.read_back(1, 600_000)]
    assert b"".join(pieces) == content[1:]
    assert max(map(len, pieces)) <= 256 << 10
    assert list(upload.read_back(5, 0)) == []
    upload.abort()


def test_an_error_while_a_file_is_written_or_read_back_names_its_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    upload = LocalUpload(folder / "x")
    for call in ("pwrite", "pread"):
        monkeypatch.setattr(local_upload.os, call, fails)
    uses: list[Callable[[], object]] = [
        lambda: upload.write(0, 0, b"x"),
        lambda: list(upload.read_back(0, 1)),
    ]
    for use in uses:
        with pytest.raises(StorageError, match=rf"^{folder}/x: stale file handle$") as caught:
            use()
        assert (caught.value.uri, caught.value.retryable) == (f"{folder}/x", True)
    upload.abort()


# What the system says


PASSING = """
    EAGAIN EBUSY ECONNABORTED ECONNREFUSED ECONNRESET EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH ENOTCONN ESTALE
    ETIMEDOUT
"""
LASTING = "EACCES EDQUOT EFBIG EIO EISDIR ENOSPC ENOTDIR EPERM EROFS"


@pytest.mark.parametrize("name", [*PASSING.split(), *LASTING.split()])
def test_what_a_server_of_a_mount_says_for_a_while_may_be_tried_again_and_nothing_else(name: str) -> None:
    number = getattr(errno, name)
    with pytest.raises(StorageError) as caught, local_errors(Path("/x/y")):
        raise OSError(number, os.strerror(number))
    assert caught.value.retryable is (name in PASSING.split())
    assert caught.value.uri == "/x/y"


def test_a_name_that_the_system_cannot_write_is_shown_as_it_can_be_written() -> None:
    error = UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")
    with pytest.raises(StorageError) as caught, local_errors(Path("/x/\udcff")):
        raise error
    assert str(caught.value) == r"'/x/\udcff': its name cannot be written here"
    assert (caught.value.uri, caught.value.retryable) == ("/x/\udcff", False)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("change", ["st_mtime_ns", "st_size", "st_ino"])
def test_a_files_mark_is_another_with_its_time_its_size_or_its_inode(change: str) -> None:
    def mark(**changes: int) -> str:
        fields = {"st_mtime_ns": 256, "st_size": 16, "st_ino": 1, **changes}
        return etag_of(SimpleNamespace(**fields))  # type: ignore[arg-type]  # has what is read

    assert mark(**{change: 17}) != mark()
