"""Nodes go on from the folder that they share only if all of them find the same there, for the same launch."""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save.carried import Carried
from airflow_provider_ocidist.agent.save.entries import candidates
from airflow_provider_ocidist.agent.save.held_links import HeldLinks, holder_of
from airflow_provider_ocidist.agent.save.proofs import Proof
from airflow_provider_ocidist.agent.save.publishing import Whole
from airflow_provider_ocidist.agent.stages import agreement
from airflow_provider_ocidist.agent.stages.agreement import Agreement, has_same_nodes
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stopping import Stop, StopSwitch
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints, Program, Restarts
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart
from tests.agent.gangs import until

SEED = int(os.environ.get("TEST_SEED", "20261127"))
AGAIN = Restart(cause=Cause.USER, message="ValueError")
NEWEST = CheckpointRef(uri="on the nodes", step=5, digest="of the newest")
KINDS = (
    "the same",
    "other files",
    "no file",
    "silent",
    "replaced",
    "in the launch before",
    "in a later launch",
)


class Node:
    """One node of a gang, as it goes back for its next launch."""

    def __init__(self, root: Path, rank: int, folder: Path, nodes: int) -> None:
        config = AgentConfig(
            run_name="run",
            nodes=nodes,
            run_dir=str(root / "run"),
            program=Program(script="program.py"),
            checkpoints=Checkpoints(path=str(folder), uri=str(root / "kept")),
            restarts=Restarts(program=1),
        )
        environ = {"OCIDIST_NODE_RANK": str(rank), "HOME": str(root)}
        self.context = NodeContext(config, environ, StopSwitch())
        self.folder = folder
        self.agreement = Agreement(self.context, lambda: self.folder)

    @property
    def report(self) -> NodeReport:
        return self.context.heartbeat.report

    def go_back(self, *restarts: Restart) -> None:
        self.context.heartbeat.update(restarts=restarts, phase=Phase.FETCHING, holds=None)

    def write(self) -> None:
        assert self.context.heartbeat.write()


def save(folder: Path) -> None:
    place = folder / "step-5"
    place.mkdir(parents=True)
    for name in ("__0_0.distcp", "__1_0.distcp", ".metadata"):
        (place / name).write_text(f"weights in {name}")
        os.utime(place / name, (1, 1))


def carried_in(folder: Path) -> Carried:
    (item,) = candidates(folder)
    whole = Whole(item, Proof("a test"), 1, step=5)
    return Carried(waiting=(whole,), links=HeldLinks(folder), in_place=(item,))


def go_back_as(node: Node, kind: str, main: Node) -> None:
    """Let a node do what it does in such a state once it reads the main node's offer."""
    if kind == "in the launch before":
        node.go_back()
    elif kind == "in a later launch":
        node.go_back(AGAIN, AGAIN)
    else:
        node.go_back(AGAIN)
    if kind == "other files":
        (node.folder / "step-5" / "__1_0.distcp").write_text("weights in part")
    elif kind == "no file":
        (node.folder / "step-5").rename(node.folder / "step-6")
    until(lambda: main.report.offers)
    if kind == "replaced":
        node.context.heartbeat.update(incarnation=1)
    elif kind != "silent":
        node.agreement.answer([main.report])
    node.write()


@pytest.mark.parametrize("number", range(24))
def test_a_launch_goes_on_from_the_folder_only_if_every_node_finds_the_same_there_for_that_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    caplog.set_level(logging.INFO)
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    monkeypatch.setattr(agreement, "ANSWERED_WITHIN", 1.0)
    kinds = [draw.choice([*KINDS, *["the same"] * 9]) for _ in range(draw.randrange(1, 4))]
    main, *others = (
        Node(tmp_path, rank, tmp_path / str(rank) / "folder", len(kinds) + 1)
        for rank in range(len(kinds) + 1)
    )
    for each in (main, *others):
        save(each.folder)
    threads = [
        threading.Thread(target=go_back_as, args=(node, kind, main))
        for node, kind in zip(others, kinds, strict=True)
    ]
    for thread in threads:
        thread.start()
    carried = carried_in(main.folder)
    reached = main.agreement.reached(carried, NEWEST, 1)
    for thread in threads:
        thread.join()
    assert reached is (set(kinds) == {"the same"}), kinds
    assert ("all is uploaded before the next launch" in caplog.text) is not reached
    assert (main.agreement.chosen_for(1) is not None) is reached
    main.context.heartbeat.update(offers=main.agreement.chosen_for(1), restarts=(AGAIN,))
    chosen = [node.agreement.chosen_by_main([main.report]) for node in others]
    assert all((offer is not None) is reached for offer in chosen)
    if reached:
        assert {offer.checkpoint for offer in chosen if offer} == {NEWEST}
        assert {node.agreement.found(main.report.offers) for node in (main, *others)} == {carried.digest(1)}


def test_what_was_agreed_for_one_launch_is_chosen_for_no_other(tmp_path: Path) -> None:
    main, other = (Node(tmp_path, rank, tmp_path / "folder", 2) for rank in range(2))
    save(main.folder)
    thread = threading.Thread(target=go_back_as, args=(other, "the same", main))
    thread.start()
    assert main.agreement.reached(carried_in(main.folder), NEWEST, 1)
    thread.join()
    assert not main.agreement.answer_beforehand(1), "the main node has nobody to answer"
    assert main.agreement.chosen_for(2) is None
    main.context.heartbeat.update(offers=main.agreement.chosen_for(1), restarts=(AGAIN,))
    assert other.agreement.chosen_by_main([main.report]) is not None
    # Another launch is asked for before that one has begun.
    other.go_back(AGAIN, AGAIN)
    assert other.agreement.chosen_by_main([main.report]) is None
    other.agreement.answer([main.report])
    assert other.report.holds is None


@pytest.mark.parametrize("number", range(12))
def test_a_node_may_answer_before_it_goes_back_and_its_answer_is_of_that_launch_only(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.before.{number}")
    print(f"seed {SEED}.before.{number}")
    main, other = (Node(tmp_path, rank, tmp_path / str(rank), 2) for rank in range(2))
    save(main.folder)
    save(other.folder)
    launch = draw.randrange(1, 4)
    before = (AGAIN,) * (launch - 1)
    for node in (main, other):
        node.go_back(*before)
    same, answered_before = draw.random() < 0.7, draw.random() < 0.5
    if answered_before:
        other.context.heartbeat.update(holds="of the launch before")
    if not same:
        (other.folder / "step-5" / "__1_0.distcp").write_text("weights in part")
    reached: list[bool] = []
    offering = threading.Thread(
        target=lambda: reached.append(main.agreement.reached(carried_in(main.folder), NEWEST, launch))
    )
    offering.start()
    until(lambda: main.report.offers)
    main.write()
    assert not other.agreement.answer_beforehand(launch), "it is only offered yet"
    other.write()
    answer = other.agreement.answer_for(launch)
    assert answer is not None
    assert other.agreement.answer_for(launch + 1) is None
    other.context.heartbeat.update(restarts=(AGAIN,) * launch, holds=answer)
    other.write()
    offering.join()
    assert reached == [same]
    main.context.heartbeat.update(offers=main.agreement.chosen_for(launch), restarts=(AGAIN,) * launch)
    main.write()
    assert other.agreement.answer_beforehand(launch) is same


def test_what_is_only_offered_is_not_gone_on_from(tmp_path: Path) -> None:
    """The main node may have found that another node lacks it."""
    main, other = (Node(tmp_path, rank, tmp_path / "folder", 2) for rank in range(2))
    save(main.folder)
    go_on = threading.Thread(target=main.agreement.reached, args=(carried_in(main.folder), NEWEST, 1))
    go_on.start()
    go_back_as(other, "the same", main)
    go_on.join()
    main.context.heartbeat.update(restarts=(AGAIN,))
    assert main.report.offers
    assert not main.report.offers.chosen
    assert other.agreement.chosen_by_main([main.report]) is None


@pytest.mark.parametrize("ends", ["a signal", "lost"])
def test_a_main_node_that_is_to_end_waits_for_no_answer(tmp_path: Path, ends: str) -> None:
    main = Node(tmp_path, 0, tmp_path / "folder", 2)
    save(main.folder)
    if ends == "lost":
        main.context.switch.ask(Stop(message="another has its place", is_lost=True))
    else:
        main.context.switch.signalled.set()
    assert not main.agreement.reached(carried_in(main.folder), NEWEST, 1)


def test_a_node_that_has_launched_nothing_yet_finds_nothing(tmp_path: Path) -> None:
    main, late = (Node(tmp_path, rank, tmp_path / "folder", 2) for rank in range(2))
    save(main.folder)
    late.agreement = Agreement(late.context, lambda: None)
    thread = threading.Thread(target=go_back_as, args=(late, "the same", main))
    thread.start()
    assert not main.agreement.reached(carried_in(main.folder), NEWEST, 1)
    thread.join()
    assert late.report.holds == ""


def changed(after: Restart, **changes: object) -> tuple[Restart, ...]:
    return (replace(after, **changes),)


@pytest.mark.parametrize(
    "after, same",
    [
        ((AGAIN,), True),
        ((AGAIN, AGAIN), True),
        (changed(AGAIN, lost=(1,)), False),
        ((*changed(AGAIN, lost=(1,)), AGAIN), False),
        (changed(AGAIN, members=(0, 1)), False),
        (changed(AGAIN, members=(0, 1, 2)), True),
    ],
)
def test_only_the_machines_of_the_launch_before_have_what_that_has_saved(
    after: tuple[Restart, ...], *, same: bool
) -> None:
    assert has_same_nodes((), after, 3) is same


def test_who_was_lost_before_is_replaced_by_now() -> None:
    before = changed(AGAIN, lost=(1,))
    assert has_same_nodes(before, (*before, AGAIN), 3)


# The links of what is left


def links_below(folder: Path) -> set[str]:
    found = itertools.chain(folder.parent.glob(".folder.held.*"), folder.glob(".folder.held.*"))
    return {path.name.split(".held.")[1].rpartition(".part")[0].rpartition(".")[0] for path in found}


@pytest.mark.parametrize("is_within", [True, False])
def test_the_other_nodes_of_the_next_launch_leave_alone_what_was_handed_over_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_within: bool
) -> None:
    node = Node(tmp_path, 0, tmp_path / "mount" / "folder", 2)
    save(node.folder)
    store = node.context.heartbeat.store
    if is_within:
        forbid_beside(monkeypatch, node.folder)
    (item,) = candidates(node.folder)
    links = HeldLinks(node.folder, holder_of(store, 0, 0))
    links.keep([item])
    assert links.holds(item)
    assert links.hand_over(holder_of(store, 1, 0))
    assert links_below(node.folder) == {holder_of(store, 1, 0)}
    HeldLinks(node.folder, holder_of(store, 1, 1)).remove_left_over()
    for file in (node.folder / "step-5").iterdir():
        file.unlink()
    assert links.holds(item)
    assert (links.source(item) / ".metadata").read_text() == "weights in .metadata"
    links.keep(())
    assert links_below(node.folder) == set()


def test_without_any_link_there_is_nothing_to_rename(tmp_path: Path) -> None:
    node = Node(tmp_path, 0, tmp_path / "mount" / "folder", 2)
    save(node.folder)
    links = HeldLinks(node.folder, "before-0")
    assert links.hand_over("after-0")
    (item,) = candidates(node.folder)
    links.keep([item])
    assert links_below(node.folder) == {"after-0"}


def test_links_that_cannot_be_renamed_are_not_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, 0, tmp_path / "mount" / "folder", 2)
    save(node.folder)
    (item,) = candidates(node.folder)
    links = HeldLinks(node.folder, "before-0")
    links.keep([item])
    rename: Callable[..., Path] = Path.rename

    def fails(path: Path, to: Path) -> Path:
        if ".held." in path.name:
            raise PermissionError(path)
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fails)
    assert not links.hand_over("after-0")
    assert links.holds(item), "it is sent before the launch"


def forbid_beside(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let nothing be created beside a folder, as where it is a mount of its own."""
    make: Callable[..., None] = Path.mkdir

    def mkdir(path: Path, *arguments: object, **options: object) -> None:
        if folder.parent / path.relative_to(folder.parent).parts[0] != folder and ".held." in str(path):
            raise PermissionError(path)
        make(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
