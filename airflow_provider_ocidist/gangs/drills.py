"""Drills: train a job with a fault on one of its nodes, try after try, and measure how it recovers."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.connections import beside
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.gangs.actions import Cancel, Fail, NodeChange, Succeed
from airflow_provider_ocidist.gangs.drill_measures import (
    DrillRecovery,
    SavePace,
    Sightings,
    Try,
    has_happened,
    lag_of,
    pace_of,
    recovery_of,
)
from airflow_provider_ocidist.gangs.leases import LeaseKeeper
from airflow_provider_ocidist.gangs.replacements import change_nodes
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.attempts import End
from airflow_provider_ocidist.model.causes import MEANINGS
from airflow_provider_ocidist.model.drill import DRILL_VARIABLE, UNDISTURBED, DrillJournal, Fault
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import RunKey, RunRecord

LOOK_INTERVAL = 1.0
"""Seconds between two looks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drilled:
    """The outcome of a training with a fault, or without one: the undisturbed training."""

    fault: Fault | None
    tries: int
    launches: int
    """Number of launches in all tries."""
    seconds: float
    """Seconds of all tries together."""
    failure: str | None
    weights: str | None
    step: int | None
    recovery: DrillRecovery | None
    """Recovery from the fault; None if it did not happen, as where the training was over before its moment."""
    replaced: int = 0
    """Nodes in whose place others were made, in all tries."""
    pace: SavePace | None = None
    """Pace of the checkpoints in the undisturbed training; None: it has published none while it trained."""
    lag: int = 0
    """Steps, at most, that were trained while a checkpoint was on its way to the store."""
    writers: tuple[int, ...] = ()
    """Ranks of the nodes whose program has written checkpoints, or parts of them."""


class DrillStopped(Exception):
    """A drill was ended from outside, and its nodes with it."""


def carry_out(
    backend: Backend,
    job: TrainingJob,
    run_id: str,
    fault: Fault | None,
    log: TaskLog,
    *,
    tries: int,
    stop: threading.Event | None = None,
) -> Drilled:
    """Train the job once; a failed try is followed by the next at once, where Airflow makes one after `retry_delay`.

    Raises BackendError; DrillStopped when `stop` is set. Whatever ends this function early ends the nodes too.
    """
    stop = stop or threading.Event()
    key = RunKey(dag_id=f"drill-{job.name}", run_id=run_id, task_id=str(fault or UNDISTURBED))
    env = {**job.env, DRILL_VARIABLE: str(fault or UNDISTURBED)}
    # The outputs of a real training stay as they are.
    armed = replace(job, env=env, outputs=())
    began = time.monotonic()
    done: list[Try] = []
    while not done or (done[-1].failure and not done[-1].is_final and len(done) < tries):
        done.append(_one_try(backend, armed, key, log, stop, try_number=len(done) + 1, tries=tries))
    return Drilled(
        fault=fault,
        tries=len(done),
        launches=sum(each.launches for each in done),
        seconds=time.monotonic() - began,
        failure=done[-1].failure,
        weights=done[-1].weights,
        step=done[-1].step,
        recovery=recovery_of(done) if has_happened(fault, done) else None,
        replaced=sum(each.replaced for each in done),
        pace=pace_of(done) if fault is None else None,
        lag=lag_of(done),
        writers=done[-1].writers,
    )


def _one_try(
    backend: Backend,
    job: TrainingJob,
    key: RunKey,
    log: TaskLog,
    stop: threading.Event,
    *,
    try_number: int,
    tries: int,
) -> Try:
    submitter = GangSubmitter(backend, job, log, None, stop)
    record = submitter.submit_or_end(key, try_number, tries - 1)
    there = beside(backend, record.ref.conn_id)
    watch = Watch(there, record, log)
    # The nodes of backend `local` are processes of this machine, and have one clock.
    sightings = None if job.backend.kind == "local" else Sightings(lambda: _journals(there, watch.record))
    try:
        failed = _ended(watch, log, stop, sightings)
    except BaseException:
        there.cancel(watch.record.ref)
        raise
    there.gangs.close(record.ref, End(succeeded=failed is None))
    return _seen(watch, failed, sightings)


def _ended(watch: Watch, log: TaskLog, stop: threading.Event, sightings: Sightings | None) -> Fail | None:
    """Wait until a gang has ended; return why it failed, None for a success."""
    with LeaseKeeper().keeping(watch):
        while True:
            match watch.look(time.time()):
                case Succeed():
                    return None
                case Fail() as failed:
                    return failed
                case Cancel(ending):
                    watch.end(ending)
                case NodeChange() as change:
                    change_nodes(watch, change, log)
                case _:
                    pass
            if sightings is not None:
                # What cannot be read now is seen at a later look.
                with suppress(BackendError):
                    sightings.look()
            if stop.wait(watch.pause(LOOK_INTERVAL)):
                raise DrillStopped


def _seen(watch: Watch, failed: Fail | None, sightings: Sightings | None) -> Try:
    record, status = watch.record, watch.status
    progress = status.progress if status else None
    checkpoint = status.checkpoint if status else None
    journals = sightings.dated() if sightings else _journals(watch.backend, record)
    return Try(
        journals=tuple(journals.values()),
        launches=1 + (len(status.restarts) if status else 0),
        failure=f"{failed.cause}: {failed.message}" if failed else None,
        weights=watch.backend.directories.weights_of(checkpoint.uri) if checkpoint and not failed else None,
        step=progress.step if progress else None,
        replaced=len(record.ref.replaced),
        is_final=failed is not None and MEANINGS[failed.cause].retry.hopeless,
        writers=tuple(rank for rank, journal in journals.items() if journal.writes),
    )


def _journals(backend: Backend, record: RunRecord) -> dict[int, DrillJournal]:
    """Return what the nodes have recorded, by rank. Raises BackendError."""
    found = {rank: backend.directories.drill_journal(record.ref, rank) for rank in range(record.ref.nodes)}
    return {rank: journal for rank, journal in found.items() if journal is not None}
