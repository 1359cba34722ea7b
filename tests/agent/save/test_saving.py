"""How long a node goes on trying to save what a training has left."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save import saving
from airflow_provider_ocidist.agent.save.outputs import OutputCopy, copy_outputs
from airflow_provider_ocidist.agent.save.saving import SaveDeadline, cause_of_failed_save
from airflow_provider_ocidist.agent.stopping import Stop, StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause, StorageError
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.oci_client.credentials import OciAccess

PASSING, REFUSED = StorageError("503", retryable=True), StorageError("404")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(saving, "LONGEST_PAUSE", 0.05)


def tries(deadline: SaveDeadline, error: Exception) -> int:
    count = 1
    while deadline.again("it", error):
        count += 1
    return count


def test_passing_trouble_is_tried_again_until_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "REFUSED_LIMIT", 0.0)
    assert tries(SaveDeadline(0.5), PASSING) > 5
    assert tries(SaveDeadline(0.5), REFUSED) == 1
    assert cause_of_failed_save(PASSING) is Cause.SERVICE
    assert cause_of_failed_save(REFUSED) is Cause.DATA


def test_one_refusal_among_answers_that_pass_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "REFUSED_LIMIT", 0.2)
    deadline = SaveDeadline(60)
    for _ in range(10):
        assert deadline.again("it", REFUSED)
        assert deadline.again("it", PASSING)


def test_what_is_under_way_is_cancelled_once_its_time_is_over_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saving, "LOOK_INTERVAL", 0.01)
    switch = StopSwitch()
    with SaveDeadline(0.0, switch, grace=0.0).cancelling() as over:
        assert not over.wait(0.1), "nobody has asked this node to stop"
        switch.signalled.set()
        switch.ask(Stop(message="asked to stop"))
        assert over.wait(10)
    with SaveDeadline(60.0).cancelling() as over:
        pass
    assert not over.is_set()


def test_an_upload_under_way_outlives_the_limit_unless_this_node_is_asked_to_stop() -> None:
    switch = StopSwitch()
    deadline = SaveDeadline(0.0, switch, grace=0.1)
    assert deadline.left <= 0
    assert not deadline.is_over
    switch.signalled.set()
    switch.ask(Stop(message="told to stop"))
    assert deadline.is_over
    assert SaveDeadline(0.0).is_over


@pytest.mark.parametrize("cause", [Cause.NODE, Cause.HANG])
def test_a_watch_that_finds_this_node_cut_off_ends_no_saving(cause: Cause) -> None:
    switch = StopSwitch()
    deadline = SaveDeadline(60, switch, grace=0.0)
    switch.ask(Stop(message="cut off", cause=cause))
    assert deadline.left > 30


def test_a_lost_node_that_comes_back_while_it_saves_has_no_time_left() -> None:
    switch = StopSwitch()
    deadline = SaveDeadline(60.0, switch)
    switch.ask(Stop(message="another launch"))
    assert not deadline.is_over
    switch.ask(Stop(message="lost", is_lost=True))
    assert deadline.is_over


def test_a_signal_shortens_what_a_request_of_another_node_has_left() -> None:
    switch = StopSwitch()
    deadline = SaveDeadline(3600, switch, grace=5.0)
    switch.ask(Stop(message="node 1 ended the run"))
    assert 200 < deadline.left <= saving.SAVE_LIMIT
    switch.signalled.set()
    assert deadline.left <= 5.0


def test_an_output_that_cannot_be_sent_is_sent_once_it_can(tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("weights")
    target = tmp_path / "safe"
    target.write_text("in the way")
    output = OutputCopy(path="model.txt", source=tmp_path / "model.txt", uri=str(target), required=True)
    with pytest.raises(AgentError, match=r"the output model\.txt cannot be copied"):
        copy_outputs([output], OciAccess())
    threading.Timer(0.5, target.unlink).start()
    began = time.monotonic()
    assert copy_outputs([output], OciAccess(), deadline=SaveDeadline(60)) == (str(target / "model.txt"),)
    assert time.monotonic() - began < 60
    assert (target / "model.txt").read_text() == "weights"


# Before another launch


def another_launch(switch: StopSwitch) -> None:
    failure = Restart(cause=Cause.USER, message="ValueError", rank=1)
    switch.ask(Stop(message="node 1 ended the launch", restarts=(failure,)))


def test_a_request_for_another_launch_shortens_no_saving_and_the_end_of_the_run_does() -> None:
    switch = StopSwitch()
    deadline = SaveDeadline(3600, switch, grace=5.0)
    another_launch(switch)
    assert deadline.left > 3000
    assert not deadline.is_over
    switch.ask(Stop(message="the submitter ended the run"))
    assert 200 < deadline.left <= saving.SAVE_LIMIT
    switch.signalled.set()
    assert deadline.left <= 5.0


def test_a_limit_from_the_first_failure_does_not_count_what_went_well_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])
    deadline = SaveDeadline(10.0, StopSwitch(), from_failure=True)
    now[0] += 1000.0
    assert deadline.left == 10.0
    assert deadline.allows_another(PASSING)
    now[0] += 9.0
    assert deadline.allows_another(PASSING)
    deadline.succeeded()
    now[0] += 5.0
    assert deadline.allows_another(PASSING)
    now[0] += 10.0
    assert not deadline.allows_another(PASSING)
    # What is under way goes on: only no other try begins.
    assert not deadline.is_over


def test_a_stop_request_ends_also_what_has_not_failed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    now, switch = [100.0], StopSwitch()
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])
    deadline = SaveDeadline(600.0, switch, grace=5.0, from_failure=True)
    switch.signalled.set()
    switch.ask(Stop(message="this node was stopped by SIGTERM"))
    assert deadline.left == 5.0
    deadline.succeeded()
    now[0] += 5.0
    assert deadline.is_over
