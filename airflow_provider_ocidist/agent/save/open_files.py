"""Open files: which files the processes below this one could still write to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_ocidist.agent import guard

WRITING = os.O_WRONLY | os.O_RDWR
SHARED_MAPPING = re.compile(r"^\S+ .w.s \S+ \S+ \d+\s+(/.*)$", re.MULTILINE)
"""Line of `/proc/PID/maps` for a file that is written through memory."""


def open_for_writing(root: int | None = None, *, mapped: bool = True) -> frozenset[str]:
    """Return the files that a descendant of `root`, by default of this process, has open for writing.

    `mapped`: also those that are written through memory; their lists are long. A process that cannot be inspected, or
    that ends meanwhile, counts as having none.
    """
    return frozenset(
        name for pid in guard.descendants(root or os.getpid()) for name in _written_by(pid, mapped)
    )


def open_files_in(path: Path, written: frozenset[str]) -> tuple[str, ...]:
    """Return which of these files are an entry, or in it; relative to the folder that the entry is in."""
    if not written:
        return ()
    place = os.path.realpath(path)
    found = (name for name in sorted(written) if name == place or name.startswith(f"{place}/"))
    return tuple(os.path.relpath(name, os.path.realpath(path.parent)) for name in found)


def _written_by(pid: int, mapped: bool) -> Iterator[str]:
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - thousands of them, several times
            if name := _written_as(pid, number):
                yield name
        if mapped:
            yield from SHARED_MAPPING.findall(Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape"))
    except OSError:
        # It has ended, or is another user's.
        return


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
