"""A pod that is lost amid a training is made anew alone, while the agents in the others live on and wait."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_provider_ocidist.backends.kubernetes.refs import name_of
from airflow_provider_ocidist.backends.pytorchjob import PyTorchJob
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import (
    EndSilent,
    Fail,
    Replace,
    Succeed,
)
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import RunRef, RunStatus
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from tests.backends.clusters import Home, cluster
from tests.backends.replaced_pods import (
    a_job,
    alone,
    befall,
    check_replaced,
    cordon,
    followed,
    has_saved,
    submitted,
    trained,
    uids,
    weights,
    written,
)
from tests.emulator.kubernetes.waiting import until
from tests.training_jobs import wait_until
from tests.walks.test_capacity import Ti, context

SEED = random.randrange(10_000)


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    # Only a person, or what a test does, ends pods here.
    with cluster("pytorchjob", eviction_s=300.0) as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_is_left(home: Home) -> Iterator[None]:
    yield
    cordon(home, held=False)
    home.clear()


@pytest.fixture
def backend(home: Home) -> PyTorchJob:
    return PyTorchJob.connect(home.fields)


@pytest.fixture
def job(home: Home, tmp_path: Path) -> TrainingJob:
    return a_job(home, tmp_path)


CAUSES = {
    "delete": {Cause.NODE},
    "kill": {Cause.NODE},
    "evict": {Cause.PREEMPTED},
    "preempt": {Cause.PREEMPTED},
}


@pytest.mark.parametrize("number, effect", [*enumerate(CAUSES)])
def test_a_pod_that_is_lost_amid_the_training_alone_is_made_anew(
    home: Home, backend: PyTorchJob, job: TrainingJob, number: int, effect: str
) -> None:
    # The Master's at least once, whatever befalls it.
    rank = 0 if number == SEED % len(CAUSES) else random.Random(SEED + number).randrange(3)
    print("seed", SEED, "rank", rank)
    record = submitted(backend, job)
    wait_until(backend, record.ref, has_saved)
    before = uids(home, record.ref)
    befall(home, effect, record.ref, rank)
    watch, ended, _ = followed(backend, record)
    assert isinstance(ended, Succeed), ended
    check_replaced(backend, watch, before, rank)
    assert {each.cause for each in watch.record.ref.replaced} <= CAUSES[effect]


def test_a_pod_that_runs_out_of_memory_is_none_that_is_lost(
    home: Home, backend: PyTorchJob, job: TrainingJob
) -> None:
    record = submitted(backend, job)
    wait_until(backend, record.ref, has_saved)
    befall(home, "oom", record.ref, 2)
    watch, ended, _ = followed(backend, record)
    assert isinstance(ended, Fail)
    assert ended.cause is Cause.OOM
    assert watch.record.ref.replaced == ()


def test_a_machine_that_answers_no_more_is_replaced_though_nobody_confirms_the_end_of_its_pod(
    tmp_path: Path,
) -> None:
    # One of its own: nothing ever ends the pods of such a machine.
    with cluster("pytorchjob", eviction_s=300.0) as home:
        backend = PyTorchJob.connect(home.fields)
        record = submitted(backend, a_job(home, tmp_path, pause=3.0, lost_timeout=8, replace_timeout=60))
        wait_until(backend, record.ref, has_saved)
        before = uids(home, record.ref)
        rank = random.Random(SEED).choice(alone(home, record.ref))
        print("seed", SEED, "rank", rank)
        befall(home, "lose_node", record.ref, rank)
        watch, ended, changes = followed(backend, record)
        assert isinstance(ended, Succeed), ended
        assert {type(each) for each in changes} >= {EndSilent, Replace}
        check_replaced(backend, watch, before, rank)


def test_where_no_machine_takes_the_new_pod_the_same_try_makes_another_gang(
    home: Home, backend: PyTorchJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = json.dumps({"conn_type": "oci", "extra": home.fields})
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", connection)
    ti = Ti()
    with DAG("dag", schedule=None):
        task = DistributedTrainingOperator(
            task_id="train",
            job=written(home, tmp_path, pause=2.0, replace_timeout=5),
            conn_id="kubernetes_default",
            deferrable=False,
            poll_interval=0.2,
        )

    def disturb() -> None:
        until(lambda: "run" in ti.xcoms)
        ref = RunRef.from_json(ti.xcoms["run"])
        wait_until(backend, ref, has_saved)
        cordon(home, held=True)
        befall(home, "evict", ref, 1)
        until(lambda: any(each.key.attempt > 1 for each in backend.recent(9)))
        cordon(home, held=False)

    disturbs = threading.Thread(target=disturb)
    disturbs.start()
    try:
        result = task.execute(context(ti))
    finally:
        disturbs.join()
    ref = RunRef.from_json(ti.xcoms["run"])
    assert ref.key.attempt == 2
    assert weights(backend, result["checkpoint_uri"]) == trained()


def test_a_pod_that_comes_late_is_waited_for(home: Home, backend: PyTorchJob, tmp_path: Path) -> None:
    record = submitted(backend, a_job(home, tmp_path, replace_timeout=100))
    wait_until(backend, record.ref, has_saved)
    before = uids(home, record.ref)
    cordon(home, held=True)
    befall(home, "evict", record.ref, 1)
    later = threading.Timer(8.0, cordon, (home,), {"held": False})
    later.start()
    try:
        watch, ended, _ = followed(backend, record)
    finally:
        later.cancel()
        later.join()
    assert isinstance(ended, Succeed), ended
    check_replaced(backend, watch, before, 1)


def test_the_new_pod_is_no_node_until_the_waiting_process_has_seen_that_the_one_before_is_lost(
    home: Home, backend: PyTorchJob, tmp_path: Path
) -> None:
    # The others train on until then.
    record = submitted(backend, a_job(home, tmp_path, pause=2.0))
    wait_until(backend, record.ref, has_saved)
    before = uids(home, record.ref)
    befall(home, "evict", record.ref, 2)

    def is_made_anew(_status: RunStatus) -> bool:
        return uids(home, record.ref)[2] not in (None, before[2])

    wait_until(backend, record.ref, is_made_anew)

    def says_so(_status: RunStatus) -> bool:
        return any(
            "it waits until the task has recorded" in each.text for each in backend.logs(record.ref, [0] * 3)
        )

    wait_until(backend, record.ref, says_so)
    # Another process looks for the first time: it has never seen the pod that is gone.
    watch, ended, _ = followed(PyTorchJob.connect(home.fields), record)
    assert isinstance(ended, Succeed), ended
    check_replaced(backend, watch, before, 2)


def test_several_processes_that_replace_a_node_record_it_once(
    home: Home, backend: PyTorchJob, job: TrainingJob
) -> None:
    record = submitted(backend, job)
    wait_until(backend, record.ref, has_saved)
    before = uids(home, record.ref)
    failure = Restart(cause=Cause.NODE, message="node 1: gone", rank=1, step=3)
    made = backend.replace_nodes(record.ref, [failure])
    again = PyTorchJob.connect(home.fields).replace_nodes(record.ref, [failure])
    assert made == again
    assert made.lost_runs == (before[1],)
    assert backend.current(record.ref) == made
    assert backend.open(record.ref.job_id).ref.replaced == (failure,)
    backend.cancel(made)
    wait_until(backend, made, lambda found: found.ended)
    assert name_of(made) not in "".join(home.pods())
