"""Heartbeat: updates this node's report in the run directory, and looks for stop requests there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.agent.join.peer_reports import load_report
from airflow_provider_ocidist.agent.join.silence import SILENT_AFTER
from airflow_provider_ocidist.agent.join.stop_requests import (
    load_stop_request,
    lost_by,
    names_as_lost,
    present_stop_request,
    read_stop_request,
    stop_for,
)
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.model.codec import replaced
from airflow_provider_ocidist.model.report import NodeReport, Restart, StopRequest
from airflow_provider_ocidist.model.work_dir import LEASE_FILE, STOP_FILE, report_of
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import conditional_writes
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store

logger = logging.getLogger(__name__)

INTERVAL = 2.0
"""Seconds between two beats."""
ANSWER_LIMIT = 5.0
"""Seconds for each of the up to four small requests of a beat. A connection may have died silently, and a node that
waited a minute for it would count as lost (`silence.LOST_AFTER`), though its training goes on."""
LAST_WORD_LIMIT = 20.0
"""Seconds during which the last report is retried; a waiting node costs money."""


class Heartbeat:
    """Writes the report at every beat. An outage of the store is logged, and the training goes on.

    A lost node that comes back writes nothing any more: another may have its place, and the others would take
    its report for that one's.
    """

    def __init__(
        self,
        store: Store,
        report: NodeReport,
        switch: StopSwitch,
        interval: float = INTERVAL,
        *,
        quick_store: Store | None = None,
    ) -> None:
        """`quick_store`: the same store without retries and with a short timeout."""
        self.store = store
        self.quick_store = quick_store or store
        self._report = report
        self._changes: dict[str, Any] = {}
        """Changes of the report since the last beat, which makes one new report of all."""
        self.switch = switch
        self.interval = interval
        self.watches: list[Callable[[], object]] = []
        """Functions that are called before each report is written; they may call `update`."""
        self.began_at = time.monotonic()
        """Time at which this node began, on the clock `time.monotonic`, as all times here."""
        self.written_at = self.began_at
        """Time of the last write of the report; at first, the time at which this node began."""
        self.written_unix = time.time()
        """Unix time of that write: the other clock may not count the time for which a hypervisor pauses a machine."""
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._has_looked = True
        """Whether the last look for a stop request, and for another node in this one's place, was answered."""
        self._in_doubt = False
        """Whether another node may have the place of this one, and that could not be read yet."""
        self._sure_for = 0
        """Number of the last launch, from 0, before which this node has looked whether another has its place."""
        self._failing = False
        self._is_preparing = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    @classmethod
    def open(cls, run_dir: str, access: OciAccess, report: NodeReport, switch: StopSwitch) -> Heartbeat:
        """Return a node's heartbeat, not started. Raises StorageError when the run directory cannot be used."""
        # The next beat is the retry. The store's own take up to three minutes: this node would count as lost.
        quick_store = open_store(run_dir, replace(access, max_attempts=1, read_timeout=ANSWER_LIMIT))
        return cls(open_store(run_dir, access), report, switch, quick_store=quick_store)

    def start(self) -> None:
        self._thread.start()

    def prepare(self) -> None:
        """Until it is `prepared`, join each launch that a request asks for, rather than stop: no program runs yet."""
        with self._lock:
            self._is_preparing = True

    def prepared(self, launch: int | None) -> bool:
        """Stop for requests from now on, unless they ask for another launch by then; return whether it does."""
        with self._lock:
            self._is_preparing = len(self._changes.get("restarts", self._report.restarts)) != launch
            return not self._is_preparing

    def heed(self, request: StopRequest) -> None:
        """End for a request; while this node prepares, take part in the launch that it asks for."""
        restarts = request.restarts_of(self.report.rank, self.launch)
        with self._lock:
            takes_part = self._is_preparing and bool(restarts)
            if takes_part:
                self._changes["restarts"] = restarts
        if request.restarts and not restarts:
            self.switch.ask(lost_by(request))
        elif takes_part:
            self.switch.take_part_in(len(restarts))
        else:
            self.switch.ask(replace(stop_for(request), restarts=restarts))

    def take_part(self, restarts: tuple[Restart, ...]) -> None:
        """Begin with the launch after these restarts."""
        self.update(restarts=restarts)
        self.switch.take_part_in(len(restarts))

    @property
    def report(self) -> NodeReport:
        """The report as it is now."""
        with self._lock:
            if self._changes:
                self._report = replaced(self._report, **self._changes)
                self._changes = {}
            return self._report

    def update(self, *, now: bool = False, **changes: Any) -> None:
        """Change the report; `now`: write it at once rather than at the next beat."""
        with self._lock:
            self._changes.update(changes)
        if now:
            self._wake.set()

    def write(self, **changes: Any) -> bool:
        """Change the report, and write it before this returns; return whether the store has taken it."""
        self.update(**changes)
        self.read_stop_request()
        return self._write()

    def finish(self, **changes: Any) -> None:
        """Write the last report, with retries."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(LAST_WORD_LIMIT)
        self.update(finished_at=time.time(), **changes)
        self.read_stop_request()
        deadline = time.monotonic() + LAST_WORD_LIMIT
        while not (self.switch.is_lost or self._write()) and time.monotonic() < deadline:
            time.sleep(1.0)
            self.read_stop_request()

    def read_lease(self) -> bytes | None:
        """Return the lease's last renewal; None: no renewal yet. Raises StorageError, OSError."""
        try:
            return self.quick_store.read(LEASE_FILE)
        except FileNotFoundError:
            return None

    @property
    def launch(self) -> int:
        """The number of this launch of the training, from 0."""
        return len(self.restarts)

    @property
    def restarts(self) -> tuple[Restart, ...]:
        """The restarts of this run so far. Unlike a look at the report, one at these makes no new report."""
        with self._lock:
            found: tuple[Restart, ...] = self._changes.get("restarts", self._report.restarts)
            return found

    def read_stop_request(self) -> StopRequest | None:
        """Return the stop request for this launch, if one can be read without a retry.

        Where this node turns out to be lost, it is asked to end.
        """
        request = self._look()
        is_named = request is not None and names_as_lost(request, self.report)
        if not self.switch.is_lost and (is_named or self._is_replaced(request)):
            self.switch.ask(lost_by(request))
        return self._own(request)

    def load_stop_request(self) -> StopRequest | None:
        """Return what `read_stop_request` does; raises as `load_stop_request`."""
        return self._own(load_stop_request(self.quick_store))

    def ask_all_to_stop(self, request: StopRequest) -> StopRequest | None:
        """Write a stop request, unless there is one for this launch: the first failure explains the rest.

        Return the one that counts for this launch; None when it could not be written, or when it cannot be read whether
        one is there.
        """
        known: StopRequest | None = None

        def content(exists: bool) -> bytes | None:
            nonlocal known
            known = self._own(present_stop_request(self.store)) if exists else None
            # Another request may have ended that launch meanwhile: nodes that have not read it must not find this one.
            return None if known or not request.concerns(self.launch) else request.to_json()

        try:
            conditional_writes.change(self.store, STOP_FILE, content)
        except (OcidistError, OSError) as error:
            logger.warning("the other nodes' stop request cannot be written: %s", error)
            return None
        return known or request

    def store_answers(self) -> bool:
        """Whether the store answers; a node that turns out to be lost is then asked to end."""
        self.read_stop_request()
        return self._has_looked

    def _look(self) -> StopRequest | None:
        request, self._has_looked = read_stop_request(self.quick_store)
        return request

    def _own(self, request: StopRequest | None) -> StopRequest | None:
        return request if request and request.concerns(self.launch) else None

    def _run(self) -> None:
        while not self._closing:
            self._wake.clear()
            self._beat()
            self._wake.wait(self.interval)

    def _beat(self) -> None:
        for watch in self.watches:
            try:
                watch()
            except Exception as error:  # a failed watch must not stop the heartbeat
                logger.warning("%s: %s", type(error).__name__, error)
        # In this order: this node may have been frozen for long.
        request = self.read_stop_request()
        self._write()
        if request is not None:
            self.heed(request)

    def _is_replaced(self, request: StopRequest | None) -> bool:
        """Whether another node in the place of this one has written a report; looked at only where that may be.

        Another launch is asked for, and the lost node named, before one is made in its place. A node that was frozen
        may have missed that: a later request, of a node that had not read the name yet, or to end the run, lacks it.
        No clock may have counted the time for which it was frozen: it looks once before each later launch.
        """
        if not self._has_looked:
            return False
        launch = len(request.restarts) if request else 0
        # In this order: most beats find no request, and each look at a report that has changed makes a new one.
        is_later = launch > self._sure_for and launch > self.launch
        self._in_doubt = is_later or self._silent_for() > SILENT_AFTER
        if not self._in_doubt:
            return False
        try:
            known = load_report(self.quick_store, self.report.rank)
        except (OcidistError, OSError) as error:
            logger.debug("own report not readable: %s", error)
            self._has_looked = False
            return False
        except (ValueError, TypeError):
            # Half written: it says nothing of another node.
            known = None
        self._sure_for, self._in_doubt = max(launch, self._sure_for), False
        return known is not None and known.incarnation > self.report.incarnation

    def _silent_for(self) -> float:
        """Return the seconds since the last report, by the clock that has counted more of them."""
        return max(time.monotonic() - self.written_at, time.time() - self.written_unix)

    def _may_be_lost(self) -> bool:
        """Whether another node may have the place of this one, which cannot look now."""
        return not self._has_looked and (self._in_doubt or self._silent_for() > SILENT_AFTER)

    def _write(self) -> bool:
        if self.switch.is_lost or self._may_be_lost():
            return False
        try:
            # One at a time: an older report must not replace a newer one.
            with self._writing:
                self.update(heartbeat_at=time.time())
                report = self.report
                self.quick_store.write(report_of(report.rank), report.to_json())
        except (OcidistError, OSError) as error:
            if not self._failing:
                logger.warning("the run directory cannot be written, the training continues: %s", error)
            self._failing = True
            return False
        self.written_at, self.written_unix = time.monotonic(), time.time()
        if self._failing:
            logger.warning("the run directory can be written again")
        self._failing = False
        return True
