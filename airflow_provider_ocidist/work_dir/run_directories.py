"""The files in run directories for nodes, for other tries of the task, and for the next waiting process."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_provider_ocidist.errors import BackendError, Cause, CheckpointError, StorageError
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.drill import DrillJournal
from airflow_provider_ocidist.model.log_cursor import LogCursor
from airflow_provider_ocidist.model.report import EarlierGangs, NodeReport, Renewal, Restart, StopRequest
from airflow_provider_ocidist.model.run import Ending, Plan, RunKey, RunRef
from airflow_provider_ocidist.model.work_dir import (
    EARLIER_FILE,
    LEASE_FILE,
    LOG_CURSOR,
    STOP_FILE,
    drill_journal_of,
    report_of,
)
from airflow_provider_ocidist.storage import conditional_writes, weights
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.work_dir import claims
from airflow_provider_ocidist.work_dir.refusals import Refusals
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores

log = logging.getLogger(__name__)

CANCELED = StopRequest(cause=Cause.CANCELED, message="the run was cancelled")


class RunDirectories:
    """Leases, claims, log cursors and stop requests of many gangs. Safe to share between threads."""

    def __init__(self, run_dirs: RunDirStores, urgent: RunDirStores) -> None:
        """`urgent` is for cancels: no other request delays them."""
        self._run_dirs = run_dirs
        self._urgent = urgent
        self.refusals = Refusals(run_dirs)
        """Lacks of capacity met lately, for all tasks of the work directory."""

    def renew(self, gang: Plan | RunRef) -> None:
        """Renew the lease that the nodes of a gang check (`limits.lease`). Raises BackendError."""
        try:
            self._run_dirs.write(gang.run_dir, LEASE_FILE, Renewal.now().to_json())
        except (StorageError, OSError) as error:
            raise BackendError(f"{gang.key.name}: {error}", retryable=True) from error

    def claim(self, gang: Plan | RunRef, try_number: int) -> int:
        """Record that this try now owns the gang, so that killing an earlier try does not cancel it.

        Returns the number of the try that owns it afterwards: a later one keeps it. Where nothing can be recorded, that
        is logged, and killing the earlier try cancels the gang.
        """
        try:
            return claims.claim_gang(*self._run_dirs.at(gang.run_dir), try_number)
        except (StorageError, BackendError, OSError) as error:
            log.warning(
                "%s: could not record ownership in the work directory; "
                "if Airflow kills an earlier try, it may cancel this gang: %s",
                gang.key.name,
                error,
            )
            return try_number

    def claimed_by(self, gang: Plan | RunRef | Attempt) -> int:
        """Return the number of the latest try that owns a gang; 0 where none does, or where it cannot be read."""
        try:
            return claims.claimed_by(*self._urgent.at(gang.run_dir))
        except (StorageError, BackendError, OSError):
            return 0

    def save_cursor(self, ref: RunRef, cursor: LogCursor) -> None:
        """Save the position in a task's log, for the process that continues it."""
        try:
            self._run_dirs.write(ref.run_dir, LOG_CURSOR, json.dumps(codec.encode(cursor)).encode())
        except (StorageError, BackendError, OSError) as error:
            log.warning("%s: could not save the position in its log: %s", ref.key.name, error)

    def load_cursor(self, ref: RunRef) -> LogCursor | None:
        """Return what `save_cursor` saved last; None where there is nothing, or where it cannot be read."""
        try:
            store, prefix = self._run_dirs.at(ref.run_dir)
            return codec.read(LogCursor, store.read(prefix + LOG_CURSOR))
        except FileNotFoundError:
            return None
        except (StorageError, BackendError, OSError, ValueError, TypeError, LookupError) as error:
            log.warning("%s: could not read the position in its log: %s", ref.key.name, error)
            return None

    def hand_on(self, plan: Plan, restarts: tuple[Restart, ...]) -> None:
        """Record for the nodes of a plan what has ended launches of the gangs before it. Raises BackendError."""
        try:
            self._run_dirs.write(plan.run_dir, EARLIER_FILE, EarlierGangs(restarts=restarts).to_json())
        except (StorageError, OSError) as error:
            raise BackendError(f"{plan.key.name}: {error}", retryable=True) from error

    def request_stop(self, key: RunKey, run_dir: str, request: StopRequest) -> bool:
        """Write a stop request for the nodes, also for those just starting. Returns False where that failed."""
        try:
            self._urgent.write(run_dir, STOP_FILE, request.to_json())
        except (StorageError, BackendError, OSError) as error:
            log.warning("%s: could not write a stop request for the nodes: %s", key.name, error)
            return False
        return True

    def request_end(self, ref: RunRef, ending: Ending | None) -> bool:
        """Write the stop request of a cancel: its reason, where there is one. Returns False where that failed."""
        request = StopRequest(cause=ending.cause, message=ending.message) if ending else CANCELED
        return self.request_stop(ref.key, ref.run_dir, request)

    def stop_requested(self, gang: Plan | RunRef) -> bool:
        """Return whether the nodes of a gang find a request to end the run. Raises BackendError."""
        try:
            request = _stop_request(*self._run_dirs.at(gang.run_dir))
            # Other requests end a launch, for another to follow.
            return request is not None and request.ends_run
        except (ValueError, TypeError):
            return True
        except (StorageError, OSError) as error:
            raise BackendError(f"{gang.key.name}: {error}", retryable=True) from error

    def goes_on_after(self, ref: RunRef, launch: int) -> bool:
        """Return whether the nodes have agreed on another launch after this one, from 0. Raises BackendError."""
        try:
            request = _stop_request(*self._run_dirs.at(ref.run_dir))
        except (StorageError, OSError, ValueError, TypeError) as error:
            raise BackendError(f"{ref.key.name}: {error}", retryable=True) from error
        return request is not None and request.asks_for_launch_after(launch)

    def launch_again(
        self,
        ref: RunRef,
        failures: Sequence[Restart],
        launch: int | None = None,
        *,
        alive: bool = False,
    ) -> bool:
        """Ask the live nodes to end this launch, and to wait for the replacements of the lost ones.

        `launch`: the last one, from 0, in which the lost nodes took part when they were judged to be lost; None: as
        their reports say now. One that has begun a later launch since had not heard that it counts as lost: no further
        launch is asked for on its account. `alive`: whether it is left alone then; otherwise it is named as lost.
        Return whether they will: an earlier request, by a node or by the waiting side, stays. Raises BackendError.
        """

        def changed(request: StopRequest | None, store: Store, prefix: str) -> StopRequest:
            agreed = request.restarts if request else ()
            judged = _last_launch(store, prefix, failures) if launch is None else launch
            if request is not None and len(agreed) > judged:
                if alive and _last_launch(store, prefix, failures) > judged:
                    return request
                return replace(request, restarts=_explained(agreed, failures))
            members = agreed[-1].members if agreed else ()
            failure = replace(_as_one(failures), members=members, lost=_ranks(failures))
            return _asked_for(agreed, failure)

        return self._change_restarts(ref, changed)

    def go_on_without(self, ref: RunRef, change: Restart) -> bool:
        """Ask the nodes that `change` names to begin another launch without the others.

        Return whether they will: a request to end the run stays. Raises BackendError.
        """

        def changed(request: StopRequest | None, _store: Store, _prefix: str) -> StopRequest:
            agreed = request.restarts if request else ()
            if request is not None and agreed[-1].members == change.members:
                return request
            return _asked_for(agreed, change)

        return self._change_restarts(ref, changed)

    def _change_restarts(
        self, ref: RunRef, changed: Callable[[StopRequest | None, Store, str], StopRequest]
    ) -> bool:
        """Write the stop request that `changed` makes of the one that is there, and of the run directory.

        Returns False where a request to end the run is there: it stays. Raises BackendError.
        """
        ends_run = False
        try:
            store, prefix = self._run_dirs.at(ref.run_dir)

            def content(exists: bool) -> bytes | None:
                nonlocal ends_run
                # Read or an error: what is listed and not found is there all the same.
                request = StopRequest.from_json(store.read(prefix + STOP_FILE)) if exists else None
                ends_run = request is not None and request.ends_run
                wanted = request if ends_run else changed(request, store, prefix)
                return None if wanted is None or wanted == request else wanted.to_json()

            conditional_writes.change(store, prefix + STOP_FILE, content)
        except (StorageError, OSError, ValueError, TypeError) as error:
            raise BackendError(f"{ref.key.name}: {error}", retryable=True) from error
        return not ends_run

    def drill_journal(self, ref: RunRef, rank: int) -> DrillJournal | None:
        """Return what a node has recorded of a drill; None where it has not. Raises BackendError."""
        try:
            store, prefix = self._run_dirs.at(ref.run_dir)
            return DrillJournal.from_json(store.read(prefix + drill_journal_of(rank)))
        except FileNotFoundError:
            return None
        except (StorageError, OSError, ValueError, TypeError) as error:
            raise BackendError(
                f"{ref.key.name}: what node {rank} has recorded cannot be read: {error}"
            ) from error

    def weights_of(self, checkpoint_uri: str) -> str:
        """Return a digest of the numbers in a stored checkpoint; it is read whole. Raises BackendError."""
        try:
            return weights.weights_digest(*self._run_dirs.at(checkpoint_uri))
        except (StorageError, CheckpointError, OSError) as error:
            raise BackendError(f"{checkpoint_uri} cannot be compared: {error}") from error


def _stop_request(store: Store, prefix: str) -> StopRequest | None:
    try:
        return StopRequest.from_json(store.read(prefix + STOP_FILE))
    except FileNotFoundError:
        return None


def _ranks(failures: Sequence[Restart]) -> tuple[int, ...]:
    return tuple(each.rank for each in failures if each.rank is not None)


def _last_launch(store: Store, prefix: str, failures: Sequence[Restart]) -> int:
    """Return the last launch, from 0, in which any of the lost nodes has taken part, by their reports."""
    return max(_launch_of(store, prefix, rank) for rank in _ranks(failures))


def _launch_of(store: Store, prefix: str, rank: int) -> int:
    """Return the last launch, from 0, in which a lost node has taken part."""
    try:
        return len(NodeReport.from_json(store.read(prefix + report_of(rank))).restarts)
    except FileNotFoundError:
        return 0


def _explained(agreed: tuple[Restart, ...], failures: Sequence[Restart]) -> tuple[Restart, ...]:
    """Return the restarts with what only the service knows: who is lost, and of a preemption, which costs nothing."""
    lost = tuple(sorted({*agreed[-1].lost, *_ranks(failures)}))
    last, preempted = (
        replace(agreed[-1], lost=lost),
        [each for each in failures if each.cause is Cause.PREEMPTED],
    )
    if last.cause is Cause.NODE and preempted:
        last = replace(last, cause=Cause.PREEMPTED, message=preempted[0].message)
    return (*agreed[:-1], last)


def _asked_for(agreed: tuple[Restart, ...], restart: Restart) -> StopRequest:
    """Return the request for one more launch than agreed."""
    return StopRequest(cause=restart.cause, message=restart.message, restarts=(*agreed, restart))


def _as_one(failures: Sequence[Restart]) -> Restart:
    """Return one restart for all that are lost at once."""
    return replace(failures[0], message="; ".join(each.message for each in failures))
