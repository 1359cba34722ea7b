"""A gang that has lost a machine is made anew in the same try of its task, as often as the job allows."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.sdk import DAG

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.calls import pages
from airflow_provider_ocidist.errors import Cause, TrainingFailed
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.drill import DRILL_VARIABLE
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.storage.checkpoints import complete
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import BACKEND, PROGRAMS
from tests.walks.test_capacity import NO_CAPACITY, Ti, context, defers


@pytest.fixture(autouse=True)
def _connection(emulator: Access, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    del emulator
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", json.dumps({"conn_type": "oci", "extra": fields}))


@pytest.fixture
def ti(backend: OciDataScience) -> Iterator[Ti]:
    ti = Ti()
    yield ti
    if "run" in ti.xcoms:
        backend.cancel(RunRef.from_json(ti.xcoms["run"]))


def a_task(
    restarts: dict[str, int],
    *,
    topology: str = "job_runs",
    deferrable: bool = False,
    step: int = 2,
    **changes: Any,
) -> DistributedTrainingOperator:
    """`step`: of the second node, at which it is lost; `changes`: of the job."""
    job = {
        "name": "steps",
        "nodes": 2,
        "program": {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "6"]},
        "launcher": {"kind": "python"},
        "env": {DRILL_VARIABLE: f"kill-node@training:node=1,step={step}"},
        "checkpoints": {},
        "restarts": restarts,
        "limits": {"stop_grace": 1},
        "backend": {**BACKEND, "topology": topology},
        **changes,
    }
    with DAG("dag", schedule=None):
        return DistributedTrainingOperator(task_id="train", job=job, deferrable=deferrable, poll_interval=0.2)


SAVES = """
import json, os, pathlib, sys, time
rank, folder = int(os.environ["RANK"]), pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
saved = max(folder.glob("step-*.txt"), default=None)
state = json.loads(saved.read_text()) if saved else {"step": 0, "began_after": []}
state["began_after"].append(state["step"])
for step in range(state["step"] + 1, 7):
    while step == 4 and not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
    state["step"] = step
    print(f"step {step}/6 loss 1.0", flush=True)
    if rank == 0 and step % 3 == 0:
        (folder / ".new").write_text(json.dumps(state))
        (folder / ".new").rename(folder / f"step-{step}.txt")
    if step == 4 and saved is None:
        time.sleep(1000)
"""
"""Saves at steps 3 and 6 where it has begun each time. The first gang waits before step 4 for the file that it is
given, and after it for its end."""


def published_below(place: str, backend: OciDataScience) -> list[CheckpointRef]:
    """Return the complete checkpoints of the one task that saves below a place, in a folder of its own."""
    folders = {entry.name.partition("/")[0] for entry in open_store(place, backend.access).list()}
    return [each for folder in folders for each in complete(f"{place}/{folder}", backend.access)]


@contextmanager
def once_published(place: str, backend: OciDataScience, then: Callable[[], object]) -> Iterator[None]:
    """Do something as soon as a place has a complete checkpoint."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            if published_below(place, backend):
                then()
                return

    looks = threading.Thread(target=look, daemon=True)
    looks.start()
    try:
        yield
    finally:
        over.set()
        looks.join()


def test_the_same_try_trains_on_with_another_gang_from_the_newest_checkpoint(
    ti: Ti, emulator: Access, backend: OciDataScience, tmp_path: Path
) -> None:
    place = f"oci://{emulator.bucket}@{emulator.namespace}/{tmp_path.name}-{ti.run_id}"
    code, go = tmp_path / "code", tmp_path / "go"
    code.mkdir()
    (code / "saves.py").write_text(SAVES)
    program = {"source": str(code), "script": "saves.py", "args": [str(go)]}
    task = a_task({"node": 1}, topology="multi_node", step=4, program=program, checkpoints={"uri": place})
    with once_published(place, backend, go.touch):
        result = task.execute(context(ti))
    assert "failure" not in ti.xcoms
    ref = RunRef.from_json(ti.xcoms["run"])
    assert (ref.key.attempt, ref.key.generation) == (2, 0)
    of_attempts = [each.fence.attempt for each in published_below(place, backend)]
    assert of_attempts == [2, 1], "the first gang had saved one, the second has saved the other"
    last = open_store(result["checkpoint_uri"], backend.access)
    (file,) = [entry.name for entry in last.list() if entry.name.endswith("step-6.txt")]
    assert json.loads(last.read(file)) == {"step": 6, "began_after": [0, 3]}


def test_where_no_machine_takes_the_place_of_a_lost_one_the_gang_is_made_anew(
    ti: Ti, emulator: Access, backend: OciDataScience
) -> None:
    rule = {"display_name": r".*-1\.1", "failure": NO_CAPACITY}
    http.post(f"{emulator.url}/_emulator/nodes", json=rule).raise_for_status()
    try:
        # After the other node has reported a step, which it does every two seconds.
        assert a_task({"node": 1}, step=8).execute(context(ti))["checkpoint_uri"]
    finally:
        http.delete(f"{emulator.url}/_emulator/nodes").raise_for_status()
    ref = RunRef.from_json(ti.xcoms["run"])
    assert ref.key.attempt == 2
    runs = pages(backend._client.list_job_runs, ref.compartment_id)
    made = [run.lifecycle_state for run in runs if run.display_name == f"{ref.key.task_name}-a1-1.1"]
    assert made == ["FAILED"], "it was tried"


FAILS_FIRST = """
import os, time
rank, launch = int(os.environ["RANK"]), int(os.environ["OCIDIST_RESTARTS"])
for step in range(1, 13):
    print(f"step {step}/12 loss 1.0", flush=True)
    if launch == 0 and step == 4:
        if rank == 0:
            raise ValueError("a bad batch")
        time.sleep(1000)
    time.sleep(0.5)
"""
"""Fails at step 4 in the first launch of each gang. It saves nothing: each launch begins at step 1."""


@pytest.mark.parametrize("topology", ["multi_node", "job_runs"])
def test_the_failure_of_a_gang_that_has_lost_a_machine_ends_the_next_one_at_the_same_step(
    ti: Ti, emulator: Access, tmp_path: Path, topology: str
) -> None:
    (tmp_path / "fails.py").write_text(FAILS_FIRST)
    program = {"source": str(tmp_path), "script": "fails.py"}
    # With `job_runs` no machine comes in the place of the lost one.
    rule = {"display_name": r".*-1\.1", "failure": NO_CAPACITY}
    http.post(f"{emulator.url}/_emulator/nodes", json=rule).raise_for_status()
    task = a_task(
        {"program": 5, "node": 1}, topology=topology, step=9, program=program, checkpoints={"required": False}
    )
    try:
        with pytest.raises(AirflowFailException) as failed:
            task.execute(context(ti))
    finally:
        http.delete(f"{emulator.url}/_emulator/nodes").raise_for_status()
    assert RunRef.from_json(ti.xcoms["run"]).key.attempt == 2
    assert "ValueError: a bad batch" in str(failed.value)
    assert "crash loop: USER at step 4 for the second time" in str(failed.value)


@defers
def test_a_deferred_task_makes_it_anew_when_it_resumes(ti: Ti) -> None:
    with pytest.raises(TaskDeferred) as first:
        a_task({"node": 1}, topology="multi_node", deferrable=True).execute(context(ti))
    deferred = first.value
    while RunRef.from_json(ti.xcoms["run"]).key.attempt == 1:
        task = a_task({"node": 1}, topology="multi_node", deferrable=True)
        with pytest.raises(TaskDeferred) as again:
            task.resume(context(ti), deferred.trigger.record, **(deferred.kwargs or {}))
        deferred = again.value
    assert deferred.trigger.record["ref"]["key"]["attempt"] == 2


def test_without_a_budget_for_it_the_try_fails_as_ever(ti: Ti) -> None:
    with pytest.raises(TrainingFailed) as failed:
        a_task({"program": 2}).execute(context(ti))
    assert failed.value.cause is Cause.NODE
    assert "no other gang in this try: restarts.node is 0" in str(failed.value)
    assert RunRef.from_json(ti.xcoms["run"]).key.attempt == 1
