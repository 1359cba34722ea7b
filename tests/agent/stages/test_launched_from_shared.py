"""Nodes that share a checkpoint folder go on from what is whole in it, which is sent beside the training."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save import handover
from airflow_provider_ocidist.agent.stages import agreement
from airflow_provider_ocidist.agent.stages.checkpoint_folder import CheckpointFolder
from airflow_provider_ocidist.agent.stages.results import Results
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart
from airflow_provider_ocidist.model.work_dir import report_of
from airflow_provider_ocidist.storage.checkpoints import complete, newest
from tests.agent.gangs import REPOSITORY, Gang
from tests.agent.stages.test_restarts import gang
from tests.agent.stages.test_results import place_of, results_of, saved, slow_send

SLOW = """
import os, pathlib
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage import checkpoints

send = checkpoints._send

def slow(source, target, entries, cancel):
    marks = pathlib.Path(os.environ["MARKS"])
    while "step-000002" not in target.uri and not (marks / "open").exists():
        (marks / "sends").touch()
        if cancel.wait(0.02):
            raise StorageError("it was cancelled")
    return send(source, target, entries, cancel)

checkpoints._send = slow
"""
"""A store that takes nothing but the first checkpoint until it is let."""
LOOKS_LONG = """
import os, pathlib
from airflow_provider_ocidist.storage import repairs

look = repairs.store_missing

def slow(uri, folder, access, *, cancel, **settings):
    marks = pathlib.Path(os.environ["MARKS"])
    if settings["begin_at"]:
        (marks / "looks").touch()
        while not (marks / "open").exists():
            if cancel.wait(0.02):
                (marks / "left-off").touch()
                return ()
    return look(uri, folder, access, cancel=cancel, **settings)

repairs.store_missing = slow
"""
"""A place in which the other node finds what is missing only after a long time."""
TRAINS = """
import pickle
marks, kept = pathlib.Path(os.environ["MARKS"]), pathlib.Path(os.environ["KEPT"])
NODES, STEPS, SIZE = 2, 6, 200

class StorageInfo:
    def __init__(self, name):
        self.relative_path, self.offset, self.length = name, 0, SIZE

class Metadata:
    def __init__(self, names):
        self.storage_data = {name: StorageInfo(name) for name in names}

def part(rank):
    return f"__{rank}_0.distcp"

def stored(step):
    return list(kept.glob(f"step-{step:06}*/manifest.json"))

def write(path, data):
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(data)
    new.rename(path)

def save_together(step, weights):
    place = folder / f"step-{step:06}"
    place.mkdir(exist_ok=True)
    write(place / part(node), f"{step} {weights} ".encode().ljust(SIZE, b"."))
    names = [part(rank) for rank in range(NODES)]
    if node == 0:
        until(lambda: all((place / name).exists() for name in names))
        write(place / ".metadata", pickle.dumps(Metadata(names)))
    until((place / ".metadata").exists)

def load():
    found = [path for path in sorted(folder.glob("step-*")) if (path / ".metadata").exists()]
    if not found:
        return 0, node
    texts = [(found[-1] / part(rank)).read_text().split() for rank in range(NODES)]
    assert len({text[0] for text in texts}) == 1, f"mixed: {texts}"
    return int(texts[node][0]), int(texts[node][1])

step, weights = load()
print(f"launch {launch} of node {node} goes on from step {step}", flush=True)
while step < STEPS:
    if step == 4 and launch == 0 and "UNDISTURBED" not in os.environ:
        until((marks / "sends").exists)
        if node == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)
    step += 1
    weights = (weights * 31 + step * 7 + node + 1) % 1000003
    at(step)
    if step == 5:
        print(f"launch {launch}: step 5, and step 4 is stored: {bool(stored(4))}", flush=True)
        until((marks / "goes-on").exists)
    if step % 2 == 0:
        save_together(step, weights)
        if step == 2 and node == 0:
            until(lambda: stored(2))
        until(lambda: stored(2))
print(f"node {node} ends with {weights}", flush=True)
"""


class Two:
    """A gang of two nodes with one folder, whose store takes nothing new until it is open."""

    def __init__(self, root: Path, script: str = TRAINS, **changes: Any) -> None:
        root.mkdir(exist_ok=True)
        self.marks, self.kept, self.folder = root / "marks", root / "kept", root / "mount" / "checkpoints"
        self.marks.mkdir()
        (root / "sitecustomize.py").write_text(SLOW)
        kept = Checkpoints(path=str(self.folder), uri=str(self.kept), keep=9)
        self.gang: Gang = gang(root, script, **{"nodes": 2, "checkpoints": kept, **changes})
        path = os.pathsep.join([str(root), str(REPOSITORY)])
        self.environ = {"MARKS": str(self.marks), "KEPT": str(self.kept), "PYTHONPATH": path}

    def start(self, **environ: str) -> None:
        self.main, self.other = self.gang.start(**self.environ, **environ)

    def mark(self, name: str) -> None:
        (self.marks / name).touch()

    @property
    def stored(self) -> list[tuple[int | None, int]]:
        """Steps and numbers of what is stored, the newest first."""
        return [(each.step, each.sequence) for each in complete(str(self.kept))]

    def ends(self) -> list[str]:
        """Return what the nodes have ended with."""
        assert [node.wait() for node in self.gang.agents] == [0, 0], self.errors()
        return [node.stdout.read_text().split(" ends with ")[1].split()[0] for node in self.gang.agents]

    def errors(self) -> str:
        return "\n\n".join(node.stderr.read_text() for node in self.gang.agents)

    def files(self, step: int) -> dict[str, bytes]:
        """Return what is stored of a step."""
        (place,) = [place for place in self.kept.glob(f"step-{step:06}*") if place.is_dir()]
        names = [each["path"] for each in json.loads((place / "manifest.json").read_text())["files"]]
        return {name: (place / name).read_bytes() for name in names}


AGAIN = (Restart(cause=Cause.USER, message="ValueError"),)


def main_node(root: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """Return the main node of two that share a folder, whose store takes what it gets in two seconds."""
    monkeypatch.setattr(handover, "SENT_FIRST", 0.3)
    main = results_of(root, monkeypatch, nodes=2)
    main.context.heartbeat.update(apart=())
    slow_send(monkeypatch, 10)
    return main


class Other:
    """The other node, which finds what the main node offers, from when it has gone back."""

    def __init__(self, main: Results, **finds: Any) -> None:
        """`finds`: of its report, instead of what the main node offers."""
        self.main, self.finds, self.over = main, finds, threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    @property
    def report(self) -> NodeReport:
        offer = self.main.context.heartbeat.report.offers
        report = NodeReport(
            rank=1,
            phase=Phase.FETCHING,
            address="",
            started_at=0.0,
            heartbeat_at=time.time(),
            writing=(),
            restarts=AGAIN,
            holds=offer.digest if offer else None,
        )
        return replace(report, **self.finds)

    def _run(self) -> None:
        while not self.over.wait(0.05):
            self.main.context.heartbeat.store.write(report_of(1), self.report.to_json())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def fail(main: Results, root: Path, restarts: tuple[Restart, ...] = AGAIN) -> None:
    """Let the program fail just after a save, and the main node go back as the nodes have agreed."""
    uploader = saved(main, root)
    main.save_after_failure(place_of(root), uploader, None, is_last=False, restarts=restarts)
    offer = main.checkpoints.offer_for(len(restarts))
    main.context.heartbeat.update(restarts=restarts, offers=offer)


def stored(root: Path) -> list[tuple[int | None, int]]:
    return [(each.step, each.fence.launch) for each in complete(str(root / "kept"))]


def test_what_was_left_to_a_launch_that_does_not_begin_is_sent_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine is lost before the nodes meet: the one in its place has nothing but what is stored."""
    main, place = main_node(tmp_path, monkeypatch), place_of(tmp_path)
    heartbeat = main.context.heartbeat
    with Other(main) as other:
        fail(main, tmp_path)
        assert stored(tmp_path) == []
        assert heartbeat.report.offers
        assert heartbeat.report.offers.chosen
        main.checkpoints.go_back(place, [other.report])
        assert heartbeat.report.starts_from == heartbeat.report.offers.digest
        assert main.context.goes_on_from
        # That for which it was left is no other one.
        main.save_before(place, 1)
        assert main.checkpoints.goes_on_from_here
        lost = (*AGAIN, replace(AGAIN[0], cause=Cause.NODE, lost=(1,)))
        main.save_before(place, len(lost))
    assert not main.checkpoints.goes_on_from_here
    assert [step for step, _ in stored(tmp_path)] == [5]
    heartbeat.update(restarts=lost, offers=main.checkpoints.offer_for(2))
    assert heartbeat.report.offers is None
    main.checkpoints.go_back(place, [other.report])
    found = newest(str(tmp_path / "kept"))
    assert found
    assert heartbeat.report.starts_from == found.digest
    assert main.context.goes_on_from is None
    assert not list(tmp_path.glob(".folder.held.*"))


def test_the_end_of_the_run_sends_what_was_left_to_a_launch_that_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = main_node(tmp_path, monkeypatch)
    with Other(main) as other:
        fail(main, tmp_path)
        assert stored(tmp_path) == []
        main.checkpoints.go_back(place_of(tmp_path), [other.report])
        main.save_rest(place_of(tmp_path))
    assert [step for step, _ in stored(tmp_path)] == [5]


@pytest.mark.parametrize(
    "finds",
    [
        {"holds": ""},
        {"holds": "other files"},
        {"restarts": (), "holds": None},
        {"restarts": (*AGAIN, *AGAIN)},
        {"holds": None},
    ],
    ids=["nothing", "other files", "it still trains", "another launch", "it does not say"],
)
def test_where_the_other_node_does_not_find_it_for_this_launch_all_is_sent_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finds: dict[str, Any]
) -> None:
    monkeypatch.setattr(agreement, "ANSWERED_WITHIN", 1.0)
    main = main_node(tmp_path, monkeypatch)
    with Other(main, phase=Phase.SAVING, **finds):
        fail(main, tmp_path)
    assert not main.checkpoints.goes_on_from_here
    assert [step for step, _ in stored(tmp_path)] == [5]


@pytest.mark.parametrize(
    "why", ["apart", "not known yet", "a machine is lost", "more take part", "overtaken"]
)
def test_where_not_all_can_have_the_same_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    main, restarts = main_node(tmp_path, monkeypatch), AGAIN
    if why in ("apart", "not known yet"):
        main.context.heartbeat.update(apart=(1,) if why == "apart" else None)
    elif why == "a machine is lost":
        restarts = (replace(AGAIN[0], lost=(1,)),)
    elif why == "more take part":
        restarts = (replace(AGAIN[0], members=(0,)),)
    else:
        monkeypatch.setattr(CheckpointFolder, "_is_known_to_be_latest", lambda _: False)
    with Other(main):
        fail(main, tmp_path, restarts)
    assert main.context.heartbeat.report.offers is None
    assert not main.checkpoints.goes_on_from_here
    assert [step for step, _ in stored(tmp_path)] == [5]


def test_a_gang_in_which_nothing_waits_agrees_on_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = results_of(tmp_path, monkeypatch, nodes=2)
    main.context.heartbeat.update(apart=())
    with Other(main):
        fail(main, tmp_path)
    assert main.context.heartbeat.report.offers is None
    assert [step for step, _ in stored(tmp_path)] == [5]


def test_two_nodes_train_on_from_their_folder_before_the_upload_and_end_with_the_same_weights(
    tmp_path: Path,
) -> None:
    undisturbed = Two(tmp_path / "undisturbed")
    with undisturbed.gang:
        undisturbed.mark("open")
        undisturbed.mark("goes-on")
        undisturbed.start(UNDISTURBED="1")
        expected = undisturbed.ends()
    two = Two(tmp_path / "disturbed")
    with two.gang:
        two.start()
        for node in (two.main, two.other):
            node.prints(f"launch 1 of node {node.rank} goes on from step 4")
            node.prints("launch 1: step 5, and step 4 is stored: False")
        assert two.stored == [(2, 1)]
        saved = {path.name: path.read_bytes() for path in (two.folder / "step-000004").iterdir()}
        two.mark("open")
        two.mark("goes-on")
        assert two.ends() == expected
        assert two.stored == [(6, 3), (4, 2), (2, 1)]
        assert two.files(4) == saved
        report = two.main.report
        assert report.checkpoint == newest(str(two.kept))
        assert [each.killed for each in report.restarts] == [True]
        assert not list(two.folder.parent.glob(".checkpoints.held.*"))


def test_a_node_that_looks_long_for_what_is_missing_in_the_store_answers_all_the_same(tmp_path: Path) -> None:
    two = Two(tmp_path / "two")
    with (tmp_path / "two" / "sitecustomize.py").open("a") as file:
        file.write(LOOKS_LONG)
    with two.gang:
        two.start()
        for node in (two.main, two.other):
            node.prints(f"launch 1 of node {node.rank} goes on from step 4")
            node.prints("launch 1: step 5, and step 4 is stored: False")
        assert "not all nodes say" not in two.errors()
        assert (two.marks / "looks").exists()
        assert (two.marks / "left-off").exists(), "it is not needed where all go on from the folder"
        two.mark("open")
        two.mark("goes-on")
        two.ends()
        assert two.stored == [(6, 3), (4, 2), (2, 1)]
