"""WorkDirBackend: what the backends share whose nodes and waiting processes meet in a work directory at any store."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import CountsMissing, Finding, now_at
from airflow_provider_ocidist.backends.claims import end_unless_overtaken, overtaken
from airflow_provider_ocidist.backends.fields import beside_in, storage_fields
from airflow_provider_ocidist.backends.interruptions import ended_if_interrupted
from airflow_provider_ocidist.backends.place_probe import writable
from airflow_provider_ocidist.backends.recorded_gangs import RecordedGangs
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.kept_evidence import Missed
from airflow_provider_ocidist.model.run import NodeStatus, Plan, RunKey, RunRef, RunStatus
from airflow_provider_ocidist.oci_client.credentials import access_of, region_in_profile
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import Stores
from airflow_provider_ocidist.work_dir.parallel import in_parallel, until_stopped
from airflow_provider_ocidist.work_dir.reports import Reported, Reports, of_now, signed
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories
from airflow_provider_ocidist.work_dir.stored import StoredCheckpoints

WRITE_RIGHT = "create the bucket or the folder, or give Airflow's credentials the right to write there"

Seen = TypeVar("Seen")
"""Type of what one look at the service returns of several gangs."""


class WorkDirBackend(Backend, CountsMissing, Generic[Seen]):
    """Opens run directories with the credentials of now, and finds gangs by what is recorded there.

    A subclass says how it creates a gang, and what it sees of its nodes; adopting, stopping, recording, the nodes'
    reports and checkpoints are the same everywhere.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._take(fields)
        # Cancels have connections of their own, and wait seconds at most when a store throttles or does not answer.
        self._run_dirs, self._urgent_dirs = (
            RunDirStores(self._open),
            RunDirStores(self._open_urgent, urgent=True),
        )
        self._reports = Reports(self._run_dirs)
        self._stored = StoredCheckpoints()
        self.directories = RunDirectories(self._run_dirs, self._urgent_dirs)
        self.gangs = RecordedGangs(self._run_dirs, self._gangs_of, self._work_dir, self._urgent_dirs)

    @classmethod
    def connect(cls, fields: Mapping[str, Any]) -> Self:
        """`work_dir` may be any place that workers and nodes reach; with `oci://` the fields of OCI apply, too."""
        return cls(fields)

    def reconnect(self, fields: Mapping[str, Any]) -> None:
        self._take(fields)
        self._run_dirs.clear()
        self._urgent_dirs.clear()

    # submit

    def submit(
        self, plan: Plan, stop: threading.Event | None = None, found: Sequence[RunRef] | None = None
    ) -> RunRef:
        ref = self._adopted(plan, found or ())
        if ref is not None:
            until_stopped(lambda: self.gangs.record(Attempt.of(plan, ref)), stop)
            return ref
        refuse_if_stopped(plan, stop)
        ref = self._created(plan, stop)
        # Before it is cancelled: a cancel that fails is repeated by what is recorded. But no cancel waits for a store.
        with ended_if_interrupted(plan, self.directories, lambda: self.cancel(ref)):
            until_stopped(lambda: self.gangs.record_created(plan, ref), stop)
        if stop is not None and stop.is_set():
            end_unless_overtaken(overtaken(plan, self.directories), lambda: self.cancel(ref))
            refuse_if_stopped(plan, stop)
        return ref

    @abstractmethod
    def _adopted(self, plan: Plan, found: Sequence[RunRef]) -> RunRef | None:
        """Return the plan's gang where it exists already. Raises BackendError where its name is another's.

        `found`: what the caller has seen of the plan's task.
        """

    @abstractmethod
    def _created(self, plan: Plan, stop: threading.Event | None) -> RunRef:
        """Create the gang. Raises BackendError when it cannot be, with nothing of it alive."""

    # look

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        seen = self._look(refs)
        reported = self._reports.read({ref.run_dir: self._reads_all(ref, seen) for ref in refs})
        at = now_at(self)

        def found(ref: RunRef) -> RunStatus:
            latest = self._believed(ref, seen, reported.get(ref.run_dir))
            latest = latest and of_now(latest, ref)
            nodes = (signed(node, (latest or {}).get(node.rank)) for node in self._nodes(ref, seen, latest))
            status = RunStatus(
                nodes=tuple(nodes),
                reports_readable=latest is not None,
                at=at,
                lost_seconds=ref.lost_seconds,
            )
            return self._stored.with_checkpoint(status, ref, self._access)

        return in_parallel(found, refs)

    @abstractmethod
    def _look(self, refs: Sequence[RunRef]) -> Seen:
        """Return what the service has of these gangs, in as few calls as it allows."""

    @abstractmethod
    def _nodes(
        self, ref: RunRef, seen: Seen, reported: Mapping[int, Reported] | None
    ) -> Sequence[NodeStatus]:
        """Return the nodes of a gang by what was seen; `reported`: None where its run directory cannot be read."""

    def _believed(
        self, ref: RunRef, seen: Seen, reported: Mapping[int, Reported] | None
    ) -> Mapping[int, Reported] | None:
        """Return the reports that fit what was seen: they were read later, and may be newer."""
        del ref, seen
        return reported

    @abstractmethod
    def _reads_all(self, ref: RunRef, seen: Seen) -> bool:
        """Whether every report that has changed must be read in this look, however long that takes.

        Only of gangs that have ended, or are about to: of a thousand others each report is read in turn.
        """

    def forget(self, ref: RunRef) -> None:
        self._reports.forget(ref.run_dir)
        self._stored.forget(ref)
        self._run_dirs.forget(ref.run_dir)
        self._urgent_dirs.forget(ref.run_dir)

    def missed(self, ref: RunRef) -> Mapping[str, Missed]:
        return self._stored.missed(ref)

    def recall_missed(self, missed: Mapping[str, Missed]) -> None:
        self._stored.recall(missed)

    def _take(self, fields: Mapping[str, Any]) -> None:
        """Take the credentials of a connection as they are now."""
        beside = beside_in(fields)
        self.conn_id = None if beside is None else beside.conn_id
        self._access = access_of(storage_fields(fields))
        self._stores, self._urgent_stores = Stores(self._access), Stores(replace(self._access, urgent=True))

    def _open(self, uri: str) -> Store:
        return self._stores.open(uri)

    def _open_urgent(self, uri: str) -> Store:
        return self._urgent_stores.open(uri)

    @property
    def _oci_region(self) -> str | None:
        """The region of the nodes' buckets, where the gang is created beside its task's connection; None: their own."""
        if self.conn_id is None:
            return None
        return self._access.region or region_in_profile(self._access)

    def _preflight_plan(self, job: TrainingJob) -> Plan:
        """Return the plan of a gang that is never created. Raises JobFileError as `plan` does."""
        return self.plan(job, RunKey(dag_id=job.name, run_id="preflight", task_id="task"))

    def _work_dir_finding(self, plan: Plan) -> Finding:
        """Return whether the work directory of a plan can be used from here."""
        return writable("work_dir", plan.run_dir.rpartition("/")[0], self._open, WRITE_RIGHT)

    @abstractmethod
    def _gangs_of(self, attempt: Attempt) -> list[RunRef]:
        """Return the gangs that one attempt has led to. Raises BackendError where they cannot be seen."""

    @abstractmethod
    def _work_dir(self) -> str | None:
        """Return the connection's work directory, for callers without a plan."""


def refuse_if_stopped(plan: Plan, stop: threading.Event | None) -> None:
    """Raise BackendError for a submission that is to be stopped."""
    if stop is not None and stop.is_set():
        raise BackendError(f"{plan.key.name}: stopped while it was being created", cause=Cause.CANCELED)
