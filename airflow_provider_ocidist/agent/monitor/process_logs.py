"""Process logs: the files that torchrun's processes write with `--tee` or `--redirects`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path

KEPT = 1 << 16
"""Bytes at the end of each file that are read."""
STREAMS = ("stdout.log", "stderr.log")
ERROR_FILE = "error.json"


def runs_in(folder: Path) -> frozenset[str]:
    """Return the names of the folders in it, one for each start of torchrun."""
    return frozenset(path.name for path in folder.glob("*"))


def read_process_logs(folder: Path, leave_out: Collection[str] = ()) -> str:
    """Return the ends of all processes' own output and errors, each line marked with its local rank.

    The mark is torchrun's own prefix of a line. Empty where there are no files. `leave_out`: of earlier starts.
    """
    return "".join(
        f"[default{process.name}]:{line}\n"
        for process in sorted(folder.glob("*/attempt_*/*"))
        if process.name.isdecimal() and process.parents[1].name not in leave_out
        for line in _lines_of(process)
    )


def _lines_of(process: Path) -> Iterator[str]:
    # Exceptions from the error file come first: the program's own output explains more.
    yield from _recorded(process / ERROR_FILE)
    for name in STREAMS:
        with contextlib.suppress(OSError), (process / name).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - KEPT))
            yield from file.read().decode(errors="replace").splitlines()


def _recorded(file: Path) -> list[str]:
    """Return the traceback that `torch.distributed.elastic`'s `record` has written."""
    try:
        return str(json.loads(file.read_bytes())["message"]["extraInfo"]["py_callstack"]).splitlines()
    except (OSError, ValueError, TypeError, KeyError):
        return []


class NewOutput:
    """The new output in such files since the last read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, int] = {}

    def take(self) -> Iterator[tuple[int, bytes]]:
        """Yield the whole lines that each file has grown by, at most its end, with a number for the file."""
        for file in sorted(self.folder.glob("*/attempt_*/*/std*.log")):
            with contextlib.suppress(OSError), file.open("rb") as opened:
                begin = max(self._read.get(file, 0), os.fstat(opened.fileno()).st_size - KEPT)
                opened.seek(begin)
                new = opened.read()
                whole = max(new.rfind(b"\n"), new.rfind(b"\r")) + 1
                self._read[file] = begin + whole
                if whole:
                    yield hash(file), new[:whole]
