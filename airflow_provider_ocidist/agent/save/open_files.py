"""Open files: which files the processes below this one could still write to."""

from __future__ import annotations

import os
import re
from pathlib import Path

from airflow_provider_ocidist.agent import guard

WRITING = os.O_WRONLY | os.O_RDWR
SHARED_MAPPING = re.compile(r"^\S+ .w.s \S+ \S+ \d+\s+(/.*)$", re.MULTILINE)
"""Line of `/proc/PID/maps` for a file that is written through memory."""


def open_for_writing(*, mapped: bool = True) -> frozenset[str]:
    """Return the files that a descendant of this process has open for writing.

    `mapped`: also those that are written through memory; their lists are long. A process that cannot be inspected, or
    that ends meanwhile, counts as having none.
    """
    return frozenset().union(*files_by_writer(mapped=mapped).values())


def files_by_writer(root: int | None = None, *, mapped: bool = True) -> dict[int, frozenset[str]]:
    """Return the same files by the process that has them open: all that live, also those that have none open.

    `root`: the process whose descendants count, by default this one.
    """
    found = {pid: _written_by(pid, mapped) for pid in guard.descendants(root or os.getpid())}
    return {pid: files for pid, files in found.items() if files is not None}


def open_files_in(path: Path, written: frozenset[str]) -> tuple[str, ...]:
    """Return which of these files are an entry, or in it; relative to the folder that the entry is in."""
    if not written:
        return ()
    place = os.path.realpath(path)
    found = [name for name in written if name == place or name.startswith(f"{place}/")]
    folder = os.path.realpath(path.parent) if found else ""
    return tuple(os.path.relpath(name, folder) for name in sorted(found))


def _written_by(pid: int, mapped: bool) -> frozenset[str] | None:
    """Return the files that a process could write to, None where it ends: it loses its memory first, then its files."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - thousands of them, several times
        opened = [name for number in numbers if (name := _written_as(pid, number))]
        memory = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape") if mapped else "not read"
    except PermissionError:
        # It is another user's.
        return frozenset()
    except OSError:
        return None
    return frozenset([*opened, *SHARED_MAPPING.findall(memory)]) if numbers and memory else None


def _written_as(pid: int, number: str) -> str | None:
    try:
        name = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115 - the same
        if not name.startswith("/") or name.startswith(("/dev/", "/proc/")):
            return None
        fields = Path(f"/proc/{pid}/fdinfo/{number}").read_text().split()
    except OSError:
        return None
    flags = int(fields[fields.index("flags:") + 1], 8)
    return name if flags & WRITING else None
