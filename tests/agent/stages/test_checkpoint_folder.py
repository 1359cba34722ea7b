"""What another launch finds in a checkpoint folder: of what it cannot go on from, only a node's own leftovers go."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.prepare.workspace import Workspace
from airflow_provider_ocidist.agent.save.entry_ledger import Ledger, aside_of
from airflow_provider_ocidist.agent.save.proofs import Moment
from airflow_provider_ocidist.agent.save.saving import SAVE_LIMIT, SaveDeadline
from airflow_provider_ocidist.agent.stages.checkpoint_folder import CheckpointFolder
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stages.results import Results
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.agent.train import interruptible
from airflow_provider_ocidist.agent.train.activity import OWN_STEP
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.job import Checkpoints, Output, Program, Restarts
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.fence import LOWEST
from airflow_provider_ocidist.model.report import ALL_DAMAGED, Restart
from tests.agent.opened import Held
from tests.storage.published import publish

Node = Callable[[int, Path], CheckpointFolder]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node of two, the first of which is the main node, with a checkpoint folder."""

    def made(rank: int, folder: Path) -> CheckpointFolder:
        config = AgentConfig(
            run_name="run",
            nodes=2,
            run_dir=str(tmp_path / "run"),
            program=Program(script="program.py"),
            checkpoints=Checkpoints(path=str(folder), uri=str(tmp_path / "kept")),
            restarts=Restarts(program=1),
        )
        environ = {"OCIDIST_NODE_RANK": str(rank), "HOME": str(tmp_path)}
        return CheckpointFolder(NodeContext(config, environ, StopSwitch()))

    return made


def workspace(tmp_path: Path) -> Workspace:
    return Workspace(code=tmp_path, working_dir=tmp_path, program=Program(script="program.py"))


def another_launch(main: CheckpointFolder, other: CheckpointFolder, place: Workspace) -> None:
    """Let the other node go back, as it does once it has read that all have saved."""
    other.go_back(place, [main.context.heartbeat.report])


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("main_first", [True, False])
def test_nothing_goes_from_a_folder_that_the_nodes_share(
    tmp_path: Path, node: Node, *, main_first: bool
) -> None:
    place, folder = workspace(tmp_path), tmp_path / "shared"
    folder.mkdir()
    (folder / "step-0.pt").write_text("the user's")
    main, other = both = node(0, folder), node(1, folder)
    for each in both:
        each.restore(place)
    for each in both if main_first else (other, main):
        each.compare(place)
    (folder / "step-2.pt").write_text("whole, and not sent yet")
    another_launch(main, other, place)
    assert entries(folder) == ["step-0.pt", "step-2.pt"]


@pytest.mark.parametrize("main_first", [True, False])
def test_from_a_folder_of_its_own_goes_what_a_node_has_written_itself(
    tmp_path: Path, node: Node, *, main_first: bool
) -> None:
    place, own = workspace(tmp_path), tmp_path / "own"
    own.mkdir()
    (own / "step-0.pt").write_text("the user's")
    (own / "last.pt").write_text("the user's")
    main, other = both = node(0, tmp_path / "mains"), node(1, own)
    for each in both:
        each.restore(place)
    for each in both if main_first else (other, main):
        each.compare(place)
    (own / "step-2.pt").write_text("a part")
    (own / "last.pt").write_text("a part of the newest")
    another_launch(main, other, place)
    assert entries(own) == ["step-0.pt"]


@pytest.mark.parametrize("is_shared", [True, False])
def test_what_the_main_node_has_left_is_not_offered_once_another_is_the_main_node(
    tmp_path: Path, node: Node, *, is_shared: bool
) -> None:
    place, folder = workspace(tmp_path), tmp_path / "of-the-first-main"
    folder.mkdir()
    (folder / "step-0.pt").write_text("the user's")
    both = node(0, folder if is_shared else tmp_path / "other"), node(1, folder)
    for main_rank in (1, 0):
        for each in both:
            each.context.main_rank = main_rank
            each.restore(place)
        for each in both:
            each.compare(place)
        if main_rank:
            (folder / "step-2.pt").write_text("half of it")
    assert entries(folder) == (["step-0.pt", "step-2.pt"] if is_shared else ["step-0.pt"])


class Uploader:
    """Records for how long it may go on."""

    limit = 0.0

    def finish(self, _moment: Moment, deadline: SaveDeadline) -> None:
        self.limit = deadline.limit


@pytest.mark.parametrize("is_last", [True, False])
def test_a_node_that_was_asked_to_end_takes_its_time_to_send_where_another_launch_follows(
    tmp_path: Path, node: Node, *, is_last: bool
) -> None:
    folder, uploader = node(0, tmp_path / "folder"), Uploader()
    results, limits = Results(folder.context, folder), folder.context.config.limits
    asked: Any = uploader, Stop(message="node 1 ended the launch")
    results.save_after_failure(workspace(tmp_path), *asked, is_last=is_last)
    assert uploader.limit == (limits.stop_grace if is_last else limits.join_timeout)


def contents(*nodes: CheckpointFolder) -> set[str | None]:
    return {each.context.heartbeat.report.starts_from for each in nodes}


def meet_again(main: CheckpointFolder, other: CheckpointFolder, *places: Workspace) -> None:
    """Let two nodes go back that would have gone on from different content."""
    reports = [each.context.heartbeat.report for each in (main, other)]
    for each, place, report in zip((main, other), places, reversed(reports)):
        each.store_again(place, [report])
    for each, place, report in zip((main, other), places, reversed(reports)):
        each.go_back(place, [report], differed=True)


@pytest.mark.parametrize("is_last", [True, False])
def test_a_lost_node_that_comes_back_publishes_and_copies_nothing_more(
    tmp_path: Path, node: Node, *, is_last: bool
) -> None:
    place, folder, target = workspace(tmp_path), node(0, tmp_path / "folder"), tmp_path / "outputs"
    (tmp_path / "model.txt").write_text("weights")
    folder.context.config = replace(
        folder.context.config, outputs=(Output(path="model.txt", uri=str(target), when="always"),)
    )
    results = Results(folder.context, folder)
    folder.restore(place)
    uploader = folder.start_uploader(place)
    (tmp_path / "folder" / ".step-1.pt").write_text("weights")
    (tmp_path / "folder" / ".step-1.pt").rename(tmp_path / "folder" / "step-1.pt")
    folder.context.switch.ask(Stop(message="lost", is_lost=True))
    results.save_after_failure(place, uploader, None, is_last=is_last)
    assert not target.exists()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["fence.json"]


@pytest.mark.parametrize("is_missing", [True, False])
def test_nodes_go_on_from_one_checkpoint_though_the_newest_is_damaged_and_one_node_has_it_whole(
    tmp_path: Path, node: Node, *, is_missing: bool
) -> None:
    place, mains, kept = workspace(tmp_path), tmp_path / "mains", tmp_path / "kept"
    mains.mkdir()
    (mains / "step-0.pt").write_text("the user's")
    main, other = both = node(0, mains), node(1, tmp_path / "others")
    for each in both:
        each.restore(place)
    for each in both:
        each.compare(place)
    save(main, place, "step-1.pt", "step-2.pt")
    damaged = kept / "step-2.pt" / "step-2.pt"
    damaged.unlink() if is_missing else damaged.write_text("changed")
    main.go_back(place, [other.context.heartbeat.report])
    another_launch(main, other, place)
    if not is_missing:
        # What a node has already is not read again, as a rule.
        assert len(contents(*both)) == 2
        meet_again(main, other, place, place)
        assert damaged.read_text() == "weights"
    assert len(contents(*both)) == 1
    # As the uploader does before a launch.
    Ledger(mains).begin(main._fetched)
    newest = "step-1.pt" if is_missing else "step-2.pt"
    assert entries(mains) == sorted({"step-0.pt", "step-1.pt", newest})
    assert entries(tmp_path / "others")[-1] == newest
    if is_missing:
        assert (aside_of(mains) / "step-2.pt").read_text() == "weights"


@pytest.mark.parametrize("is_absolute", [True, False])
@pytest.mark.parametrize("stored", [(1, 2), (2,)])
def test_what_a_new_node_has_read_before_the_damage_is_stored_again(
    tmp_path: Path, node: Node, stored: tuple[int, ...], *, is_absolute: bool
) -> None:
    publish_steps(tmp_path, *stored)
    places = [workspace(tmp_path / str(rank)) for rank in (0, 1)]
    both = [
        node(rank, tmp_path / str(rank) / "of-its-own" if is_absolute else Path("checkpoints"))
        for rank in (0, 1)
    ]
    for each, place in zip(both, places):
        each.restore(place)
        (tmp_path / "kept" / "step-2.pt" / "step-2.pt").write_text("changed")
    assert len(contents(*both)) == 2
    # Another node may have one whole, also where this one has found all to be damaged.
    assert (ALL_DAMAGED in contents(*both)) is (stored == (2,))
    meet_again(*both, *places)
    assert len(contents(*both)) == 1
    assert ["step-2.pt" in entries(each.path(place)) for each, place in zip(both, places)] == [True] * 2
    for each in both:
        each.require_one()


def test_what_no_node_has_whole_any_more_is_read_by_none(tmp_path: Path, node: Node) -> None:
    publish_steps(tmp_path, 1, 2)
    places = [workspace(tmp_path / str(rank)) for rank in (0, 1)]
    both = [node(rank, Path("checkpoints")) for rank in (0, 1)]
    for each, place in zip(both, places):
        each.restore(place)
        (tmp_path / "kept" / "step-2.pt" / "step-2.pt").write_text("changed")
    (both[0].path(places[0]) / "step-2.pt").write_text("changed too")
    meet_again(*both, *places)
    assert len(contents(*both)) == 1
    assert [entries(each.path(place)) for each, place in zip(both, places)] == [["step-1.pt"]] * 2


def test_where_all_nodes_find_all_checkpoints_damaged_none_of_them_trains(tmp_path: Path, node: Node) -> None:
    publish_steps(tmp_path, 2)
    (tmp_path / "kept" / "step-2.pt" / "step-2.pt").write_text("changed")
    both = [node(rank, tmp_path / str(rank)) for rank in (0, 1)]
    for each in both:
        each.restore(workspace(tmp_path))
    assert contents(*both) == {ALL_DAMAGED}
    for each in both:
        with pytest.raises(AgentError, match=r"all 1 checkpoints below .* are damaged: delete them"):
            each.require_one()


@pytest.mark.parametrize("whose", ["its own", "another run's"])
def test_what_a_restore_compares_with_what_is_stored_counts_as_its_progress(
    tmp_path: Path, node: Node, whose: str
) -> None:
    (tmp_path / "step-1.pt").write_bytes(bytes(2 * OWN_STEP))
    stored = tmp_path / ("kept" if whose == "its own" else "another-run")
    reference = publish(tmp_path / "step-1.pt", str(stored), step=1, fence=LOWEST)
    place, one = workspace(tmp_path), node(0, tmp_path / "own")
    assert one.settings is not None
    one.settings = replace(one.settings, start_from=reference.uri if whose == "another run's" else None)
    one.restore(place)
    activity = one.context.activity
    before = activity.look()
    one.restore(place)
    assert activity.look() == before + 2, "it has begun, and has read what lies here"


def test_another_runs_checkpoint_is_read_anew_too_where_nodes_would_go_on_from_different_content(
    tmp_path: Path, node: Node
) -> None:
    best, one = tmp_path / "best", node(0, tmp_path / "own")
    put(best, "weights")
    assert one.settings is not None
    one.settings = replace(one.settings, start_from=str(best))
    one.restore(workspace(tmp_path))
    (best / "model.pt").write_text("changed")
    one.restore(workspace(tmp_path))
    with pytest.raises(AgentError, match=r"the checkpoint to start from cannot be fetched"):
        one.restore(workspace(tmp_path), reuse=False)


@pytest.mark.parametrize("amid", ["manifest.json", "data"])
@pytest.mark.parametrize("is_folder", [False, True], ids=["one file", "DeepSpeed"])
def test_a_restore_that_was_left_behind_changes_nothing_in_a_later_launch(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch, amid: str, *, is_folder: bool
) -> None:
    monkeypatch.setattr(interruptible, "LEAVE_AFTER", 0.1)
    others = threading.enumerate()
    place, folder, name = workspace(tmp_path), tmp_path / "own", "global_step1" if is_folder else "last.pt"
    part = f"{name}/zero_states.pt" if is_folder else name
    (tmp_path / part).parent.mkdir(exist_ok=True)
    (tmp_path / part).write_text("of step 1")
    ref = publish(tmp_path / name, str(tmp_path / "kept"), step=1, fence=LOWEST)
    main, other = node(0, folder), node(1, tmp_path / "others")
    begin_launch(main, 1)
    held = Held(Path(ref.uri, "manifest.json" if amid == "manifest.json" else Path(part).name))
    amid_it = threading.Thread(target=lambda: (held.await_it(), ask_for_launch(main, 2)))
    amid_it.start()
    with pytest.raises(Stopped):
        another_launch(other, main, place)
    amid_it.join()
    begin_launch(main, 2)
    another_launch(other, main, place)
    assert (folder / part).read_text() == "of step 1"
    # The program of the later launch trains on.
    (folder / part).write_text("of step 2")
    if is_folder:
        (folder / "latest").write_text("global_step2")
    before = main.context.heartbeat.report
    held.let_go()
    for thread in threading.enumerate():
        if thread.name == "fetching" and thread not in others:
            thread.join(60)
    assert (folder / part).read_text() == "of step 2"
    if is_folder:
        assert (folder / "latest").read_text() == "global_step2"
    assert main.context.heartbeat.report == before


def test_a_restore_that_begins_only_after_its_launch_was_given_up_changes_nothing(
    tmp_path: Path, node: Node
) -> None:
    publish_steps(tmp_path, 1)
    main = node(0, tmp_path / "own")
    begin_launch(main, 1)
    stopped = main.context.switch.until_stopped()
    ask_for_launch(main, 2)
    begin_launch(main, 2)
    with pytest.raises(AgentError, match="left behind"):
        main.restore(workspace(tmp_path), stopped=stopped)
    assert not (tmp_path / "own").exists()
    assert contents(main) == {None}


@pytest.mark.parametrize("is_rewritten", [True, False])
def test_nodes_that_have_started_from_different_content_of_one_place_do_not_pass_for_equal(
    tmp_path: Path, node: Node, *, is_rewritten: bool
) -> None:
    place, best = workspace(tmp_path), tmp_path / "best"
    settings = Checkpoints(path="x", uri=str(tmp_path / "kept"), start_from=str(best))
    both = [node(rank, tmp_path / str(rank)) for rank in (0, 1)]
    for number, each in enumerate(both):
        each.settings = replace(settings, path=str(tmp_path / str(number)))
        if number == 0 or is_rewritten:
            put(best, f"weights of run {number}")
        each.restore(place)
    assert "" not in contents(*both)
    assert len(contents(*both)) == 1 + is_rewritten
    # All fetch again then.
    meet_again(*both, place, place)
    assert len(contents(*both)) == 1
    assert len({(tmp_path / rank / "model.pt").read_text() for rank in "01"}) == 1
    assert [each.context.heartbeat.report.checkpoint for each in both] == [None, None]


@pytest.mark.parametrize("has", [("model.bin",), ()])
def test_a_folder_without_a_checkpoint_is_shown_without_what_is_hidden_in_it(
    tmp_path: Path, node: Node, has: tuple[str, ...]
) -> None:
    folder, one = tmp_path / "own", node(0, tmp_path / "own")
    (folder / ".ocidist-kept").mkdir(parents=True)
    for name in has:
        (folder / name).write_text("weights")
    with pytest.raises(AgentError, match="the training succeeded but wrote no checkpoint") as caught:
        one.require_checkpoint(workspace(tmp_path))
    assert ".ocidist-kept" not in str(caught.value)
    assert str(caught.value).endswith("it has model.bin") == bool(has)


def put(place: Path, content: str) -> None:
    """Put a checkpoint to a place instead of the one before, as another run's last step may."""
    (place.parent / "model.pt").write_text(content)
    ref = publish(place.parent / "model.pt", str(place.parent / "another-run"), step=None)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(ref.uri, place)


def agreed(number: int) -> tuple[Restart, ...]:
    return tuple(Restart(cause=Cause.USER, message=f"launch {each} failed") for each in range(number))


def ask_for_launch(of: CheckpointFolder, number: int) -> None:
    of.context.switch.ask(Stop(message="again", restarts=agreed(number)))


def begin_launch(of: CheckpointFolder, number: int) -> None:
    of.context.switch.rearm(number)
    of.context.heartbeat.update(restarts=agreed(number))


def test_nodes_that_have_read_different_companions_do_not_pass_for_equal(tmp_path: Path, node: Node) -> None:
    publish_steps(tmp_path, 1, 2, last="best.pt")
    both = [node(rank, tmp_path / str(rank)) for rank in (0, 1)]
    for each in both:
        each.restore(workspace(tmp_path))
        (tmp_path / "kept" / "step-2.pt" / "step-2.pt").write_text("changed")
    assert [entries(tmp_path / rank) for rank in "01"] == [["best.pt", "step-2.pt"], ["best.pt", "step-1.pt"]]
    assert len(contents(*both)) == 2


def publish_steps(root: Path, *steps: int, last: str | None = None) -> None:
    """Publish a checkpoint of each step; `last`: the name of one without a number, saved after them."""
    for name, step in [
        *((f"step-{step}.pt", step) for step in steps),
        *([(last, steps[-1])] if last else []),
    ]:
        (root / name).write_text("weights")
        publish(root / name, str(root / "kept"), step=step, fence=LOWEST)


def save(main: CheckpointFolder, place: Workspace, *names: str) -> None:
    """Publish what a program writes one after another."""
    folder, uploader = main.path(place), main.start_uploader(place)
    assert uploader is not None
    for number, name in enumerate(names):
        (folder / name).write_text("weights")
        os.utime(folder / name, ns=(0, time.time_ns() + number))
    assert uploader.finish(Moment.EXITED, SaveDeadline(SAVE_LIMIT)) is None
