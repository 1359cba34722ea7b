"""What a node reports of itself while it saves what a launch has left: that it was stopped, and has not succeeded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.prepare.workspace import Workspace
from airflow_provider_ocidist.agent.stages.checkpoint_folder import CheckpointFolder
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stages.results import Results
from airflow_provider_ocidist.agent.stopping import Stop, StopSwitch
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart

AGAIN = (Restart(cause=Cause.USER, message="ValueError"),)
SIGNALLED = Stop(message="this node was stopped by SIGTERM")
ASKED = Stop(message="the submitter ended the run", hurried=False)
HANG = Stop(message="no step for 30 s", cause=Cause.HANG, stacks=True)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    program = Program(script="program.py")
    config = AgentConfig(run_name="run", nodes=2, run_dir=str(tmp_path / "run"), program=program)
    environ = {"OCIDIST_NODE_RANK": "1", "HOME": str(tmp_path)}
    context = NodeContext(config, environ, StopSwitch())
    return Results(context, CheckpointFolder(context))


@pytest.mark.parametrize(
    "stop, is_last, stopped",
    [
        (SIGNALLED, True, True),
        (ASKED, True, True),
        (replace(SIGNALLED, restarts=AGAIN), False, False),
        (HANG, True, False),
        (None, True, False),
        (None, False, False),
    ],
    ids=["signalled", "asked", "another launch follows", "a hang", "failed", "failed, launched again"],
)
def test_what_others_read_while_a_node_saves_is_no_success_of_one_that_was_stopped(
    tmp_path: Path, results: Results, stop: Stop | None, is_last: bool, stopped: bool
) -> None:
    heartbeat, read = results.context.heartbeat, []

    class Uploader:
        def finish(self, *_: object) -> None:
            assert heartbeat.write()
            read.append(NodeReport.from_json(heartbeat.store.read("nodes/1.json")))

    uploader: Any = Uploader()
    place = Workspace(code=tmp_path, working_dir=tmp_path, program=Program(script="program.py"))
    results.save_after_failure(place, uploader, stop, is_last=is_last)
    assert [(each.phase, each.stopped) for each in read] == [(Phase.SAVING, stopped)]
    # The program may have exited with 0 for the signal.
    assert heartbeat.write(phase=Phase.DONE, exit_code=0)
    last = NodeReport.from_json(heartbeat.store.read("nodes/1.json"))
    assert (last.stopped, last.has_succeeded) == (stopped, not stopped)


def test_a_report_of_an_agent_that_does_not_know_the_mark_is_read_as_before() -> None:
    done = NodeReport(
        rank=1, phase=Phase.DONE, address="", started_at=0.0, heartbeat_at=0.0, exit_code=0, stopped=True
    )
    written = json.loads(done.to_json())
    assert not done.has_succeeded
    del written["stopped"]
    assert NodeReport.from_json(json.dumps(written).encode()).has_succeeded
