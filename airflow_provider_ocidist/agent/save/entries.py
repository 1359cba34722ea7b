"""Entries: the contents of the checkpoint folder, and the stamps that change on a write."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from airflow_provider_ocidist.agent.save.formats import is_unfinished
from airflow_provider_ocidist.storage.checkpoint_names import (
    NEVER,
    OTHER_FOLDERS,
    POINTERS,
    UNPROVED,
    Placed,
    place,
)

SETTINGS_EXTENSIONS = {"json", "jsonl", "txt", "yaml", "yml", "toml", "cfg", "ini"}
"""Extensions of files beside checkpoints that need no warning."""


class Stamp(NamedTuple):
    """Changes when a process writes to a file or replaces it. A tuple, as each look compares those of all files."""

    size: int
    modified_ns: int
    inode: int


Files = Mapping[str, Stamp]
"""Stamps of an entry's files by their path relative to it, with `/`; of a file alone by its own name."""


@dataclass(frozen=True)
class Signature:
    """The stamps of all files of an entry."""

    files: tuple[tuple[str, Stamp], ...]

    @cached_property
    def modified_ns(self) -> int:
        """When one of them was last written to; 0 where there is none."""
        return max((stamp.modified_ns for _, stamp in self.files), default=0)


@dataclass(frozen=True)
class Candidate:
    """One entry of the checkpoint folder that may be a checkpoint."""

    path: Path
    placed: Placed
    signature: Signature
    begun_ns: int
    """Earliest time at which its save can have begun, by its files."""

    @property
    def step(self) -> int | None:
        return self.placed.step

    @property
    def files(self) -> Files:
        return dict(self.signature.files)


def scan(path: Path) -> dict[str, Stamp]:
    """Return the files of an entry: what else lies in it, as a pipe, is none of a checkpoint, and may never end.

    Raises FileNotFoundError when one vanishes meanwhile, OSError where it is neither a file nor a folder.
    """
    status = os.stat(path)
    if stat.S_ISREG(status.st_mode):
        return {path.name: _stamp_of(status)}
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EINVAL, "neither a file nor a folder", str(path))
    # Runs each second for each file: strings are ten times as fast as Path.
    files = list(_files_below(os.fspath(path)))
    below = len(os.path.join(path, ""))
    found = ((file, os.stat(file)) for file in files)
    return {file[below:]: _stamp_of(status) for file, status in found if stat.S_ISREG(status.st_mode)}


def _files_below(folder: str) -> Iterator[str]:
    """Yield what `os.walk` finds, without a folder to which a link leads, in less time."""
    folders = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir():
                yield entry.path
            elif not entry.is_symlink():
                folders.append(entry.path)
    for inner in folders:
        yield from _files_below(inner)


def _stamp_of(status: os.stat_result) -> Stamp:
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ino)


def signature(path: Path) -> Signature:
    """Return the signature of an entry; raises as `scan` does."""
    return Signature(tuple(sorted(scan(path).items())))


def names_in(folder: Path) -> list[str]:
    """Return the names of all that lies in a folder. Raises OSError."""
    return os.listdir(folder)


def candidates(folder: Path, pattern: str | None = None, before: Iterable[Candidate] = ()) -> list[Candidate]:
    """Return the entries whose names can be placed, the last written first.

    `before`: what was found there at an earlier look. What has not changed since is the same object again: a look each
    second at hundreds of files has nothing else to do for it.
    """
    known = {item.path.name: item for item in before}
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(names_in(folder)):
            placed = None if is_unfinished(name) else place(name, pattern)
            if placed:
                with contextlib.suppress(OSError):
                    found.append(_candidate(folder, name, placed, known.get(name)))
    return sorted(found, key=lambda candidate: candidate.signature.modified_ns, reverse=True)


def _candidate(folder: Path, name: str, placed: Placed, before: Candidate | None) -> Candidate:
    path = before.path if before else folder / name
    now = signature(path)
    # Of an entry without a file only its own time shows a change.
    if before and now.files and now == before.signature:
        return before
    times = [stamp.modified_ns for _, stamp in now.files] or [path.stat().st_mtime_ns]
    return Candidate(path, placed, now, min(times))


def is_unplaced(name: str, pattern: str | None = None) -> bool:
    """Whether an entry might be a checkpoint, but its name is not that of one."""
    if name.startswith(".") or is_unfinished(name) or place(name, pattern) is not None:
        return False
    known = {UNPROVED, *POINTERS, *OTHER_FOLDERS}
    return name not in known and "tfevents" not in name and _ending(name) not in NEVER | SETTINGS_EXTENSIONS


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name else ""
