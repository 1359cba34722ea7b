"""File clocks: how far a folder's file stamps, as a server's, are ahead of this machine's."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TICK_NS = 20_000_000
"""Difference in ns below which the two clocks are one: kernels stamp files by a clock that ticks every 4 to 10 ms."""
SET_BACK_S = 0.5
"""Seconds from which on a clock was set back; a smaller step corrects a clock that runs."""


def ahead_ns(folder: Path) -> int:
    """Return by how many ns the stamps of files in a folder are ahead of this machine's.

    0 where that cannot be measured, as on a full disk. Writes a probe file there and removes it.
    """
    try:
        with _probe(Path(tempfile.gettempdir())) as own, _probe(folder) as there:
            before, stamp, after = _stamped(own), _stamped(there), _stamped(own)
    except OSError:
        return 0
    return nearest_to_none(stamp - after, stamp - before)


def nearest_to_none(lowest: int, highest: int) -> int:
    """Return the smallest difference that a measurement allows, 0 where both may be one clock."""
    if lowest <= TICK_NS and highest >= -TICK_NS:
        return 0
    return lowest if lowest > 0 else highest


@contextlib.contextmanager
def _probe(folder: Path) -> Iterator[int]:
    handle, name = tempfile.mkstemp(dir=folder, prefix=".ocidist-clock-", suffix=".part")
    try:
        yield handle
    finally:
        os.close(handle)
        Path(name).unlink(missing_ok=True)


def _stamped(handle: int) -> int:
    """Return the time of a write, as the place that holds the file stamps it."""
    os.write(handle, b".")
    os.fsync(handle)
    return os.fstat(handle).st_mtime_ns


class WallClock:
    """Notices that the clock by which files are stamped was set back."""

    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()
        self.was_set_back = False

    def went_back(self) -> bool:
        """Whether the clock was set back since the last call; one that was slowed down was not."""
        before, self._ahead = self._ahead, time.time() - time.monotonic()
        went_back = self._ahead < before - SET_BACK_S
        self.was_set_back = self.was_set_back or went_back
        return went_back

    def not_ahead(self, stamp_ns: int) -> int:
        """Return a file's stamp; 0 where it is ahead of the clock, as of a file from before the clock was set back."""
        return 0 if self.was_set_back and stamp_ns > time.time() * 1e9 else stamp_ns
