"""The files of an entry: those that `os.walk` finds, and no pipe; a link to a folder leads nowhere."""

from __future__ import annotations

import errno
import os
import random
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save import entries
from airflow_provider_ocidist.agent.save.entries import (
    MOST_LOOKED_AT,
    Signature,
    candidates,
    is_unplaced,
    may_be_meant,
    place_in,
    scan,
    signature,
    stamps_in,
    weights_in,
)
from airflow_provider_ocidist.storage.checkpoint_names import LARGEST_POINTER, Placed


def grow(folder: Path, dice: random.Random, depth: int = 3) -> None:
    """Fill a folder with files, folders, links to both, and pipes."""
    folder.mkdir()
    for number in range(dice.randint(0, 5)):
        path = folder / f"{dice.choice('ab')}{number}"
        kind = dice.choice(["file", "file", "folder", "link", "link to a folder", "pipe"])
        if kind == "file":
            path.write_bytes(b"x" * dice.randint(0, 9))
        elif kind == "folder" and depth:
            grow(path, dice, depth - 1)
        elif kind == "link":
            aside = folder.parent / f"{folder.name}-aside"
            aside.write_text("linked")
            path.symlink_to(aside)
        elif kind == "link to a folder":
            path.symlink_to(folder, target_is_directory=True)
        elif kind == "pipe":
            os.mkfifo(path)


@pytest.mark.parametrize("seed", range(30))
def test_an_entry_has_all_files_below_it_wherever_they_are(tmp_path: Path, seed: int) -> None:
    entry = tmp_path / "step-1"
    grow(entry, random.Random(seed))
    found = {}
    for folder, _, names in os.walk(entry):
        for name in names:
            status = (path := Path(folder, name)).stat()
            if stat.S_ISREG(status.st_mode):
                found[path.relative_to(entry).as_posix()] = (
                    status.st_size,
                    status.st_mtime_ns,
                    status.st_ino,
                )
    stamps = {name: (each.size, each.modified_ns, each.inode) for name, each in scan(entry).items()}
    assert stamps == found
    (only,) = candidates(tmp_path, r"step-\d+")
    assert only.files == scan(entry) == stamps_in(entry)
    assert stamps_in(entry / "nowhere") == {}


def test_an_entry_is_the_same_object_at_the_next_look_until_something_in_it_changes(tmp_path: Path) -> None:
    for name in ("step-1", "step-2", "step-3"):
        (tmp_path / name).mkdir()
    for name in ("step-1", "step-2"):
        (tmp_path / name / "model.bin").write_bytes(b"1")
    first = {item.path.name: item for item in candidates(tmp_path)}
    (tmp_path / "step-2" / "optimizer.bin").write_bytes(b"2")
    os.utime(tmp_path / "step-3", ns=(1, 1))
    again = candidates(tmp_path, before=first.values())
    assert again == candidates(tmp_path)
    now = {item.path.name: item for item in again}
    assert [name for name in sorted(now) if now[name] is first[name]] == ["step-1"]
    assert set(now["step-2"].files) == {"model.bin", "optimizer.bin"}
    assert now["step-3"].begun_ns == 1


def test_what_is_gone_at_the_next_look_is_not_found_and_what_came_is(tmp_path: Path) -> None:
    (tmp_path / "step-1.pt").write_bytes(b"1")
    first = candidates(tmp_path)
    (tmp_path / "step-1.pt").rename(tmp_path / "step-2.pt")
    assert [item.path.name for item in candidates(tmp_path, before=first)] == ["step-2.pt"]


def test_a_file_alone_is_its_only_file_by_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "step-1.pt"
    path.write_bytes(b"1234")
    status = path.stat()
    assert scan(path) == {"step-1.pt": (4, status.st_mtime_ns, status.st_ino)}
    assert signature(path).files == tuple(scan(path).items())
    assert signature(path).modified_ns == status.st_mtime_ns
    assert Signature(()).modified_ns == 0


def test_what_is_neither_a_file_nor_a_folder_is_no_entry(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "step-1.pt")
    with pytest.raises(OSError, match="neither a file nor a folder") as caught:
        scan(tmp_path / "step-1.pt")
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(tmp_path / "step-1.pt"))
    with pytest.raises(FileNotFoundError):
        scan(tmp_path / "step-2.pt")
    assert candidates(tmp_path) == []


def test_links_that_lead_nowhere_or_to_themselves_are_no_files_of_an_entry(tmp_path: Path) -> None:
    entry = tmp_path / "step-1"
    entry.mkdir()
    (entry / "model.bin").write_bytes(b"1")
    (entry / "nowhere").symlink_to(entry / "gone")
    (entry / "itself").symlink_to(entry / "itself")
    assert list(scan(entry)) == ["model.bin"]
    assert list(stamps_in(entry)) == ["model.bin"]


def test_a_file_that_vanishes_amid_a_look_is_an_error_as_the_entry_would_look_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = tmp_path / "step-1"
    entry.mkdir()
    for name in "ab":
        (entry / name).write_bytes(b"1")
    listed = entries._entries_of

    def then_gone(folder: str) -> list[os.DirEntry[str]]:
        found = listed(folder)
        (entry / "a").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(entries, "_entries_of", then_gone)
    with pytest.raises(FileNotFoundError):
        scan(entry)
    (entry / "a").write_bytes(b"1")
    assert list(stamps_in(entry)) == ["b"], "of another folder only what is there counts"


def test_a_folder_within_that_vanishes_or_may_not_be_read_has_no_files_and_another_error_ends_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = tmp_path / "step-1"
    (entry / "inner").mkdir(parents=True)
    (entry / "inner" / "x").write_bytes(b"1")
    (entry / "model.bin").write_bytes(b"1")
    real, errors = (
        os.scandir,
        [FileNotFoundError(), NotADirectoryError(), PermissionError(), OSError(errno.EIO, "m")],
    )

    def failing(folder: str) -> object:
        if folder.endswith("inner"):
            raise errors[0]
        return real(folder)

    monkeypatch.setattr(entries.os, "scandir", failing)
    for _ in range(3):
        assert list(scan(entry)) == list(stamps_in(entry)) == ["model.bin"]
        errors.pop(0)
    with pytest.raises(OSError, match="m"):
        scan(entry)
    assert list(stamps_in(entry)) == ["model.bin"]


def test_the_last_written_is_first_and_a_save_has_begun_with_its_earliest_file(tmp_path: Path) -> None:
    for number, times in ((1, (30, 50)), (2, (10, 90)), (3, (60, 70))):
        for name, at in zip("ab", times):
            path = tmp_path / f"step-{number}" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"1")
            os.utime(path, ns=(at, at))
    found = candidates(tmp_path)
    assert [(item.path.name, item.step, item.begun_ns) for item in found] == [
        ("step-2", 2, 10),
        ("step-3", 3, 60),
        ("step-1", 1, 30),
    ]
    assert all(item.is_readable for item in found)


def test_names_of_unfinished_entries_and_what_the_pattern_does_not_fit_are_none(tmp_path: Path) -> None:
    for name in ("step-1.pt", "step-2.pt.tmp", ".step-3.pt", "notes.txt", "train.log", "run-7"):
        (tmp_path / name).write_bytes(b"1")
    assert "step-1.pt" in [item.path.name for item in candidates(tmp_path)]
    assert {item.path.name for item in candidates(tmp_path)} <= {"step-1.pt", "run-7"}
    assert [(item.path.name, item.step) for item in candidates(tmp_path, r"run-(?P<step>\d+)")] == [
        ("run-7", 7)
    ]
    assert candidates(tmp_path / "nowhere") == []


@pytest.mark.parametrize("name", ["latest", "checkpoint"])
def test_a_small_file_of_a_pointers_name_is_none_and_what_is_larger_or_a_folder_is_an_entry(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    assert place_in(tmp_path, name) is None, "it is not there"
    path.write_bytes(bytes(LARGEST_POINTER))
    assert place_in(tmp_path, name) is None
    path.write_bytes(bytes(LARGEST_POINTER + 1))
    assert place_in(tmp_path, name) == Placed(series=name)
    path.unlink()
    path.mkdir()
    assert place_in(tmp_path, name) == Placed(series=name)
    assert [item.path for item in candidates(tmp_path)] == [path]
    assert place_in(tmp_path, name, "step-.*") is None


# What cannot be read at one look


def test_what_cannot_be_read_now_is_as_it_was_before_and_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("step-1.pt", "step-2.pt"):
        (tmp_path / name).write_bytes(b"1")
    before = candidates(tmp_path)
    real = entries.scan

    def failing(path: Path) -> object:
        if path.name == "step-1.pt":
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    monkeypatch.setattr(entries, "scan", failing)
    now = {item.path.name: item for item in candidates(tmp_path, before=before)}
    assert now["step-1.pt"].is_readable is False
    assert replace(now["step-1.pt"], is_readable=True) in before
    assert now["step-2.pt"].is_readable
    # Nobody has seen it before: nothing is known of it.
    assert [item.path.name for item in candidates(tmp_path)] == ["step-2.pt"]
    monkeypatch.setattr(entries, "scan", real)
    assert all(item.is_readable for item in candidates(tmp_path, before=now.values()))


def test_a_folder_that_cannot_be_listed_now_has_what_it_had_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step-1.pt").write_bytes(b"1")
    (before,) = candidates(tmp_path)

    def failing(_: Path) -> list[str]:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(entries, "names_in", failing)
    assert candidates(tmp_path, before=[before]) == [replace(before, is_readable=False)]
    assert candidates(tmp_path) == []


# What is no checkpoint


SETTINGS = ["json", "jsonl", "txt", "yaml", "yml", "toml", "cfg", "ini"]


@pytest.mark.parametrize(
    "name, pattern, unplaced, meant",
    [
        ("weights.bin2", r"run-\d+", True, False),
        ("step-1.pt", None, False, False),
        ("step-1.pt", r"run-\d+", True, False),
        ("run-1", r"run-\d+", False, False),
        ("config.json", None, False, True),
        ("latest", None, False, True),
        ("logs", None, False, True),
        ("unproved", None, False, False),
        (".hidden", r"run-\d+", False, False),
        ("step-1.pt.tmp", r"run-\d+", False, False),
        ("train.LOG", r"run-\d+", False, False),
        ("events.out.tfevents.17.host", r"run-\d+", False, False),
        ("Settings.YAML", r"run-\d+", False, True),
        ("png", r"run-\d+", True, False),
        ("my.settings.json", r"run-\d+", False, True),
        ("model.json", r".*\.json", False, False),
        *(
            (f"x.{each}", r"run-\d+", False, True)
            for each in ["json", "jsonl", "txt", "yaml", "yml", "toml", "cfg", "ini"]
        ),
    ],
)
def test_which_names_may_be_those_of_a_checkpoint_all_the_same(
    name: str, pattern: str | None, *, unplaced: bool, meant: bool
) -> None:
    assert (is_unplaced(name, pattern), may_be_meant(name, pattern)) == (unplaced, meant)


def test_weights_below_a_folder_of_another_purpose_are_found_among_its_first_files(tmp_path: Path) -> None:
    inner = tmp_path / "lightning_logs" / "version_0"
    inner.mkdir(parents=True)
    (tmp_path / "lightning_logs" / "hparams.yaml").write_text("x")
    assert weights_in(tmp_path, "lightning_logs") is None
    assert weights_in(tmp_path, "nowhere") is None
    (inner / "model.CKPT").write_text("x")
    assert weights_in(tmp_path, "lightning_logs") == str(inner / "model.CKPT")


def test_where_a_folder_cannot_be_listed_no_weights_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: str) -> object:
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "model.pt").write_text("x")
    monkeypatch.setattr(entries.os, "scandir", failing)
    assert weights_in(tmp_path, "logs") is None


def test_weights_after_very_many_files_are_not_looked_for(tmp_path: Path) -> None:
    (tmp_path / "logs" / "deep").mkdir(parents=True)
    (tmp_path / "logs" / "deep" / "model.pt").write_text("x")
    # Files of a folder come before those in it.
    for number in range(MOST_LOOKED_AT - 1):
        (tmp_path / "logs" / f"{number}.txt").touch()
    assert weights_in(tmp_path, "logs") == str(tmp_path / "logs" / "deep" / "model.pt")
    (tmp_path / "logs" / "last.txt").touch()
    assert weights_in(tmp_path, "logs") is None
