"""The lines of a node's log from a time on, without reading what comes before: a day of progress bars is millions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from airflow_provider_ocidist.backends.base import LogLine

NEAR = 1 << 16
"""Bytes of a range that is read through instead of halved once more."""


def read(file: Path, rank: int, since: float, most: int) -> tuple[list[LogLine], float | None]:
    """Return at most `most` lines since a Unix time, and the time of the first that is left."""
    found: list[LogLine] = []
    if since == math.inf:
        return found, None
    with suppress(FileNotFoundError), file.open("rb") as log:
        for line in _lines(log, _start(log, since), rank):
            if line.time < since:
                continue
            if len(found) == most:
                return found, line.time
            found.append(line)
    return found, None


def _start(log: BinaryIO, since: float) -> int:
    """Return where a line begins that is not far before the first one since a time; lines stand in order of time."""
    low, high = 0, log.seek(0, 2)
    while high - low > NEAR:
        middle = (low + high) // 2
        log.seek(middle)
        # The rest of a line.
        log.readline()
        position = log.tell()
        first = next(_lines(log, position, 0), None)
        if first is None or first.time >= since:
            high = middle
        else:
            low = position
    return low


def _lines(log: BinaryIO, position: int, rank: int) -> Iterator[LogLine]:
    log.seek(position)
    for text in log:
        with suppress(ValueError, LookupError, TypeError):
            # The last write may be in progress.
            found = json.loads(text)
            yield LogLine(id=f"{rank}-{position}", time=found["time"], rank=rank, text=found["text"])
        position += len(text)
