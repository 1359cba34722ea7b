"""Flight records: NCCL's own record of its last collectives, which torch writes when it is asked."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORD_FILE = re.compile(r"nccl_trace_rank_(?P<rank>\d+)")
PIPE = "pipe_rank_*.pipe"
WRITE_LIMIT = 5.0
"""Seconds in which torch writes its records; it looks at its pipe each second."""
LARGEST = 100_000_000
"""Most bytes of a record that is read."""


def ask_for(folder: Path) -> None:
    """Make every process that has a flight recorder write its record into the folder; wait until they are there."""
    asked = [pipe for pipe in sorted(folder.glob(PIPE)) if _ask(pipe)]
    deadline = time.monotonic() + WRITE_LIMIT
    before: dict[str, int] = {}
    while asked and time.monotonic() < deadline:
        sizes = {path.name: path.stat().st_size for path in records_in(folder).values()}
        if len(sizes) >= len(asked) and sizes == before:
            return
        before = sizes
        time.sleep(0.2)


def _ask(pipe: Path) -> bool:
    # Opened for reading too: without a reader, as after a kill, it would wait for one.
    with contextlib.suppress(OSError):
        opened = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        try:
            os.write(opened, b"1\n")
        finally:
            os.close(opened)
        return True
    return False


def records_in(folder: Path) -> dict[int, Path]:
    """Return the records that were written, by rank."""
    found = ((RECORD_FILE.fullmatch(path.name), path) for path in sorted(folder.glob("nccl_trace_rank_*")))
    return {int(name["rank"]): path for name, path in found if name}


class _PlainValues(pickle.Unpickler):  # noqa: S301 - it reads no classes
    """Reads dictionaries, lists, text and numbers, which is all that a record has; runs no code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a flight record holds no {module}.{name}")


def stuck_collective(record: Path) -> str | None:
    """Return the first collective that a rank has not completed, in words; None where none is known."""
    try:
        if record.stat().st_size > LARGEST:
            return None
        with record.open("rb") as file:
            entries = _PlainValues(file).load()["entries"]
        open_ones = [
            entry for entry in entries if entry.get("state") != "completed" and not entry.get("retired")
        ]
        return _in_words(open_ones[0]) if open_ones else None
    except Exception:  # a damaged record, or one of a later version, is still kept as it is
        return None


def _in_words(entry: Mapping[str, Any]) -> str:
    name, number = str(entry["profiling_name"]), entry.get("collective_seq_id", "?")
    frames = [frame for frame in entry.get("frames") or () if "/torch/" not in str(frame.get("filename"))]
    called = f", called in {_called(frames[0])}" if frames else ""
    return f"{name} number {number} is {entry['state']}, sizes {entry.get('input_sizes')}{called}"


def _called(frame: Mapping[str, Any]) -> str:
    return f"{frame['name']} ({Path(frame['filename']).name}:{frame['line']})"
