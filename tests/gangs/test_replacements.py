"""A machine that is lost is replaced by another, in the same try, while the others keep their agents and wait."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import DAG

from airflow_provider_ocidist.backends.local import Local, node
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.calls import pages
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs import last_lines
from airflow_provider_ocidist.gangs.actions import (
    EndSilent,
    Fail,
    GiveUpSilent,
    NodeChange,
    Replace,
    Succeed,
    Wait,
)
from airflow_provider_ocidist.gangs.replacements import change_nodes, replace_lost
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.codec import encode
from airflow_provider_ocidist.model.drill import DRILL_VARIABLE
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRecord, RunRef
from airflow_provider_ocidist.model.work_dir import LOCAL, lost_report_of
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access
from tests.agent.gangs import processes_with
from tests.killed_submitters import killed_submitter
from tests.training_jobs import BACKEND, PROGRAMS, a_job, a_key, wait_until
from tests.walks.test_capacity import Ti, context, defers

ROOT = Path(__file__).parents[2]
LOG = logging.getLogger("replacements")
SEED = random.randrange(10_000)
REQUESTS = 14
"""More than it takes to replace a node."""
LOST = Restart(cause=Cause.NODE, message="node 1: gone", rank=1, step=3)


def loses(rank: int) -> dict[str, str]:
    return {DRILL_VARIABLE: f"kill-node@training:node={rank},step=8"}


@pytest.fixture(autouse=True)
def _connection(emulator: Access, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    del emulator
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", json.dumps({"conn_type": "oci", "extra": fields}))
    monkeypatch.setattr(last_lines, "LAST_LINES_AFTER", 0.1)


@pytest.fixture
def ti(backend: OciDataScience) -> Iterator[Ti]:
    ti = Ti()
    yield ti
    if "run" in ti.xcoms:
        backend.cancel(RunRef.from_json(ti.xcoms["run"]))


def a_task(rank: int = 1, *, deferrable: bool = False) -> DistributedTrainingOperator:
    job = {
        "name": "steps",
        "nodes": 2,
        "program": {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "6"]},
        "launcher": {"kind": "python"},
        "env": loses(rank),
        "checkpoints": {},
        "restarts": {"node": 1},
        "limits": {"stop_grace": 1},
        "backend": {**BACKEND, "topology": "job_runs"},
    }
    with DAG("dag", schedule=None):
        return DistributedTrainingOperator(task_id="train", job=job, deferrable=deferrable, poll_interval=0.2)


def runs_of(backend: OciDataScience, ref: RunRef) -> list[tuple[int, int, str]]:
    """Return rank, incarnation and id of every run of a gang."""
    runs = pages(backend._client.list_job_runs, ref.compartment_id, job_id=ref.job_id)
    return sorted(
        (
            int(run.freeform_tags["ocidist-rank"]),
            int(run.freeform_tags.get("ocidist-incarnation", 0)),
            str(run.id),
        )
        for run in runs
    )


def check_replaced(backend: OciDataScience, ti: Ti, result: dict[str, Any], rank: int) -> None:
    ref = RunRef.from_json(ti.xcoms["run"])
    assert "failure" not in ti.xcoms
    assert (ref.key.attempt, [each.rank for each in ref.replaced]) == (1, [rank])
    runs = runs_of(backend, ref)
    other = 1 - rank
    assert [each[:2] for each in runs] == sorted([(other, 0), (rank, 0), (rank, 1)])
    lost, taken = (backend._client.get_job_run(run_id).data for number, _, run_id in runs if number == rank)
    assert lost.time_finished <= taken.time_accepted, "never two live runs of one rank"
    current = {each[0]: each[2] for each in runs}
    assert tuple(result["run_ids"]) == ref.run_ids == (current[0], current[1])
    (status,) = backend.status([ref])
    kept, new = status.nodes[other].report, status.nodes[rank].report
    assert kept
    assert new
    assert (kept.incarnation, new.incarnation) == (0, 1)
    assert kept.restarts == new.restarts
    assert len(kept.restarts) == 1
    before = NodeReport.from_json(open_store(ref.run_dir, backend.access).read(lost_report_of(rank, 0)))
    assert before.phase is Phase.TRAINING
    assert new.predecessors == pytest.approx(before.heartbeat_at - before.started_at)
    own = sum(each["finished_at"] - each["started_at"] for each in result["nodes"])
    assert result["node_hours"] * 3600 == pytest.approx(own + ref.lost_seconds, abs=1.0)
    assert ref.lost_seconds > 0


@pytest.mark.parametrize("rank", [0, 1])
def test_the_same_try_trains_on_with_another_machine_in_the_place_of_the_lost_one(
    backend: OciDataScience, ti: Ti, rank: int
) -> None:
    result = a_task(rank).execute(context(ti))
    check_replaced(backend, ti, result, rank)


@defers
def test_a_deferred_task_replaces_it_when_it_resumes_and_defers_again(
    backend: OciDataScience, ti: Ti
) -> None:
    with pytest.raises(TaskDeferred) as first:
        a_task(deferrable=True).execute(context(ti))
    deferred, deferrals = first.value, 0
    while True:
        task = a_task(deferrable=True)
        try:
            result = task.resume(context(ti), deferred.trigger.record, **(deferred.kwargs or {}))
        except TaskDeferred as again:
            deferred = again
            deferrals += bool(deferred.trigger.record["ref"].get("replaced"))
        else:
            break
    assert deferrals, "it was deferred again after the replacement"
    check_replaced(backend, ti, result, 1)


# On this machine


def local_job(rank: int = 1, **changes: Any) -> Any:
    return a_job(
        seconds=6,
        backend={"kind": "local"},
        env=loses(rank),
        restarts={"node": 1},
        limits={"stop_grace": 1, "lease": 600},
        **changes,
    )


def followed(backend: Any, record: RunRecord) -> tuple[Watch, Any]:
    watch = Watch(backend, record, LOG)
    while True:
        match watch.look(time.time()):
            case Replace(failures):
                replace_lost(watch, failures, LOG)
            case Succeed() | Fail() as ended:
                return watch, ended
        time.sleep(0.1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_process_of_this_machine_is_replaced_and_the_other_lives_on(tmp_path: Path, rank: int) -> None:
    backend = Local.connect({"work_dir": str(tmp_path / "work")})
    gang = GangSubmitter(backend, local_job(rank), LOG, None, threading.Event())
    record = gang.adopt_or_submit(a_key(), None)
    folders = Path(record.ref.run_dir, LOCAL)
    pids = [json.loads((folders / str(each) / node.STARTED).read_text())["pid"] for each in range(2)]
    try:
        watch, ended = followed(backend, record)
    finally:
        backend.cancel(record.ref)
    assert isinstance(ended, Succeed)
    ref = watch.record.ref
    assert [each.rank for each in ref.replaced] == [rank]
    assert sorted(path.name for path in folders.iterdir() if path.is_dir()) == sorted(["0", "1", f"{rank}.1"])
    other = str(1 - rank)
    assert json.loads((folders / other / node.STARTED).read_text())["pid"] == pids[1 - rank]
    assert backend.current(record.ref).run_ids == ref.run_ids
    # A killed task, which knows only the gang as it was, ends the new node too.
    (status,) = backend.status([ref])
    assert status.ended
    lines = backend.logs(ref, [0.0, 0.0])
    assert {line.rank for line in lines if "step 1/" in line.text} == {0, 1}


# Killed amid a replacement


@pytest.fixture(scope="module")
def killed() -> Iterator[Callable[[dict[str, Any]], int]]:
    """Replaces a node in a process that is killed; returns how that ended."""
    with killed_submitter() as send:
        yield send


def submitted(backend: OciDataScience, key: RunKey, number: int = 1) -> RunRecord:
    job = a_job(seconds=60, restarts={"node": 1}, limits={"stop_grace": 1, "lease": 600})
    return GangSubmitter(backend, job, LOG, None, threading.Event()).adopt_or_submit(key, None, number)


@pytest.mark.parametrize("request_number", range(REQUESTS))
def test_whatever_a_killed_worker_has_done_of_a_replacement_there_is_one_in_the_end(
    backend: OciDataScience,
    fields: dict[str, Any],
    killed: Callable[[dict[str, Any]], int],
    ends: Callable[[RunRef], RunRef],
    no_node_starts: None,
    request_number: int,
) -> None:
    seed = SEED + request_number
    print("seed", seed)
    dice, key = random.Random(seed), a_key()
    record = submitted(backend, key)
    ends(record.ref)
    case = {
        "fields": fields,
        "record": record.to_json(),
        "failure": encode(LOST),
        "request": request_number,
        "after": dice.random() < 0.5,
    }
    assert killed(case) in (-9, 0)
    # The next process has the gang as it was, or finds it by what is recorded and listed.
    if dice.random() < 0.5:
        record = submitted(backend, key, 2)
    watch = Watch(backend, record, LOG)
    if not record.ref.replaced:
        assert replace_lost(watch, [LOST], LOG)
    ref = watch.record.ref
    runs = runs_of(backend, ref)
    assert [each[:2] for each in runs] == [(0, 0), (1, 0), (1, 1)]
    assert ref.run_ids == (runs[0][2], runs[2][2])
    # The next try finds the gang as it is.
    assert submitted(backend, key, 3).ref.run_ids == ref.run_ids


def test_a_kill_ends_also_the_node_that_was_just_made(
    backend: OciDataScience, ends: Callable[[RunRef], RunRef], no_node_starts: None
) -> None:
    record = submitted(backend, a_key())
    ends(record.ref)
    made = backend.replace_nodes(record.ref, [LOST])
    backend.cancel(record.ref)
    # The service ends runs after it has answered.
    wait_until(backend, made, lambda status: status.ended)
    (status,) = backend.status([made])
    assert all(each.state is NodeState.CANCELED for each in status.nodes)


def test_a_machine_that_was_asked_for_again_is_found_as_such_by_who_has_no_record_of_it(
    backend: OciDataScience, ends: Callable[[RunRef], RunRef], no_node_starts: None
) -> None:
    record = submitted(backend, a_key())
    ends(record.ref)
    growth = Restart(cause=Cause.CAPACITY, message="node 1 is asked for again", rank=1)
    made = backend.replace_nodes(record.ref, [LOST])
    made = backend.replace_nodes(made, [growth])
    assert [each.cause for each in backend.current(record.ref).replaced] == [Cause.NODE, Cause.CAPACITY]
    lost_again = backend.replace_nodes(made, [LOST])
    found = backend.open(record.ref.job_id).ref.replaced
    assert [each.cause for each in found] == [Cause.NODE, Cause.CAPACITY, Cause.NODE]
    backend.cancel(lost_again)


# A late node that is silent


def test_one_job_run_is_ended_and_the_others_live_on(backend: OciDataScience, no_node_starts: None) -> None:
    ref = submitted(backend, a_key()).ref
    backend.end_nodes(ref, [1])
    status = wait_until(backend, ref, lambda status: status.nodes[1].state.terminal)
    assert status.nodes[1].state is NodeState.CANCELED
    assert not status.nodes[0].state.terminal
    backend.cancel(ref)


def test_a_silent_process_of_this_machine_is_ended(tmp_path: Path) -> None:
    backend = Local.connect({"work_dir": str(tmp_path / "work")})
    job = a_job(seconds=60, backend={"kind": "local"}, limits={"stop_grace": 1, "lease": 600})
    ref = GangSubmitter(backend, job, LOG, None, threading.Event()).adopt_or_submit(a_key(), None).ref
    try:
        wait_until(backend, ref, lambda status: all(node.report for node in status.nodes))
        watch = Watch(backend, RunRecord(ref=ref), LOG)
        silent = Restart(cause=Cause.CAPACITY, message="node 1 came late, and is silent", rank=1)
        assert not change_nodes(watch, EndSilent((silent,)), LOG)
        status = wait_until(backend, ref, lambda status: status.nodes[1].state.terminal)
        assert status.nodes[1].state is NodeState.CANCELED
    finally:
        backend.cancel(ref)


# A member that is silent


def test_a_node_that_freezes_is_ended_and_replaced_and_the_other_lives_on(tmp_path: Path) -> None:
    backend, mark = Local.connect({"work_dir": str(tmp_path / "work")}), tmp_path / "mark"
    arguments = ["--seconds", "60", "--mark", str(mark)]
    job = a_job(
        program={"source": str(PROGRAMS), "script": "steps.py", "args": arguments},
        backend={"kind": "local"},
        env={DRILL_VARIABLE: "freeze-node@training:node=1,step=3", "HOSTNAME": "here"},
        restarts={"node": 1},
        limits={"stop_grace": 1, "lease": 600, "lost_timeout": 10},
    )
    record = GangSubmitter(backend, job, LOG, None, threading.Event()).adopt_or_submit(a_key(), None)
    folders = Path(record.ref.run_dir, LOCAL)
    kept = json.loads((folders / "0" / node.STARTED).read_text())["pid"]
    watch, done = Watch(backend, record, LOG), list[NodeChange]()
    try:
        while not isinstance(action := watch.look(time.time()), Succeed | Fail):
            assert isinstance(action, Wait | NodeChange), action
            if isinstance(action, NodeChange):
                change_nodes(watch, action, LOG)
                done.append(action)
            if watch.record.ref.replaced:
                # The program of the launch that follows may end.
                mark.with_name("mark.end").touch()
            time.sleep(0.1)
    finally:
        for ref in (record.ref, watch.record.ref):
            backend.end_nodes(ref, [0, 1])
    assert isinstance(action, Succeed), action
    assert list(dict.fromkeys(type(each) for each in done)) == [GiveUpSilent, EndSilent, Replace]
    (lost,) = watch.record.ref.replaced
    assert (lost.rank, lost.cause) == (1, Cause.NODE)
    assert "it sent no heartbeat for 10 s (limits.lost_timeout)" in lost.message
    assert json.loads((folders / "0" / node.STARTED).read_text())["pid"] == kept
    assert not processes_with(f"{folders / '1'}/"), "what was frozen is gone"
    assert watch.status is not None
    assert [len(each.report.restarts) for each in watch.status.nodes if each.report] == [1, 1]


# A refusal


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize(
    "method, path", [("GET", ".*/jobRuns"), ("GET", ".*/jobRuns/.*"), ("POST", ".*/jobRuns")]
)
def test_one_refusal_amid_a_replacement_ends_no_healthy_node(
    backend: OciDataScience,
    ends: Callable[[RunRef], RunRef],
    faults: Callable[..., None],
    no_node_starts: None,
    method: str,
    path: str,
    status: int,
) -> None:
    record = submitted(backend, a_key())
    ends(record.ref)
    watch = Watch(backend, record, LOG)
    faults(method=method, path=path, status=status, code="Refused", times=1)
    assert not replace_lost(watch, [LOST], LOG)
    assert watch.record == record
    assert replace_lost(watch, [LOST], LOG)
    assert [each[:2] for each in runs_of(backend, watch.record.ref)] == [(0, 0), (1, 0), (1, 1)]
