"""Work that is abandoned at a stop request: a server that never answers must not keep the node."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

from airflow_provider_ocidist.agent.stopping import StopSwitch

T = TypeVar("T")
LEAVE_AFTER = 5.0
"""Seconds for the work to stop by itself, and then for the last output and what is to run at the end."""


def interruptible(work: Callable[[], T], switch: StopSwitch) -> T:
    """Return what the work returns, or raise what it raises. Raises Stopped soon after a stop request."""
    results: list[T] = []
    errors: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            over.set()
            changed.set()

    changed = threading.Event()
    switch.listen(changed.set)
    threading.Thread(target=run, name="fetching", daemon=True).start()
    changed.wait()
    over.wait(LEAVE_AFTER)
    switch.check()
    if errors:
        raise errors[0]
    return results[0]


def leave(code: int) -> NoReturn:
    """End this process without waiting for abandoned work: the interpreter would join the threads of all its pools.

    They may wait for a server that never answers; what this node had to save is saved before it has a code to end with.
    """
    with contextlib.suppress(BaseException):
        # First: who reads the output may read no more, and its pipe be full.
        limit = threading.Timer(LEAVE_AFTER, os._exit, (code,))
        limit.daemon = True
        limit.start()
    # Then this: no exit handler may cost what was said.
    _flush()
    with contextlib.suppress(BaseException):
        # As the interpreter would: folders that are in use until the end are removed.
        atexit._run_exitfuncs()  # noqa: SLF001 - Python has no other way
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            # Who reads it may have gone.
            stream.flush()
