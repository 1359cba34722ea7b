"""What a watch shows of a gang."""

from __future__ import annotations

import json

from airflow_provider_ocidist.cli.screen import Failed, JsonScreen, Screen, summary
from airflow_provider_ocidist.cli.terminal import columns, styled
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.pace import Pace
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunStatus


def a_status(step: int | None, at: float = 0.0, *states: NodeState) -> RunStatus:
    report = NodeReport(
        rank=0,
        phase=Phase.TRAINING,
        address="",
        started_at=0.0,
        heartbeat_at=at,
        progress=Progress(step=step, steps=100, loss=0.25, updated_at=at),
    )
    return RunStatus(
        nodes=tuple(
            NodeStatus(rank=rank, run_id=f"run{rank}", state=state, report=report)
            for rank, state in enumerate(states or (NodeState.RUNNING,))
        )
    )


def test_speed_is_what_was_done_within_the_last_minute():
    pace = Pace()
    for at, step in ((0, 10), (10, 30), (20, 50)):
        pace.add(a_status(step, at), at)
    assert pace.steps_per_second == 2.0
    pace.add(a_status(60, 75), 75)
    assert pace.steps_per_second == (60 - 50) / 55


def test_speed_begins_anew_when_the_training_does():
    pace = Pace()
    pace.add(a_status(50, 10), 10)
    pace.add(a_status(5, 20), 20)
    assert pace.steps_per_second is None


def test_the_summary_says_step_loss_speed_time_and_checkpoint():
    pace = Pace()
    for at, step in ((0, 10), (10, 30)):
        pace.add(a_status(step, at), at)
    line = summary("run", a_status(30, 10), pace, 3725)
    assert line == "run | 1:02:05 | step 30/100 | loss 0.25 | 2 steps/s | no checkpoint yet"
    assert summary("run", None, Pace(), 5) == "run | 0:05 | no checkpoint yet"


def test_one_outage_is_reported_once(capsys):
    screen = Screen()
    assert not screen.takes_status
    for request in ("a", "b"):
        screen.warning("%s; will ask again", f"the service failed (503, opc-request-id {request})")
    screen.warning("something else")
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_control_sequences_of_a_program_do_not_reach_the_terminal():
    text = styled("\x1b]0;title\x07\x1b[31mred\x1b[0m\x1b[2J", "cyan")
    assert "\x1b" not in text.plain
    assert text.plain.endswith("red")


def test_columns_begin_at_the_same_place():
    assert columns([["a", "bb"], ["ccc", "d"]]) == ["a    bb", "ccc  d"]


def test_a_failure_has_its_remedy_on_a_line_of_its_own_and_in_the_json(capsys):
    end = Failed(cause=Cause.OOM, message="node 1: no memory", remedy="take less", to_go_on="go on: x")
    Screen().failed(end)
    JsonScreen().failed(end)
    shown = capsys.readouterr()
    assert shown.err.splitlines() == ["OOM: node 1: no memory", "Remedy: take less", "go on: x"]
    assert json.loads(shown.out) == {
        "event": "end",
        "outcome": "FAILED",
        "cause": "OOM",
        "message": "node 1: no memory",
        "remedy": "take less",
        "result": None,
    }
