"""Starvation: this process and all that it has started run for a small part of the time only."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_ocidist.agent import guard

SHARE = 0.2
"""Part of the time for which they run."""
PERIOD = 0.1
"""Seconds in which they run once and stand still once: less than most steps take, so that each step takes longer, and
far less than a silence that counts as a loss."""
SEARCH_INTERVAL = 1.0
"""Seconds after which a process that has begun meanwhile is starved too."""


def starve(seconds: float | None) -> None:
    """Starve them for so long, in a thread of this process; None: until it ends."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    threading.Thread(target=_starve_until, args=(until,), name="starvation", daemon=True).start()


def _starve_until(until: float) -> None:
    while (now := time.monotonic()) < until:
        pids = starved()
        while time.monotonic() < min(until, now + SEARCH_INTERVAL):
            _stand_still(pids, PERIOD * (1 - SHARE))
            time.sleep(PERIOD * SHARE)


def starved() -> list[int]:
    """Return the processes that this one has started, except guards: they end the others if this one is killed."""
    return [pid for pid in guard.descendants(os.getpid()) if not _is_guard(pid)]


def _is_guard(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    # Empty at the moment in which a program is executed, which may be a guard.
    return not command or os.fsencode(guard.__file__) in command.split(b"\0")


def _stand_still(pids: Sequence[int], seconds: float) -> None:
    """Let none of these processes run for so long, and no thread of this one."""
    try:
        _signal(pids, signal.SIGSTOP)
        # PyDLL keeps the interpreter's lock during a call, so no thread of this process runs. A signal could stop it,
        # too, but only another process could let it go on; and that may be killed meanwhile, with the training.
        ctypes.PyDLL(None).usleep(round(seconds * 1e6))
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        # It may have ended, or belong to another user.
        with contextlib.suppress(OSError):
            os.kill(pid, number)
