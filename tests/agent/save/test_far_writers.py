"""A checkpoint folder that nodes share: what one of them still writes is published by none."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.join import peer_reports
from airflow_provider_ocidist.agent.save import far_writers
from airflow_provider_ocidist.agent.save.entries import candidates
from airflow_provider_ocidist.agent.save.far_writers import BEATS, FarWriters, written_entries
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart
from airflow_provider_ocidist.model.work_dir import report_of
from airflow_provider_ocidist.storage.checkpoints import newest
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.gangs import Gang

PROGRAM = """
import os, sys, time
from pathlib import Path

rank, meeting, how = int(os.environ["OCIDIST_NODE_RANK"]), Path(sys.argv[1]), sys.argv[2]
folder = Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
meeting.mkdir(parents=True, exist_ok=True)


def await_file(name):
    while not (meeting / name).exists():
        time.sleep(0.05)


if rank == 0:
    (folder / "step-2").mkdir(parents=True)
    (folder / "step-2" / "rank0.bin").write_text("weights of 0")
    (meeting / "begun").touch()
    await_file("half")
    (folder / "step-4").mkdir()
    (folder / "step-4" / "rank0.bin").write_text("weights of 0")
    print("the successor is begun", flush=True)
    if how == "exits":
        sys.exit(0)
    time.sleep(60)
await_file("begun")
# As an asynchronous saver that waits for its device within a file.
with (folder / "step-2" / "rank1.bin").open("w") as file:
    file.write("wei")
    file.flush()
    (meeting / "half").touch()
    time.sleep(6)
    if how != "exits":
        os.abort()
    file.write("ghts of 1")
(folder / "step-4" / "rank1.bin").write_text("weights of 1")
"""


class Nodes:
    """The reports of a gang whose nodes share a checkpoint folder with the main node, rank 0."""

    def __init__(self, root: Path, nodes: int) -> None:
        self.folder = root / "checkpoints"
        self.folder.mkdir()
        self.store = open_store(str(root / "run"))
        self.reports = {
            rank: NodeReport(
                rank=rank, phase=Phase.TRAINING, address="", started_at=0.0, heartbeat_at=0.0, writing=()
            )
            for rank in range(1, nodes)
        }
        self.far = FarWriters(self.store, list(self.reports), patient=lambda: False)
        for rank in self.reports:
            self.beat(rank)

    def beat(self, rank: int, **changes: Any) -> None:
        now = self.reports[rank].heartbeat_at + 1
        self.reports[rank] = replace(self.reports[rank], heartbeat_at=now, **changes)
        self.store.write(report_of(rank), self.reports[rank].to_json())

    def write(self, text: str) -> None:
        place = self.folder / "step-2"
        place.mkdir(exist_ok=True)
        (place / f"{len(text)}.bin").write_text(text)

    def doubt(self) -> str | None:
        (item,) = candidates(self.folder)
        return self.far.doubt(item)


@pytest.mark.parametrize("seed", range(20))
def test_an_entry_is_done_once_every_node_has_reported_since_that_it_does_not_write_to_it(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    nodes = Nodes(tmp_path, dice.randint(2, 4))
    ranks = list(nodes.reports)
    nodes.write("a")
    assert nodes.doubt()
    since = dict.fromkeys(ranks, 0)
    for turn in range(40):
        rank = dice.choice(ranks)
        event = dice.choice(["beat", "beat", "beat", "open", "close", "write", "ends"])
        if event == "write":
            nodes.write("a" * (turn + 2))
            since = dict.fromkeys(ranks, -1)
        elif event == "ends" and dice.random() < 0.3:
            nodes.beat(rank, phase=dice.choice([Phase.SAVING, Phase.DONE]), writing=None)
        elif event == "open":
            nodes.beat(rank, writing=("step-2", "step-4"))
        else:
            nodes.beat(rank, writing=() if event == "close" else nodes.reports[rank].writing)
        if event != "write":
            since[rank] += 1
        doubt = nodes.doubt()
        for each in ranks:
            since[each] = max(since[each], 0)
            writes = "step-2" in (nodes.reports[each].writing or ())
            since[each] = -1 if writes else since[each]
            trains = nodes.reports[each].phase is Phase.TRAINING
            if writes or (trains and since[each] < BEATS):
                assert doubt, (turn, each)
    for rank in ranks:
        nodes.beat(rank, writing=("step-4",))
        nodes.doubt()
    for _ in range(BEATS):
        for rank in ranks:
            nodes.beat(rank)
        doubt = nodes.doubt()
    assert doubt is None


@pytest.mark.parametrize("report", ["", "{}", "unknown"])
def test_of_a_node_that_says_nothing_of_its_writing_nothing_is_known(tmp_path: Path, report: str) -> None:
    nodes = Nodes(tmp_path, 2)
    nodes.write("a")
    for _ in range(BEATS + 2):
        if report == "unknown":
            nodes.beat(1, writing=None)
        else:
            nodes.store.write(report_of(1), report.encode())
        assert "node 1" in (nodes.doubt() or "")
    nodes.beat(1, phase=Phase.DONE, writing=None)
    assert nodes.doubt() is None
    nodes.beat(1, phase=Phase.DONE, writing=("step-2",))
    assert nodes.doubt(), "it was cut off while it wrote"


def test_a_node_names_the_entries_that_its_processes_have_open_for_writing(tmp_path: Path) -> None:
    (tmp_path / "step-2" / "deep").mkdir(parents=True)
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "a").write_text("done")
    program = (
        "import sys; files = [open(f'{sys.argv[1]}/{name}', mode) for name, mode in"
        " (('step-2/deep/x', 'w'), ('step-3.pt', 'ab'), ('step-1/a', 'r'))];"
        " print('open', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout
    assert child.stdout.readline()
    assert written_entries(tmp_path) == ("step-2", "step-3.pt")
    child.communicate(b"")
    assert written_entries(tmp_path) == ()


def test_a_program_has_ended_once_it_has_on_each_node_or_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(tmp_path, 4)
    assert not nodes.far.have_ended()
    nodes.beat(1, phase=Phase.SAVING)
    nodes.beat(2, phase=Phase.DONE)
    assert not nodes.far.have_ended()
    nodes.beat(3, phase=Phase.SAVING)
    assert nodes.far.have_ended()
    # One that is silent for long is gone.
    nodes.beat(3, phase=Phase.TRAINING)
    assert not nodes.far.have_ended()
    monkeypatch.setattr(peer_reports, "GONE_AFTER", -1.0)
    assert nodes.far.have_ended()


def test_who_has_gone_back_for_a_later_launch_writes_no_more_but_what_it_was_cut_off_in(
    tmp_path: Path,
) -> None:
    """It may do so before the main node has seen that it saves."""
    nodes = Nodes(tmp_path, 2)
    nodes.far = FarWriters(nodes.store, [1], patient=lambda: False, launch=0)
    nodes.write("a")
    nodes.beat(1, writing=("step-4",))
    assert not nodes.far.have_ended()
    assert nodes.doubt()
    again = (Restart(cause=Cause.USER, message="ValueError"),)
    nodes.beat(1, phase=Phase.FETCHING, restarts=again)
    assert nodes.far.have_ended()
    assert nodes.doubt() is None
    nodes.beat(1, writing=("step-2",))
    assert nodes.doubt()


@pytest.mark.parametrize("is_patient", [True, False])
def test_a_silent_node_is_waited_for_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_patient: bool
) -> None:
    nodes = Nodes(tmp_path, 2)
    far = FarWriters(nodes.store, [1], patient=lambda: is_patient)
    monkeypatch.setattr(peer_reports, "GONE_AFTER", -1.0)
    assert far.have_ended() is not is_patient


def test_the_first_sixteen_entries_are_named_and_what_is_only_mapped_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def written(*, mapped: bool) -> frozenset[str]:
        asked.append(mapped)
        return frozenset(str(tmp_path / f"step-{number:02}" / name) for number in range(20) for name in "ab")

    monkeypatch.setattr(far_writers, "open_for_writing", written)
    # A report is written every two seconds: it has no room for more, and lists of mappings take long.
    assert written_entries(tmp_path) == tuple(f"step-{number:02}" for number in range(16))
    assert asked == [False]
    assert BEATS == 2, "the first may stem from a look before the last write"


@pytest.mark.parametrize("how", ["aborts", "exits"])
def test_what_another_node_still_writes_into_the_shared_folder_is_published_by_none(
    tmp_path: Path, how: str
) -> None:
    safe = tmp_path / "safe"
    checkpoints = Checkpoints(path=str(tmp_path / "shared"), uri=str(safe))
    args = (str(tmp_path / "meeting"), how)
    with Gang(tmp_path / "gang", PROGRAM, nodes=2, args=args, checkpoints=checkpoints) as gang:
        codes = gang.run()
        log = "\n".join(agent.stderr.read_text() for agent in gang.agents)
    if how == "aborts":
        assert codes != [0, 0]
        assert newest(str(safe)) is None, log
    else:
        assert codes == [0, 0], log
    for manifest in safe.glob("step-*/manifest.json"):
        found = {item["path"]: item["size"] for item in json.loads(manifest.read_text())["files"]}
        assert found == {"rank0.bin": 12, "rank1.bin": 12}, log
