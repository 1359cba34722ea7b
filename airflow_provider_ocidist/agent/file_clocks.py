"""File clocks: by how much the stamps of files in a folder are ahead of this machine's clock, as on a server."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

TICK_NS = 20_000_000
"""Below this the two are one clock: kernels stamp files by a clock that ticks every 4 to 10 ms."""


def ahead_ns(folder: Path) -> int:
    """Return by how many ns files that are written in a folder now are stamped later than this machine's clock says.

    0 where that cannot be seen, as on a full disk. It writes an empty file there and removes it again.
    """
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".ocidist-clock-", suffix=".part")
    except OSError:
        return 0
    try:
        before = time.time_ns()
        os.write(handle, b".")
        os.fsync(handle)
        stamp, after = os.fstat(handle).st_mtime_ns, time.time_ns()
    except OSError:
        return 0
    finally:
        os.close(handle)
        Path(name).unlink(missing_ok=True)
    return nearest_to_none(stamp - after, stamp - before)


def nearest_to_none(lowest: int, highest: int) -> int:
    """Return the smallest difference that a measurement allows, 0 where both may be one clock."""
    if lowest <= TICK_NS and highest >= -TICK_NS:
        return 0
    return lowest if lowest > 0 else highest
