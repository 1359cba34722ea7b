"""What another launch finds in a checkpoint folder: of what it cannot go on from, only a node's own leftovers go."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
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
from airflow_provider_ocidist.agent.stopping import Stop, StopSwitch
from airflow_provider_ocidist.job import Checkpoints, Program, Restarts
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.fence import LOWEST
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
    results, grace = Results(folder.context, folder), folder.context.config.limits.stop_grace
    asked: Any = uploader, Stop(message="node 1 ended the launch")
    results.save_after_failure(workspace(tmp_path), *asked, is_last=is_last)
    assert uploader.limit == (grace if is_last else SAVE_LIMIT)


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

    def starts_from() -> set[str | None]:
        return {each.context.heartbeat.report.starts_from for each in both}

    main.go_back(place, [other.context.heartbeat.report])
    another_launch(main, other, place)
    if not is_missing:
        # What a node has already is not read again, as a rule.
        assert len(starts_from()) == 2
        main.go_back(place, [other.context.heartbeat.report], differed=True)
        other.go_back(place, [main.context.heartbeat.report], differed=True)
    assert len(starts_from()) == 1
    # As the uploader does before a launch.
    Ledger(mains).begin(main._fetched)
    assert entries(mains) == ["step-0.pt", "step-1.pt"]
    assert entries(tmp_path / "others") == ["step-1.pt"]
    assert (aside_of(mains) / "step-2.pt").read_text() == "weights"


def test_what_a_new_node_has_read_before_the_damage_is_read_again(tmp_path: Path, node: Node) -> None:
    kept = tmp_path / "kept"
    for step in (1, 2):
        (tmp_path / f"step-{step}.pt").write_text("weights")
        publish(tmp_path / f"step-{step}.pt", str(kept), step=step, fence=LOWEST)
    both = [(node(rank, Path("checkpoints")), workspace(tmp_path / str(rank))) for rank in (0, 1)]
    reports = []
    for each, place in both:
        each.restore(place)
        reports.append(each.context.heartbeat.report)
        (kept / "step-2.pt" / "step-2.pt").write_text("changed")
    assert [report.checkpoint and report.checkpoint.step for report in reports] == [2, 1]
    for (each, place), report in zip(both, reversed(reports)):
        each.go_back(place, [report], differed=True)
        assert entries(each.path(place)) == ["step-1.pt"]


def save(main: CheckpointFolder, place: Workspace, *names: str) -> None:
    """Publish what a program writes one after another."""
    folder, uploader = main.path(place), main.start_uploader(place)
    assert uploader is not None
    for number, name in enumerate(names):
        (folder / name).write_text("weights")
        os.utime(folder / name, ns=(0, time.time_ns() + number))
    assert uploader.finish(Moment.EXITED, SaveDeadline(SAVE_LIMIT)) is None
