"""The time of a try, and of its search for machines, when workers whose clocks differ continue it one after another.

Every process of the try has a clock of its own here; the service is a process whose clock is right. OCI refuses clocks
that are more than five minutes off, so the service is Run:ai's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import DAG

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.runai.options import runai_fields
from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.gangs import capacity
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from scripts.emulator_process import EmulatorProcess
from tests.training_jobs import PROGRAMS
from tests.views import need_views
from tests.walks import test_capacity

pytestmark = pytest.mark.since_airflow("3.3", "the operator defers")

APART = 600.0
"""Seconds between the clocks of two workers."""
LIMIT = 1800.0
"""Seconds that the task has."""
NEARLY = 200.0
"""Seconds that a test may take, and by which a limit may be off here: far less than the clocks are apart."""
REAL: Callable[[], float] = time.time


class Ti(test_capacity.Ti):
    """What Airflow keeps of a task instance that began on the first worker."""

    def __init__(self) -> None:
        super().__init__()
        self.start_date = datetime.fromtimestamp(time.time(), UTC)

    def xcom_pull(self, *, task_ids: str, key: str, map_indexes: int) -> Any:
        assert (task_ids, map_indexes) == (self.task_id, self.map_index)
        return self.xcoms.get(key)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Access to a control plane whose cluster has no GPU."""
    need_views()
    options = ("--runai", "--kubernetes-gpus", "0")
    with EmulatorProcess(tmp_path_factory.mktemp("emulator"), options=options) as found:
        assert found.runai is not None
        yield dict(found.runai)


@pytest.fixture
def backend(plane: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Backend]:
    """How another process reaches the service by the connection of the task."""
    extra = {"project": plane["project"], "work_dir": str(tmp_path / "work")}
    login = {"host": plane["url"], "login": plane["client_id"], "password": plane["client_secret"]}
    monkeypatch.setenv("AIRFLOW_CONN_HOME", json.dumps({"conn_type": "runai", **login, "extra": extra}))
    fields = runai_fields(plane["url"], plane["client_id"], plane["client_secret"], extra)
    return lambda: kinds.load("backends", "runai").BACKEND.connect(fields)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that makes this process one on a machine whose clock is so many seconds ahead."""
    return lambda ahead: monkeypatch.setattr(time, "time", lambda: REAL() + ahead)


def a_task() -> DistributedTrainingOperator:
    job = {
        "name": "steps",
        "nodes": 2,
        "image": "python:3.12",
        "program": {"source": str(PROGRAMS), "script": "steps.py"},
        "launcher": {"kind": "python"},
        "limits": {"stop_grace": 1, "start_timeout": 2},
        "backend": {"kind": "runai", "gpus": 1},
    }
    with DAG("dag", schedule=None):
        return DistributedTrainingOperator(
            task_id="train",
            job=job,
            conn_id="home",
            deferrable=True,
            poll_interval=0.2,
            execution_timeout=timedelta(seconds=LIMIT),
        )


def deferral_of(work: Callable[..., Any], *args: Any, **kwargs: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as deferred:
        work(*args, **kwargs)
    return deferred.value


def resumed_until_there_is_no_machine(
    deferral: TaskDeferred, ti: Ti, worker: Callable[[float], None], clocks: tuple[float, float]
) -> TaskDeferred:
    """Resume on one worker after the other, as if the trigger fired at once, until the task asks for machines anew."""
    turn = 0
    while deferral.method_name == "resume":
        time.sleep(0.3)
        turn += 1
        worker(clocks[turn % 2])
        record = deferral.trigger.record
        deferral = deferral_of(a_task().resume, test_capacity.context(ti), record, **(deferral.kwargs or {}))
    return deferral


@pytest.mark.parametrize("ahead", [APART, -APART])
def test_the_time_of_a_try_is_no_longer_and_no_shorter_for_another_workers_clock(
    backend: Callable[[], Backend],
    worker: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
    ahead: float,
) -> None:
    monkeypatch.setattr(capacity, "FIRST_PAUSE", 1.0)
    first = -ahead / 2
    worker(first)
    ti, began = Ti(), REAL()
    deferral = deferral_of(a_task().execute, test_capacity.context(ti))
    assert deferral.trigger.record["deadline"] == pytest.approx(began + LIMIT, abs=NEARLY)
    deferral = resumed_until_there_is_no_machine(deferral, ti, worker, (first, first + ahead))
    assert deferral.method_name == "ask_again"
    kwargs: dict[str, Any] = dict(deferral.kwargs or {})
    assert kwargs["search"]["left"] == pytest.approx(LIMIT, abs=NEARLY)
    worker(first + ahead)
    deferral = deferral_of(a_task().ask_again, test_capacity.context(ti), None, **kwargs)
    assert deferral.method_name == "resume"
    assert RunRef.from_json(ti.xcoms["run"]).key.attempt == 2
    assert deferral.trigger.record["deadline"] == pytest.approx(began + LIMIT, abs=NEARLY)
    backend().delete(RunRef.from_json(ti.xcoms["run"]))


@pytest.mark.parametrize("ahead", [APART, -APART])
def test_it_is_the_same_for_a_worker_that_goes_on_where_the_trigger_broke(
    backend: Callable[[], Backend], worker: Callable[[float], None], ahead: float
) -> None:
    worker(-ahead / 2)
    ti, began = Ti(), REAL()
    deferral_of(a_task().execute, test_capacity.context(ti))
    worker(ahead / 2)
    ref = RunRef.from_json(ti.xcoms["run"])
    going_on = a_task()._training()._begun(test_capacity.context(ti))
    record = going_on._recovered_record(ref)
    assert record.deadline == pytest.approx(began + LIMIT, abs=NEARLY)
    search = going_on._search_of_try()
    assert search is not None
    assert search.give_up_at == pytest.approx(REAL() + ahead / 2 + LIMIT, abs=NEARLY)
    backend().delete(ref)
