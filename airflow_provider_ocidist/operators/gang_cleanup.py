"""GangCleanup: ends all gangs of a task that is over, at whichever home. No DAG file imports it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.providers.common.compat.sdk import XCom

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import OpensById, near
from airflow_provider_ocidist.backends.connections import beside
from airflow_provider_ocidist.backends.recorded_gangs import by_age
from airflow_provider_ocidist.errors import BackendError, Cause, RunNotFound
from airflow_provider_ocidist.gangs.backoff import Backoff, may_pass
from airflow_provider_ocidist.gangs.canceller import Canceller
from airflow_provider_ocidist.gangs.search import gangs_of, recorded_of
from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.kinds import DEFAULT_BACKEND
from airflow_provider_ocidist.model.attempts import Attempt, Place
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRef, RunStatus
from airflow_provider_ocidist.operators.task_jobs import TaskConnection
from airflow_provider_ocidist.work_dir.parallel import in_parallel

SETTLED_AFTER = 15.0
"""Seconds after which nothing is created any more: the process of a failed or cleared task may run for ten more."""


@dataclass(frozen=True)
class _Home:
    """One home at which a task has, or may have, gangs."""

    backend: Backend
    recorded: Sequence[Attempt]
    """Attempts of the task, at any home."""
    published: Sequence[RunRef]
    """Gangs at this home that XComs name."""
    place: str | None
    """The compartment in which to list what lives, besides those of the XComs; None: the connection's."""

    def gangs(self, keys: Sequence[RunKey]) -> list[RunRef]:
        """Return all gangs of the training, the oldest first: recorded, alive, or named in its XCom."""
        places = dict.fromkeys([self.place, *(ref.compartment_id for ref in self.published)])
        found = {ref.job_id: ref for ref in gangs_of(self.backend, keys, self.recorded, places)}
        digests = {key.task_digest for key in keys}
        for job_id in {ref.job_id for ref in self.published} - found.keys():
            ref = self._opened(job_id)
            # A user who may write XComs could otherwise have another task's run ended.
            if ref is not None and ref.key.task_digest in digests:
                found[job_id] = ref
        return by_age(found.values())

    def _opened(self, job_id: str) -> RunRef | None:
        """Return the gang with this id; None if it is gone, or if its home cannot find gangs by an id."""
        try:
            return self.backend.open(job_id).ref if isinstance(self.backend, OpensById) else None
        except RunNotFound:
            return None


class GangCleanup:
    """Ends all gangs of a task, and waits until no node of them runs."""

    def __init__(
        self,
        connection: TaskConnection,
        kind: str | None,
        compartment_id: str | None,
        patience: float,
        stop: StopFlag,
        log: TaskLog,
    ) -> None:
        """`kind`: of the backend, where neither XCom nor records name it. `patience` is in seconds.

        `compartment_id`: where the gangs of that kind are, if not in the connection's.
        """
        self._connection = connection
        self._kind = kind
        self._compartment_id = compartment_id
        self._patience = patience
        self._stop = stop
        self._log = log

    def end_all(self, keys: Sequence[RunKey]) -> list[str]:
        """Return the names of the gangs that had to be ended. Raises BackendError when some have not ended in time.

        Raises it also when this task was killed before nothing could be created any more.
        """
        begun = time.monotonic()
        ended: dict[str, None] = {}
        while True:
            since = time.monotonic() - begun
            found, living = self._ended_now(keys)
            ended |= dict.fromkeys(ref.key.name for ref in living)
            if since >= SETTLED_AFTER or (not living and self._all_succeeded(keys, found)):
                return list(ended)
            pause = max(0.0, begun + SETTLED_AFTER - time.monotonic())
            self._log.info("looking again in %.0f s: its worker may still be creating nodes", pause)
            if self._stop.wait(pause):
                raise BackendError(
                    "the task was killed while it waited to see whether its worker still creates nodes",
                    retryable=True,
                    cause=Cause.CANCELED,
                )

    def _ended_now(self, keys: Sequence[RunKey]) -> tuple[list[RunRef], list[RunRef]]:
        """End the gangs that run; return all gangs that were found, and those that had to be ended.

        Errors of the service are retried until they are conclusive, since nodes may be running.
        """
        backoff = Backoff(self._stop, self._log)
        cancellers: dict[tuple[str, str | None], Canceller] = {}
        ended: dict[str, RunRef] = {}
        while True:
            found: list[RunRef] = []
            errors: list[BackendError] = []
            for home in self._homes(keys, errors):
                try:
                    there = self._reached(home.gangs(keys), errors)
                    living = [ref for ref, status in self._seen(there) if not status.ended]
                    ended |= {ref.job_id: ref for ref in living}
                    canceller = cancellers.setdefault(
                        (home.backend.kind, home.backend.conn_id),
                        Canceller(home.backend, self._log, self._stop),
                    )
                    canceller.end(living, "because its task has ended", within=self._patience)
                    found += there
                except BackendError as error:
                    # What lives at another home is ended all the same.
                    errors.append(error)
            if not errors:
                return by_age(found), list(ended.values())
            for each in errors:
                if not may_pass(each):
                    raise each
            backoff.take(errors[0], self._connection.reconnect)

    def _homes(self, keys: Sequence[RunKey], errors: list[BackendError]) -> list[_Home]:
        """Return the homes that XComs, records or the caller name; with an error in `errors` for each that fails."""
        published = [ref for key in keys if (ref := _published_by(key))]
        named = dict.fromkeys([*([self._kind] if self._kind else []), *(ref.backend for ref in published)])
        recorded: list[Attempt] = []
        for kind in named or [DEFAULT_BACKEND]:
            there = [Place.of_gang(ref) for ref in published if ref.backend == kind]
            try:
                recorded += recorded_of(self._backend(kind), keys, there)
            except BackendError as error:
                errors.append(error)
        kinds = dict.fromkeys([*named, *(each.place.backend for each in recorded)])
        at_others = [
            *((ref.backend, ref.conn_id) for ref in published if ref.conn_id),
            *((each.place.backend, each.place.conn_id) for each in recorded if each.place.conn_id),
        ]
        own = [(kind, None) for kind in kinds or [DEFAULT_BACKEND]]
        homes = []
        for kind, conn_id in dict.fromkeys([*own, *at_others]):
            try:
                homes.append(self._home(kind, conn_id, recorded, published))
            except BackendError as error:
                errors += self._left_unreached(kind, conn_id, recorded, published, error)
        return homes

    def _left_unreached(
        self,
        kind: str,
        conn_id: str | None,
        recorded: Sequence[Attempt],
        published: Sequence[RunRef],
        error: BackendError,
    ) -> list[BackendError]:
        """Write stop requests for what may live at a connection that cannot be had; return why that is not ended.

        The work directory is that of the task's connection. An XCom alone leads to no stop request: it may name the run
        directory of another task.
        """
        there = [each for each in recorded if (each.place.backend, each.place.conn_id) == (kind, conn_id)]
        known = {each.run_dir for each in there}
        gangs = [ref for ref in published if (ref.backend, ref.conn_id) == (kind, conn_id)]
        open_there = [each for each in there if each.may_live]
        for each in open_there:
            self._log.warning("%s gets a stop request, since it cannot be ended: %s", each.key.name, error)
        self._backend(kind).gangs.stop_at_once(open_there)
        return [error] if open_there or any(ref.run_dir not in known for ref in gangs) else []

    def _reached(self, found: Sequence[RunRef], errors: list[BackendError]) -> list[RunRef]:
        """Return the gangs whose connection can be had; for the others write stop requests, and an error in `errors`.

        The service at one connection may list what was created with another.
        """
        reached = []
        for ref in found:
            home = self._backend(ref.backend)
            try:
                near(home, ref)
            except BackendError as error:
                errors.append(error)
                home.gangs.leave_stop_request(ref.run_dir, ref.key)
            else:
                reached.append(ref)
        return reached

    def _home(
        self, kind: str, conn_id: str | None, recorded: Sequence[Attempt], published: Sequence[RunRef]
    ) -> _Home:
        is_named = conn_id is None and kind == (self._kind or DEFAULT_BACKEND)
        return _Home(
            beside(self._backend(kind), conn_id),
            [each for each in recorded if each.place.conn_id == conn_id],
            [ref for ref in published if (ref.backend, ref.conn_id) == (kind, conn_id)],
            self._compartment_id if is_named else None,
        )

    def _backend(self, kind: str) -> Backend:
        return self._connection.backend(kind)

    def _seen(self, refs: Sequence[RunRef]) -> list[tuple[RunRef, RunStatus]]:
        """Return the gangs with their states, each from its own home."""

        def look(ref: RunRef) -> tuple[RunRef, RunStatus]:
            return ref, near(self._backend(ref.backend), ref).status([ref])[0]

        return in_parallel(look, refs)

    def _all_succeeded(self, keys: Sequence[RunKey], refs: Sequence[RunRef]) -> bool:
        """Return whether the newest gang of every task has succeeded: then no try creates another."""
        newest = {ref.key.task_digest: ref for ref in refs}
        return len(newest) == len(keys) and all(
            node.state is NodeState.SUCCEEDED
            for _, status in self._seen(list(newest.values()))
            for node in status.only(status.members).nodes
        )


def keys_of(ti: Any, task_id: str, states: Mapping[str, str | None]) -> list[RunKey]:
    """Return the keys of a task of this DAG run; `states`: by its id or, for a mapped one, with the map indexes."""
    indexes = [int(name.removeprefix(f"{task_id}_")) for name in states if name != task_id]
    return [
        RunKey(dag_id=ti.dag_id, run_id=ti.run_id, task_id=task_id, map_index=index)
        for index in indexes or [-1]
    ]


def _published_by(key: RunKey) -> RunRef | None:
    """Return the XCom `run` of the training's newest gang."""
    run = XCom.get_one(
        key="run", dag_id=key.dag_id, run_id=key.run_id, task_id=key.task_id, map_index=key.map_index
    )
    try:
        return RunRef.from_json(run) if isinstance(run, Mapping) else None
    except (TypeError, ValueError):
        # Not of ours; the records lead to its gangs as well.
        return None
