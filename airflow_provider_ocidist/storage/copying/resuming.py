"""Resuming: goes on with a copy that broke off, as long as each attempt gets further than the one before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_ocidist.errors import StorageError

PAUSE_S = 3.0
"""Seconds before an interrupted copy resumes."""

Result = TypeVar("Result")


def until_whole(
    attempt: Callable[[], Result],
    *,
    bytes_done: Callable[[], int],
    may_go_on: Callable[[StorageError], bool],
    say: Callable[[StorageError], object],
    cancel: threading.Event,
) -> Result:
    """Return what an attempt returns, after others that broke off. Raises the StorageError of the last.

    `bytes_done`: how far the latest attempt has come, with what those before it have left; `say` is called before each
    further one.
    """
    while True:
        before = bytes_done()
        try:
            return attempt()
        except StorageError as error:
            if bytes_done() <= before or not may_go_on(error):
                raise
            say(error)
        cancel.wait(PAUSE_S)
