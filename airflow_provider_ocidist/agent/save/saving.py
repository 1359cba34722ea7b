"""Saving: how long a node retries to save a training's results."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import BackendError, BehindLink, Cause, StorageError, Unpublishable
from airflow_provider_ocidist.model.pauses import next_pause

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""First and longest seconds before the next try; they double each time."""
SAVE_LIMIT = 300.0
"""Seconds for saving after a failure, or after the lease has expired."""
REFUSED_LIMIT = 600.0
"""Seconds for which a permanent refusal, such as 404, is retried: a single answer may be wrong."""
LOOK_INTERVAL = 1.0
"""Seconds between two looks, within a pause, at whether the time is over."""
ABORT_WITHIN = 5.0
"""Seconds to wait until an upload whose time is over has been aborted."""
READ_STEP = 1 << 26
"""Bytes that this process has to read to count as progress: its heartbeat reads a little too."""


@dataclass(frozen=True)
class Undelivered:
    """Why a training's results are not all published."""

    message: str
    cause: Cause


class SaveDeadline:
    """The deadline up to which a failed save is retried; a stop request brings it forward."""

    def __init__(
        self,
        limit: float,
        switch: StopSwitch | None = None,
        *,
        grace: float = SAVE_LIMIT,
        from_failure: bool = False,
        named: str = "limits.save_timeout",
    ) -> None:
        """`limit`: in seconds from now, or `from_failure` from the first failure since the last success. `named`: its
        name in the job.

        Without `switch` it is the limit of everything. With it, an upload that goes on may take longer, until this
        node is asked to stop: then it has `grace` seconds after a signal, `SAVE_LIMIT` after another's request, none
        where it counts as lost. A request for another launch is none to stop.
        """
        self.limit = limit
        self._switch = switch
        self._grace = grace
        self.named = named
        self._from_failure = from_failure
        self._until: float | None = None if from_failure else time.monotonic() + limit
        """End of the time for retries; None: no failure has begun it yet."""
        self._stop_heeded: float | None = None
        self._refused_since: float | None = None
        self._pause = FIRST_PAUSE

    @property
    def left(self) -> float:
        """Seconds in which a retry may begin; below 0 when none may."""
        self._heed_stop()
        return self.limit if self._until is None else self._until - time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether to stop waiting for an upload that is under way."""
        return self.left <= 0 and (self._switch is None or self._stop_heeded is not None)

    @contextlib.contextmanager
    def cancelling(self) -> Iterator[threading.Event]:
        """Yield an event that is set once an upload under way has had its time: it is to leave nothing open."""
        over, ended = threading.Event(), threading.Event()

        def watch() -> None:
            while not ended.wait(LOOK_INTERVAL):
                if self.is_over:
                    over.set()
                    return

        threading.Thread(target=watch, name="save-deadline", daemon=True).start()
        try:
            yield over
        finally:
            ended.set()

    def again(self, what: str, error: Exception) -> bool:
        """Log a failed try and wait before the next; return False, at once, if none is left."""
        if not self.allows_another(error):
            return False
        pause = min(self._pause, max(0.0, self.left))
        logger.warning(
            "%s: %s; trying again in %.0f s, for at most %.0f s more", what, error, pause, self.left
        )
        self._pause = next_pause(self._pause, LONGEST_PAUSE)
        self._wait(pause)
        return self.left > 0

    def allows_another(self, error: Exception) -> bool:
        """Whether another try may follow one that has failed like this."""
        if self._until is None:
            self._until = time.monotonic() + self.limit
        return self._may_pass(error) and self.left > 0

    def succeeded(self) -> None:
        """Record a success: the next failure starts over."""
        self._pause = FIRST_PAUSE
        self._refused_since = None
        if self._from_failure and self._stop_heeded is None:
            self._until = None

    def _may_pass(self, error: Exception) -> bool:
        if isinstance(error, (Unpublishable, BehindLink)):
            return False
        if passes(error):
            self._refused_since = None
            return True
        now = time.monotonic()
        self._refused_since = now if self._refused_since is None else self._refused_since
        return now - self._refused_since < REFUSED_LIMIT

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (rest := min(until - time.monotonic(), self.left)) > 0:
            time.sleep(min(rest, LOOK_INTERVAL))

    def _heed_stop(self) -> None:
        stop = self._switch.stop if self._switch else None
        if self._switch is None or stop is None or stop.cause not in (None, Cause.ABANDONED):
            # A watch that finds this node cut off asks it to stop too: heeding it would lose unsaved results.
            return
        if stop.restarts:
            # The launch that follows goes on from what is saved now.
            return
        grace = self._grace if self._switch.signalled.is_set() else SAVE_LIMIT
        grace = 0.0 if stop.is_lost else grace
        if self._stop_heeded is None or grace < self._stop_heeded:
            self._stop_heeded = grace
            until = time.monotonic() + grace
            self._until = until if self._until is None else min(self._until, until)
            logger.warning("got a stop request while saving: at most %.0f s more (%s)", grace, stop.message)


class Movement:
    """Measures whether saving makes progress: a thread that reads from a dead mount never returns."""

    def __init__(self) -> None:
        self.at = ""
        """File that is being read or sent."""
        self._signs = 0
        self._known = (0, 0)
        self._since = time.monotonic()

    def further(self, at: str | None = None) -> None:
        """Record that something was read, sent or asked for; `at`: what comes next."""
        self._signs += 1
        self.at = self.at if at is None else at

    def still_for(self) -> float:
        """Return the seconds without progress, in which this process has also read little."""
        now = (self._signs, _bytes_read() // READ_STEP)
        if now != self._known:
            self._known, self._since = now, time.monotonic()
        return time.monotonic() - self._since

    def why(self, named: str) -> str:
        """Return why saving is given up; `named`: the name of its limit in the job."""
        where = f": it stands at {self.at}, whose file system may not answer" if self.at else ""
        return f"saving made no progress for {self.still_for():.0f} s ({named}){where}"


def _bytes_read() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/self/io").read_text().split()[1])
    return 0


def passes(error: BaseException) -> bool:
    """Whether a retry may succeed later."""
    return isinstance(error, (StorageError, BackendError)) and error.retryable


def cause_of_failed_save(error: BaseException) -> Cause:
    """Return the cause of a failed save, once it is not retried any more."""
    return Cause.SERVICE if passes(error) else Cause.DATA
