"""The files in run directories for nodes, for other tries of the task, and for the next waiting process."""

from __future__ import annotations

import json
import logging

from airflow_provider_ocidist.errors import BackendError, CheckpointError, StorageError
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.drill import DrillJournal
from airflow_provider_ocidist.model.log_cursor import LogCursor
from airflow_provider_ocidist.model.report import Renewal, StopRequest
from airflow_provider_ocidist.model.run import Plan, RunKey, RunRef
from airflow_provider_ocidist.model.work_dir import LEASE_FILE, LOG_CURSOR, STOP_FILE, drill_journal_of
from airflow_provider_ocidist.storage import weights
from airflow_provider_ocidist.work_dir import claims
from airflow_provider_ocidist.work_dir.refusals import Refusals
from airflow_provider_ocidist.work_dir.run_dirs import RunDirs

log = logging.getLogger(__name__)


class RunDirectories:
    """Leases, claims, log cursors and stop requests of many gangs. Safe to share between threads."""

    def __init__(self, run_dirs: RunDirs, urgent: RunDirs) -> None:
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

    def claimed_by(self, gang: Plan | RunRef) -> int:
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

    def request_stop(self, key: RunKey, run_dir: str, request: StopRequest) -> bool:
        """Write a stop request for the nodes, also for those just starting. Returns False where that failed."""
        try:
            self._urgent.write(run_dir, STOP_FILE, request.to_json())
        except (StorageError, BackendError, OSError) as error:
            log.warning("%s: could not write a stop request for the nodes: %s", key.name, error)
            return False
        return True

    def stop_requested(self, ref: RunRef) -> bool:
        """Return whether the nodes of a gang find a stop request. Raises BackendError."""
        try:
            store, prefix = self._run_dirs.at(ref.run_dir)
            return store.exists(prefix + STOP_FILE)
        except (StorageError, OSError) as error:
            raise BackendError(f"{ref.key.name}: {error}", retryable=True) from error

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
