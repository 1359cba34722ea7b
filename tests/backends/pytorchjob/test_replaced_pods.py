"""A pod that is lost amid a training is made anew alone, while the agents in the others live on and wait."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from airflow.sdk import DAG

from airflow_provider_ocidist.backends.kubernetes.refs import name_of
from airflow_provider_ocidist.backends.pytorchjob import PyTorchJob
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import (
    EndSilent,
    Fail,
    GiveUpSilent,
    GoOnWithout,
    Replace,
    Succeed,
)
from airflow_provider_ocidist.gangs.replacements import change_nodes
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart
from airflow_provider_ocidist.model.run import RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.model.work_dir import lost_report_of
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.backends.clusters import Home, cluster
from tests.emulator.kubernetes.waiting import until
from tests.training_jobs import a_key, wait_until
from tests.walks.test_capacity import Ti, context

LOG = logging.getLogger("replaced-pods")
SEED = random.randrange(10_000)
STEPS = 14
PROGRAM = f"""
import json, os, pathlib, sys, time
rank, folder = int(os.environ["RANK"]), pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
saved = max(folder.glob("step-*.json"), default=None)
state = json.loads(saved.read_text()) if saved else {{"step": 0, "weights": 1}}
for step in range(state["step"] + 1, {STEPS} + 1):
    time.sleep(float(sys.argv[1]))
    state = {{"step": step, "weights": state["weights"] * 31 % 1_000_003 + step}}
    print(f"step {{step}}/{STEPS} loss 1.0", flush=True)
    if rank == 0 and step % 3 == 0 or step == {STEPS}:
        (folder / ".new").write_text(json.dumps(state))
        (folder / ".new").rename(folder / f"step-{{step:03}}.json")
"""


def trained() -> dict[str, int]:
    """Return what the program has in the end, if nothing disturbs it."""
    weights = 1
    for step in range(1, STEPS + 1):
        weights = weights * 31 % 1_000_003 + step
    return {"step": STEPS, "weights": weights}


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


def a_job(home: Home, folder: Path, **changes: Any) -> TrainingJob:
    return parsing.build(written(home, folder, **changes))


def written(home: Home, folder: Path, pause: float = 1.0, **limits: Any) -> dict[str, Any]:
    """`pause`: in seconds, for each step: a training that ends before the fault shows nothing."""
    source = folder / "program"
    source.mkdir(exist_ok=True)
    (source / "train.py").write_text(PROGRAM)
    return {
        "name": "steps",
        "nodes": 3,
        "image": "python:3.12",
        "program": {"source": str(source), "script": "train.py", "args": [str(pause)]},
        "launcher": {"kind": "python"},
        "env": {"OCI_CONFIG_FILE": home.emulator.access.config_file},
        "checkpoints": {},
        "restarts": {"node": 1},
        "limits": {"stop_grace": 1, "lease": 600, **limits},
        "backend": {"kind": "pytorchjob"},
    }


def submitted(backend: PyTorchJob, job: TrainingJob) -> RunRecord:
    return GangSubmitter(backend, job, LOG, None, threading.Event()).adopt_or_submit(a_key(), None)


def uids(home: Home, ref: RunRef) -> list[str | None]:
    """Return the UIDs of a gang's pods, by rank; None for a pod that is not there."""
    with home.client as client:
        found = kubernetes.client.CoreV1Api(client).list_namespaced_pod(home.namespace).items
        by_name = {pod.metadata.name: pod.metadata.uid for pod in found}
    return [by_name.get(name) for name in ref.run_ids]


def cordon(home: Home, *, held: bool) -> None:
    """Let no machine take another pod, or any again."""
    with home.client as client:
        api = kubernetes.client.CoreV1Api(client)
        for machine in api.list_node().items:
            api.patch_node(machine.metadata.name, {"spec": {"unschedulable": held}})


def has_saved(status: RunStatus) -> bool:
    """Whether all train, and have come beyond a checkpoint."""
    phases = {node.report and node.report.phase for node in status.nodes}
    return status.checkpoint is not None and phases == {Phase.TRAINING}


def followed(
    backend: PyTorchJob, record: RunRecord, seconds: float = 150.0
) -> tuple[Watch, Succeed | Fail, list[Any]]:
    """Wait as a task does; return how that ended, and what was decided about nodes."""
    watch, changes, until = Watch(backend, record, LOG), list[Any](), time.monotonic() + seconds
    while time.monotonic() < until:
        action = watch.look(time.time())
        if isinstance(action, Succeed | Fail):
            return watch, action, changes
        if isinstance(action, Replace | GiveUpSilent | EndSilent | GoOnWithout):
            changes.append(action)
            change_nodes(watch, action, LOG)
        time.sleep(0.1)
    raise AssertionError(f"no end: {watch.status}")


def befall(home: Home, effect: str, pod: str) -> None:
    if effect != "delete":
        return home.control("/pods", effect=effect, name=pod)
    with home.client as client:
        kubernetes.client.CoreV1Api(client).delete_namespaced_pod(pod, home.namespace)
    return None


def check_replaced(backend: PyTorchJob, watch: Watch, before: list[str | None], rank: int) -> None:
    ref = watch.record.ref
    assert [each.rank for each in ref.replaced] == [rank]
    assert ref.lost_runs == (before[rank],)
    assert ref.lost_seconds > 0
    (status,) = backend.status([ref])
    reports = [node.report for node in status.nodes]
    assert all(reports)
    assert [each.incarnation for each in reports if each] == [int(each == rank) for each in range(ref.nodes)]
    for each, report in enumerate(reports):
        assert report
        assert (report.instance == before[each]) == (each != rank), "only the lost pod was made anew"
    store = open_store(ref.run_dir, backend._access)
    lost = NodeReport.from_json(store.read(lost_report_of(rank, 0)))
    assert lost.instance == before[rank]
    place = status.checkpoint
    assert place
    assert weights(backend, place.uri) == trained()
    assert backend.open(ref.job_id).ref.replaced == ref.replaced


def weights(backend: PyTorchJob, uri: str) -> Any:
    store = open_store(uri, backend._access)
    (name,) = [entry.name for entry in store.list() if entry.name.endswith(f"step-{STEPS:03}.json")]
    return json.loads(store.read(name))


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
    befall(home, effect, record.ref.run_ids[rank])
    watch, ended, _ = followed(backend, record)
    assert isinstance(ended, Succeed), ended
    check_replaced(backend, watch, before, rank)
    assert {each.cause for each in watch.record.ref.replaced} <= CAUSES[effect]


def test_a_pod_that_runs_out_of_memory_is_none_that_is_lost(
    home: Home, backend: PyTorchJob, job: TrainingJob
) -> None:
    record = submitted(backend, job)
    wait_until(backend, record.ref, has_saved)
    befall(home, "oom", record.ref.run_ids[2])
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
        befall(home, "lose_node", record.ref.run_ids[rank])
        watch, ended, changes = followed(backend, record)
        assert isinstance(ended, Succeed), ended
        assert {type(each) for each in changes} >= {EndSilent, Replace}
        check_replaced(backend, watch, before, rank)


def alone(home: Home, ref: RunRef) -> list[int]:
    """Return the ranks whose pods have their machines for themselves."""
    with home.client as client:
        found = kubernetes.client.CoreV1Api(client).list_namespaced_pod(home.namespace).items
    machines = {pod.metadata.name: pod.spec.node_name for pod in found}
    return [rank for rank, name in enumerate(ref.run_ids) if [*machines.values()].count(machines[name]) == 1]


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
        befall(home, "evict", ref.run_ids[1])
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
    befall(home, "evict", record.ref.run_ids[1])
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
    befall(home, "evict", record.ref.run_ids[2])

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
