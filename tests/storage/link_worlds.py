"""Worlds for tests: trees of files and links, made at random, and looked at without following a link."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Union

Seen = dict[str, Union[bytes, str]]
"""What lies below a folder: the content of each file, and of each link where it leads, as text."""

FOLDERS = ("", "a/", "b/", "a/b/", "b/c/", "latest/")
NAMES = ("model.pt", "x", "y", "a", "b", "latest")


def seen_in(root: Path) -> Seen:
    """Return what lies below a folder; no link is followed but the root itself."""
    found: Seen = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink():
                found[path.relative_to(root).as_posix()] = str(path.readlink())
            elif path.is_file():
                found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


def stamps_in(root: Path) -> dict[str, tuple[int, int]]:
    """Return of each file and link its inode and time of change, without following one."""
    paths = [Path(folder, name) for folder, _, files in os.walk(root) for name in files]
    return {str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in paths}


def readable_in(root: Path) -> dict[str, bytes]:
    """Return the files that a copy of a folder has: those behind links too, while the links stay inside."""
    return dict(_readable(root, os.path.realpath(root), "", frozenset()))


def _readable(folder: Path, root: str, prefix: str, above: frozenset[str]) -> list[tuple[str, bytes]]:
    real = os.path.realpath(folder)
    if real in above:
        return []
    found: list[tuple[str, bytes]] = []
    for path in folder.iterdir():
        is_inside = f"{os.path.realpath(path)}/".startswith(f"{root}/")
        if path.is_symlink() and not (is_inside and path.exists()):
            continue
        if path.is_dir():
            found += _readable(path, root, f"{prefix}{path.name}/", above | {real})
        elif path.is_file():
            found.append((prefix + path.name, path.read_bytes()))
    return found


def make_files(root: Path, chance: random.Random, most: int = 8) -> None:
    """Write some files of few names and contents, so that two such trees have much in common."""
    root.mkdir(parents=True, exist_ok=True)
    for _ in range(chance.randint(1, most)):
        place = root / (chance.choice(FOLDERS) + chance.choice(NAMES))
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.is_dir():
                place.write_bytes(chance.choice((b"1", b"2", b"one", b"two")))
        except OSError:
            continue  # a file is there where a folder should be


def make_links(root: Path, outside: Path, chance: random.Random, most: int = 4) -> None:
    """Make links to files and folders: inside, outside, in circles, or to nothing."""
    inside = [path for path in root.rglob("*") if not path.is_symlink()]
    beyond = [outside, *outside.rglob("*")]
    folders = [root, *(path for path in inside if path.is_dir())]
    for _ in range(chance.randint(0, most)):
        place = chance.choice(folders) / chance.choice(NAMES)
        leads_to = chance.choice([*inside, *inside, *inside, *folders, root, *beyond, root / "gone"])
        if not os.path.lexists(place) and os.path.realpath(place.parent) == str(place.parent):
            is_relative = chance.random() < 0.7
            place.symlink_to(os.path.relpath(leads_to, place.parent) if is_relative else leads_to)


def is_behind_link(root: Path, name: str) -> bool:
    """Whether a folder above a name below the root is a link."""
    return any((root / above).is_symlink() for above in list(Path(name).parents)[:-1])
