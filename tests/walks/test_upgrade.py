"""An upgrade with tasks in flight: what earlier versions have left is read as they meant it.

`tests/recorded/VERSION` holds what a version wrote; `tests/recorded/record.py` writes it.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.cli import note
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Cancel, Fail, Succeed
from airflow_provider_ocidist.gangs.attempt_notes import NOTE
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.task_watch import TaskWatch
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.log_cursor import LogCursor
from airflow_provider_ocidist.model.report import NodeReport, Phase, StopRequest
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunKey, RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.model.work_dir import LEASE_FILE
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.plugin import view
from airflow_provider_ocidist.plugin.records import TaskId, TaskRecord, ref_in
from airflow_provider_ocidist.plugin.status_cache import Snapshot
from airflow_provider_ocidist.triggers import training
from tests.recorded import record as ours
from tests.training_jobs import a_job, a_key

VERSIONS = sorted(folder for folder in (Path(__file__).parents[1] / "recorded").iterdir() if folder.is_dir())
VERSIONS = [folder for folder in VERSIONS if (folder / "records.json").exists()]


@pytest.fixture(params=VERSIONS, ids=lambda folder: folder.name)
def left(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """What a version has left, by what it is."""
    folder: Path = request.param
    return lambda name: json.loads((folder / f"{name}.json").read_text())


def test_what_this_version_leaves_is_recorded_by_the_same_names(left: Callable[[str], Any]) -> None:
    for name, value in ours.everything().items():
        assert type(left(name)) is type(json.loads(json.dumps(value))), name


def test_triggers_start_again_with_their_arguments(left: Callable[[str], Any]) -> None:
    for path, arguments in left("triggers"):
        module, _, name = path.rpartition(".")
        cls = getattr(importlib.import_module(module), name)
        trigger = cls(**arguments)
        # Airflow writes it into its database again where it takes it up.
        again, _, name = trigger.serialize()[0].rpartition(".")
        assert getattr(importlib.import_module(again), name) is cls
        assert arguments.items() <= {**arguments, **trigger.serialize()[1]}.items()
        if "record" in arguments:
            assert codec.decode(RunRecord, trigger.record) == RunRecord.from_json(arguments["record"])
            assert trigger.owner == arguments["owner"]


def test_a_deferred_task_is_resumed_with_the_arguments_of_its_deferral(left: Callable[[str], Any]) -> None:
    kwargs = left("next_kwargs")
    for method, event in (("resume", left("records")[0]), ("ask_again", None)):
        inspect.signature(getattr(DistributedTrainingOperator, method)).bind(None, {}, event, **kwargs)


def test_records_and_references_say_what_they_said(left: Callable[[str], Any]) -> None:
    record, ended = map(RunRecord.from_json, left("records"))
    assert (record.ref, record.deadline, record.lease) == (ours.ref(), ours.NOW + 7200, 3600.0)
    assert (record.hang_timeout, record.lost_timeout, record.logs_since) == (
        1200.0,
        300.0,
        ours.RECORD.logs_since,
    )
    assert record.expects.outputs == ours.RECORD.expects.outputs
    assert ended.ending is not None
    assert (ended.ending.cause, ended.ending.since, ended.ref.topology) == (
        Cause.HANG,
        ours.NOW,
        "multi_node",
    )
    for value, topology in zip(left("xcom_run"), ("job_runs", "multi_node"), strict=True):
        assert RunRef.from_json(value) == ours.ref(topology)
        task = TaskId(dag_id="nightly", run_id=ours.KEY.run_id, task_id="train", map_index=3)
        assert ref_in(value, task) == ours.ref(topology)


@pytest.mark.parametrize("state", list(NodeState))
def test_every_state_is_decided_on_with_a_record_of_then(
    left: Callable[[str], Any], state: NodeState
) -> None:
    report = NodeReport.from_json(json.dumps(left("report")).encode())
    for value in left("records"):
        record = RunRecord.from_json(value)
        for known in (None, report):
            nodes = tuple(
                NodeStatus(rank=rank, run_id=record.ref.run_ids[rank], state=state, report=known)
                for rank in range(3)
            )
            action = decide(record, RunStatus(nodes=nodes), ours.NOW + 100)
            assert not isinstance(action, Succeed) or state is NodeState.SUCCEEDED
            later = decide(record, RunStatus(nodes=nodes), ours.NOW + 10**7)
            assert isinstance(later, Cancel | Fail | Succeed), (state, later)


def test_nodes_of_then_are_understood(left: Callable[[str], Any]) -> None:
    report = NodeReport.from_json(json.dumps(left("report")).encode())
    assert (report.phase, report.exit_code, report.cause, report.main) == (Phase.DONE, -9, Cause.NODE, True)
    assert report.progress is not None
    assert (report.progress.step, report.progress.losses) == (30, ((1, 9.0), (30, 2.5)))
    assert report.checkpoint is not None
    assert (report.checkpoint.uri, report.checkpoint.step) == (ours.CHECKPOINT.uri, 30)
    stop = StopRequest.from_json(json.dumps(left("stop")).encode())
    assert (stop.cause, stop.rank) == (Cause.USER, 1)
    config = AgentConfig.from_env(left("agent_environment"))
    assert (config.nodes, config.program.script, config.limits.lease) == (3, "train.py", 3600.0)
    assert config.checkpoints is not None
    assert config.checkpoints.keep == 2


def test_the_page_shows_a_task_of_then(left: Callable[[str], Any]) -> None:
    row = TaskRecord(
        id=TaskId(dag_id="nightly", run_id=ours.KEY.run_id, task_id="train", map_index=3),
        state="failed",
        operator="DistributedTrainingOperator",
        try_number=1,
        ref=RunRef.from_json(left("xcom_run")[0]),
        result=left("xcom_result"),
        failure=left("xcom_failure"),
    )
    shown = view.task_view(row, Snapshot(), ours.NOW)
    assert shown["failure"]["message"] == "the program was killed"
    assert shown["progress"]["step"] == 30
    assert view.run_row(row)["checkpoint_uri"] == ours.CHECKPOINT.uri


def test_a_note_of_the_command_line_is_one_still(left: Callable[[str], Any], tmp_path: Path) -> None:
    file = tmp_path / "info.yaml"
    file.write_text(yaml.safe_dump(left("note"), sort_keys=False))
    assert note.is_note(file)
    assert RunRecord.from_json(note.read(file)["record"]).ref == ours.ref()
    assert codec.decode(RunKey, left("begun")["begun"]) == ours.KEY


def as_written(value: Mapping[str, Any], example: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without what the version of the example did not know."""
    return {
        name: as_written(item, example[name])
        if isinstance(item, dict) and isinstance(example.get(name), dict)
        else item
        for name, item in value.items()
        if name in example or name == "topology"
    }


@pytest.fixture
def noted() -> Iterator[Any]:
    class Notes(dict[str, Any]):
        def set(self, key: str, value: Any) -> None:
            self[key] = value

    return Notes()


def test_a_gang_of_then_is_found_by_what_was_noted_and_waited_for_to_its_end(
    left: Callable[[str], Any],
    backend: OciDataScience,
    conn_id: str,
    ends: Callable[[RunRef], RunRef],
    noted: Any,
) -> None:
    key, job = a_key(), a_job(nodes=2, seconds=1)
    # As a version wrote it that kept no record of attempts in the work directory.
    ref = ends(backend.submit(backend.plan(job, key)))
    noted[NOTE] = {"generation": key.generation, "attempt": key.attempt}
    gang = GangSubmitter(backend, job, logging.getLogger("test"), noted, threading.Event())
    found = gang.adopt_or_submit(key, None)
    assert found.ref.job_id == ref.job_id
    written = as_written(found.to_json(), left("records")[0])
    backend._run_dirs.write(ref.run_dir, LEASE_FILE, json.dumps(left("lease")).encode())
    told = codec.decode(LogCursor, left("told"))
    assert (told.try_number, len(told.newest)) == (2, 3)
    trigger = training.DistributedTrainingTrigger(conn_id, written, {}, 0.2)

    async def event() -> Any:
        async for each in trigger.run():
            return each.payload
        return None

    record = RunRecord.from_json(asyncio.run(asyncio.wait_for(event(), 120)))
    assert (record.ref.job_id, record.ref.run_ids) == (ref.job_id, ref.run_ids)
    assert isinstance(TaskWatch(backend, record, structlog.get_logger("test"), 1).look(time.time()), Succeed)
