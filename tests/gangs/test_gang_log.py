"""What a task's log has of a gang: each line once, and the state when it has changed."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from airflow_provider_ocidist.backends.base import LogLine, LogPart
from airflow_provider_ocidist.gangs.gang_log import GangLog
from airflow_provider_ocidist.model.report import Progress
from airflow_provider_ocidist.model.run import NodeState, RunStatus
from tests.gangs.records import START, gang, node, report

LINE = LogLine("id", START + 1, 0, "step 7")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> GangLog:
    caplog.set_level(logging.INFO)
    return GangLog(logging.getLogger("test"), (START,))


def training(step: int) -> RunStatus:
    at = report(0, progress=Progress(step=step, printed=True))
    return RunStatus(nodes=(node(0, NodeState.RUNNING, report=at),))


def test_a_line_is_logged_once(log: GangLog, caplog: pytest.LogCaptureFixture) -> None:
    assert log.take_lines(LogPart([LINE]), START + 10)
    assert not log.take_lines(LogPart([LINE]), START + 20)
    assert caplog.messages == ["[node 0] step 7"]
    assert log.follower.cursor == (START + 1,)


def test_a_state_is_logged_when_it_has_changed(log: GangLog, caplog: pytest.LogCaptureFixture) -> None:
    for status in [gang(NodeState.PENDING)] * 3 + [training(7)] * 2 + [training(8)]:
        log.take_status(status)
    assert caplog.messages == [
        "nodes: 1 PENDING",
        "nodes: 1 RUNNING (TRAINING); step 7",
        "nodes: 1 RUNNING (TRAINING); step 8",
    ]


def test_the_state_does_not_repeat_the_steps_that_the_programs_lines_show(
    log: GangLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.take_lines(LogPart([LINE]), START + 10)
    for step in (7, 8, 9):
        log.take_status(training(step))
    assert caplog.messages == ["[node 0] step 7", "nodes: 1 RUNNING (TRAINING)"]


@pytest.mark.parametrize("level", ["INFO", "WARNING", "ERROR"])
def test_what_an_agent_warns_of_has_that_level_in_the_log_of_the_task(
    log: GangLog, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    said = "ocidist: 2 files" if level == "INFO" else f"ocidist: {level}: 2 files"
    log.write_line(replace(LINE, text=said))
    log.write_line(replace(LINE, text=f"{level}: 2 files, says the program"))
    assert [record.levelname for record in caplog.records] == [level, "INFO"]
    assert caplog.messages[0] == f"[node 0] {said}"


class Shown(GangLog):
    """Shows the states elsewhere."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("test"), (START,))
        self.said: list[str] = []

    def write_status(self, status: RunStatus, said: str) -> None:
        self.said.append(said)


def test_who_shows_the_states_elsewhere_gets_each_once_in_full() -> None:
    shown = Shown()
    shown.take_lines(LogPart([LINE]), START + 10)
    for step in (7, 7, 8):
        shown.take_status(training(step))
    assert shown.said == [f"nodes: 1 RUNNING (TRAINING); step {step}" for step in (7, 8)]
