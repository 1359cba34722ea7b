"""The files of an entry: those that `os.walk` finds, and no pipe; a link to a folder leads nowhere."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save.entries import candidates, scan, stamps_in


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
