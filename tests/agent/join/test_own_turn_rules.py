"""What a pod that waits for its turn says and how often it looks; and what it makes of a damaged report."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.join import own_turn
from airflow_provider_ocidist.agent.join.own_turn import await_own_turn
from airflow_provider_ocidist.agent.stopping import Stopped, StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model.report import StopRequest
from airflow_provider_ocidist.model.work_dir import REPLACED_FILE, STOP_FILE, report_of
from tests.agent.join.test_own_turn import a_report, config, environment, losses, write


class Counted(StopSwitch):
    """A switch whose pauses take no time; at the third, the one before is given up."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.pauses = folder, list[float]()

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == 3:
            write(self.folder, REPLACED_FILE, losses((1, "a")).to_json())


def test_a_pod_that_waits_says_so_once_and_looks_every_two_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, report_of(1), a_report("a").to_json())
    switch = Counted(tmp_path)
    with caplog.at_level(logging.INFO, "ocidist"):
        assert await_own_turn(config(tmp_path), environment("b"), switch, 60.0) == 1
    assert switch.pauses == [own_turn.LOOK_INTERVAL] * 3 == [2.0] * 3
    assert caplog.messages == [
        "this pod was made in place of another: it waits until the task has recorded that one as lost"
    ]
    caplog.clear()
    assert await_own_turn(config(tmp_path), environment("b"), switch, 60.0) == 1
    assert (len(switch.pauses), caplog.messages) == (3, []), "it is its turn at once"


def test_of_the_rank_of_another_nothing_counts(tmp_path: Path) -> None:
    write(tmp_path, report_of(1), a_report("a").to_json())
    write(tmp_path, REPLACED_FILE, losses((2, "x"), (2, "y")).to_json())
    assert await_own_turn(config(tmp_path), environment("c", rank=2), StopSwitch(), 60.0) == 2
    assert await_own_turn(config(tmp_path), environment("z", rank=0), StopSwitch(), 60.0) == 0
    with pytest.raises(AgentError, match="0 to 2"):
        await_own_turn(config(tmp_path), environment("z", rank=3), StopSwitch(), 60.0)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff", b""], ids=repr)
def test_a_report_that_is_damaged_is_none(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, report_of(1), content)
    assert await_own_turn(config(tmp_path), environment("b"), StopSwitch(), 60.0) == 0


def test_a_pod_that_was_given_up_hears_why(tmp_path: Path) -> None:
    write(tmp_path, REPLACED_FILE, losses((1, "a")).to_json())
    with pytest.raises(Stopped) as caught:
        await_own_turn(config(tmp_path), environment("a"), StopSwitch(), 60.0)
    assert caught.value.stop.message == "this node counts as lost, and another has its place"
    assert caught.value.stop.is_lost


@pytest.mark.parametrize("cause", [Cause.CANCELED, Cause.ABANDONED, Cause.HANG])
def test_a_pod_that_waits_ends_as_the_request_to_all_says(tmp_path: Path, cause: Cause) -> None:
    write(tmp_path, report_of(1), a_report("a").to_json())
    write(tmp_path, STOP_FILE, StopRequest(cause=cause, message="enough", rank=2).to_json())
    with pytest.raises(Stopped) as caught:
        await_own_turn(config(tmp_path), environment("b"), StopSwitch(), 60.0)
    stop = caught.value.stop
    assert stop.message == f"node 2 ended the run ({cause}): enough"
    assert (stop.is_lost, stop.hurried, stop.stacks) == (
        False,
        cause is not Cause.ABANDONED,
        cause is Cause.HANG,
    )


@pytest.mark.parametrize("patience", [0.0, -1.0])
def test_whose_patience_is_over_looks_once_before_it_fails(tmp_path: Path, patience: float) -> None:
    write(tmp_path, report_of(1), a_report("a").to_json())
    switch = Counted(tmp_path)
    with pytest.raises(
        AgentError, match=r"^the task did not record in time that the node before this one is lost$"
    ) as caught:
        await_own_turn(config(tmp_path), environment("b"), switch, patience)
    assert (caught.value.cause, switch.pauses) == (Cause.NODE, [])
    write(tmp_path, REPLACED_FILE, losses((1, "a")).to_json())
    assert await_own_turn(config(tmp_path), environment("b"), switch, patience) == 1
