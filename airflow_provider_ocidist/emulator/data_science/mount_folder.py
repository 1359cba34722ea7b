"""MountFolder: the files below one folder, reached without following any symbolic link."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from airflow_provider_ocidist.emulator.object_storage.headers import MAX_NAME_BYTES

TEMPORARY_PREFIX = ".ocidist-mounting-"
"""Prefix of the names of files that are being written."""
MAX_COMPONENT_BYTES = 255
BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileState:
    """A value that changes with each write to a file."""

    size: int
    modified_ns: int


class MountFolder:
    """A folder that programs change meanwhile: they may put a link in the place of any folder or file at any moment.

    So each folder on the way to a file is opened from the one above it, and a link there is an error. Names are
    relative, with `/` between their parts. Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def files(self) -> dict[str, FileState]:
        """Return the regular files by name; those whose names are not UTF-8 have surrogates in them.

        A folder whose own name is longer than any object may have stands for all that is in it.
        """
        found = {}
        for folder, folders, names, fd in os.fwalk(self.path, onerror=_unless_gone, follow_symlinks=False):
            parent = Path(folder).relative_to(self.path)
            for name in [each for each in folders if len(os.fsencode(parent / each)) > MAX_NAME_BYTES]:
                folders.remove(name)
                found[(parent / name).as_posix()] = FileState(0, 0)
            for name in names:
                # A program may remove the file meanwhile.
                with suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and not name.startswith(TEMPORARY_PREFIX):
                        found[(parent / name).as_posix()] = FileState(status.st_size, status.st_mtime_ns)
        return found

    def open(self, name: str) -> BinaryIO:
        """Open a regular file for reading."""
        with self._parent(name) as (fd, leaf):
            # Without waiting: a pipe may have taken its place.
            file = os.open(leaf, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "it is not a regular file", name)
        return os.fdopen(file, "rb")

    def write(self, name: str, segments: Sequence[Path]) -> FileState:
        """Replace a file by the content of others, one after the other; it appears when it is whole."""
        with self._parent(name, create=True) as (fd, leaf):
            fresh = f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
            try:
                state = _fill(fresh, fd, segments)
                os.replace(fresh, leaf, src_dir_fd=fd, dst_dir_fd=fd)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(fresh, dir_fd=fd)
                raise
        return state

    def remove(self, name: str) -> None:
        """Remove a file, or the link in its place; nothing where there is none."""
        with suppress(FileNotFoundError), self._parent(name) as (fd, leaf):
            os.unlink(leaf, dir_fd=fd)

    @contextmanager
    def _parent(self, name: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """Yield the open folder that a name lies in, and the last part of the name."""
        *folders, leaf = name.split("/")
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for folder in folders:
                below = _open_folder(folder, fd, create=create)
                os.close(fd)
                fd = below
            yield fd, leaf
        finally:
            os.close(fd)


def _unless_gone(error: OSError) -> None:
    """An unreadable folder must not count as empty: its files would count as deleted."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _open_folder(name: str, above: int, *, create: bool) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
    return os.open(name, flags, dir_fd=above)


def _fill(name: str, folder: int, segments: Sequence[Path]) -> FileState:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o644, dir_fd=folder), "wb") as target:
        for segment in segments:
            with segment.open("rb") as source:
                shutil.copyfileobj(source, target, BUFFER_BYTES)
        target.flush()
        status = os.fstat(target.fileno())
    return FileState(status.st_size, status.st_mtime_ns)


def unheld(names: Sequence[str]) -> dict[str, str]:
    """Return the names that a folder cannot hold beside the others, each with the reason. Pure."""
    folders = {name[:end] for name in names for end, char in enumerate(name) if char == "/"}
    reasons = ((name, _reason(name, folders)) for name in names)
    return {name: reason for name, reason in reasons if reason}


def _reason(name: str, folders: set[str]) -> str | None:
    parts = name.split("/")
    if {"", ".", ".."}.intersection(parts):
        return "a part of its name is empty, '.' or '..'"
    if any(len(part.encode()) > MAX_COMPONENT_BYTES for part in parts):
        return f"a part of its name is longer than {MAX_COMPONENT_BYTES} bytes"
    if parts[-1].startswith(TEMPORARY_PREFIX):
        return f"its name begins with {TEMPORARY_PREFIX}"
    return "other objects lie below its name" if name in folders else None
