"""A task that finds no machine asks again, in the same try and for as long as its job says."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.sdk import DAG

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.decorators import distributed_training_task
from airflow_provider_ocidist.errors import Cause, TrainingFailed
from airflow_provider_ocidist.gangs import capacity
from airflow_provider_ocidist.gangs.capacity import CapacitySearch, pause_between_requests
from airflow_provider_ocidist.gangs.search import gangs_of, recorded_of
from airflow_provider_ocidist.gangs.verdict import has_trained
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.hooks import task_context
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunKey, RunRef, RunStatus
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.operators.outcomes import TryOutcome
from airflow_provider_ocidist.transfers import StageDataOperator
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import BACKEND, PROGRAMS, a_key

NO_CAPACITY = "Out of host capacity."
defers = pytest.mark.since_airflow("3.3", "the operator defers")


class Ti:
    """What Airflow keeps of a task instance."""

    dag_id, task_id, map_index, max_tries, try_number = "dag", "train", -1, 0, 1

    def __init__(self) -> None:
        self.run_id = a_key().run_id
        self.start_date = datetime.now(UTC)
        self.xcoms: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = json.loads(json.dumps(value))


@pytest.fixture(autouse=True)
def _connection(emulator: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in emulator.airflow_env().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def nodes(emulator: Access) -> Iterator[Callable[..., None]]:
    """Let nodes fail to start; all is well again afterwards."""

    def rule(**values: Any) -> None:
        http.post(f"{emulator.url}/_emulator/nodes", json=values).raise_for_status()

    yield rule
    http.delete(f"{emulator.url}/_emulator/nodes").raise_for_status()


@pytest.fixture
def ti(backend: OciDataScience) -> Iterator[Ti]:
    ti = Ti()
    yield ti
    if "run" in ti.xcoms:
        backend.cancel(RunRef.from_json(ti.xcoms["run"]))


def a_task(
    *, patience: float | None = None, resumes: bool = False, **arguments: Any
) -> DistributedTrainingOperator:
    limits = {} if patience is None else {"capacity_timeout": patience}
    job = {
        "name": "steps",
        "nodes": 2,
        "program": {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "0.2"]},
        "launcher": {"kind": "python"},
        "checkpoints": {"resume_after_clear": resumes},
        "limits": {"stop_grace": 1, **limits},
        "backend": BACKEND,
    }
    with DAG("dag", schedule=None):
        return DistributedTrainingOperator(
            task_id="train", job=job, **{"deferrable": False, "poll_interval": 0.3, **arguments}
        )


def context(ti: Ti) -> Any:
    return {"ti": ti, "outlet_events": {}}


def test_pauses_grow_from_a_minute_to_half_an_hour() -> None:
    assert [pause_between_requests(failures) for failures in (1, 2, 3, 6, 99)] == [60, 120, 240, 1800, 1800]


def test_the_last_question_is_asked_when_the_time_is_over_and_not_much_earlier() -> None:
    search, asked = CapacitySearch(give_up_at=3600.0), [0.0]
    while (at := (search := search.failed()).next_at(asked[-1])) is not None:
        asked.append(at)
    assert [at / 60 for at in asked] == [0, 1, 3, 7, 15, 31, 60]


def test_the_same_try_trains_once_there_are_machines(
    ti: Ti, nodes: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "FIRST_PAUSE", 0.1)
    nodes(display_name=".*-1", failure=NO_CAPACITY, times=2)
    result = a_task().execute(context(ti))
    assert result["checkpoint_uri"]
    assert "failure" not in ti.xcoms
    # Two gangs went without a node and were ended; the third is whole.
    assert RunRef.from_json(ti.xcoms["run"]).key.attempt == 3


def test_a_node_that_ended_while_it_waited_for_the_others_has_not_trained() -> None:
    key = RunKey(dag_id="d", run_id="r", task_id="t", generation=1, attempt=2)

    def trained(**reported: Any) -> bool:
        report = NodeReport(
            rank=0, address="", phase=Phase.DONE, started_at=1.0, heartbeat_at=2.0, **reported
        )
        node = NodeStatus(rank=0, run_id="a", state=NodeState.CANCELED, report=report)
        return has_trained(key, RunStatus(nodes=(node,)))

    def checkpoint(attempt: int) -> CheckpointRef:
        fence = Fence(generation=1, attempt=attempt)
        return CheckpointRef(uri="oci://b@n/step-1", step=1, fence=fence, digest="abc")

    assert not trained()
    assert not trained(progress=Progress(updated_at=1.0))
    assert trained(progress=Progress(step=1))
    assert trained(checkpoint=checkpoint(2))
    # Restored, before it waited.
    assert not trained(checkpoint=checkpoint(1), starts_from="abc", moved=2)


def test_a_try_that_goes_on_from_a_checkpoint_asks_again_for_machines_too(
    ti: Ti, nodes: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert a_task().execute(context(ti))["checkpoint_uri"]
    # Cleared: the next gang goes on from there.
    ti.max_tries, ti.try_number = 1, 2
    monkeypatch.setattr(capacity, "FIRST_PAUSE", 0.1)
    restored: list[bool] = []
    fail = TryOutcome.fail

    def seen(outcome: TryOutcome, watch: Watch, cause: Cause, message: str) -> None:
        assert watch.status is not None
        restored.append(watch.status.checkpoint is not None)
        fail(outcome, watch, cause, message)

    monkeypatch.setattr(TryOutcome, "fail", seen)
    nodes(display_name=".*-1", failure=NO_CAPACITY, delay_s=16.0, times=1)
    assert a_task(resumes=True).execute(context(ti))["checkpoint_uri"]
    assert restored == [True], "a node had restored it before there was no machine for the other"
    assert RunRef.from_json(ti.xcoms["run"]).key.attempt == 2


def test_a_task_that_gives_up_says_why(ti: Ti, nodes: Callable[..., None]) -> None:
    nodes(display_name=".*-1", failure=NO_CAPACITY)
    with pytest.raises(TrainingFailed) as failed:
        a_task(patience=30).execute(context(ti))
    assert failed.value.cause is Cause.CAPACITY
    assert ti.xcoms["failure"]["cause"] == "CAPACITY"


def test_the_time_of_the_task_is_no_longer_for_a_search(ti: Ti, nodes: Callable[..., None]) -> None:
    nodes(display_name=".*-1", failure=NO_CAPACITY)
    with pytest.raises(TrainingFailed):
        a_task(execution_timeout=timedelta(seconds=50)).execute(context(ti))


@defers
def test_a_deferrable_task_waits_without_a_worker_and_remembers_since_when(
    ti: Ti, nodes: Callable[..., None]
) -> None:
    nodes(display_name=".*-1", failure=NO_CAPACITY, times=1)
    with pytest.raises(TaskDeferred) as first:
        run_deferred(a_task, ti)
    assert first.value.method_name == "ask_again"
    assert first.value.kwargs["search"]["failures"] == 1
    assert first.value.trigger.until == pytest.approx(time.time() + 60, abs=15)
    later = a_task(deferrable=True)
    with pytest.raises(TaskDeferred) as second:
        later.ask_again(context(ti), None, **first.value.kwargs)
    assert second.value.method_name == "resume"
    search = second.value.kwargs["search"]
    assert search["failures"] == 1
    # However long the pause took by another clock.
    assert search["give_up_at"] == pytest.approx(time.time() + first.value.kwargs["search"]["left"], abs=15)


def run_deferred(make: Callable[..., Any], ti: Ti) -> None:
    """Execute until there is nothing to do but wait for machines, as if the trigger fired at once."""
    try:
        make(deferrable=True, poll_interval=0.3).execute(context(ti))
    except TaskDeferred as deferred:
        while deferred.method_name == "resume":
            time.sleep(0.3)
            task = make(deferrable=True, poll_interval=0.3)
            try:
                task.resume(context(ti), deferred.trigger.record, **(deferred.kwargs or {}))
            except TaskDeferred as again:
                deferred = again
        raise deferred from None


def a_function(**arguments: Any) -> Any:
    with DAG("dag", schedule=None):

        @distributed_training_task(
            job={"name": "function", "launcher": {"kind": "python"}, "backend": BACKEND}, **arguments
        )
        def train(epochs: int) -> None:
            print("trained for", epochs)

        return train(3).operator


def a_copy(**arguments: Any) -> Any:
    place = json.loads(os.environ["AIRFLOW_CONN_OCI_DEFAULT"])["extra"]["work_dir"]
    with DAG("dag", schedule=None):
        return StageDataOperator(
            task_id="train",
            data=[{"source": f"{place}/from/", "target": f"{place}/to/"}],
            run_on="platform",
            **arguments,
        )


@defers
@pytest.mark.parametrize("make", [a_function, a_copy], ids=["a function", "a copy on the platform"])
def test_what_a_task_sends_to_the_nodes_is_there_when_it_asks_again(
    make: Callable[..., Any], ti: Ti, nodes: Callable[..., None]
) -> None:
    nodes(failure=NO_CAPACITY, times=1)
    with pytest.raises(TaskDeferred) as first:
        run_deferred(make, ti)
    assert first.value.method_name == "ask_again"
    with pytest.raises(TaskDeferred) as second:
        make(deferrable=True, poll_interval=0.3).ask_again(context(ti), None, **first.value.kwargs)
    assert second.value.method_name == "resume"
    assert RunRef.from_json(ti.xcoms["run"]).key.attempt == 2


def failures_of(task: DistributedTrainingOperator) -> int:
    """Return how often a task that runs has found no machines."""
    now = task._training()._try
    return now.outcome.search.failures if now is not None and now.outcome.search is not None else 0


def test_a_task_that_is_killed_while_it_waits_starts_nothing(
    ti: Ti, backend: OciDataScience, nodes: Callable[..., None]
) -> None:
    nodes(display_name=".*-1", failure=NO_CAPACITY)
    task = a_task()
    ended: list[BaseException] = []

    def execute() -> None:
        try:
            task.execute(context(ti))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=execute)
    thread.start()
    deadline = time.monotonic() + 60
    while not failures_of(task):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    task.on_kill()
    thread.join(20)
    assert isinstance(ended[0], AirflowFailException)
    place = task._training()._connection.backend("oci_data_science")
    keys = [task_context.key_of(context(ti))]
    assert [ref.key.attempt for ref in gangs_of(place, keys, recorded_of(place, keys))] == [1]


@pytest.mark.parametrize("seed", range(10))
def test_a_search_goes_on_for_as_long_whatever_the_clocks_of_those_who_take_it_over(seed: int) -> None:
    dice = random.Random(seed)
    limit, true, skew = dice.uniform(600, 7200), 1e6, dice.uniform(-280, 280)
    search, paused = CapacitySearch(true + skew + limit), 0.0
    while (ask_at := (search := search.failed()).next_at(true + skew)) is not None:
        pause = ask_at - (true + skew)
        kept = search.after(pause, true + skew)
        true, paused, skew = true + pause, paused + pause, dice.uniform(-280, 280)
        search = CapacitySearch.kept(kept, true + skew)
    assert limit - 60 < paused <= limit + 1
    before = CapacitySearch.kept({"give_up_at": 5.0, "failures": 2}, 1.0)
    assert before == CapacitySearch(5.0, 2), "of a version before"
