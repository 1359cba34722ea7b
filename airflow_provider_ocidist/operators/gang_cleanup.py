"""GangCleanup: ends all gangs of a task that is over. No DAG file imports it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.common.compat.sdk import XCom

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import OpensById
from airflow_provider_ocidist.errors import BackendError, RunNotFound
from airflow_provider_ocidist.gangs.canceller import Canceller
from airflow_provider_ocidist.gangs.kills import Backoff, may_pass
from airflow_provider_ocidist.gangs.search import gangs_of
from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.gangs.watch import TaskLog
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRef

SETTLED_AFTER = 15.0
"""Seconds: the process of a failed or cleared task may live for ten more, and create nodes in them."""


class GangCleanup:
    """Ends all gangs of a task, and waits until no node of them runs."""

    def __init__(
        self, conn_id: str, compartment_id: str | None, patience: float, stop: StopFlag, log: TaskLog
    ) -> None:
        """`compartment_id`: where the gangs are, if not in the connection's. `patience` is in seconds."""
        self._conn_id = conn_id
        self._backend = OciHook(conn_id).backend()
        self._compartment_id = compartment_id
        self._patience = patience
        self._stop = stop
        self._log = log

    def end_all(self, keys: Sequence[RunKey]) -> list[str]:
        """Return the names of the gangs that had to be ended. Raises BackendError when some have not ended in time."""
        begun = time.monotonic()
        ended: dict[str, None] = {}
        while True:
            since = time.monotonic() - begun
            found, living = self._ended_now(keys)
            ended |= dict.fromkeys(ref.key.name for ref in living)
            if since >= SETTLED_AFTER or (not living and _all_succeeded(self._backend, keys, found)):
                return list(ended)
            pause = max(0.0, begun + SETTLED_AFTER - time.monotonic())
            self._log.info("looking again in %.0f s: its worker may still be creating nodes", pause)
            self._stop.wait(pause)

    def _ended_now(self, keys: Sequence[RunKey]) -> tuple[list[RunRef], list[RunRef]]:
        """End what lives; return all gangs that were found, and those that had to be ended.

        Whatever the service answers is asked again until it is evidence: its nodes may live.
        """
        backoff = Backoff(self._stop, self._log)
        canceller, begun = Canceller(self._backend, self._log, self._stop), time.monotonic()
        ended: dict[str, RunRef] = {}
        while True:
            try:
                found = self._gangs_of(keys)
                living = _living(self._backend, found)
                ended |= {ref.job_id: ref for ref in living}
                left = max(0.0, begun + self._patience - time.monotonic())
                canceller.end(living, "for its task has ended", within=left)
                return found, list(ended.values())
            except BackendError as error:
                if not may_pass(error):
                    raise
                backoff.take(error, lambda: self._backend.reconnect(OciHook(self._conn_id).fields))

    def _gangs_of(self, keys: Sequence[RunKey]) -> list[RunRef]:
        """Return all gangs of the training, the oldest first: recorded, alive, or named in its XCom."""
        published = [run for key in keys if (run := _published_by(key))]
        places = dict.fromkeys(
            [
                (self._compartment_id, None),
                *((run.get("compartment_id"), run.get("run_dir")) for run in published),
            ]
        )
        found = {ref.job_id: ref for place in places for ref in gangs_of(self._backend, keys, *place)}
        digests = {key.task_digest for key in keys}
        for job_id in {str(run["job_id"]) for run in published} - found.keys():
            ref = _opened(self._backend, job_id)
            # A user who may write XComs could otherwise have another task's run ended.
            if ref is not None and ref.key.task_digest in digests:
                found[job_id] = ref
        return sorted(found.values(), key=lambda ref: (ref.key.generation, ref.key.attempt))


def keys_of(ti: Any, task_id: str, states: Mapping[str, str | None]) -> list[RunKey]:
    """Return the keys of a task of this DAG run; `states`: by its id or, for a mapped one, with the map indexes."""
    indexes = [int(name.removeprefix(f"{task_id}_")) for name in states if name != task_id]
    return [
        RunKey(dag_id=ti.dag_id, run_id=ti.run_id, task_id=task_id, map_index=index)
        for index in indexes or [-1]
    ]


def _published_by(key: RunKey) -> Mapping[str, Any] | None:
    """Return the XCom `run` of the training's newest gang."""
    run = XCom.get_one(
        key="run", dag_id=key.dag_id, run_id=key.run_id, task_id=key.task_id, map_index=key.map_index
    )
    return run if isinstance(run, Mapping) and run.get("job_id") else None


def _opened(backend: Backend, job_id: str) -> RunRef | None:
    try:
        return OpensById.of(backend).open(job_id).ref
    except RunNotFound:
        return None


def _living(backend: Backend, refs: Sequence[RunRef]) -> list[RunRef]:
    return [ref for ref, status in zip(refs, backend.status(refs), strict=True) if not status.ended]


def _all_succeeded(backend: Backend, keys: Sequence[RunKey], refs: Sequence[RunRef]) -> bool:
    """Return whether the newest gang of every task has succeeded: then no try creates another."""
    newest = {ref.key.task_digest: ref for ref in refs}
    statuses = backend.status(list(newest.values()))
    return len(newest) == len(keys) and all(
        node.state is NodeState.SUCCEEDED for status in statuses for node in status.nodes
    )
