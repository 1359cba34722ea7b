"""Renewals: while a task waits for a gang, it renews the lease that the nodes read. No Airflow."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.model.run import RunRecord
from airflow_provider_ocidist.work_dir.parallel import in_parallel

log = logging.getLogger(__name__)

RENEWALS = 6
"""Number of renewals per lease: five may fail before the nodes end."""
REFUSED_RENEWALS = 60
"""Number of attempts per lease while the store refuses: more than renewals, yet no load on a store that is down."""
AT_A_TIME = 6
"""Most renewals that are sent side by side."""
PAUSE = 1.0
"""Seconds without a request after the store has refused a whole batch of renewals."""
LOOK_EVERY = 60.0
"""Seconds between two looks at a gang without a due renewal: it may be cancelled, and is then not renewed."""


class Renewals:
    """Renews the lease of one gang, at once and then whenever it is due.

    A failed renewal is no reason to stop waiting: the nodes count down only while they can read the store.
    """

    __slots__ = ("_backend", "_clock", "_due", "_warn")

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
        """Return when the next renewal is due; infinity if there is no lease, or the gang is ending."""
        return self._due if record.lease is not None and record.ending is None else math.inf

    def keep_up(self, record: RunRecord) -> bool:
        """Renew when due; return False if the store refused."""
        if record.lease is None or self._clock() < self.due_at(record):
            return True
        began = self._clock()
        try:
            self._backend.directories.renew(record.ref)
        except Exception as error:  # noqa: BLE001 - whatever it is, the nodes need the next one
            self._warn("%s; will renew the lease (limits.lease) later", error)
            self._due = self._clock() + record.lease / REFUSED_RENEWALS
            return False
        self._due = began + record.lease / RENEWALS
        return True


class Leased(Protocol):
    """A gang with a lease."""

    @property
    def lease_due_at(self) -> float: ...

    def keep_lease(self) -> bool: ...


class LeaseKeeper:
    """Renews the leases of many gangs in a thread of its own.

    A slow look, or a pause in the requests to the service, must not let a lease end.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[int, Leased] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep(self, gang: Leased) -> None:
        """Renew the gang's lease from now on; do nothing if it has none. Does not block."""
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
    def keeping(self, gang: Leased) -> Iterator[None]:
        """Renew the gang's lease until the block ends."""
        self.keep(gang)
        try:
            yield
        finally:
            self.leave(gang)

    def leave(self, gang: Leased) -> None:
        """Stop renewing. Does not block."""
        with self._changed:
            self._kept.pop(id(gang), None)
            self._changed.notify()

    def renew_some(self) -> float:
        """Renew the due leases, the most overdue first, at most one batch; return the seconds to the next."""
        with self._changed:
            gangs = sorted(self._kept.values(), key=lambda gang: gang.lease_due_at)
        some = [gang for gang in gangs[:AT_A_TIME] if gang.lease_due_at <= self._clock()]
        # In threads that Python does not wait for at its exit: the store may not answer.
        if some and not any(in_parallel(lambda gang: gang.keep_lease(), some)):
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
