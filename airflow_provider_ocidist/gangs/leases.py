"""Renewals: while somebody waits for a gang, its nodes are told so. No Airflow."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.model.run import RunRecord

log = logging.getLogger(__name__)

RENEWALS = 6
"""In the course of one lease: five may fail before its nodes give up."""
ATTEMPTS = 60
"""The same while the store refuses: sooner than the next renewal, and yet no burden for a store that is down."""
AT_A_TIME = 6
PAUSE = 1.0
"""Seconds for which a store is left alone that has refused all that were renewed at a time."""
LOOK_EVERY = 60.0
"""Seconds; a gang of which nothing is due may be told to end meanwhile, and is then kept no more."""


class Renewals:
    """Renews the lease of one gang, at once and then when it is time.

    A lease that could not be renewed is no reason to stop waiting: the nodes count only while they can read.
    """

    def __init__(
        self,
        backend: Backend,
        warn: Callable[[str, Exception], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._warn = warn
        self._clock = clock
        self._due = -math.inf

    def due_at(self, record: RunRecord) -> float:
        """Return when it is time; infinity where the holder of this record has nothing to renew, or no more."""
        return self._due if record.lease is not None and record.ending is None else math.inf

    def keep_up(self, record: RunRecord) -> bool:
        """Renew when it is time; return False where the store did not take it."""
        if record.lease is None or self._clock() < self.due_at(record):
            return True
        began = self._clock()
        try:
            self._backend.renew(record.ref)
        except Exception as error:  # noqa: BLE001 - whatever it is, the nodes need the next one
            self._warn("%s; will renew the lease (limits.lease) later", error)
            self._due = self._clock() + record.lease / ATTEMPTS
            return False
        self._due = began + record.lease / RENEWALS
        return True


class Kept(Protocol):
    """A gang with a lease."""

    @property
    def lease_due_at(self) -> float: ...

    def keep_lease(self) -> bool: ...


class LeaseKeeper:
    """Renews the leases of many gangs in a thread of its own.

    Neither a look that takes long nor a service that is left alone for a while may cost a gang its nodes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[int, Kept] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep(self, gang: Kept) -> None:
        """Renew from now on what the gang needs; nothing where it has no lease. Does not block."""
        if gang.lease_due_at == math.inf:
            return
        with self._changed:
            self._kept[id(gang)] = gang
            self._changed.notify()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="ocidist-leases", daemon=True)
                thread.start()
                self._thread = thread

    @contextlib.contextmanager
    def keeping(self, gang: Kept) -> Iterator[None]:
        """Renew meanwhile what the gang needs."""
        self.keep(gang)
        try:
            yield
        finally:
            self.leave(gang)

    def leave(self, gang: Kept) -> None:
        """Renew no more. Does not block."""
        with self._changed:
            self._kept.pop(id(gang), None)
            self._changed.notify()

    def renew_some(self) -> float:
        """Renew what is due, the most overdue first, as much as is done at a time; return the seconds to the next."""
        with self._changed:
            gangs = sorted(self._kept.values(), key=lambda gang: gang.lease_due_at)
        some = [gang for gang in gangs[:AT_A_TIME] if gang.lease_due_at <= self._clock()]
        if some:
            with ThreadPoolExecutor(len(some)) as pool:
                taken = list(pool.map(lambda gang: gang.keep_lease(), some))
            if not any(taken):
                return PAUSE
        next_at = min((gang.lease_due_at for gang in gangs), default=math.inf)
        return min(LOOK_EVERY, max(0.0, next_at - self._clock()))

    def _run(self) -> None:
        try:
            while True:
                try:
                    pause = self.renew_some()
                except Exception:
                    log.exception("renewing leases failed")
                    pause = PAUSE
                with self._changed:
                    if not self._kept:
                        self._thread = None
                        return
                    if pause > 0:
                        self._changed.wait(pause)
        finally:
            with self._changed:
                if self._thread is threading.current_thread():
                    self._thread = None
