"""Work that is abandoned at a stop request: a server that never answers must not keep the node."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

from airflow_provider_ocidist.agent.stopping import StopSwitch

T = TypeVar("T")
_NAME = "fetching"
LEAVE_AFTER = 5.0
"""Seconds for the work to stop by itself."""


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
    threading.Thread(target=run, name=_NAME, daemon=True).start()
    changed.wait()
    over.wait(LEAVE_AFTER)
    switch.check()
    if errors:
        raise errors[0]
    return results[0]


def leave(code: int) -> NoReturn:
    """End this process without waiting for abandoned work: the interpreter would join its threads."""
    if any(thread.name == _NAME for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
