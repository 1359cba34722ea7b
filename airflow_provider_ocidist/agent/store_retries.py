"""Store retries: tries again while a store does not answer, for as long as a job allows; what it refuses, a minute."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import (
    AgentError,
    BackendError,
    Cause,
    StorageError,
    StoreRefused,
    StoreUnavailable,
)
from airflow_provider_ocidist.model.pauses import next_pause

logger = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 30.0
"""First and longest seconds before the next try; they double each time."""
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of a disk or a quota that is full."""
REFUSAL_LIMIT = 60.0
"""Seconds after the first refusal in which the request is repeated: new resource principals are refused for a
moment."""


def cannot_be_fetched(what: str, error: BaseException, why: str) -> AgentError:
    """Return the error of a failed fetch: StoreUnavailable or StoreRefused where a retry may succeed."""
    message = f"{what} cannot be fetched: {why}"
    if isinstance(error, (StorageError, BackendError)) and error.retryable:
        return StoreUnavailable(message)
    inner = error.__cause__ if isinstance(error, StorageError) else error
    # What else writes to a full disk may go on or end within the minute.
    if (isinstance(inner, BackendError) and inner.is_refused) or _found_no_room(error):
        return StoreRefused(message)
    return AgentError(message, cause=Cause.DATA)


def _found_no_room(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return True
        error = error.__cause__
    return False


def cannot_be_used(what: str, error: BaseException) -> AgentError:
    """Return the error of a place that a node needs at its start: StoreUnavailable or StoreRefused where a retry may
    succeed.
    """
    message = f"{what} cannot be used: {error}"
    found = cannot_be_fetched(what, error, str(error))
    if isinstance(found, StoreUnavailable):
        return StoreUnavailable(message)
    if isinstance(found, StoreRefused):
        return StoreRefused(message, Cause.CONFIG)
    return AgentError(message, cause=Cause.CONFIG)


def with_retries_unless_stopped(work: Callable[[], T], limit: float, switch: StopSwitch) -> T:
    """Return what `with_retries` returns, or raise what it raises; but Stopped where a stop request has ended it."""
    try:
        # Work that was left behind goes on in no later launch.
        return with_retries(work, limit, switch.until_stopped())
    except (StoreUnavailable, StoreRefused):
        # It is the reason then, and no fault of the store.
        switch.check()
        raise


def with_retries(work: Callable[[], T], limit: float, ended: threading.Event) -> T:
    """Return what the work returns; while the store is not available, or refuses, try again until `ended` is set.

    `limit` is in seconds from the first failure, `REFUSAL_LIMIT` from the first refusal; the last try is at its end.
    Raises StoreUnavailable or StoreRefused when it is over, and the work's other errors.
    """
    since: dict[type[AgentError], float] = {}
    pause = FIRST_PAUSE
    while True:
        try:
            return work()
        except (StoreUnavailable, StoreRefused) as error:
            now = time.monotonic()
            bound, named = limit, f"limits.join_timeout is {limit:.0f} s"
            if isinstance(error, StoreRefused):
                bound, named = min(limit, REFUSAL_LIMIT), f"a refusal is retried for {REFUSAL_LIMIT:.0f} s"
            for_now = now - since.setdefault(type(error), now)
            left = bound - for_now
            if left <= 0:
                error.args = (f"{error}; tried for {for_now:.0f} s ({named})",)
                raise
            wait = min(pause, left)
            logger.warning("%s; trying again in %.0f s", error, wait)
            if ended.wait(wait):
                raise
            pause = next_pause(pause, LONGEST_PAUSE)
