"""Entries: the contents of the checkpoint folder, and the stamps that change on a write."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from airflow_provider_ocidist.agent.save.formats import is_unfinished
from airflow_provider_ocidist.storage.checkpoint_names import (
    LARGEST_POINTER,
    NEVER,
    OTHER_FOLDERS,
    POINTERS,
    UNPROVED,
    WEIGHTS_EXTENSIONS,
    Placed,
    named_as_a_pointer,
    place,
)

SETTINGS_EXTENSIONS = {"json", "jsonl", "txt", "yaml", "yml", "toml", "cfg", "ini"}
"""Extensions of files beside checkpoints that need no warning."""


class Stamp(NamedTuple):
    """Changes when a process writes to a file or replaces it. A tuple, as each look compares those of all files."""

    size: int
    modified_ns: int
    inode: int


MOST_LOOKED_AT = 500
"""Most files below a folder of another purpose that a look searches for weights."""

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


NO_ENTRY = (errno.EINVAL, errno.ELOOP)
"""Errors of what is no checkpoint: neither a file nor a folder, or a link that leads to itself."""


@dataclass(frozen=True)
class Candidate:
    """One entry of the checkpoint folder that may be a checkpoint."""

    path: Path
    placed: Placed
    signature: Signature
    begun_ns: int
    """Earliest time at which its save can have begun, by its files."""
    is_readable: bool = True
    """Whether it could be read at this look; else this is what an earlier one has found."""

    @property
    def step(self) -> int | None:
        return self.placed.step

    @cached_property
    def files(self) -> Files:
        return dict(self.signature.files)


def scan(path: Path) -> dict[str, Stamp]:
    """Return the files of an entry: what else lies in it, as a pipe, is none of a checkpoint, and may never end; nor is
    a link that leads nowhere.

    Raises FileNotFoundError when one vanishes meanwhile, OSError where it is neither a file nor a folder.
    """
    status = os.stat(path)
    if stat.S_ISREG(status.st_mode):
        return {path.name: _stamp_of(status)}
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EINVAL, "neither a file nor a folder", str(path))
    found: dict[str, Stamp] = {}
    _scan_below(os.fspath(path), "", found)
    return found


def _scan_below(folder: str, prefix: str, found: dict[str, Stamp]) -> None:
    """Note the files of a folder and of those in it, but for one to which a link leads; raises as `scan` does."""
    # Runs each second for each file: strings are ten times as fast as Path, and a loop twice as fast as generators.
    for entry in _entries_of(folder):
        if not _is_folder(entry):
            status = _status_of(entry)
            if status and stat.S_ISREG(status.st_mode):
                found[prefix + entry.name] = _stamp_of(status)
        elif not entry.is_symlink():
            _scan_below(entry.path, f"{prefix}{entry.name}/", found)


def _entries_of(folder: str) -> list[os.DirEntry[str]]:
    """Return what a folder has. Raises OSError if it cannot be read now: its entry would look smaller."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link that leads to itself.
        return False


def _status_of(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of what lies there, None for a link that leads nowhere. Raises OSError for anything else."""
    try:
        return os.stat(entry.path)
    except OSError:
        if not entry.is_symlink():
            raise
        return None


def stamps_in(folder: Path) -> dict[str, Stamp]:
    """Return the files below a folder, without those that vanish or cannot be read; none without a folder."""
    found = {}
    below = len(os.path.join(folder, ""))
    with contextlib.suppress(OSError):
        for file in _files_below(os.fspath(folder)):
            with contextlib.suppress(OSError):
                status = os.stat(file)
                if stat.S_ISREG(status.st_mode):
                    found[file[below:]] = _stamp_of(status)
    return found


def _files_below(folder: str) -> Iterator[str]:
    """Yield what `os.walk` finds, without a folder to which a link leads, faster; raises as `_entries_of` does."""
    folders = []
    for entry in _entries_of(folder):
        if not _is_folder(entry):
            yield entry.path
        elif not entry.is_symlink():
            folders.append(entry.path)
    for inner in folders:
        yield from _files_below(inner)


def _stamp_of(status: os.stat_result) -> Stamp:
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ino)


def signature(path: Path) -> Signature:
    """Return the signature of an entry; raises as `scan` does."""
    return Signature(_sorted_stamps(path))


def _sorted_stamps(path: Path) -> tuple[tuple[str, Stamp], ...]:
    return tuple(sorted(scan(path).items()))


def names_in(folder: Path) -> list[str]:
    """Return the names of all that lies in a folder. Raises OSError."""
    return os.listdir(folder)


def candidates(folder: Path, pattern: str | None = None, before: Iterable[Candidate] = ()) -> list[Candidate]:
    """Return the entries whose names can be placed, the last written first.

    `before`: what was found there at an earlier look. What has not changed since is the same object again: a look each
    second at hundreds of files has nothing else to do for it. So is what cannot be read now, and is not gone.
    """
    known = {item.path.name: item for item in before}
    found = []
    try:
        for name in sorted(names_in(folder)):
            placed = place_in(folder, name, pattern)
            if placed:
                found.append(_candidate_now(folder, name, placed, known.get(name)))
    except FileNotFoundError:
        return []
    except OSError:
        return [replace(item, is_readable=False) for item in known.values()]
    there = (candidate for candidate in found if candidate is not None)
    return sorted(there, key=lambda candidate: candidate.signature.modified_ns, reverse=True)


@dataclass(frozen=True)
class SeenEntries:
    """What one look at a checkpoint folder has found."""

    items: list[Candidate]
    unreadable: frozenset[str]
    """Names of entries that are there, and could not be read."""


def listing(folder: Path, pattern: str | None = None) -> SeenEntries:
    """Return the entries whose names can be placed. Raises OSError where the folder is there, and cannot be read."""
    items, unreadable = [], set()
    try:
        names = names_in(folder)
    except FileNotFoundError:
        names = []
    for name in sorted(names):
        placed = place_in(folder, name, pattern)
        if placed is None:
            continue
        try:
            _require_readable(folder / name)
            items.append(_candidate(folder, name, placed, None))
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in NO_ENTRY:
                unreadable.add(name)
    return SeenEntries(items, frozenset(unreadable))


def _require_readable(path: Path) -> None:
    """Raise OSError where a folder of an entry refuses to be read: it would look as if it had no files."""

    def refused(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    for _ in os.walk(path, onerror=refused):
        pass


def place_in(folder: Path, name: str, pattern: str | None = None) -> Placed | None:
    """Return what the name of an entry of a folder states; None where it is no checkpoint, or not finished."""
    if is_unfinished(name):
        return None
    placed = place(name, pattern)
    if placed is None and named_as_a_pointer(name, pattern) and not _is_pointer(folder / name):
        return Placed(series=name)
    return placed


def _is_pointer(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return True
    return not stat.S_ISDIR(status.st_mode) and status.st_size <= LARGEST_POINTER


def _candidate_now(folder: Path, name: str, placed: Placed, before: Candidate | None) -> Candidate | None:
    """Return an entry, as it was before where it cannot be read now, and None where it is gone."""
    try:
        return _candidate(folder, name, placed, before)
    except OSError:
        # If one look lost it from sight, the next would take it for a save that was just begun.
        if before is None or not os.path.lexists(folder / name):
            return None
        return replace(before, is_readable=False)


def _candidate(folder: Path, name: str, placed: Placed, before: Candidate | None) -> Candidate:
    path = before.path if before else folder / name
    files = _sorted_stamps(path)
    # Of an entry without a file only its own time shows a change.
    if before and before.is_readable and files and files == before.signature.files:
        return before
    times = [stamp.modified_ns for _, stamp in files] or [path.stat().st_mtime_ns]
    return Candidate(path, placed, Signature(files), min(times))


def is_unplaced(name: str, pattern: str | None = None) -> bool:
    """Whether an entry might be a checkpoint, but its name is not that of one."""
    return _is_of_another_name(name, pattern) and not _is_usual(name)


def may_be_meant(name: str, pattern: str | None = None) -> bool:
    """Whether an entry may be a checkpoint where no other is, though such are usual beside checkpoints."""
    return _is_of_another_name(name, pattern) and _is_usual(name) and name != UNPROVED


def _is_of_another_name(name: str, pattern: str | None) -> bool:
    if name.startswith(".") or is_unfinished(name) or place(name, pattern) is not None:
        return False
    return "tfevents" not in name and _ending(name) not in NEVER


def _is_usual(name: str) -> bool:
    return name in {UNPROVED, *POINTERS, *OTHER_FOLDERS} or _ending(name) in SETTINGS_EXTENSIONS


def weights_in(folder: Path, name: str) -> str | None:
    """Return a file of weights below a folder whose name is not that of a checkpoint; None where none is found soon."""
    files = itertools.islice(_files_below(os.fspath(folder / name)), MOST_LOOKED_AT)
    with contextlib.suppress(OSError):
        return next((file for file in files if _ending(os.path.basename(file)) in WEIGHTS_EXTENSIONS), None)
    return None


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name else ""
