"""WorkDirBackend: what the backends share whose nodes and waiting processes meet in a work directory at any store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.recorded_gangs import RecordedGangs
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.report import StopRequest
from airflow_provider_ocidist.model.run import Ending, RunRef
from airflow_provider_ocidist.oci_client.credentials import access_of
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import Stores
from airflow_provider_ocidist.work_dir.reports import Reports
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories
from airflow_provider_ocidist.work_dir.run_dirs import RunDirs


class WorkDirBackend(Backend):
    """Opens run directories with the credentials of now, and finds gangs by what is recorded there."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._take(fields)
        self._run_dirs, self._urgent_dirs = RunDirs(self._open), RunDirs(self._open)
        self._reports = Reports(self._run_dirs)
        self.directories = RunDirectories(self._run_dirs, self._urgent_dirs)
        self.gangs = RecordedGangs(self._run_dirs, self._gangs_of, self._work_dir)

    @classmethod
    def connect(cls, fields: Mapping[str, Any]) -> Self:
        """`work_dir` may be any place that workers and nodes reach; with `oci://` the fields of OCI apply, too."""
        return cls(fields)

    def reconnect(self, fields: Mapping[str, Any]) -> None:
        self._take(fields)
        self._run_dirs.clear()
        self._urgent_dirs.clear()

    def forget(self, ref: RunRef) -> None:
        self._reports.forget(ref.run_dir)

    def _take(self, fields: Mapping[str, Any]) -> None:
        """Take the credentials of a connection as they are now."""
        self._access = access_of(fields)
        self._stores = Stores(self._access)

    def _open(self, uri: str) -> Store:
        return self._stores.open(uri)

    def _request_stop(self, ref: RunRef, ending: Ending | None) -> bool:
        """Write a stop request for the nodes. Returns False where that failed."""
        request = StopRequest(
            cause=ending.cause if ending else Cause.CANCELED,
            message=ending.message if ending else "the run was cancelled",
        )
        return self.directories.request_stop(ref.key, ref.run_dir, request)

    @abstractmethod
    def _gangs_of(self, attempt: Attempt) -> list[RunRef]:
        """Return the gangs that one attempt has led to. Raises BackendError where they cannot be seen."""

    @abstractmethod
    def _work_dir(self) -> str | None:
        """Return the connection's work directory, for callers without a plan."""
