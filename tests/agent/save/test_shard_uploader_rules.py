"""What a node answers when it is asked for its part, and when it tries again; by a clock of its own."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save import saving, shard_uploader
from airflow_provider_ocidist.agent.save.proofs import Moment
from airflow_provider_ocidist.agent.save.saving import SaveDeadline
from airflow_provider_ocidist.agent.save.shard_exchange import (
    RequestBoard,
    ShardExchange,
    ShardReply,
    ShardRequest,
)
from airflow_provider_ocidist.agent.save.shard_uploader import ShardUploader
from airflow_provider_ocidist.agent.save.shards import REMEDY
from airflow_provider_ocidist.errors import Cause, StorageError, Unpublishable
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.work_dir import report_of
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import checkpoints
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.save.test_shard_exchange import saved

ZERO = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
PART = {ZERO: saved("weights")}
AWAY = StorageError("the store is away", retryable=True)


class Clock:
    """Seconds that pass when the test says so, and at each pause."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        self.at_pause: Callable[[int], object] = lambda _: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        assert len(self.pauses) < 1000, "it waits for ever"
        self.at_pause(len(self.pauses))


class Node:
    """Node 1 of a gang, whose uploader does a step when the test calls for it, and the board of the main node."""

    def __init__(self, root: Path, launch: int = 0) -> None:
        self.folder, self.safe = root / "here", root / "safe"
        self.folder.mkdir()
        self.store = open_store(str(root / "run"))
        self.exchange = ShardExchange(self.store, launch)
        self.arrived = 0
        self.uploader = ShardUploader(
            self.folder, self.store, 1, 0, OciAccess(), launch=launch, on_arrived=self.arrives
        )

    def arrives(self) -> None:
        self.arrived += 1

    def write(self, files: dict[str, bytes], name: str = "step-5") -> Path:
        for file, content in files.items():
            (self.folder / name / file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name / file).write_bytes(content)
        self.uploader._look()
        return self.folder / name

    def request(self, number: int = 1, name: str = "step-5", **changes: Any) -> ShardRequest:
        fields = {"ranks": (1, 2), "written": False, "everywhere": True, "leave_out": ()}
        uri = str(self.safe / f"{name}-{number}")
        return ShardRequest(**{"number": number, "name": name, "uri": uri, **fields, **changes})

    def answer(self, request: ShardRequest) -> ShardReply | None:
        """Have the node look at a request; return what it has replied to it so far."""
        self.uploader._answer(request)
        return self.exchange.reply_of(1, request)

    def sent(self, request: ShardRequest) -> dict[str, bytes]:
        place = Path(request.uri)
        return {file.relative_to(place).as_posix(): file.read_bytes() for file in place.rglob("*.*")}

    def ends(self, moment: Moment = Moment.EXITED, seconds: float = 600.0) -> None:
        """The training has ended; the node has so long to send its parts."""
        self.uploader.finish(moment, SaveDeadline(seconds))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(shard_uploader, "time", clock)
    return clock


@pytest.fixture
def node(tmp_path: Path, clock: Clock) -> Node:
    del clock
    return Node(tmp_path)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    """Return what was logged since the last look, with its level."""
    caplog.set_level(logging.DEBUG, logger=shard_uploader.logger.name)

    def since() -> list[tuple[str, str]]:
        ours = [each for each in caplog.records if each.name == shard_uploader.logger.name]
        found = [(each.levelname, each.getMessage()) for each in ours]
        caplog.clear()
        return found

    return since


# Its part


@pytest.mark.parametrize("written, seconds", [(True, 1.0), (False, 10.0)])
def test_a_part_is_acknowledged_at_once_and_sent_when_it_is_at_rest(
    node: Node, clock: Clock, said: Callable[[], list[tuple[str, str]]], seconds: float, *, written: bool
) -> None:
    node.write(PART)
    request = node.request(written=written)
    for passed in (0.0, seconds - 0.1):
        clock.now = 1000.0 + passed
        assert node.answer(request) == ShardReply()
    clock.now = 1000.0 + seconds
    reply = node.answer(request)
    assert reply is not None
    assert [(file.path, file.size) for file in reply.files or ()] == [(ZERO, len(PART[ZERO]))]
    assert node.sent(request) == PART
    assert node.arrived == 1
    assert said() == [("INFO", "sent 1 files of step-5")]
    # What was answered is not looked at again.
    shutil.rmtree(request.uri)
    assert node.answer(request) == reply
    assert node.sent(request) == {}


def test_a_part_that_still_changes_is_at_rest_only_since_its_last_change(node: Node, clock: Clock) -> None:
    node.write(PART)
    request = node.request()
    clock.now += 9.0
    node.write({ZERO: saved("more of the weights")})
    clock.now += 9.0
    node.uploader._look()
    assert node.answer(request) == ShardReply()
    clock.now += 1.0
    assert (node.answer(request) or ShardReply()).files


def test_once_the_training_has_ended_nothing_rests_any_more(node: Node) -> None:
    node.write(PART)
    node.ends()
    assert (node.answer(node.request()) or ShardReply()).files


def test_only_what_the_main_node_does_not_send_itself_is_sent(node: Node) -> None:
    node.write({**PART, "config.json": b"{}", "rng_state_1.pth": saved("r")})
    node.ends()
    request = node.request(leave_out=("config.json",))
    node.answer(request)
    assert node.sent(request) == {**PART, "rng_state_1.pth": saved("r")}
    companions = node.request(2, companions=True, everywhere=False)
    node.answer(companions)
    assert node.sent(companions) == {"rng_state_1.pth": saved("r")}


@pytest.mark.parametrize("ranks, number", [((0, 2), 1), ((), 1)])
def test_who_is_not_asked_answers_nothing(node: Node, ranks: tuple[int, ...], number: int) -> None:
    node.write(PART)
    node.ends()
    assert node.answer(node.request(number, ranks=ranks)) is None
    node.uploader._answer(None)
    assert [each.name for each in node.store.list()] == []


def test_what_has_changed_while_it_was_sent_is_sent_again(
    node: Node, clock: Clock, said: Callable[[], list[tuple[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = node.write(PART)
    send_part, changes = checkpoints.send_part, [saved("once more")]

    def and_changed(*given: Any, **how: Any) -> Any:
        found = send_part(*given, **how)
        if changes:
            (place / ZERO).write_bytes(changes.pop())
        return found

    monkeypatch.setattr(checkpoints, "send_part", and_changed)
    node.ends()
    request = node.request()
    assert node.answer(request) == ShardReply()
    assert said() == [
        (
            "WARNING",
            f"the shards of step-5 cannot be sent: {place} changed while it was read; trying again in 1 s",
        )
    ]
    assert (node.answer(request) or ShardReply()).files
    assert node.sent(request) == {ZERO: saved("once more")}


# No part


def test_a_node_without_a_part_says_so_where_not_every_node_must_have_one(node: Node) -> None:
    assert node.answer(node.request(everywhere=False)) == ShardReply(files=())
    node.write({"config.json": b"{}"}, "step-6")
    assert node.answer(node.request(2, "step-6", everywhere=False)) == ShardReply(files=())
    assert node.answer(node.request(3, "step-6", everywhere=False, companions=True)) == ShardReply(files=())
    # Where the format shows that all is written, whatever it has is its part.
    node.ends()
    request = node.request(4, "step-6", written=True, everywhere=False)
    assert (node.answer(request) or ShardReply()).files
    assert node.sent(request) == {"config.json": b"{}"}


def test_a_node_that_must_have_a_part_may_yet_write_it_until_the_training_has_ended(node: Node) -> None:
    request = node.request()
    assert node.answer(request) is None
    assert node.uploader._look_again_at == 0.0, "it looks again soon"
    node.ends()
    assert node.answer(request) == ShardReply(fault=f"the program has not written step-5 there; {REMEDY}")


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_part_that_is_deleted_before_it_was_sent_is_said(node: Node, *, everywhere: bool) -> None:
    request = node.request(everywhere=everywhere)
    place = node.write(PART)
    assert node.answer(request) == ShardReply()
    shutil.rmtree(place)
    assert node.answer(request) == ShardReply(fault="the program has deleted step-5 there")


def test_a_part_that_is_deleted_while_it_is_sent_is_sent_from_what_is_held(
    node: Node, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, tries = node.write(PART), [0]
    send_part = checkpoints.send_part

    def fails_first(*given: Any, **how: Any) -> Any:
        tries[0] += 1
        if tries[0] == 1:
            shutil.rmtree(place)
            raise AWAY
        return send_part(*given, **how)

    monkeypatch.setattr(checkpoints, "send_part", fails_first)
    clock.now += 10.0
    request = node.request()
    assert node.answer(request) == ShardReply()
    assert (node.answer(request) or ShardReply()).files
    assert node.sent(request) == PART
    assert [path.name for path in node.folder.parent.iterdir() if "held" in path.name] == []


def test_what_is_held_for_a_request_that_is_given_up_is_let_go(
    node: Node, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise AWAY

    monkeypatch.setattr(checkpoints, "send_part", fails)
    node.write(PART)
    clock.now += 10.0
    node.answer(node.request())
    assert len([path for path in node.folder.parent.iterdir() if "held" in path.name]) == 1
    assert node.answer(node.request(2, "step-6")) is None
    assert [path for path in node.folder.parent.iterdir() if "held" in path.name] == []


# A part that is not whole


@pytest.mark.parametrize("moment", [Moment.RUNNING, Moment.EXITED, Moment.CUT_OFF])
def test_a_part_that_is_not_whole_is_waited_for_and_refused_once_the_training_has_ended(
    node: Node, clock: Clock, moment: Moment
) -> None:
    node.write({ZERO: PART[ZERO][:-9]})
    clock.now += 100.0
    if moment is not Moment.RUNNING:
        node.ends(moment)
    reply = node.answer(node.request()) or ShardReply()
    assert reply.files is None
    if moment is Moment.RUNNING:
        assert reply.fault is None
    else:
        assert (reply.fault or "").startswith(f"its processes have not written all of {ZERO}: ")


@pytest.mark.parametrize(
    "moment, written, is_sent",
    [(Moment.EXITED, False, True), (Moment.CUT_OFF, False, False), (Moment.CUT_OFF, True, True)],
)
def test_a_part_whose_format_shows_nothing_is_whole_unless_its_processes_were_ended(
    node: Node, moment: Moment, *, written: bool, is_sent: bool
) -> None:
    node.write({"__1_0.distcp": b"weights"})
    node.ends(moment)
    reply = node.answer(node.request(written=written)) or ShardReply()
    assert bool(reply.files) is is_sent
    said = "its processes were ended, and nothing shows that they had written all of __1_0.distcp"
    assert reply.fault == (None if is_sent else said)


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_file_that_is_open_for_writing_is_waited_for_while_the_training_runs(
    node: Node, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, has_ended: bool
) -> None:
    place = node.write(PART)
    monkeypatch.setattr(shard_uploader, "open_for_writing", lambda: frozenset({str(place / ZERO)}))
    clock.now += 100.0
    assert node.uploader._fault(place, node.request()) == f"step-5/{ZERO} is still open for writing"
    if has_ended:
        node.ends()
    reply = node.answer(node.request()) or ShardReply()
    assert bool(reply.files) is has_ended


# When it looks


def test_the_board_is_read_seldom_unless_there_is_a_part_to_be_asked_for(node: Node, clock: Clock) -> None:
    node.uploader._board()
    assert node.uploader._look_again_at == clock.now + 10.0
    node.write(PART)
    assert node.uploader._look_again_at == 0.0, "it may be asked for it now"
    clock.now += 5.0
    node.uploader._board()
    assert node.uploader._look_again_at == clock.now
    clock.now += 10.0
    node.answer(node.request())
    node.uploader._board()
    assert node.uploader._look_again_at == clock.now + 10.0, "it has sent all that it has"
    node.write({ZERO: saved("again")})
    node.uploader._board()
    assert node.uploader._look_again_at == clock.now, "it has saved again"
    shutil.rmtree(node.folder / "step-5")
    node.uploader._look()
    node.uploader._board()
    assert node.uploader._look_again_at == clock.now + 10.0, "that is deleted"
    node.ends()
    node.uploader._board()
    assert node.uploader._look_again_at == clock.now, "it is waited for"


@pytest.mark.parametrize("error", [AWAY, OSError("the store is away")])
def test_a_board_that_cannot_be_read_asks_for_nothing_and_is_no_progress(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[[], list[tuple[str, str]]],
    error: Exception,
) -> None:
    further: list[object] = []
    monkeypatch.setattr(node.uploader._movement, "further", further.append)
    request = node.request()
    node.exchange.ask(request)
    assert node.uploader._board() == RequestBoard(request=request)
    assert further == [""]

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(node.store, "read", fails)
    assert node.uploader._board() == RequestBoard()
    assert further == [""]
    assert said() == [("DEBUG", "the main node's board cannot be read: the store is away")]


def test_a_store_that_is_away_is_tried_again_after_twice_as_long_each_time(
    node: Node,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[[], list[tuple[str, str]]],
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise AWAY

    send_part = checkpoints.send_part
    monkeypatch.setattr(checkpoints, "send_part", fails)
    node.write(PART)
    clock.now += 10.0
    for pause in (1, 2, 4, 8, 16, 32, 60, 60):
        assert node.answer(node.request()) == ShardReply()
        assert said() == [
            (
                "WARNING",
                f"the shards of step-5 cannot be sent: the store is away; trying again in {pause} s",
            )
        ]
        assert node.uploader._look_again_at == clock.now + pause
    node.ends()
    node.answer(node.request())
    assert node.uploader._look_again_at == clock.now + 5.0, "the main node waits for it"
    monkeypatch.setattr(checkpoints, "send_part", send_part)
    node.answer(node.request())
    monkeypatch.setattr(checkpoints, "send_part", fails)
    node.answer(node.request(2))
    assert node.uploader._look_again_at == clock.now + 1.0, "it begins anew"


@pytest.mark.parametrize("can_reply", [True, False])
def test_a_part_for_which_no_time_is_left_is_said_to_the_main_node_and_not_tried_again(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[[], list[tuple[str, str]]],
    *,
    can_reply: bool,
) -> None:
    node.write(PART)
    request = node.request()
    node.answer(request)
    tries = []

    def fails(*_: Any, **__: Any) -> Any:
        tries.append(True)
        if not can_reply:
            monkeypatch.setattr(node.store, "write", fails)
        raise AWAY

    monkeypatch.setattr(checkpoints, "send_part", fails)
    node.ends(seconds=0.0)
    expected = ShardReply(fault="the store is away") if can_reply else ShardReply()
    assert node.answer(request) == expected
    assert said() == [("WARNING", "the shards of step-5 cannot be sent: the store is away")]
    before = len(tries)
    assert node.answer(request) == expected
    assert len(tries) == before


# Until the end


def test_a_node_serves_until_the_main_node_closes_the_board(node: Node, clock: Clock) -> None:
    node.write(PART)
    node.ends()

    def at_pause(number: int) -> None:
        if number == 2:
            node.exchange.ask(node.request())
        if number == 4:
            assert node.sent(node.request()) == PART
            node.exchange.close()

    clock.at_pause = at_pause
    node.uploader._serve_to_the_end()
    assert clock.pauses == [1.0] * 4


@pytest.mark.parametrize("has_part", [True, False])
def test_a_node_serves_no_main_node_that_is_done_and_none_where_it_has_no_part(
    node: Node, clock: Clock, *, has_part: bool
) -> None:
    node.write(PART if has_part else {"config.json": b"{}"})
    node.ends()

    def at_pause(number: int) -> None:
        if number == 3:
            done = NodeReport(rank=0, phase=Phase.DONE, address="", started_at=0.0, heartbeat_at=0.0)
            node.store.write(report_of(0), done.to_json())

    clock.at_pause = at_pause
    node.uploader._serve_to_the_end()
    assert clock.pauses == [1.0] * (3 if has_part else 0)


@pytest.mark.parametrize(
    "moment, seconds, expected",
    [
        (Moment.EXITED, 60.0, True),
        (Moment.EXITED, 0.0, False),
        (Moment.CUT_OFF, 60.0, False),
    ],
)
def test_a_silent_main_node_is_borne_after_a_success_while_there_is_time(
    node: Node, moment: Moment, seconds: float, *, expected: bool
) -> None:
    node.ends(moment, seconds)
    assert node.uploader._is_patient() is expected


def test_an_error_that_nobody_thought_of_is_said_and_leaves_nothing_held(
    node: Node, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[tuple[str, str]]]
) -> None:
    let_go = []
    monkeypatch.setattr(node.uploader, "_let_go", lambda: let_go.append(True))
    monkeypatch.setattr(node.uploader, "_look", lambda: 1 // 0)
    node.ends()
    node.uploader._run()
    assert said() == [("ERROR", "unexpected error while this node sends its parts")]
    assert let_go == [True]


def test_its_thread_keeps_no_process_alive(node: Node) -> None:
    assert node.uploader._thread.daemon


def test_an_uploader_that_has_ended_has_delivered_all(node: Node) -> None:
    assert node.uploader.finish(Moment.EXITED, SaveDeadline(600.0)) is None
    assert node.uploader._training_ended.is_set()


def test_a_part_that_is_still_being_sent_when_its_time_is_over_is_aborted_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_uploader, "LOOK_INTERVAL", 0.01)
    aborted = []

    def send(*_: Any, cancel: Any, **__: Any) -> Any:
        aborted.append(cancel.wait(60))
        node.exchange.close()
        raise AWAY

    monkeypatch.setattr(checkpoints, "send_part", send)
    node = Node(tmp_path)
    node.write(PART)
    node.exchange.ask(node.request())
    node.uploader.start()
    undelivered = node.uploader.finish(Moment.EXITED, SaveDeadline(0.3))
    assert undelivered is not None
    assert undelivered.message == "shards of this node were still uploading when the time to save was over"
    assert undelivered.cause is Cause.SERVICE
    node.uploader._thread.join(60)
    assert aborted == [True]


@pytest.mark.parametrize(
    "error, limit, is_given_up",
    [
        (Unpublishable("its name is too long"), 600.0, True),
        (StorageError("403: not allowed"), 0.0, True),
        (StorageError("403: not allowed"), 600.0, False),
        (AWAY, 0.0, False),
    ],
)
def test_a_part_that_can_never_be_sent_holds_up_no_other_checkpoint_of_the_training(
    node: Node,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    error: StorageError,
    limit: float,
    *,
    is_given_up: bool,
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(saving, "REFUSED_LIMIT", limit)
    monkeypatch.setattr(checkpoints, "send_part", refuse)
    node.write(PART)
    clock.now += 10.0
    reply = node.answer(node.request())
    assert (reply == ShardReply(fault=str(error))) is is_given_up


def test_what_was_refused_of_one_checkpoint_leaves_each_later_one_its_own_ten_minutes(
    node: Node, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise StorageError("403: not allowed")

    monkeypatch.setattr(checkpoints, "send_part", refuse)
    monkeypatch.setattr(saving, "time", clock)
    node.write(PART)
    clock.now += 10.0
    # The main node gives the first checkpoint up after one refusal.
    assert node.answer(node.request()) == ShardReply()
    clock.now += saving.REFUSED_LIMIT + 300
    second = replace(node.request(), number=node.request().number + 1)
    assert node.answer(second) == ShardReply()
    clock.now += saving.REFUSED_LIMIT + 1
    assert node.answer(second) == ShardReply(fault="403: not allowed")
