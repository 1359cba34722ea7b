"""A submission that is interrupted: what ended it is what arrives, whatever goes wrong in cleaning up after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science.cancels import Cancels
from airflow_provider_ocidist.backends.oci_data_science.gangs import Gangs
from airflow_provider_ocidist.errors import BackendError, LeftRuns, StorageError
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories
from tests.service_in_memory import LIVE, Model
from tests.training_jobs import a_job, a_key


class TimedOut(BaseException):
    """As Airflow's, which is no Exception."""


class Interrupted:
    """The steps of a submission, of which the creation of runs ends so."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def runs(self, _job_id: str, _existing: Mapping[int, str]) -> Mapping[int, Any]:
        raise self.error

    def abandoned(self) -> dict[int, str]:
        return {1: "job-run-1"}


PROBLEMS = [
    BackendError("the key is gone"),
    BackendError("no answer", retryable=True),
    StorageError("no bucket"),
    KeyError("ocidist-run"),
    OSError("too many open files"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("where", ["client", "store"])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), TimedOut(), SystemExit(1), BackendError("first")], ids=repr
)
def test_what_has_ended_a_submission_is_raised_whatever_fails_in_cleaning_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    where: str,
    problem: Exception,
) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.backends.oci_data_science.gangs.WITHIN", 0.05)
    model = Model()
    model.run_dir = str(tmp_path)
    plan = model.plan(a_job(nodes=2), a_key())
    begun = model.has(plan.key, [LIVE], missing=1, topology="job_runs")

    def fails() -> Any:
        raise problem

    def opened(place: str) -> Store:
        return fails() if where == "store" else open_store(place)

    gangs = Gangs(
        fails,
        RunDirStores(opened),
        lambda *_: Interrupted(error),
        lambda _: gangs,
        lambda: str(tmp_path),
        Cancels(fails, RunDirectories(RunDirStores(opened), RunDirStores(opened))),
    )
    with pytest.raises(BaseException) as caught:
        gangs.submit(replace(plan, backend="oci_data_science"), None, [begun])
    if isinstance(error, BackendError):
        assert isinstance(caught.value, LeftRuns), "its nodes may live"
        assert caught.value.__cause__ is error
        assert all(run_id in str(caught.value) for run_id in ("job-run-1", begun.run_ids[0]))
    else:
        assert caught.value is error
