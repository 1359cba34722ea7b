"""Poller: one thread that looks at all gangs of a connection that this process waits for. No Airflow."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.gangs.actions import Action, Wait
from airflow_provider_ocidist.gangs.leases import LeaseKeeper
from airflow_provider_ocidist.gangs.reconnection import RefusedCredentials, read_again
from airflow_provider_ocidist.gangs.shared_look import look_together
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.pauses import doubling_pause
from airflow_provider_ocidist.model.run import RunRef

log = logging.getLogger(__name__)

GATHERING = 0.5
"""Seconds that a new gang waits for others, to share the first look."""
LONGEST_HOLD = 120.0
"""Longest pause in seconds after repeated throttling by the service."""
READ_EVERY = 300.0
"""Seconds after which the connection's fields are read again: they may have been edited."""
FAILURES = 3
"""Number of consecutive looks with an unforeseen error after which the waiting tasks get it."""
IDLE = 60.0
"""Seconds without a gang after which the thread ends."""

ActionOrError = Action | Exception


class Source(Protocol):
    """The source of a connection's backend."""

    @property
    def backend(self) -> Backend: ...

    def refresh(self, *, anew: bool) -> None:
        """Let the backend use the connection as it is now; `anew`: even if its fields are the same."""


@dataclass(eq=False, slots=True)
class Turn:
    """When one gang is due for a look. Times are of one monotonic clock, in seconds."""

    interval: float
    due: float
    hurried: bool = False
    """Whether the look is due before its interval is over, because the gang is near its end."""


AnyTurn = TypeVar("AnyTurn", bound=Turn)


class Schedule:
    """Decides which gangs are looked at together. Pure.

    Gangs come at any time, and each look costs calls that many can share. So a look at a due gang includes those
    due within half of their interval: soon all of one interval are due at the same time.
    """

    def __init__(self) -> None:
        self._held_until = 0.0
        self._failures = 0

    def next_at(self, turns: Iterable[Turn]) -> float:
        """Return when the next look is due; infinity without a gang."""
        return max(min((turn.due for turn in turns), default=float("inf")), self._held_until)

    def due(self, turns: Iterable[AnyTurn], now: float) -> list[AnyTurn]:
        """Return the gangs to look at now."""
        turns = list(turns)
        due = [turn for turn in turns if turn.due <= now]
        if all(turn.hurried for turn in due):
            return due
        return [turn for turn in turns if turn.due <= now + turn.interval / 2]

    def looked(self, turn: Turn, pause: float, now: float) -> None:
        """Record that a gang was looked at, and is due again in `pause` seconds."""
        turn.due = now + pause
        turn.hurried = pause < turn.interval

    def took(self, seconds: float, now: float) -> None:
        """Pause for as long as a look took: half of the time is left to others on this machine and at the service."""
        self._failures = 0
        self._held_until = now + seconds

    def failed(self, interval: float, now: float) -> None:
        """Record that the service could not answer: the pause doubles with each failure in a row."""
        self._failures += 1
        self._held_until = now + doubling_pause(2 * interval, LONGEST_HOLD, self._failures)


@dataclass(eq=False, slots=True)
class Followed(Turn):
    """A gang that a task waits for."""

    watch: Watch = field(kw_only=True)
    publish: Callable[[ActionOrError], object] = field(kw_only=True)


class Poller:
    """Looks at gangs until each needs an action. One thread, whatever their number.

    Errors are waited out: after a refusal the credentials are read again. When requests have failed for so long
    that a gang is given up, its task gets the error: it asks once more by itself, ends the gang, and fails.
    """

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._schedule = Schedule()
        self._followed: dict[int, Followed] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._keeper = LeaseKeeper()
        self._left: list[RunRef] = []
        """Gangs to forget before the next look."""
        self._wakes_at = 0.0
        self._read_at = clock()
        self._credentials = RefusedCredentials(clock, self._read_at)

    async def until_action(self, watch: Watch, interval: float) -> ActionOrError:
        """Return the next action for a gang, once there is one; `interval`: seconds between two looks."""
        loop = asyncio.get_running_loop()
        published: asyncio.Future[ActionOrError] = loop.create_future()
        followed = self.follow(watch, interval, _Settling(published))
        try:
            return await published
        finally:
            self.leave(followed)

    def follow(self, watch: Watch, interval: float, publish: Callable[[ActionOrError], object]) -> Followed:
        """Look at a gang from now on; `publish` is called in the poller's thread, at most once. Does not block."""
        followed = Followed(interval, self._clock() + GATHERING, watch=watch, publish=publish)
        with self._changed:
            self._followed[id(followed)] = followed
            if followed.due < self._wakes_at:
                self._changed.notify()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="ocidist-poller", daemon=True)
                thread.start()
                self._thread = thread
        self._keeper.keep(watch)
        return followed

    def leave(self, followed: Followed) -> None:
        """Stop looking at a gang. Does not block."""
        self._keeper.leave(followed.watch)
        with self._changed:
            self._followed.pop(id(followed), None)
            self._left.append(followed.watch.record.ref)

    def _run(self) -> None:
        try:
            self._look_when_due()
        finally:
            # Whatever ended this thread, the next gang starts another, which also looks at the gangs that are left.
            with self._changed:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _look_when_due(self) -> None:
        failures = 0
        while (due := self._wait_for_due()) is not None:
            began = self._clock()
            try:
                self._look_at(due, began)
                failures = 0
            except Exception as error:
                failures += 1
                log.exception("reading the states of %d gangs failed", len(due))
                self._schedule.failed(_shortest(due), self._clock())
                if failures >= FAILURES:
                    # No gang may go unwatched through a fault of the poller: each task looks for itself.
                    for each in due:
                        self._publish(each, error)

    def _wait_for_due(self) -> list[Followed] | None:
        """Wait for due gangs and return them; None after a while without any gang."""
        idle_until = self._clock() + IDLE
        with self._changed:
            while True:
                now = self._clock()
                at = self._schedule.next_at(self._followed.values())
                if self._followed and at <= now:
                    return self._schedule.due(self._followed.values(), now)
                if not self._followed and now >= idle_until:
                    self._thread = None
                    return None
                self._wakes_at = at if self._followed else idle_until
                self._changed.wait(self._wakes_at - now)

    def _look_at(self, due: list[Followed], began: float) -> None:
        backend = self._source.backend
        self._forget(backend)
        if began - self._read_at >= READ_EVERY:
            read_again(self._refresh, log.warning)
        looked = look_together(backend, [each.watch for each in due], time.time())
        refused = [each.watch for each in due if each.watch.record.unanswered.is_refused]
        if refused and self._credentials.renew(self._renew, log.warning):
            for watch in refused:
                watch.note_new_credentials()
        now = self._clock()
        for each, outcome in zip(due, looked.outcomes, strict=True):
            if isinstance(outcome, Wait):
                self._schedule.looked(each, each.watch.pause(each.interval), now)
            else:
                self._publish(each, outcome)
        if looked.unanswered or (looked.trouble is not None and looked.trouble.retryable):
            self._schedule.failed(_shortest(due), now)
        else:
            self._schedule.took(now - began, now)

    def _forget(self, backend: Backend) -> None:
        with self._changed:
            left, self._left = self._left, []
        for ref in left:
            backend.forget(ref)

    def _refresh(self, *, anew: bool = False) -> None:
        self._read_at = self._clock()
        self._source.refresh(anew=anew)

    def _renew(self) -> None:
        self._refresh(anew=True)

    def _publish(self, followed: Followed, outcome: ActionOrError) -> None:
        with self._changed:
            wanted = self._followed.pop(id(followed), None) is not None
        self._keeper.leave(followed.watch)
        if wanted:
            try:
                followed.publish(outcome)
            except RuntimeError as error:  # its event loop is closed
                log.debug("the waiting event loop is closed: %s", error)


def _shortest(due: Iterable[Followed]) -> float:
    return min(each.interval for each in due)


@dataclass(frozen=True, slots=True)
class _Settling:
    """Publishes an outcome to a coroutine, from another thread."""

    published: asyncio.Future[ActionOrError]

    def __call__(self, outcome: ActionOrError) -> None:
        self.published.get_loop().call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: ActionOrError) -> None:
        if not self.published.done():
            self.published.set_result(outcome)
