"""Patience: retries while a store does not answer, for as long as the job allows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_ocidist.errors import AgentError, BackendError, Cause, StorageError, StoreUnavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 30.0
"""Seconds before the next try; doubled each time."""


def cannot_be_fetched(what: str, error: BaseException, why: str) -> AgentError:
    """Return the error of a failed fetch: StoreUnavailable where a retry may succeed."""
    message = f"{what} cannot be fetched: {why}"
    if isinstance(error, (StorageError, BackendError)) and error.retryable:
        return StoreUnavailable(message)
    return AgentError(message, cause=Cause.DATA)


def patiently(work: Callable[[], T], limit: float, ended: threading.Event) -> T:
    """Return what the work returns; while the store is not available, try again until `ended` is set.

    `limit` is in seconds from the first failure; the last try is at its end. Raises StoreUnavailable when it is over,
    and the work's other errors.
    """
    since: float | None = None
    pause = FIRST_PAUSE
    while True:
        try:
            return work()
        except StoreUnavailable as error:
            now = time.monotonic()
            since = now if since is None else since
            left = limit - (now - since)
            if left <= 0:
                raise StoreUnavailable(
                    f"{error}; tried for {now - since:.0f} s (limits.join_timeout is {limit:.0f} s)"
                ) from error
            wait = min(pause, left)
            logger.warning("%s; trying again in %.0f s", error, wait)
            if ended.wait(wait):
                raise
            pause = min(LONGEST_PAUSE, 2 * pause)
