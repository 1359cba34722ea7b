"""Airflow's own command line, made for a test bed: it is up a third sooner, and SQLite keeps up with all of it."""

from __future__ import annotations

import gc
import os
import sys
import threading
from typing import Any

START_UP_S = 20.0
"""Seconds from the start without a collection of garbage: imports make none."""
SQLITE = ("synchronous=OFF", "busy_timeout=60000")
"""Settings for five programs that write to one file. By default SQLite waits for the disk at each commit, and a writer
gives up after 5 s of waiting: on a slow disk Airflow's components end, one by one. Nothing here must outlive the
machine."""


def resume() -> None:
    """Collect again from here on; what the imports made stays out of it."""
    gc.freeze()
    gc.enable()


def prepare(connection: Any, record: Any) -> None:
    """Set up a new connection to a database, if that is SQLite."""
    del record
    if "sqlite" in type(connection).__module__:
        cursor = connection.cursor()
        for setting in SQLITE:
            cursor.execute(f"PRAGMA {setting}")
        cursor.close()


def main() -> None:
    gc.disable()
    # A process forked meanwhile (a worker, a task, a parser) has no timer to wake it.
    os.register_at_fork(after_in_child=resume)
    timer = threading.Timer(START_UP_S, resume)
    timer.daemon = True
    timer.start()

    from sqlalchemy import Engine, event

    event.listen(Engine, "connect", prepare)

    from airflow.__main__ import main as airflow

    sys.argv[0] = "airflow"
    airflow()


if __name__ == "__main__":
    main()
