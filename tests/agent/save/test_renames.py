"""Which entries of a folder were renamed into place: what anything else may have written is none."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.inotify import IGNORED, OVERFLOW
from airflow_provider_ocidist.agent.save import renames as module
from airflow_provider_ocidist.agent.save.renames import Renames
from tests.agent.save.saved import move


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "checkpoints"
    found.mkdir()
    return found


@pytest.fixture
def renames(folder: Path) -> Iterator[Renames]:
    watch = Renames(folder)
    yield watch
    watch.close()


def renamed(folder: Path, name: str = "step-1.pt", aside: str = "new.tmp") -> Path:
    (folder / aside).write_bytes(b"weights")
    return (folder / aside).rename(folder / name)


def moved(folder: Path, name: str = "step-1") -> Path:
    """Move a folder of one file into place, once its times are past."""
    aside = folder / f"{name}.tmp"
    aside.mkdir()
    (aside / "model.bin").write_bytes(b"weights")
    move(aside, folder / name)
    return folder / name


def test_what_is_renamed_into_place_within_the_folder_or_from_elsewhere_is_seen(
    folder: Path, renames: Renames
) -> None:
    renamed(folder)
    renamed(folder, "step-2.pt", "../elsewhere")
    moved(folder, "step-3")
    (folder / "step-4.pt").write_bytes(b"written in place")
    for _ in range(2):
        assert renames.names() == {"step-1.pt", "step-2.pt", "step-3"}


CHANGES: dict[str, Callable[[Path], object]] = {
    "written to": lambda path: path.write_bytes(b"more"),
    "written over with a copy": lambda path: shutil.copyfile(path.parent / "other", path),
    "deleted": lambda path: path.unlink(),
    "moved away": lambda path: path.rename(path.parent.parent / "away"),
    "deleted and written": lambda path: (path.unlink(), path.write_bytes(b"x")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("is_seen_before", [True, False])
def test_what_is_changed_since_is_not_as_it_was_renamed(
    folder: Path, renames: Renames, change: Callable[[Path], object], *, is_seen_before: bool
) -> None:
    (folder / "other").write_bytes(b"other")
    path = renamed(folder)
    renamed(folder, "step-2.pt")
    if is_seen_before:
        assert renames.names() == {"step-1.pt", "step-2.pt"}
    change(path)
    assert renames.names() == {"step-2.pt"}
    renamed(folder)
    assert renames.names() == {"step-1.pt", "step-2.pt"}


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_what_may_be_written_to_under_another_name_is_not_seen_as_renamed(
    folder: Path, renames: Renames, link: Callable[[Path, Path], None]
) -> None:
    (folder / "half.pt").write_bytes(b"half")
    link(folder / "half.pt", folder / "link.tmp")
    (folder / "link.tmp").rename(folder / "last.pt")
    assert renames.names() == frozenset()


def test_a_pipe_that_is_renamed_is_no_save(folder: Path, renames: Renames) -> None:
    os.mkfifo(folder / "pipe.tmp")
    (folder / "pipe.tmp").rename(folder / "step-1.pt")
    assert renames.names() == frozenset()


def test_a_folder_in_which_something_came_or_went_since_is_not_as_it_was_moved(
    folder: Path, renames: Renames
) -> None:
    path = moved(folder)
    other = moved(folder, "step-2")
    assert renames.names() == {"step-1", "step-2"}
    (path / "optim.bin").write_bytes(b"state")
    assert renames.names() == {"step-2"}
    shutil.rmtree(other)
    assert renames.names() == frozenset()


def test_a_folder_whose_content_came_as_it_was_moved_is_none_that_was_whole_before(
    folder: Path, renames: Renames
) -> None:
    aside = folder / "step-1.tmp"
    aside.mkdir()
    aside.rename(folder / "step-1")
    # Before the first look: something else may have been written in it.
    (folder / "step-1" / "model.bin").write_bytes(b"weights")
    assert renames.names() == frozenset()


def test_a_folder_that_comes_and_goes_is_watched_whenever_it_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    renames = Renames(folder)
    for number in range(3):
        assert renames.names() == frozenset()
        folder.mkdir()
        assert renames.names() == frozenset()
        renamed(folder, f"step-{number}.pt")
        assert renames.names() == {f"step-{number}.pt"}
        shutil.rmtree(folder)
    renames.close()


@pytest.mark.parametrize("mask", [OVERFLOW, IGNORED])
def test_where_the_kernel_has_dropped_events_nothing_of_before_is_known_and_what_comes_is_seen(
    folder: Path, renames: Renames, monkeypatch: pytest.MonkeyPatch, mask: int
) -> None:
    renamed(folder)
    assert renames.names() == {"step-1.pt"}
    assert renames._queue is not None
    read, dropped = renames._queue.read, [[(mask, "")]]
    monkeypatch.setattr(renames._queue, "read", lambda: dropped.pop() if dropped else read())
    assert renames.names() == frozenset()
    # After IGNORED, which ends a watch, the next look begins another.
    renames.names()
    renamed(folder, "step-2.pt")
    assert renames.names() == {"step-2.pt"}


def test_who_looks_no_more_holds_nothing_open_and_sees_nothing_more(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    renames = Renames(folder)
    renamed(folder)
    assert renames.names() == {"step-1.pt"}
    renames.close()
    renames.close()
    assert len(os.listdir("/proc/self/fd")) == before
    renamed(folder, "step-2.pt")
    assert "step-2.pt" not in renames.names()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_kernel_that_gives_no_instance_is_named_once_however_often_it_is_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(module, "Inotify", refuse)
    renames = Renames(folder)
    for _ in range(3):
        assert renames.names() == frozenset()
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert said.getMessage() == (
        "no rename of a checkpoint into its place is seen without inotify: Function not implemented"
    )


@pytest.mark.parametrize("is_there", [True, False])
def test_one_instance_serves_all_looks_and_none_is_taken_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    made: list[object] = []
    real = module.Inotify

    def counted() -> object:
        made.append(real())
        return made[-1]

    monkeypatch.setattr(module, "Inotify", counted)
    folder = tmp_path if is_there else tmp_path / "later"
    renames = Renames(folder)
    for _ in range(3):
        renames.names()
    renames.close()
    for _ in range(3):
        assert renames.names() == frozenset()
    assert len(made) == 1
