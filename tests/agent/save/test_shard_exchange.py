"""Checkpoints of which each node holds a part, on disks of its own."""

from __future__ import annotations

import io
import json
import pickle
import random
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.join import peer_reports
from airflow_provider_ocidist.agent.save import (
    disk_room,
    folder_marks,
    saving,
    shard_collector,
    shard_uploader,
)
from airflow_provider_ocidist.agent.save.checkpoints import Fetching, resume
from airflow_provider_ocidist.agent.save.entries import candidates
from airflow_provider_ocidist.agent.save.folder_marks import hide_folder, nodes_apart, show_folder
from airflow_provider_ocidist.agent.save.held_links import HeldLinks
from airflow_provider_ocidist.agent.save.own_files import OwnFiles
from airflow_provider_ocidist.agent.save.proofs import Moment, Proof
from airflow_provider_ocidist.agent.save.publishing import Publisher, Whole
from airflow_provider_ocidist.agent.save.saving import SaveDeadline
from airflow_provider_ocidist.agent.save.shard_collector import ShardCollector
from airflow_provider_ocidist.agent.save.shard_exchange import ShardRequest
from airflow_provider_ocidist.agent.save.shard_uploader import ShardUploader
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import Cause, IncompleteCheckpoint, StorageError
from airflow_provider_ocidist.job import Checkpoints
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import LOWEST, Fence
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart
from airflow_provider_ocidist.model.work_dir import report_of
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import checkpoints
from airflow_provider_ocidist.storage.checkpoints import MANIFEST, SaveFacts, newest
from airflow_provider_ocidist.storage.retention import Retention, retain
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.gangs import Gang, until

PROGRAM = """
import os, pickle, sys, time, zipfile
from pathlib import Path

meeting, kind, steps = Path(sys.argv[1]), sys.argv[2], [int(step) for step in sys.argv[3].split(",")]
pause = float(sys.argv[4]) if len(sys.argv) > 4 else 0
rank, nodes = int(os.environ["OCIDIST_NODE_RANK"]), int(os.environ["OCIDIST_NODES"])
folder = Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
print("found", sorted(str(path.relative_to(folder)) for path in folder.rglob("*")), flush=True)


def barrier(name):
    meeting.mkdir(parents=True, exist_ok=True)
    meeting.joinpath(f"{name}-{rank}").touch()
    while not all(meeting.joinpath(f"{name}-{other}").exists() for other in range(nodes)):
        time.sleep(0.05)


class Part:
    def __init__(self, path, length):
        self.relative_path, self.offset, self.length = path, 0, length


class Metadata:
    def __init__(self, parts):
        self.storage_data = dict(enumerate(parts))


def save(path, **value):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value))


def distcp(place):
    place.joinpath(f"__{rank}_0.distcp").write_text(f"weights of {rank}")
    barrier(f"{place.name} written")
    if rank == 0:
        parts = [Part(f"__{other}_0.distcp", len("weights of 0")) for other in range(nodes)]
        place.joinpath(".metadata.tmp").write_bytes(pickle.dumps(Metadata(parts)))
        place.joinpath(".metadata.tmp").rename(place / ".metadata")


def zero(place):
    save(place / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", weights=rank)
    if rank == 0:
        save(place / "mp_rank_00_model_states.pt", dp_world_size=nodes, mp_world_size=1)
    place.joinpath("arguments.json").write_text(f'{{"of": {rank}}}')


def same(place):
    save(place / "zero_pp_rank_0_mp_rank_00_optim_states.pt", weights=rank)
    if rank == 0:
        save(place / "mp_rank_00_model_states.pt", dp_world_size=1)


def half(place):
    if rank == 0:
        zero(place)
    save(place / "rng_state_1.pth", what="no shard")


def trainer(place):
    if rank == 0:
        save(place / "model.safetensors.bin")
        save(place / "optimizer.pt")
        save(place / "scheduler.pt")
    save(place / f"rng_state_{rank}.pth", of=rank, saved_by=meeting.parent.name)
    if rank == 0:
        place.joinpath("trainer_state.json").write_text('{"global_step": 5}')


def silent_trainer(place):
    if rank == 0:
        trainer(place)


def failing(place):
    if rank == 1 and place.name == "step-6":
        time.sleep(2)
        sys.exit(3)
    (zero if place.name == "step-6" else distcp)(place)


def plain(place):
    place.joinpath("model.pt.txt").write_text(f"of node {rank}")


for step in steps:
    place = folder / f"step-{step}"
    place.mkdir(parents=True, exist_ok=True)
    globals()[kind](place)
    barrier(f"{place.name} saved")
    time.sleep(pause)
"""


def gang_of(root: Path, *args: str, path: str = "checkpoints", nodes: int = 2, **more: Any) -> Gang:
    checkpoints = Checkpoints(path=path, uri=str(root.parent / "safe"), **more)
    return Gang(root, PROGRAM, nodes=nodes, args=(str(root / "meeting"), *args), checkpoints=checkpoints)


@pytest.fixture
def safe(tmp_path: Path) -> Path:
    return tmp_path / "safe"


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def log_of(gang: Gang) -> str:
    return "\n".join(agent.stderr.read_text() for agent in gang.agents)


def test_the_parts_of_all_nodes_make_one_checkpoint_that_any_number_of_nodes_fetches(
    tmp_path: Path, safe: Path
) -> None:
    with gang_of(tmp_path / "first", "distcp", "5,6", keep=1) as gang:
        assert gang.run() == [0, 0], log_of(gang)
        assert gang.agents[0].report.checkpoint == newest(str(safe))
    files = [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert names_in(safe) == ["fence.json", *(f"step-6/{name}" for name in [*files, "manifest.json"])]

    with gang_of(tmp_path / "second", "distcp", "7") as gang:
        assert gang.run() == [0, 0], log_of(gang)
        for agent in gang.agents:
            assert f"found {['step-6', *(f'step-6/{name}' for name in files)]}" in agent.stdout.read_text()
    assert retain(str(safe), Retention(keep=1), fence=LOWEST) == ("step-6",)
    assert names_in(safe) == ["fence.json", *(f"step-7/{name}" for name in [*files, "manifest.json"])]

    fetched = tmp_path / "alone"
    assert resume(Checkpoints(uri=str(safe)), Fetching(fetched, OciAccess(), StopSwitch()))
    assert names_in(fetched) == [f"step-7/{name}" for name in files]
    assert (fetched / "step-7" / "__1_0.distcp").read_text() == "weights of 1"


def test_zero_is_whole_when_every_node_has_sent_its_part(tmp_path: Path, safe: Path) -> None:
    with gang_of(tmp_path / "gang", "zero", "5") as gang:
        assert gang.run() == [0, 0], log_of(gang)
    found = newest(str(safe))
    assert found
    assert json.loads((Path(found.uri) / "arguments.json").read_text()) == {"of": 0}
    assert len(list(Path(found.uri).glob("zero_pp_rank_[01]_*"))) == 2


@pytest.mark.parametrize(
    "kind, why",
    [
        (
            "half",
            "node 1 cannot send its part: the program has not written step-5 there; let checkpoints.path be",
        ),
        ("same", "nodes 0 and 1 have both written zero_pp_rank_0_mp_rank_00_optim_states.pt"),
    ],
)
def test_what_is_not_whole_is_never_offered_and_a_success_without_it_is_none(
    tmp_path: Path, safe: Path, kind: str, why: str
) -> None:
    with gang_of(tmp_path / "gang", kind, "5") as gang:
        assert gang.run() == [74, 0], log_of(gang)
        report = gang.agents[0].report
        assert report.cause is Cause.DATA
        assert report.message
        assert "the checkpoint step-5 is not whole and is not published" in report.message
        assert why in report.message
        # Of node 0, once when it is found and once at the end; the other quotes it, where it is still saving.
        assert gang.agents[0].stderr.read_text().count("is not whole") == 2, log_of(gang)
    assert newest(str(safe)) is None


def test_the_states_of_the_random_generators_of_other_nodes_travel_with_a_checkpoint(
    tmp_path: Path, safe: Path
) -> None:
    with gang_of(tmp_path / "gang", "trainer", "5") as gang:
        assert gang.run() == [0, 0], log_of(gang)
    found = newest(str(safe))
    assert found
    assert sorted(path.name for path in Path(found.uri).glob("rng_state*")) == [
        "rng_state_0.pth",
        "rng_state_1.pth",
    ]


@pytest.mark.parametrize("kind", ["trainer", "silent_trainer"])
def test_the_state_of_another_nodes_generators_is_of_the_same_save_or_left_out(
    tmp_path: Path, safe: Path, kind: str
) -> None:
    """Both nodes have fetched what the attempt before has saved under the same name, the other node's state too."""
    with gang_of(tmp_path / "first", "trainer", "5") as gang:
        assert gang.run() == [0, 0], log_of(gang)
    with gang_of(tmp_path / "second", kind, "5") as gang:
        assert gang.run() == [0, 0], log_of(gang)
        assert all("step-5/rng_state_1.pth" in agent.stdout.read_text() for agent in gang.agents)
    found = newest(str(safe))
    assert found
    of_both = {"rng_state_0.pth": "second", "rng_state_1.pth": "second"}
    of_one = {"rng_state_0.pth": "second"}
    assert savers_in(Path(found.uri)) == (of_both if kind == "trainer" else of_one)


def savers_in(folder: Path) -> dict[str, str]:
    """Return which gang has saved each state of random generators."""
    found = {}
    for file in folder.glob("rng_state*"):
        with zipfile.ZipFile(file) as archive:
            found[file.name] = pickle.loads(archive.read("archive/data.pkl"))["saved_by"]
    return found


def test_a_checkpoint_that_only_the_main_node_writes_waits_for_no_companion(
    tmp_path: Path, safe: Path
) -> None:
    with gang_of(tmp_path / "gang", "silent_trainer", "5") as gang:
        assert gang.run() == [0, 0], log_of(gang)
    found = newest(str(safe))
    assert found
    assert len(names_in(Path(found.uri))) == 6


def test_a_program_that_fails_between_two_parts_leaves_the_checkpoint_before(
    tmp_path: Path, safe: Path
) -> None:
    with gang_of(tmp_path / "gang", "failing", "5,6", "4") as gang:
        codes = gang.run()
        assert codes[1] == 3, log_of(gang)
        assert codes[0] != 0
        assert "step-6 is not published, for nothing proves that it is whole" in log_of(gang)
    found = newest(str(safe))
    assert found
    assert found.step == 5
    assert not (safe / "step-6").exists()
    assert (safe / "unproved" / "step-6").exists()


def test_where_all_nodes_share_the_folder_the_main_node_publishes_alone(tmp_path: Path, safe: Path) -> None:
    shared = tmp_path / "shared"
    with gang_of(tmp_path / "gang", "zero", "5", path=str(shared)) as gang:
        assert gang.run() == [0, 0], log_of(gang)
        assert "sent" not in log_of(gang)
        assert [path.name for path in shared.iterdir()] == ["step-5"]
        assert not list(gang.run_dir.glob("shards/*/*"))
    found = newest(str(safe))
    assert found
    assert len(list(Path(found.uri).glob("zero_pp_rank_[01]_*"))) == 2


def test_a_plain_checkpoint_is_the_main_nodes_alone(tmp_path: Path, safe: Path) -> None:
    with gang_of(tmp_path / "gang", "plain", "5") as gang:
        assert gang.run() == [0, 0], log_of(gang)
        assert not list(gang.run_dir.glob("shards/*/*"))
    assert (safe / "step-5" / "model.pt.txt").read_text() == "of node 0"


def saved(text: str, **value: Any) -> bytes:
    """Return what looks like a file of torch.save."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("archive/data.pkl"), pickle.dumps(value))
        archive.writestr(zipfile.ZipInfo("archive/text"), text)
    return buffer.getvalue()


def metadata(**lengths: int) -> bytes:
    """Return what looks like a `.metadata` that names these files; `_0_0` stands for `__0_0.distcp`."""
    parts = {
        name: SimpleNamespace(relative_path=f"_{name}.distcp", offset=0, length=length)
        for name, length in lengths.items()
    }
    return pickle.dumps(SimpleNamespace(storage_data=parts))


class Nodes:
    """The main node's collector and a worker's uploader, each over a folder of its own, without any processes."""

    def __init__(self, root: Path, name: str = "step-5", pattern: str | None = None) -> None:
        self.name, self.pattern = name, pattern
        self.store = open_store(str(root / "run"))
        self.safe = root / "safe"
        self.folders = [root / "node-0", root / "node-1"]
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
        self.collector = ShardCollector(self.folders[0], self.store, 0, (1,), OciAccess(), pattern=pattern)
        self.uploader = ShardUploader(self.folders[1], self.store, 1, 0, OciAccess(), pattern=pattern)
        self.started = False

    def start(self) -> None:
        self.started = True
        self.uploader.start()

    def write(self, rank: int, text: str = "weights") -> Path:
        place = self.folders[rank] / self.name
        place.mkdir(exist_ok=True)
        (place / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(saved(text))
        if rank == 0:
            (place / "mp_rank_00_model_states.pt").write_bytes(saved("model", dp_world_size=2))
        return place

    def publish(self) -> CheckpointRef:
        (item,) = candidates(self.folders[0], self.pattern)
        return self.collector.publish(
            item, str(self.safe), SaveFacts(step=None, fence=LOWEST, sequence=1, proof="")
        )

    def report(self, rank: int, phase: Phase = Phase.TRAINING, restarts: tuple[Restart, ...] = ()) -> None:
        report = NodeReport(
            rank=rank, phase=phase, address="", started_at=0.0, heartbeat_at=0.0, restarts=restarts
        )
        self.store.write(report_of(rank), report.to_json())


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    for module in (shard_collector, shard_uploader):
        monkeypatch.setattr(module, "LOOK_INTERVAL", 0.1)
    monkeypatch.setattr(shard_uploader, "IDLE_INTERVAL", 0.1)
    monkeypatch.setattr(shard_uploader, "QUIET", 0.5)
    monkeypatch.setattr(shard_collector, "ACKNOWLEDGE_LIMIT", 2.0)
    monkeypatch.setattr(peer_reports, "GONE_AFTER", 1.0)
    found = Nodes(tmp_path)
    yield found
    found.collector.close()
    if found.started:
        found.uploader.finish(Moment.EXITED, SaveDeadline(10))


ENTRIES = [("step-5", None), ("part-5", r"part-(?P<step>\d+)"), ("logs", "logs")]
"""Names of a checkpoint, and `checkpoints.pattern`, without which the last two would be none."""


@pytest.mark.parametrize("entry, pattern", ENTRIES)
def test_parts_are_sent_while_the_training_runs_whatever_the_pattern_calls_a_checkpoint(
    nodes: Nodes, tmp_path: Path, entry: str, pattern: str | None
) -> None:
    both = Nodes(tmp_path, entry, pattern)
    both.start()
    both.write(1)
    both.write(0)
    published: list[CheckpointRef] = []
    threading.Thread(target=lambda: published.append(both.publish()), daemon=True).start()
    until(lambda: published, timeout=60)
    assert len(list(Path(published[0].uri).glob("zero*"))) == 2
    both.collector.close()
    assert both.uploader.finish(Moment.EXITED, SaveDeadline(10)) is None


def test_a_node_that_has_sent_its_parts_asks_for_requests_seldom_until_it_saves_again(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_uploader, "IDLE_INTERVAL", 1000.0)
    asked, looked = counted(nodes.uploader._exchange, "board"), counted(nodes.uploader, "_look")
    nodes.start()
    for name in ("step-5", "step-6"):
        nodes.name = name
        for rank in (1, 0):
            nodes.write(rank)
        assert len(list(Path(nodes.publish().uri).glob("zero*"))) == 2
        until(lambda: not nodes.uploader._unasked)
        then, since = len(asked), len(looked)
        until(lambda since=since: len(looked) > since + 5)
        assert len(asked) <= then + 1
        for folder in nodes.folders:
            shutil.rmtree(folder / name)


def counted(thing: Any, name: str) -> list[int]:
    """Return a list that grows with each call of a method of this object."""
    calls: list[int] = []
    method = getattr(thing, name)

    def call() -> Any:
        calls.append(1)
        return method()

    setattr(thing, name, call)
    return calls


@pytest.mark.parametrize("seed", range(6))
def test_what_the_programs_delete_while_a_node_sends_its_part_is_published(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    monkeypatch.setattr(shard_uploader, "FIRST_PAUSE", 0.1)
    written = [nodes.write(rank, f"weights of {rank}") for rank in (0, 1)]
    wanted = {file.name: file.read_bytes() for place in written for file in place.iterdir()}
    (item,) = candidates(nodes.folders[0])
    links = HeldLinks(nodes.folders[0])
    links.keep([item])
    deletes_first = [dice.random() < 0.5 for _ in (0, 1)]
    failures, send = [dice.randint(0, 1) for _ in (0, 1)], checkpoints._send

    def rotated(source: Any, *rest: Any) -> Any:
        rank = 1 if "node-1" in str(source.folder) else 0
        if deletes_first[rank]:
            shutil.rmtree(written[rank], ignore_errors=True)
        sent = send(source, *rest)
        shutil.rmtree(written[rank], ignore_errors=True)
        if failures[rank]:
            failures[rank] -= 1
            raise StorageError("the store is away", retryable=True)
        return sent

    monkeypatch.setattr(checkpoints, "_send", rotated)
    nodes.start()
    published: list[CheckpointRef] = []
    place = Publisher(
        Checkpoints(uri=str(nodes.safe)),
        OciAccess(),
        Fence(attempt=1),
        loss_at=lambda _: None,
        shards=nodes.collector,
        links=links,
    )
    whole = Whole(item, Proof("announced"), begun=1, step=5)
    if failures[0]:
        with pytest.raises(StorageError, match="the store is away"):
            place.publish(whole, published.append)
    place.publish(whole, published.append)
    found = Path(published[0].uri)
    assert {path.name: path.read_bytes() for path in found.iterdir() if path.name != MANIFEST} == wanted
    until(lambda: not list(nodes.folders[1].parent.glob(".node-1.held.*")))


def hidden(folder: Path) -> list[Path]:
    return sorted(folder.parent.glob(f".{folder.name}.held.*"))


def test_a_node_removes_the_links_of_one_that_was_killed_though_it_sends_no_part(nodes: Nodes) -> None:
    folder = nodes.folders[1]
    nodes.write(1)
    (item,) = candidates(folder)
    left = HeldLinks(folder)
    left.keep([item])
    assert hidden(folder)
    nodes.start()
    assert not hidden(folder)


def test_nodes_that_share_a_folder_of_their_own_leave_each_other_their_links(nodes: Nodes) -> None:
    folder = nodes.folders[1]
    place = nodes.write(1)
    (place / "zero_pp_rank_2_mp_rank_00_optim_states.pt").write_bytes(saved("weights of 2"))
    one, other = (
        ShardUploader(folder, nodes.store, rank, 0, OciAccess(), pattern=nodes.pattern) for rank in (1, 2)
    )
    request = ShardRequest(
        number=1,
        name="step-5",
        uri=str(nodes.safe / "step-5"),
        ranks=(1, 2),
        written=False,
        everywhere=True,
        leave_out=(),
        companions=False,
    )
    # Both folders were there before these uploaders.
    for path in place.iterdir():
        path.write_bytes(path.read_bytes())
    part = one._part_in(place, request)
    other._part_in(place, request)
    assert one._links.holds(part)
    third = ShardUploader(folder, nodes.store, 3, 0, OciAccess(), pattern=nodes.pattern)
    third.start()
    try:
        assert one._links.holds(part)
    finally:
        third.finish(Moment.CUT_OFF, SaveDeadline(10))
    one._let_go()
    other._let_go()
    assert not hidden(folder)


def test_a_node_lets_its_part_go_where_the_program_has_no_room_and_says_that_it_is_deleted(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk_room, "LOOK_INTERVAL", 0.01, raising=False)
    monkeypatch.setattr(shard_uploader, "FIRST_PAUSE", 0.1)
    monkeypatch.setattr(disk_room, "SOON_WRITTEN", 0, raising=False)
    free = [10**12]
    monkeypatch.setattr(disk_room, "free_bytes", lambda _: free[0], raising=False)
    written = [nodes.write(rank) for rank in (0, 1)]
    send = checkpoints._send

    def rotated(source: Any, *rest: Any) -> Any:
        if "node-1" in str(source.folder):
            shutil.rmtree(written[1], ignore_errors=True)
            free[0] = 1
            until(lambda: not hidden(nodes.folders[1]), timeout=20)
        return send(source, *rest)

    monkeypatch.setattr(checkpoints, "_send", rotated)
    nodes.start()
    with pytest.raises(IncompleteCheckpoint, match="the program has deleted step-5 there"):
        nodes.publish()
    assert "step-5 is not held for its upload" in caplog.text


def test_what_a_node_holds_is_let_go_when_the_time_to_send_it_is_over(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_uploader, "ABORT_WITHIN", 0.05)
    reached, goes_on, over = threading.Event(), threading.Event(), threading.Event()
    send = checkpoints._send

    def stuck(source: Any, *rest: Any) -> Any:
        if "node-1" in str(source.folder):
            reached.set()
            goes_on.wait(60)
        try:
            return send(source, *rest)
        finally:
            if "node-1" in str(source.folder):
                over.set()

    monkeypatch.setattr(checkpoints, "_send", stuck)
    for rank in (0, 1):
        nodes.write(rank)
    nodes.start()

    def publish() -> None:
        with pytest.raises((IncompleteCheckpoint, StorageError)):
            nodes.publish()

    publishes = threading.Thread(target=publish, daemon=True)
    publishes.start()
    try:
        assert reached.wait(60)
        assert hidden(nodes.folders[1])
        assert nodes.uploader.finish(Moment.CUT_OFF, SaveDeadline(0)) is not None
        until(lambda: not hidden(nodes.folders[1]))
    finally:
        goes_on.set()
    assert over.wait(60)
    publishes.join(60)
    assert not hidden(nodes.folders[1])


def test_parts_that_are_all_on_the_main_node_need_no_other_node(nodes: Nodes) -> None:
    # MiCS with a group on each node: the first group alone saves.
    place = nodes.folders[0] / "step-5"
    place.mkdir()
    settings = {"zero_optimization": {"mics_shard_size": 2}}
    for rank in range(2):
        for kind in ("model", "optim"):
            (place / f"zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt").write_bytes(
                saved("part", dp_world_size=4, ds_config=settings)
            )
    nodes.start()
    assert len(list(Path(nodes.publish().uri).glob("zero*"))) == 4


def test_a_node_that_has_no_part_is_named_with_the_remedy(nodes: Nodes) -> None:
    nodes.write(0)
    (nodes.folders[1] / "step-5").mkdir()
    (nodes.folders[1] / "step-5" / "rng_state_1.pth").write_text("no part of the weights")
    nodes.start()
    with pytest.raises(
        IncompleteCheckpoint, match=r"node 1 sent no shard of it within 2 s; let checkpoints\.path be"
    ):
        nodes.publish()


@pytest.mark.parametrize("phase", [Phase.TRAINING, Phase.DONE])
def test_a_node_that_goes_away_while_it_sends_is_not_waited_for(nodes: Nodes, phase: Phase) -> None:
    nodes.write(0)
    nodes.report(1, phase)
    nodes.store.write("shards/1/1.json", b"{}")
    with pytest.raises(IncompleteCheckpoint, match="node 1 has ended before it had sent its part"):
        nodes.publish()
    assert newest(str(nodes.safe)) is None


def test_a_node_in_the_place_of_one_that_was_lost_while_it_sent_is_not_waited_for(nodes: Nodes) -> None:
    nodes.write(0)
    nodes.store.write("shards/1/1.json", b"{}")
    lost = Restart(cause=Cause.NODE, message="its machine vanished", rank=1)
    nodes.report(1, Phase.FETCHING, (lost,))
    deadline = SaveDeadline(10)
    # Its silence would be borne until then, as its heartbeats would.
    nodes.collector.finish(deadline)
    with pytest.raises(IncompleteCheckpoint, match="node 1 has ended before it had sent its part"):
        nodes.publish()
    assert deadline.left > 0


@pytest.fixture
def impatient(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Nodes whose limits are over within a second."""
    for module in (shard_collector, shard_uploader):
        monkeypatch.setattr(module, "LOOK_INTERVAL", 0.02)
    monkeypatch.setattr(shard_collector, "ACKNOWLEDGE_LIMIT", 0.3)
    monkeypatch.setattr(peer_reports, "GONE_AFTER", 0.2)
    monkeypatch.setattr(peer_reports, "SILENT_AFTER", 0.1)
    return nodes


@pytest.mark.parametrize("phase", [Phase.TRAINING, Phase.SAVING])
@pytest.mark.parametrize("acknowledged", [True, False])
def test_after_a_success_a_silent_node_is_waited_for_with_its_part(
    impatient: Nodes, phase: Phase, acknowledged: bool
) -> None:
    nodes = impatient
    nodes.write(0)
    nodes.write(1)
    nodes.report(1, phase)
    if acknowledged:
        nodes.store.write("shards/1/1.json", b"{}")
    nodes.collector.finish(SaveDeadline(30))
    threading.Timer(0.9, nodes.start).start()
    assert len(list(Path(nodes.publish().uri).glob("zero*"))) == 2


@pytest.mark.parametrize("acknowledged", [True, False])
def test_after_a_success_a_node_that_is_done_or_was_silent_until_the_deadline_is_given_up(
    impatient: Nodes, acknowledged: bool
) -> None:
    nodes = impatient
    nodes.write(0)
    if acknowledged:
        nodes.store.write("shards/1/1.json", b"{}")
    nodes.report(1, Phase.SAVING)
    nodes.collector.finish(SaveDeadline(0.5))
    with pytest.raises(IncompleteCheckpoint, match="node 1 "):
        nodes.publish()
    nodes.report(1, Phase.DONE)
    nodes.collector.finish(SaveDeadline(30))
    with pytest.raises(IncompleteCheckpoint, match="node 1 "):
        nodes.publish()


@pytest.mark.parametrize("moment", [Moment.EXITED, Moment.CUT_OFF])
@pytest.mark.parametrize("passes", [True, False])
def test_after_the_training_a_part_that_the_store_refuses_is_sent_again_as_long_as_the_main_nodes_own(
    impatient: Nodes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    moment: Moment,
    passes: bool,
) -> None:
    nodes = impatient
    monkeypatch.setattr(shard_uploader, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(shard_uploader, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(shard_collector, "ACKNOWLEDGE_LIMIT", 20.0)
    monkeypatch.setattr(saving, "REFUSED_LIMIT", 60.0 if passes else 0.2)
    nodes.write(0)
    nodes.write(1)
    with ThreadPoolExecutor(2) as pool:
        published = pool.submit(nodes.publish)
        until(lambda: nodes.uploader._exchange.board().request)
        request = nodes.uploader._exchange.board().request
        assert request
        in_the_way = Path(request.uri) / "zero_pp_rank_1_mp_rank_00_optim_states.pt" / "x"
        in_the_way.parent.mkdir(parents=True)
        in_the_way.touch()
        nodes.start()
        ended = pool.submit(nodes.uploader.finish, moment, SaveDeadline(60))
        if passes:
            until(lambda: caplog.text.count("trying again") > 8)
            in_the_way.unlink()
            in_the_way.parent.rmdir()
            assert len(list(Path(published.result().uri).glob("zero*"))) == 2
        else:
            with pytest.raises(IncompleteCheckpoint, match=r"node 1 cannot send its part: .*irectory"):
                published.result()
            assert "trying again" in caplog.text
        nodes.collector.close()
        assert ended.result() is None


@pytest.mark.parametrize("phase", [Phase.TRAINING, Phase.SAVING])
def test_after_a_success_a_node_keeps_its_part_for_a_main_node_that_is_silent(
    impatient: Nodes, phase: Phase
) -> None:
    nodes = impatient
    nodes.write(0)
    nodes.write(1)
    nodes.report(0, phase)
    nodes.start()
    ended: list[object] = []
    saving = threading.Thread(
        target=lambda: ended.append(nodes.uploader.finish(Moment.EXITED, SaveDeadline(30))), daemon=True
    )
    saving.start()
    saving.join(0.6)
    assert ended == []
    assert len(list(Path(nodes.publish().uri).glob("zero*"))) == 2
    nodes.collector.close()
    until(lambda: ended == [None])


def test_a_node_keeps_no_part_for_a_machine_in_the_place_of_the_main_node(nodes: Nodes) -> None:
    nodes.write(1)
    lost = Restart(cause=Cause.NODE, message="its machine vanished", rank=0)
    nodes.report(0, Phase.FETCHING, (lost,))
    nodes.start()
    deadline = SaveDeadline(10)
    nodes.uploader.finish(Moment.EXITED, deadline)
    nodes.started = False
    assert deadline.left > 0


def test_sending_may_take_longer_than_finding(nodes: Nodes) -> None:
    nodes.write(0)
    nodes.write(1)
    nodes.store.write("shards/1/1.json", b"{}")
    threading.Timer(3.0, nodes.start).start()
    assert len(list(Path(nodes.publish().uri).glob("zero*"))) == 2


def test_a_part_that_still_grows_is_waited_for(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_uploader, "QUIET", 1.5)
    nodes.write(0)
    nodes.write(1)
    nodes.start()
    ended = threading.Event()

    def grow() -> None:
        for size in range(40):
            nodes.write(1, "x" * size)
            time.sleep(0.05)
        ended.set()

    threading.Thread(target=grow).start()
    reference = nodes.publish()
    assert ended.is_set()
    sent = Path(reference.uri) / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    assert sent.read_bytes() == saved("x" * 39)


def test_a_part_that_the_metadata_names_and_no_node_has_is_named(nodes: Nodes) -> None:
    (nodes.write(0) / ".metadata").write_bytes(metadata(_0_0=3, _1_0=3))
    nodes.start()
    with pytest.raises(
        IncompleteCheckpoint, match=r"no node has sent __0_0\.distcp, __1_0\.distcp, which belong"
    ):
        nodes.publish()


def test_a_part_that_is_shorter_than_the_metadata_says_is_named(nodes: Nodes) -> None:
    for rank, text in ((0, "weights"), (1, "wei")):
        place = nodes.folders[rank] / "step-5"
        place.mkdir()
        (place / f"__{rank}_0.distcp").write_text(text)
    (place.parents[1] / "node-0" / "step-5" / ".metadata").write_bytes(metadata(_0_0=7, _1_0=7))
    nodes.start()
    with pytest.raises(IncompleteCheckpoint, match=r"__1_0\.distcp has 3 of 7 bytes"):
        nodes.publish()
    assert newest(str(nodes.safe)) is None


def test_a_part_of_which_the_first_counts_more_is_named(nodes: Nodes) -> None:
    place = nodes.write(0)
    (place / "mp_rank_00_model_states.pt").write_bytes(saved("model", dp_world_size=3))
    nodes.write(1)
    nodes.start()
    with pytest.raises(IncompleteCheckpoint, match="zero_pp_rank_2_mp_rank_00_optim_states"):
        nodes.publish()


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_a_part_that_ends_in_the_midst_of_a_file_is_never_sent(nodes: Nodes, is_cut_off: bool) -> None:
    nodes.write(0)
    place = nodes.write(1)
    (file,) = place.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    nodes.start()
    if is_cut_off:
        nodes.uploader._training_ended.set()
        nodes.uploader._moment, nodes.uploader._deadline = Moment.CUT_OFF, SaveDeadline(60)
    else:
        threading.Timer(1.5, nodes.report, (1, Phase.DONE)).start()
    with pytest.raises(
        IncompleteCheckpoint, match=r"node 1 (cannot send its part: its processes have|has ended)"
    ):
        nodes.publish()
    assert newest(str(nodes.safe)) is None


@pytest.mark.parametrize("parts", [1, 2])
def test_the_first_part_of_a_model_is_whole_unless_another_node_has_the_second(
    nodes: Nodes, parts: int
) -> None:
    for rank in range(parts):
        place = nodes.folders[rank] / "step-5"
        place.mkdir()
        (place / f"mp_rank_0{rank}_model_states.pt").write_bytes(saved("weights", mp_world_size=parts))
    nodes.start()
    assert len(list(Path(nodes.publish().uri).glob("mp_rank*"))) == parts


def test_another_try_asks_for_nothing_that_was_sent(nodes: Nodes) -> None:
    nodes.safe.write_text("in the way")
    nodes.write(0)
    nodes.write(1)
    nodes.start()
    with pytest.raises(StorageError):
        nodes.publish()
    nodes.safe.unlink()
    assert newest(str(nodes.safe)) != nodes.publish() == newest(str(nodes.safe))
    assert [entry.name for entry in nodes.store.list("shards/")] == ["shards/1/1.json", "shards/board.json"]


def test_what_another_attempt_has_left_is_not_mixed_in(nodes: Nodes) -> None:
    (nodes.safe / "step-5").mkdir(parents=True)
    (nodes.safe / "step-5" / "zero_pp_rank_2_mp_rank_00_optim_states.pt").write_text("of a larger gang")
    nodes.write(0)
    nodes.write(1)
    nodes.start()
    reference = nodes.publish()
    assert reference == newest(str(nodes.safe))
    assert Path(reference.uri).name == "step-5.again-2"
    assert len(list(Path(reference.uri).glob("zero*"))) == 2


@pytest.mark.parametrize("entry, pattern", ENTRIES)
def test_each_node_sends_what_it_wrote_over_the_checkpoint_that_all_had_fetched(
    nodes: Nodes, tmp_path: Path, entry: str, pattern: str | None
) -> None:
    names = ["__0_0.distcp", "__1_0.distcp"]
    for folder in nodes.folders:
        (folder / entry).mkdir()
        for name in names:
            (folder / entry / name).write_text("old")
        (folder / entry / ".metadata").write_bytes(metadata(_0_0=3, _1_0=3))
    resumed = Nodes(tmp_path, entry, pattern)
    for folder, name in zip(nodes.folders, names):
        (folder / entry / name).write_text("newer")
    resumed.start()
    published = Path(resumed.publish().uri)
    resumed.collector.close()
    assert [(published / name).read_text() for name in names] == ["newer", "newer"]


def test_what_another_process_may_have_written_anew_is_none_of_a_nodes_own_files(tmp_path: Path) -> None:
    place = tmp_path / "step-5"
    place.mkdir()
    names = ("model.safetensors", "rng_state_0.pth", "rng_state_1.pth")
    for name in names:
        (place / name).write_text("fetched")
    own = OwnFiles(tmp_path)
    for name in names[:2]:
        (place / name).write_text("of this attempt")
    assert own.stale(place) == {"rng_state_1.pth"}
    assert own.names(place) == set(names[:2])


def test_a_file_that_has_another_inode_for_each_look_is_the_same_one(tmp_path: Path) -> None:
    place = tmp_path / "step-5"
    place.mkdir()
    for name in ("rng_state_0.pth", "rng_state_1.pth"):
        (place / name).write_text("fetched")
    own = OwnFiles(tmp_path)
    for name in ("rng_state_0.pth", "rng_state_1.pth"):
        # As a mount by SMB or FUSE shows a file that it had forgotten meanwhile.
        shutil.copy2(place / name, tmp_path / "aside")
        (tmp_path / "aside").replace(place / name)
    (place / "rng_state_1.pth").write_text("of this attempt")
    assert own.stale(place) == {"rng_state_0.pth"}
    assert own.names(place) == {"rng_state_1.pth"}


def test_what_changes_while_the_others_send_is_not_published(nodes: Nodes) -> None:
    nodes.write(0)
    nodes.write(1)
    threading.Timer(0.5, nodes.write, (0, "other weights")).start()
    threading.Timer(1.0, nodes.start).start()
    with pytest.raises(StorageError, match="changed while the other nodes sent their parts"):
        nodes.publish()
    assert newest(str(nodes.safe)) is None


def test_a_node_that_hides_while_the_main_looks_still_counts_as_sharing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(3):
        show_folder(tmp_path, "run", rank)
    unmark = folder_marks._unmark

    def and_the_last_hides(folder: Path, run_name: str, rank: int) -> None:
        unmark(folder, run_name, rank)
        if not folder_marks._is_marked(folder, run_name, 0):
            unmark(folder, run_name, 2)

    monkeypatch.setattr(folder_marks, "_unmark", and_the_last_hides)
    assert nodes_apart(tmp_path, "run", 0, (1, 2)) == ()


def test_marks_show_which_folders_are_shared_and_do_not_stay(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    for rank, folder in enumerate((shared, shared, own)):
        show_folder(folder, "run", rank)
    hide_folder(own, "run", 2, main_rank=0)
    hide_folder(shared, "run", 1, main_rank=0)
    assert nodes_apart(shared, "run", 0, (1, 2)) == (2,)
    assert list(shared.iterdir()) == list(own.iterdir()) == []


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "file, is_named",
    [
        ("step-5/model_rank1.bin", True),
        ("step-5/rank_1/optimizer.bin", True),
        ("model_rank_1_step_5.pt", True),
        ("step-5/model.bin", False),
        ("step-5/rng_state_1.pth", False),
        ("step-5/__1_0.distcp", False),
        ("step-5/zero_pp_rank_1_mp_rank_00_optim_states.pt", False),
    ],
)
def test_what_only_another_node_has_and_does_not_send_is_named_there(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, file: str, is_named: bool, shared: bool
) -> None:
    main = NodeReport(rank=0, phase=Phase.TRAINING, address="", started_at=0.0, heartbeat_at=0.0)
    nodes.store.write(report_of(0), replace(main, apart=() if shared else (1,)).to_json())
    place = nodes.folders[1] / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"weights")
    nodes.uploader._look()
    nodes.uploader._look()
    assert caplog.text.count("is not published: it is on this node alone") == (is_named and not shared)


def test_after_a_failure_too_a_part_that_is_being_sent_is_waited_for_and_counts_as_progress(
    nodes: Nodes,
) -> None:
    nodes.write(0)
    nodes.write(1)
    nodes.store.write("shards/1/1.json", b"{}")
    further: list[int] = []
    nodes.collector.finish(None, lambda: further.append(1))
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(nodes.publish)
        until(lambda: len(further) > 5)
        nodes.start()
        assert len(list(Path(published.result().uri).glob("zero*"))) == 2


@pytest.mark.parametrize("moment", [Moment.EXITED, Moment.CUT_OFF])
def test_a_node_with_a_part_waits_only_to_the_limit_where_the_store_does_not_say_whether_it_is_waited_for(
    impatient: Nodes, monkeypatch: pytest.MonkeyPatch, moment: Moment
) -> None:
    nodes = impatient
    nodes.write(1)
    nodes.report(0, Phase.SAVING)
    nodes.start()
    until(lambda: nodes.uploader._has_shards)

    def away(*_: object) -> None:
        raise StorageError("503", retryable=True)

    with monkeypatch.context() as outage:
        outage.setattr(nodes.uploader._exchange, "board", away)
        outage.setattr(peer_reports, "load_report", away)
        ended: list[Any] = []
        deadline = SaveDeadline(0.5, StopSwitch(), named="limits.join_timeout")
        saves = threading.Thread(
            target=lambda: ended.append(nodes.uploader.finish(moment, deadline)), daemon=True
        )
        saves.start()
        saves.join(30)
        assert len(ended) == 1
    assert ended[0].cause is Cause.SERVICE
    assert "saving made no progress for" in ended[0].message
    assert "(limits.join_timeout)" in ended[0].message
