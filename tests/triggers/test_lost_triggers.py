"""A task whose trigger broke, or whose deferral took too long: its run is never left to itself."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from scripts.emulator_process import Access
from tests.airflow_exceptions import TaskDeferralTimeout
from tests.http_client import http
from tests.training_jobs import BACKEND, PROGRAMS, a_job, a_key, wait_until

pytestmark = pytest.mark.airflow


JOB = {
    "name": "steps",
    "nodes": 1,
    "program": {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "0.5"]},
    "launcher": {"kind": "python"},
    "checkpoints": {},
    "backend": BACKEND,
}


class Ti:
    """What Airflow keeps of a task instance."""

    dag_id, task_id, map_index, max_tries = "dag", "train", -1, 0

    def __init__(self, run: Any) -> None:
        self.start_date = datetime.now(UTC) - timedelta(seconds=30)
        self.try_number = 1
        self.run_id = a_key().run_id
        self.xcoms: dict[str, Any] = {"run": run}

    def xcom_pull(self, *, task_ids: str, key: str, map_indexes: int) -> Any:
        assert (task_ids, map_indexes) == ("train", -1)
        return self.xcoms.get(key)

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = json.loads(json.dumps(value))


@pytest.fixture(autouse=True)
def _connection(emulator: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in emulator.airflow_env().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def started(backend: OciDataScience, ends: Callable[[RunRef], RunRef]) -> Callable[[float], RunRef]:
    return lambda seconds: ends(backend.submit(backend.plan(a_job(nodes=1, seconds=seconds), a_key())))


def resumed(run: Any, error: str, *, try_number: int = 1, **arguments: Any) -> tuple[Any, Ti]:
    with DAG("dag", schedule=None):
        task = DistributedTrainingOperator(
            **{"task_id": "train", "job": JOB, "deferrable": True, "poll_interval": 0.5, **arguments}
        )
    ti = Ti(run)
    ti.try_number = try_number
    told = {"error": error, "traceback": ["KeyError: 'x'"]}
    return task.resume_execution("__fail__", told, {"ti": ti, "outlet_events": SimpleNamespace()}), ti


def test_the_worker_goes_on_waiting_where_the_trigger_broke(started: Callable[[float], RunRef]) -> None:
    ref = started(1.0)
    result, ti = resumed(ref.to_json(), "Trigger failure")
    assert result["job_id"] == ref.job_id
    assert ti.xcoms["checkpoint_uri"] == result["checkpoint_uri"]


def test_the_worker_goes_on_waiting_also_where_the_job_is_there_no_more(
    started: Callable[[float], RunRef],
) -> None:
    ref = started(1.0)
    result, _ = resumed(ref.to_json(), "Trigger failure", job="gone.yaml")
    assert result["job_id"] == ref.job_id


def test_a_run_whose_deferral_is_over_is_ended(
    backend: OciDataScience, started: Callable[[float], RunRef], emulator: Access
) -> None:
    ref = started(60.0)
    # A service that answers nothing but cancels.
    rule = {"path": ".*", "method": "GET", "status": 503}
    http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()
    try:
        with pytest.raises(TaskDeferralTimeout):
            resumed(ref.to_json(), "Trigger timeout")
    finally:
        http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    wait_until(backend, ref, lambda status: status.ended)


def test_a_run_whose_deferral_is_over_is_ended_by_whichever_try_owns_it(
    backend: OciDataScience, started: Callable[[float], RunRef]
) -> None:
    ref, owner = started(60.0), random.randint(2, 5)
    print("try", owner)
    assert backend.directories.claim(ref, owner) == owner
    with pytest.raises(TaskDeferralTimeout):
        resumed(ref.to_json(), "Trigger timeout", try_number=owner - 1)
    assert not backend.status([ref])[0].ended
    with pytest.raises(TaskDeferralTimeout):
        resumed(ref.to_json(), "Trigger timeout", try_number=owner)
    wait_until(backend, ref, lambda status: status.ended)


def test_a_task_that_has_created_nothing_asks_for_machines_on_its_worker(
    backend: OciDataScience, ends: Callable[[RunRef], RunRef]
) -> None:
    result, ti = resumed(None, "Trigger failure")
    ref = ends(RunRef.from_json(ti.xcoms["run"]))
    assert result["job_id"] == ref.job_id


def test_a_deferral_that_is_over_where_nothing_was_created_fails_as_airflow_has_it() -> None:
    with pytest.raises(TaskDeferralTimeout):
        resumed(None, "Trigger timeout")


def test_the_time_of_the_task_still_counts_from_its_start(started: Callable[[float], RunRef]) -> None:
    ref = started(60.0)
    task = DistributedTrainingOperator(
        task_id="train", job="job.yaml", execution_timeout=timedelta(seconds=100)
    )
    ti = Ti(ref.to_json())
    record = task._training()._begun({"ti": ti})._recovered_record(ref)
    assert record.deadline == pytest.approx(ti.start_date.timestamp() + 100)
