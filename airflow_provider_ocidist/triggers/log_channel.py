"""The channel from a trigger to its task's log: what was sent through it, and whether it is in the log."""

from __future__ import annotations

import fcntl
import glob
import logging
import os
import re
import select
import stat
import sys
import termios
import time
from pathlib import Path
from typing import Any

import structlog

log = logging.getLogger(__name__)

PATIENCE = 3.0
"""Seconds for which it is waited until the supervisor has read all lines."""
ASK_EVERY = 0.02
"""Seconds between two questions how much it has left to read."""
WRITES_WITHIN = 0.2
"""Seconds within which the supervisor writes to the file what it has read: it does nothing else in between."""
PART_OF_A_TRIGGERER = re.compile(r"\.trigger\.[0-9a-f-]+\.log$")
"""End of the name of the file that a triggerer writes for a task."""


def is_written(*, patience: float | None = None) -> bool:
    """Wait until all lines that this process has logged are in their tasks' logs; return False if some may not be.

    Triggers send their lines through a socket to Airflow's supervisor of the triggerer, which reads 4 KiB of them
    between two rounds of its questions to the database. On a busy machine it is a minute behind, and what kills it
    takes the unread lines along. Where lines are logged without it, as in `dag.test()`, they are written at once.
    """
    channel = _socket_to_the_supervisor()
    if channel is None:
        return True
    give_up_at = time.monotonic() + (PATIENCE if patience is None else patience)
    while _unread(channel) > 0:
        if time.monotonic() > give_up_at:
            return False
        time.sleep(ASK_EVERY)
    # Lines that a dead supervisor has not read do not count as unread.
    time.sleep(WRITES_WITHIN)
    return _has_reader(channel)


def is_uploaded() -> bool:
    """Return whether Airflow uploads logs: a trigger's when it ends, never those of a triggerer that is stopped."""
    from airflow.sdk.log import load_remote_log_handler

    return load_remote_log_handler() is not None


def set_aside(task_instance: Any) -> None:
    """Rename the file that this triggerer has written for a task: Airflow empties it if the task defers here again.

    Readers of the log find it by the beginning of its name, and those who delete old logs by the end. Raises nothing.
    """
    from airflow.configuration import conf
    from airflow.utils.helpers import log_filename_template_renderer

    try:
        folder = Path(conf.get_mandatory_value("logging", "base_log_folder")).expanduser()
        of_task = folder / log_filename_template_renderer()(ti=task_instance)
        for part in of_task.parent.glob(f"{glob.escape(of_task.name)}.trigger.*.log"):
            if PART_OF_A_TRIGGERER.search(part.name):
                part.rename(part.with_suffix(f".{time.time_ns()}.log"))
    except Exception:  # a template of another's, or a folder that belongs to another
        log.warning("a part of a task's log may be lost if the task defers again", exc_info=True)


def _socket_to_the_supervisor() -> int | None:
    output = getattr(structlog.get_config()["logger_factory"], "io", None)
    try:
        descriptor = int(output.fileno())  # type: ignore[union-attr]  # whatever has none raises AttributeError
        return descriptor if stat.S_ISSOCK(os.fstat(descriptor).st_mode) else None
    except (AttributeError, OSError, ValueError):
        return None


def _unread(channel: int) -> int:
    """Return how much the other end has not read, in bytes of the kernel's memory; 0 where that is not known."""
    try:
        return int.from_bytes(fcntl.ioctl(channel, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def _has_reader(channel: int) -> bool:
    polled = select.poll()
    polled.register(channel, 0)
    return not polled.poll(0)
