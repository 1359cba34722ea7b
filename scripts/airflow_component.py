"""Airflow's own command line, made for a test bed: it is up a third sooner, and SQLite keeps up with all of it."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

NICER = 5
"""By how much a worker is nicer than the scheduler, and a task than its worker. A scheduler that ten starting tasks
keep from the processor reads the end of a deferred task's worker after the event of its trigger, and takes that for a
lost task (apache/airflow#72716)."""
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


def commit_in_a_thread(action_logging: Callable[..., Any]) -> Callable[..., Any]:
    """Return Airflow's `action_logging` with a commit that does not block the API server's event loop.

    On SQLite that commit waits for the one writer. If that is another request of the same server, it waits for the
    event loop in turn, until one of the two gives up.
    """
    from starlette.concurrency import run_in_threadpool

    def logging_of(*arguments: Any, **options: Any) -> Callable[..., Any]:
        log_action = action_logging(*arguments, **options)

        async def log_action_in_a_thread(**needed: Any) -> None:
            session = needed["session"]
            await log_action(**{**needed, "session": Uncommitted(session)})
            await run_in_threadpool(session.commit)

        wanted = inspect.signature(log_action, eval_str=True)
        log_action_in_a_thread.__signature__ = wanted  # type: ignore[attr-defined]  # FastAPI reads it
        return log_action_in_a_thread

    return logging_of


class Uncommitted:
    """A session of SQLAlchemy whose commit is left to somebody else."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def commit(self) -> None:
        """Do nothing."""


def serve_an_api_that_does_not_block() -> None:
    """Mend Airflow before it imports what serves the API."""
    from airflow.api_fastapi.logging import decorators

    decorators.action_logging = commit_in_a_thread(decorators.action_logging)


def main() -> None:
    gc.disable()
    # A process forked meanwhile (a worker, a task, a parser) has no timer to wake it.
    os.register_at_fork(after_in_child=resume)
    if sys.argv[1:2] == ["scheduler"]:
        os.register_at_fork(after_in_child=lambda: os.nice(NICER))
    timer = threading.Timer(START_UP_S, resume)
    timer.daemon = True
    timer.start()

    from sqlalchemy import Engine, event

    event.listen(Engine, "connect", prepare)

    if sys.argv[1:2] == ["api-server"]:
        serve_an_api_that_does_not_block()

    from airflow.__main__ import main as airflow

    sys.argv[0] = "airflow"
    airflow()


if __name__ == "__main__":
    main()
