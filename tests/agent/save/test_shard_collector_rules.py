"""What the main node asks the others for, for how long, and what it makes of their answers; by its own clock."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save import shard_collector
from airflow_provider_ocidist.agent.save.entries import candidates
from airflow_provider_ocidist.agent.save.saving import SaveDeadline
from airflow_provider_ocidist.agent.save.shard_collector import ShardCollector
from airflow_provider_ocidist.agent.save.shard_exchange import (
    RequestBoard,
    ShardExchange,
    ShardReply,
    ShardRequest,
)
from airflow_provider_ocidist.agent.save.shards import REMEDY
from airflow_provider_ocidist.errors import CheckpointError, IncompleteCheckpoint, StorageError
from airflow_provider_ocidist.model.fence import LOWEST, Fence
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest, ManifestFile, SaveFacts
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.save.test_shard_exchange import metadata, saved

ZERO = "zero_pp_rank_{}_mp_rank_00_optim_states.pt"
MODEL = "mp_rank_00_model_states.pt"
SAVE = SaveFacts(step=None, fence=LOWEST, sequence=1, proof="")


class Peers:
    """What the others report, and seconds that pass at each pause."""

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.silent: set[int] = set()
        self.is_patient: Callable[[], bool] = lambda: False
        self.launch: int | None = None
        self.now = 1000.0
        self.pauses: list[float] = []
        self.at_pause: Callable[[int], object] = lambda _: None

    def made(self, _store: object, *, patient: Callable[[], bool], launch: int) -> Peers:
        self.is_patient, self.launch = patient, launch
        return self

    def ended(self, rank: int) -> bool:
        return rank in self.gone

    def is_waited_for(self, rank: int) -> bool:
        return rank in self.silent and self.is_patient()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += 30.0
        assert len(self.pauses) < 100, "it waits for ever"
        self.at_pause(len(self.pauses))


class Main:
    """The main node of a gang, and what the others answer it."""

    def __init__(self, root: Path, apart: Sequence[int] = (1,), launch: int = 0) -> None:
        self.folder, self.safe = root / "here", root / "safe"
        self.folder.mkdir()
        self.store = open_store(str(root / "run"))
        self.exchange = ShardExchange(self.store, launch)
        self.collector = ShardCollector(self.folder, self.store, 0, apart, OciAccess(), launch=launch)

    def write(self, files: dict[str, bytes], name: str = "step-5") -> None:
        for file, content in files.items():
            (self.folder / name / file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name / file).write_bytes(content)

    def publish(self, name: str = "step-5", save: SaveFacts = SAVE, **more: Any) -> Manifest:
        (item,) = (each for each in candidates(self.folder) if each.path.name == name)
        found = self.collector.publish(item, str(self.safe), save, **more)
        return Manifest.from_json((Path(found.uri) / MANIFEST).read_bytes())

    @property
    def request(self) -> ShardRequest:
        request = self.exchange.board().request
        assert request is not None
        return request

    def answer(self, rank: int, **reply: Any) -> None:
        self.exchange.reply(self.request, rank, ShardReply(**reply))

    def send(self, rank: int, name: str, content: bytes) -> None:
        """Send a file as another node does."""
        place = Path(self.request.uri) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        self.answer(rank, files=(ManifestFile(path=name, size=len(content), sha256="other"),))


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Peers:
    peers = Peers()
    monkeypatch.setattr(shard_collector, "PeerLiveness", peers.made)
    monkeypatch.setattr(shard_collector, "time", peers)
    return peers


@pytest.fixture
def main(tmp_path: Path, peers: Peers) -> Main:
    del peers
    return Main(tmp_path)


# Whether others have parts


@pytest.mark.parametrize(
    "files, expected",
    [
        ({"model.pt": b"w"}, False),
        ({ZERO.format(0): b"w"}, True),
        ({MODEL: b"w"}, True),
        ({"rng_state_0.pth": b"w"}, True),
        ({"__0_0.distcp": b"w"}, True),
        ({"__0_0.distcp": b"w", ".metadata": metadata(_0_0=1)}, False),
        ({"sub/__0_0.distcp": b"w", "sub/.metadata": metadata(_0_0=1, _1_0=1)}, True),
    ],
)
def test_others_are_needed_where_names_or_the_metadata_say_so_and_folders_are_apart(
    tmp_path: Path, files: dict[str, bytes], *, expected: bool
) -> None:
    apart = Main(tmp_path)
    apart.write(files)
    assert apart.collector.needs_others(apart.folder / "step-5") is expected
    together = ShardCollector(apart.folder, apart.store, 0, (), OciAccess())
    assert together.needs_others(apart.folder / "step-5") is False
    (apart.folder / ZERO.format(1)).write_bytes(b"w")
    assert apart.collector.needs_others(apart.folder / ZERO.format(1)) is False, "it is no folder"


@pytest.mark.parametrize(
    "name, expected", [(ZERO.format(1), True), ("rng_state_1.pth", True), ("model.pt", False), (MODEL, False)]
)
def test_what_is_not_here_may_be_another_nodes_part_where_folders_are_apart(
    tmp_path: Path, name: str, *, expected: bool
) -> None:
    main = Main(tmp_path)
    assert main.collector.may_be_elsewhere(name) is expected
    assert ShardCollector(main.folder, main.store, 0, (), OciAccess()).may_be_elsewhere(name) is False


# What is asked for


@pytest.mark.parametrize(
    "files, expected",
    [
        (
            {"__0_0.distcp": b"w", ".metadata": metadata(_0_0=1), "b.json": b"{}", "a.json": b"{}"},
            {"written": True, "everywhere": False, "leave_out": (".metadata", "a.json", "b.json")},
        ),
        (
            {ZERO.format(0): saved("w"), MODEL: saved("m", dp_world_size=2)},
            {"written": False, "everywhere": True, "leave_out": (MODEL,)},
        ),
        (
            {ZERO.format(0): saved("w"), MODEL: saved("m", dp_world_size=1)},
            {"written": False, "everywhere": False, "leave_out": (MODEL,)},
        ),
        ({MODEL: saved("m")}, {"written": False, "everywhere": False, "leave_out": (MODEL,)}),
        (
            {"model.pt": saved("m"), "rng_state_0.pth": saved("r")},
            {
                "written": False,
                "everywhere": False,
                "leave_out": ("model.pt", "rng_state_0.pth"),
                "companions": True,
            },
        ),
        (
            {"__0_0.distcp": b"w", ".metadata": metadata(_0_0=1), "rng_state_0.pth": b"r"},
            {"written": True, "everywhere": False, "leave_out": (".metadata", "rng_state_0.pth")},
        ),
    ],
    ids=["distcp", "zero", "zero of one", "first part", "companions", "distcp and companions"],
)
def test_others_are_asked_for_what_the_format_says_that_they_have(
    main: Main, peers: Peers, files: dict[str, bytes], expected: dict[str, Any]
) -> None:
    main.write(files)
    peers.at_pause = lambda _: main.answer(1, files=())
    try:
        main.publish()
    except IncompleteCheckpoint:
        assert expected["everywhere"], "the part of another is missing"
    assert main.request == ShardRequest(
        **{
            "number": 1,
            "name": "step-5",
            "uri": str(main.safe / "step-5"),
            "ranks": (1,),
            "companions": False,
            **expected,
        }
    )


def test_each_checkpoint_has_a_request_of_its_own_and_another_try_repeats_it(
    main: Main, peers: Peers
) -> None:
    fails = [True]

    def confirm() -> None:
        if fails.pop():
            raise StorageError("not now")

    peers.at_pause = lambda _: main.answer(1, files=())
    numbers, refused = [], []
    for name in ("step-5", "step-6"):
        fails[:] = [False, True]
        main.write({MODEL: saved(name)}, name)
        for _ in range(2):
            try:
                main.publish(name, confirm=confirm)
            except StorageError:
                assert not (main.safe / name / MANIFEST).exists()
                refused.append(name)
            numbers.append((main.request.name, main.request.number, Path(main.request.uri).name))
    assert numbers == [("step-5", 1, "step-5")] * 2 + [("step-6", 2, "step-6")] * 2
    assert refused == ["step-5", "step-6"]
    assert (main.safe / "step-6" / MANIFEST).exists()
    # Another content under the same name.
    main.write({MODEL: saved("once more")}, "step-6")
    main.publish("step-6")
    assert (main.request.number, Path(main.request.uri).name) == (3, "step-6.again-2")


def test_where_a_part_is_gone_from_the_store_the_others_are_asked_to_send_again(
    main: Main, peers: Peers
) -> None:
    part = ZERO.format(1)
    peers.at_pause = lambda _: main.send(1, part, saved("theirs"))
    main.write({MODEL: saved("mine"), ZERO.format(0): saved("mine")})

    def gone() -> None:
        (Path(main.request.uri) / part).unlink()

    with pytest.raises(CheckpointError, match="not complete"):
        main.publish(confirm=gone)
    assert main.request.number == 1
    found = main.publish()
    assert main.request.number == 2
    assert {file.path for file in found.files} == {part, MODEL, ZERO.format(0)}
    assert (Path(main.request.uri) / MANIFEST).exists()


# What the answers mean


FILES = (ManifestFile(path="x", size=1, sha256="a"),)
NO_SHARD = f"node 1 sent no shard of it {{}}; {REMEDY}"
UNSENT = "node 1 has not sent its random generator states (rng_state_*) of step-5"
ENDED = "node 1 has ended before it had sent its part"


@pytest.mark.parametrize("overdue", [True, False])
@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("kind", ["everywhere", "companions", "written"])
@pytest.mark.parametrize("reply", ["none", "acknowledged", "fault", "files", "no files"])
def test_an_answer_a_silence_or_an_end_means_what_the_request_makes_of_it(
    main: Main,
    peers: Peers,
    caplog: pytest.LogCaptureFixture,
    reply: str,
    kind: str,
    *,
    gone: bool,
    overdue: bool,
) -> None:
    request = ShardRequest(
        number=1,
        name="step-5",
        uri="u",
        ranks=(1,),
        written=kind == "written",
        everywhere=kind == "everywhere",
        leave_out=(),
        companions=kind == "companions",
    )
    replies = {
        "acknowledged": ShardReply(),
        "fault": ShardReply(fault="it is open"),
        "files": ShardReply(files=FILES),
        "no files": ShardReply(files=()),
    }
    if reply in replies:
        main.exchange.reply(request, 1, replies[reply])
    peers.gone = {1} if gone else set()
    expected: Any = {"files": FILES, "no files": (), "fault": "node 1 cannot send its part: it is open"}.get(
        reply
    )
    if reply == "acknowledged" and gone:
        expected = ENDED
    elif reply == "none" and gone:
        expected = NO_SHARD.format("before its end") if kind == "everywhere" else ()
    elif reply == "none" and overdue:
        expected = NO_SHARD.format("within 120 s")
    is_unsent = kind == "companions" and (isinstance(expected, str) or (reply == "none" and overdue))
    if isinstance(expected, str) and not is_unsent:
        with pytest.raises(IncompleteCheckpoint) as caught:
            main.collector._part_of(1, request, peers, overdue=overdue)  # type: ignore[arg-type]  # has what is asked
        assert str(caught.value) == expected
    else:
        found = main.collector._part_of(1, request, peers, overdue=overdue)  # type: ignore[arg-type]  # as above
        assert found == (() if is_unsent else expected)
    assert [record.getMessage() for record in caplog.records] == [UNSENT] * is_unsent


# How long it waits


def test_every_node_is_waited_for_and_the_others_hear_of_it(tmp_path: Path, peers: Peers) -> None:
    main = Main(tmp_path, apart=(1, 2, 4), launch=3)
    main.write({MODEL: saved("m"), ZERO.format(0): saved("w")})
    further: list[bool] = []
    main.collector.finish(None, lambda: further.append(True))
    sends = {2: 4, 3: 1, 5: 2}

    def at_pause(number: int) -> None:
        if number in sends:
            main.send(sends[number], f"zero_pp_rank_{sends[number]}_mp_rank_00_optim_states.pt", b"w")

    main.write({ZERO.format(3): saved("w")})
    peers.at_pause = at_pause
    for rank in (1, 2, 4):
        # They have found their parts.
        ShardExchange(main.store, 3)._write(f"1/{rank}.json", ShardReply())
    found = main.publish()
    assert {file.path for file in found.files} == {MODEL, *map(ZERO.format, range(5))}
    assert peers.pauses == [1.0] * 5
    assert len(further) == 5
    assert peers.launch == 3


@pytest.mark.parametrize("passes", [120.0, 121.0])
def test_a_node_has_two_minutes_to_find_its_part(main: Main, peers: Peers, passes: float) -> None:
    main.write({MODEL: saved("m", dp_world_size=2), ZERO.format(0): saved("w")})

    def at_pause(number: int) -> None:
        peers.now = 1000.0 + passes
        if number == 2:
            main.send(1, ZERO.format(1), saved("w"))

    peers.at_pause = at_pause
    if passes > 120.0:
        with pytest.raises(IncompleteCheckpoint, match=r"^node 1 sent no shard of it within 120 s; let "):
            main.publish()
        assert not (main.safe / "step-5" / MANIFEST).exists()
    else:
        assert len(main.publish().files) == 3


@pytest.mark.parametrize("deadline", [None, SaveDeadline(0.0), SaveDeadline(1e6)])
def test_a_silent_node_has_its_two_minutes_from_its_next_word_while_there_is_time(
    main: Main, peers: Peers, deadline: SaveDeadline | None
) -> None:
    main.write({MODEL: saved("m", dp_world_size=2), ZERO.format(0): saved("w")})
    main.collector.finish(deadline)
    peers.silent = {1}

    def at_pause(number: int) -> None:
        if number == 20:
            peers.silent.clear()
        if number == 23:
            main.send(1, ZERO.format(1), saved("w"))

    peers.at_pause = at_pause
    if deadline and deadline.left > 0:
        assert len(main.publish().files) == 3
    else:
        with pytest.raises(IncompleteCheckpoint, match="within 120 s"):
            main.publish()
        assert len(peers.pauses) == 5


# What is published


def test_what_is_published_says_what_it_is_and_that_every_node_has_sent_its_part(
    main: Main, peers: Peers
) -> None:
    name = "step=5-val_loss=0.25"
    main.write({MODEL: saved("m", dp_world_size=2), ZERO.format(0): saved("w")}, name)
    peers.at_pause = lambda _: main.send(1, ZERO.format(1), saved("w"))
    fence, metrics = Fence(generation=1, attempt=2), {"val_loss": 0.25}
    proof = "its format says so"
    found = main.publish(
        name, SaveFacts(step=5, loss=0.5, metrics=metrics, fence=fence, sequence=7, proof=proof)
    )
    assert (found.name, found.step, found.loss, found.fence, found.sequence) == (name, 5, 0.5, fence, 7)
    assert found.proof == "its format says so; every node has sent its part"
    assert found.metrics == metrics
    assert {file.path for file in found.files} == {MODEL, ZERO.format(0), ZERO.format(1)}


def test_what_changes_while_the_others_send_is_not_published(main: Main, peers: Peers) -> None:
    main.write({MODEL: saved("m")})

    def at_pause(_: int) -> None:
        main.answer(1, files=())
        main.write({"more.txt": b"more"})

    peers.at_pause = at_pause
    with pytest.raises(StorageError, match=rf"^{main.folder}/step-5 changed while the other nodes sent"):
        main.publish()
    assert not (main.safe / "step-5" / MANIFEST).exists()


@pytest.mark.parametrize(
    "files, sent, said",
    [
        (
            {"__0_0.distcp": b"w", ".metadata": metadata(_0_0=1, _1_0=1, _2_0=1)},
            None,
            r"no node has sent __1_0\.distcp, __2_0\.distcp, which belong to it",
        ),
        (
            {"__0_0.distcp": b"w", ".metadata": metadata(_0_0=1, _1_0=9)},
            ("__1_0.distcp", b"short"),
            r"of what the nodes have sent, .*__1_0\.distcp has 5 of 9 bytes",
        ),
        (
            {ZERO.format(0): saved("w"), ZERO.format(1): saved("mine"), MODEL: saved("m", dp_world_size=3)},
            (ZERO.format(1), b"of another"),
            r"nodes 0 and 1 have both written zero_pp_rank_1",
        ),
    ],
    ids=["missing", "short", "twice"],
)
def test_what_the_nodes_have_sent_is_published_only_where_it_is_one_whole(
    main: Main, peers: Peers, files: dict[str, bytes], sent: tuple[str, bytes] | None, said: str
) -> None:
    main.write(files)
    peers.at_pause = lambda _: main.send(1, *sent) if sent else main.answer(1, files=())
    with pytest.raises(IncompleteCheckpoint, match=f"^{said}"):
        main.publish()
    assert not (main.safe / "step-5" / MANIFEST).exists()


def test_what_was_fetched_to_resume_from_is_not_sent_as_this_nodes_own(main: Main, peers: Peers) -> None:
    main.write({ZERO.format(1): b"fetched"})
    main.collector = ShardCollector(main.folder, main.store, 0, (1,), OciAccess())
    main.write({ZERO.format(0): saved("w"), MODEL: saved("m", dp_world_size=2)})
    peers.at_pause = lambda _: main.send(1, ZERO.format(1), b"of node 1")
    main.publish()
    assert (main.safe / "step-5" / ZERO.format(1)).read_bytes() == b"of node 1"


def test_what_is_sent_is_aborted_once_its_time_is_over(
    main: Main, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_ocidist.storage import checkpoints

    given: list[Any] = []
    send_part = checkpoints.send_part

    def noted(*places: Any, **how: Any) -> Any:
        given.append((places, how))
        return send_part(*places, **how)

    monkeypatch.setattr(checkpoints, "send_part", noted)
    main.write({MODEL: saved("m")})
    peers.at_pause = lambda _: main.answer(1, files=())
    cancel = threading.Event()
    main.publish(cancel=cancel)
    ((places, how),) = given
    assert places == (main.folder / "step-5", str(main.safe / "step-5"))
    assert how == {"leave_out": set(), "cancel": cancel, "access": main.collector.access}


# The end


def test_the_others_are_released_at_once_only_where_all_share_the_folder(tmp_path: Path) -> None:
    main = Main(tmp_path)
    main.collector.open()
    assert main.exchange.board() == RequestBoard()
    ShardCollector(main.folder, main.store, 0, (), OciAccess()).open()
    assert main.exchange.board() == RequestBoard(closed=True)


@pytest.mark.parametrize("error", [StorageError("no answer"), OSError("no answer")])
def test_an_end_that_cannot_be_announced_is_said(
    main: Main, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(main.store, "write", fails)
    main.collector.close()
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "the end of the checkpoints cannot be announced to the others: no answer")
    ]
