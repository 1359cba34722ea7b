"""What a node reports of itself while it saves what a launch has left: that it was stopped, and has not succeeded."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.prepare.workspace import Workspace
from airflow_provider_ocidist.agent.save import handover, saving, uploads
from airflow_provider_ocidist.agent.save.saving import SaveDeadline
from airflow_provider_ocidist.agent.stages import checkpoint_folder
from airflow_provider_ocidist.agent.stages import results as stages_results
from airflow_provider_ocidist.agent.stages.checkpoint_folder import CheckpointFolder
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stages.results import Results
from airflow_provider_ocidist.agent.stopping import Stop, StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause, StorageError
from airflow_provider_ocidist.job import Checkpoints, Limits, Program, Restarts
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart
from airflow_provider_ocidist.storage import checkpoints, fences
from airflow_provider_ocidist.storage.checkpoints import newest
from airflow_provider_ocidist.storage.fences import advance_fence, current_fence
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.gangs import until

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


# What another launch goes on from


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """The main node of a job that waits three seconds for what makes no progress; another has a folder of its own."""
    return results_of(tmp_path, monkeypatch, nodes=2)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """The only node of such a job."""
    return results_of(tmp_path, monkeypatch, nodes=1)


def results_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, nodes: int, folder: str | None = None
) -> Results:
    monkeypatch.setattr(uploads, "LOOK_INTERVAL", 0.02)
    monkeypatch.setattr(uploads, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(saving, "FIRST_PAUSE", 0.02)
    for module in (saving, stages_results):
        monkeypatch.setattr(module, "SAVE_LIMIT", 0.2)
    config = AgentConfig(
        run_name="run",
        nodes=nodes,
        run_dir=str(tmp_path / "run"),
        program=Program(script="program.py"),
        checkpoints=Checkpoints(path=folder or str(tmp_path / "folder"), uri=str(tmp_path / "kept")),
        restarts=Restarts(program=1),
        limits=Limits(join_timeout=3.0, stop_grace=0.2),
    )
    context = NodeContext(config, {"OCIDIST_NODE_RANK": "0", "HOME": str(tmp_path)}, StopSwitch())
    context.heartbeat.update(apart=tuple(range(1, nodes)))
    return Results(context, CheckpointFolder(context))


def place_of(tmp_path: Path) -> Workspace:
    return Workspace(code=tmp_path, working_dir=tmp_path, program=Program(script="program.py"))


def saved(main: Results, tmp_path: Path) -> Any:
    """Save a checkpoint, and let the program be ended at once; return its uploader."""
    uploader = main.checkpoints.start_uploader(place_of(tmp_path))
    whole = tmp_path / "folder" / "whole.tmp"
    whole.write_text("weights")
    whole.rename(whole.with_name("step-5.txt"))
    main.checkpoints.program_ended()
    return uploader


def slow_send(monkeypatch: pytest.MonkeyPatch, parts: int) -> list[int]:
    """Let each upload take so many fifths of a second, and get further in each; return what was read."""
    send, read = checkpoints._send, [0]
    monkeypatch.setattr(saving, "_bytes_read", lambda: sum(read))

    def slow(source: Any, target: Any, entries: Any, cancel: Any) -> Any:
        for _ in range(parts):
            if cancel.wait(0.2):
                raise StorageError("it was aborted")
            read.append(saving.READ_STEP)
        return send(source, target, entries, cancel)

    monkeypatch.setattr(checkpoints, "_send", slow)
    return read


def test_before_another_launch_an_upload_goes_on_for_as_long_as_it_gets_further(
    tmp_path: Path, main: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_send(monkeypatch, 20)
    uploader = saved(main, tmp_path)
    stop = Stop(message="it ended the launch", restarts=AGAIN)
    main.context.switch.ask(stop)
    main.save_after_failure(place_of(tmp_path), uploader, stop, is_last=False)
    found = newest(str(tmp_path / "kept"))
    assert found is not None
    assert (found.step, main.context.heartbeat.report.checkpoint) == (5, found)


@pytest.mark.parametrize("signalled", [True, False])
def test_a_stop_request_ends_that_upload_too(
    tmp_path: Path, main: Results, monkeypatch: pytest.MonkeyPatch, signalled: bool
) -> None:
    read = slow_send(monkeypatch, 1000)
    uploader, switch = saved(main, tmp_path), main.context.switch
    stop = Stop(message="node 1 ended the launch", restarts=AGAIN)
    switch.ask(stop)
    saving_it = threading.Thread(
        target=lambda: main.save_after_failure(place_of(tmp_path), uploader, stop, is_last=False), daemon=True
    )
    saving_it.start()
    until(lambda: len(read) > 8)
    assert saving_it.is_alive()
    if signalled:
        switch.signalled.set()
    switch.ask(SIGNALLED if signalled else ASKED)
    saving_it.join(30)
    assert not saving_it.is_alive()
    assert newest(str(tmp_path / "kept")) is None


def test_an_outage_longer_than_the_end_of_a_run_waits_loses_no_checkpoint(
    tmp_path: Path, main: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, tries = checkpoints._send, list[float]()

    def away(*arguments: Any) -> Any:
        tries.append(time.monotonic())
        if time.monotonic() - tries[0] < 0.5:
            raise StorageError("503", retryable=True)
        return send(*arguments)

    monkeypatch.setattr(checkpoints, "_send", away)
    uploader = saved(main, tmp_path)
    main.save_after_failure(place_of(tmp_path), uploader, None, is_last=False)
    found = newest(str(tmp_path / "kept"))
    assert found is not None
    assert found.step == 5


@pytest.mark.parametrize("began", [True, False])
def test_what_was_left_to_a_launch_that_ends_before_its_program_runs_is_sent_all_the_same(
    tmp_path: Path, only: Results, monkeypatch: pytest.MonkeyPatch, *, began: bool
) -> None:
    monkeypatch.setattr(handover, "SENT_FIRST", 0.5)
    place, send, is_open = place_of(tmp_path), checkpoints._send, threading.Event()

    def slow(source: Any, target: Any, entries: Any, cancel: Any) -> Any:
        while not is_open.is_set():
            if cancel.wait(0.02):
                raise StorageError("it was aborted")
        return send(source, target, entries, cancel)

    monkeypatch.setattr(checkpoints, "_send", slow)
    only.save_after_failure(place, saved(only, tmp_path), None, is_last=False)
    assert newest(str(tmp_path / "kept")) is None
    # It may be newer than what is sent.
    aside = tmp_path / "folder-unproved"
    aside.mkdir()
    only.checkpoints.go_back(place, [])
    if began:
        only.checkpoints.start_uploader(place)
    monkeypatch.setattr(stages_results, "SAVE_LIMIT", 30.0)
    is_open.set()
    only.save_rest(place)
    found = newest(str(tmp_path / "kept"))
    assert found is not None
    assert (found.step, only.context.heartbeat.report.checkpoint) == (5, found)
    assert only.context.heartbeat.report.phase is Phase.SAVING
    assert aside.exists()


def test_where_all_was_sent_in_time_nothing_is_left_to_the_next_launch(tmp_path: Path, only: Results) -> None:
    only.save_after_failure(place_of(tmp_path), saved(only, tmp_path), None, is_last=False)
    assert newest(str(tmp_path / "kept")) is not None
    assert not only.checkpoints.goes_on_from_here
    assert only.checkpoints.sender_of_rest(place_of(tmp_path)) is None


def carried(only: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Leave a checkpoint to the next launch, which begins; return its uploader. It arrives in four seconds."""
    monkeypatch.setattr(handover, "SENT_FIRST", 0.5)
    slow_send(monkeypatch, 20)
    place = place_of(tmp_path)
    only.save_after_failure(place, saved(only, tmp_path), None, is_last=False)
    assert only.checkpoints.goes_on_from_here
    assert newest(str(tmp_path / "kept")) is None
    only.checkpoints.go_back(place, [])
    return only.checkpoints.start_uploader(place)


@pytest.mark.parametrize("ends", ["a failure", "a hang", "a failure before its program runs"])
def test_what_would_have_been_sent_before_a_launch_has_that_patience_when_the_run_fails_for_good(
    tmp_path: Path, only: Results, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """It takes longer than the end of a run waits for what a program has just saved."""
    uploader, place = carried(only, tmp_path, monkeypatch), place_of(tmp_path)
    if ends.endswith("runs"):
        only.save_rest(place)
    else:
        only.checkpoints.program_ended()
        only.save_after_failure(place, uploader, HANG if ends == "a hang" else None, is_last=True)
    found = newest(str(tmp_path / "kept"))
    assert found is not None
    assert found.step == 5


@pytest.mark.parametrize("ends", [SIGNALLED, ASKED, Stop(message="its lease is over", cause=Cause.ABANDONED)])
@pytest.mark.parametrize("began", [True, False])
def test_who_stops_a_run_does_not_wait_that_long(
    tmp_path: Path, only: Results, monkeypatch: pytest.MonkeyPatch, ends: Stop, *, began: bool
) -> None:
    uploader, place = carried(only, tmp_path, monkeypatch), place_of(tmp_path)
    only.context.switch.ask(ends)
    if began:
        only.checkpoints.program_ended()
        only.save_after_failure(place, uploader, ends, is_last=True)
    else:
        only.save_rest(place)
    assert newest(str(tmp_path / "kept")) is None


@pytest.mark.parametrize("where", ["it starts", "it ends"])
def test_an_error_in_what_was_left_does_not_replace_what_has_ended_the_run(
    tmp_path: Path,
    only: Results,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    monkeypatch.setattr(handover, "SENT_FIRST", 0.2)
    slow_send(monkeypatch, 20)
    place = place_of(tmp_path)
    only.save_after_failure(place, saved(only, tmp_path), None, is_last=False)

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(uploads.CheckpointUploader, "start" if where == "it starts" else "finish", fails)
    only.save_rest(place)
    assert "what was left to the next launch cannot be uploaded" in caplog.text
    assert "No space left on device" in caplog.text


def test_an_uploader_that_cannot_start_leaves_what_is_carried_to_another(
    tmp_path: Path, only: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "SENT_FIRST", 0.2)
    slow_send(monkeypatch, 5)
    place, start = place_of(tmp_path), uploads.CheckpointUploader.start
    only.save_after_failure(place, saved(only, tmp_path), None, is_last=False)
    only.checkpoints.go_back(place, [])

    def fails(_: Any) -> None:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr(uploads.CheckpointUploader, "start", fails)
    with pytest.raises(OSError, match="inotify"):
        only.checkpoints.start_uploader(place)
    monkeypatch.setattr(uploads.CheckpointUploader, "start", start)
    only.save_rest(place)
    found = newest(str(tmp_path / "kept"))
    assert found is not None
    assert found.step == 5


# Whether a later attempt has the place


def left(only: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Leave a checkpoint to the next launch, if that may be."""
    monkeypatch.setattr(handover, "SENT_FIRST", 0.2)
    slow_send(monkeypatch, 20)
    return only.checkpoints.leave_to_next_launch(saved(only, tmp_path), SaveDeadline(60))


def test_an_attempt_that_a_later_one_has_overtaken_is_not_launched_again_from_its_disk(
    tmp_path: Path, only: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert left(only, tmp_path, monkeypatch)
    advance_fence(open_store(str(tmp_path / "kept")), Fence(attempt=7))
    half = tmp_path / "folder" / "step-6.pt"
    half.write_text("what the later one is just writing")
    with pytest.raises(AgentError, match="attempt 7 has begun to save there"):
        only.checkpoints.go_back(place_of(tmp_path), [])
    assert not only.checkpoints.goes_on_from_here
    only.save_rest(place_of(tmp_path))
    assert half.exists()
    assert not list(tmp_path.rglob(".folder.held.*"))


@pytest.mark.parametrize("is_common", [True, False])
@pytest.mark.parametrize("hangs", [True, False])
def test_from_a_folder_that_may_be_another_attempts_too_only_who_has_the_fence_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_common: bool, hangs: bool
) -> None:
    folder, may_end = None if is_common else "folder", threading.Event()
    only = results_of(tmp_path, monkeypatch, nodes=1, folder=folder)
    monkeypatch.setattr(checkpoint_folder, "FENCE_WITHIN", 0.3)

    def away(*_: Any) -> None:
        if hangs and threading.current_thread().name == "fence":
            may_end.wait(60)
        raise StorageError("503", retryable=True)

    monkeypatch.setattr(fences, "advance_fence", away)
    assert left(only, tmp_path, monkeypatch) is not is_common
    if not is_common:
        only.checkpoints.go_back(place_of(tmp_path), [])
        assert only.checkpoints.goes_on_from_here
    may_end.set()


def test_each_launch_that_goes_on_from_the_disk_takes_the_fence(
    tmp_path: Path, only: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert left(only, tmp_path, monkeypatch)
    only.context.heartbeat.update(restarts=AGAIN)
    only.checkpoints.go_back(place_of(tmp_path), [])
    assert current_fence(open_store(str(tmp_path / "kept"))) == only.context.fence
    assert only.context.fence.launch == 1
