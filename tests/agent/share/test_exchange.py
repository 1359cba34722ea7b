"""The exchange between nodes: real servers on loopback; whatever another node does wrong, the store is there."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.share import exchange as exchanges
from airflow_provider_ocidist.agent.share import patience
from airflow_provider_ocidist.agent.share import peer as peers
from airflow_provider_ocidist.agent.share import shelf as shelves
from airflow_provider_ocidist.agent.share.exchange import Exchange
from airflow_provider_ocidist.agent.share.peer import NotThere, Peer, SharingPlace
from airflow_provider_ocidist.agent.share.server import PIECES, PieceServer
from airflow_provider_ocidist.agent.share.shelf import FilePlace, HeldPiece, Shelf
from airflow_provider_ocidist.agent.share.turns import Piece
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.work_dir import sharing_of
from airflow_provider_ocidist.storage.stores.base import Buffer
from airflow_provider_ocidist.storage.stores.local import LocalStore

CONTENT = bytes(range(256)) * 8
NEVER = threading.Event()


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def piece(number: int) -> Piece:
    return Piece(id=f"p{number}", number=number, length=len(CONTENT))


def a_shelf(folder: Path, *numbers: int, content: bytes = CONTENT, says: str | None = None) -> Shelf:
    """Return the shelf of a node that has these pieces; `says`: the digest that it gives."""
    shelf = Shelf()
    for number in numbers:
        path = folder / f"file-{number}"
        path.write_bytes(content)
        held = HeldPiece(place=FilePlace(path), offset=0, length=len(CONTENT), digest=says or digest(CONTENT))
        shelf.has(piece(number).id, held)
    return shelf


@contextmanager
def serving(shelf: Shelf, run: LocalStore, rank: int) -> Iterator[PieceServer]:
    server = PieceServer("127.0.0.1", shelf)
    announce(run, rank, SharingPlace(address="127.0.0.1", port=server.port, token=server.token))
    try:
        yield server
    finally:
        server.close()


def announce(run: LocalStore, rank: int, at: SharingPlace) -> None:
    run.write(sharing_of(rank), json.dumps(codec.encode(at)).encode())


@pytest.fixture
def run(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "run")


@pytest.fixture
def node(run: LocalStore) -> Iterator[Callable[[int, int], Exchange]]:
    """Begins the part of a node in the exchange, which ends with the test."""
    begun: list[Exchange] = []

    def begin(rank: int, nodes: int) -> Exchange:
        found = Exchange(rank, nodes, run, lambda: "127.0.0.1")
        begun.append(found)
        found.begin(NEVER)
        return found

    yield begin
    for each in begun:
        each.close()


def taken(
    node: Exchange, number: int, *, is_right: Callable[[Buffer], bool] = lambda _: True
) -> bytes | None:
    with node.borrowed(piece(number), is_right, NEVER) as data:
        return None if data is None else bytes(data)


def test_a_node_takes_what_another_has(
    tmp_path: Path, run: LocalStore, node: Callable[[int, int], Exchange]
) -> None:
    with serving(a_shelf(tmp_path, 0, 1), run, 1):
        own = node(0, 2)
        assert [taken(own, number) for number in range(2)] == [CONTENT] * 2


def test_a_node_waits_for_what_another_is_reading(
    tmp_path: Path, run: LocalStore, node: Callable[[int, int], Exchange]
) -> None:
    shelf = Shelf()
    shelf.reads(piece(1).id)
    with serving(shelf, run, 1):
        own = node(0, 2)
        path = tmp_path / "file"
        path.write_bytes(CONTENT)
        held = HeldPiece(place=FilePlace(path), offset=0, length=len(CONTENT), digest=digest(CONTENT))
        later = threading.Timer(0.1, shelf.has, (piece(1).id, held))
        later.start()
        assert taken(own, 1) == CONTENT
        later.join()


def test_a_node_that_fails_to_read_gives_up_its_turn(
    run: LocalStore, node: Callable[[int, int], Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "LEAST", 60.0)
    shelf = Shelf()
    shelf.reads(piece(0).id)
    with serving(shelf, run, 1):
        own = node(0, 2)
        threading.Timer(0.05, shelf.drops, (piece(0).id,)).start()
        # It is this node's own turn, once the other has dropped it.
        assert taken(own, 0) is None


@pytest.mark.parametrize(
    "content, says",
    [
        (b"\0" * len(CONTENT), None),
        (CONTENT[:100], None),
        (b"\0" * len(CONTENT), digest(b"\0" * len(CONTENT))),
    ],
    ids=["damaged", "cut short", "lies"],
)
def test_wrong_bytes_never_count_and_their_node_is_asked_no_more(
    tmp_path: Path,
    run: LocalStore,
    node: Callable[[int, int], Exchange],
    content: bytes,
    says: str | None,
) -> None:
    with serving(a_shelf(tmp_path, 0, 1, content=content, says=says), run, 1):
        own = node(0, 2)
        assert taken(own, 0, is_right=lambda data: bytes(data) == CONTENT) is None
        assert taken(own, 1) is None


def test_a_node_that_is_not_there_is_replaced_by_the_store(
    run: LocalStore, node: Callable[[int, int], Exchange]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        announce(run, 1, SharingPlace(address="127.0.0.1", port=unused.getsockname()[1], token="x"))
        own = node(0, 2)
        assert [taken(own, number) for number in range(4)] == [None] * 4


def test_a_node_that_accepts_and_is_silent_is_replaced_by_the_store(
    run: LocalStore, node: Callable[[int, int], Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "FIRST_NEWS", 0.05)
    monkeypatch.setattr(patience, "LEAST", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        announce(run, 1, SharingPlace(address="127.0.0.1", port=frozen.getsockname()[1], token="x"))
        own = node(0, 2)
        assert [taken(own, number) for number in range(4)] == [None] * 4


@pytest.mark.parametrize("slowest, is_taken", [(1, True), (1 << 40, False)])
def test_a_node_that_sends_too_slowly_is_asked_no_more(
    tmp_path: Path,
    run: LocalStore,
    node: Callable[[int, int], Exchange],
    monkeypatch: pytest.MonkeyPatch,
    slowest: int,
    *,
    is_taken: bool,
) -> None:
    with serving(a_shelf(tmp_path, 0, 2), run, 1):
        own = node(0, 2)
        monkeypatch.setattr(peers, "SLOWEST", slowest)
        monkeypatch.setattr(peers, "_READ", 256)
        # Connections have their limit from before.
        own._peers[1]._idle.append(own._peers[1]._connect(peers.SILENCE))
        monkeypatch.setattr(peers, "SILENCE", 0.0)
        assert [taken(own, number) for number in (0, 2)] == ([CONTENT] * 2 if is_taken else [None] * 2)


def test_a_slow_node_is_waited_for_once_only(
    run: LocalStore,
    node: Callable[[int, int], Exchange],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(patience, "LEAST", 0.05)
    caplog.set_level("INFO")
    with serving(Shelf(), run, 1):
        own = node(0, 2)
        assert [taken(own, number) for number in range(20)] == [None] * 20
    said = [record for record in caplog.records if "reads more slowly" in record.getMessage()]
    assert len(said) == 1


def test_a_node_that_gives_nothing_is_not_waited_for(
    run: LocalStore, node: Callable[[int, int], Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "LEAST", 60.0)
    announce(run, 1, SharingPlace())
    own = node(0, 2)
    assert [taken(own, number) for number in range(4)] == [None] * 4


def test_a_node_that_has_all_is_not_waited_for(
    run: LocalStore, node: Callable[[int, int], Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "LEAST", 3600.0)
    monkeypatch.setattr(patience, "ALLOWANCE", 3600.0)
    shelf = Shelf()
    with serving(shelf, run, 1):
        own = node(0, 2)
        threading.Timer(0.05, shelf.rests).start()
        assert [taken(own, number) for number in range(4)] == [None] * 4


def test_nodes_that_are_there_together_wait_for_no_time_out(
    node: Callable[[int, int], Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "MEETING", 3600.0)
    monkeypatch.setattr(exchanges, "FIRST_NEWS", 3600.0)
    with ThreadPoolExecutor(3) as pool:
        met = list(pool.map(node, range(3), [3] * 3))
    assert [each.others for each in met] == [{1, 2}, {0, 2}, {0, 1}]


def test_a_node_without_which_the_gang_goes_on_is_not_waited_for(
    run: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "MEETING", 3600.0)
    waited_in_vain = threading.Event()
    ending = threading.Timer(10.0, waited_in_vain.set)
    ending.start()
    own = Exchange(0, 3, run, lambda: "127.0.0.1", lambda: [0, 1])
    with serving(Shelf(), run, 1):
        own.begin(waited_in_vain)
        own.close()
    ending.cancel()
    assert not waited_in_vain.is_set()


def test_a_node_shares_with_those_of_its_group_only(run: LocalStore) -> None:
    groups = [Exchange(rank, 18, run, lambda: None).others | {rank} for rank in range(18)]
    assert groups == [frozenset(range(16))] * 16 + [frozenset({16, 17})] * 2


def test_who_does_not_know_the_token_gets_nothing(tmp_path: Path, run: LocalStore) -> None:
    with serving(a_shelf(tmp_path, 0), run, 1) as server:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            connection.request("GET", f"{PIECES}{piece(0).id}", headers=headers)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (401, b"")
            connection.close()


def test_a_node_serves_without_a_look_up_of_its_name(
    tmp_path: Path, run: LocalStore, node: Callable[[int, int], Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("a name server may not answer"))
    with serving(a_shelf(tmp_path, 0), run, 1):
        assert taken(node(0, 2), 0) == CONTENT


def test_a_file_that_was_moved_or_deleted_is_found_or_said_to_be_gone(
    tmp_path: Path, run: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelves, "RENAMED_WITHIN", 0.0)
    (tmp_path / "staged").write_bytes(CONTENT)
    place = FilePlace(tmp_path / "final")
    place.now = tmp_path / "staged"
    shelf = Shelf()
    shelf.has(piece(0).id, HeldPiece(place=place, offset=0, length=len(CONTENT), digest=digest(CONTENT)))
    with serving(shelf, run, 1) as server:
        peer = Peer(1, SharingPlace(address="127.0.0.1", port=server.port, token=server.token))
        assert bytes(peer.fetch(piece(0))) == CONTENT
        (tmp_path / "staged").rename(tmp_path / "final")
        assert bytes(peer.fetch(piece(0))) == CONTENT
        (tmp_path / "final").unlink()
        with pytest.raises(NotThere):
            peer.fetch(piece(0))
        peer.close()


def test_a_file_between_two_names_is_waited_for(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "final")
    place.now = tmp_path / "part"
    (tmp_path / "other").write_bytes(CONTENT)
    later = threading.Timer(0.1, (tmp_path / "other").rename, (tmp_path / "final",))
    later.start()
    with place.open() as file:
        assert file.read() == CONTENT
    later.join()


def test_a_connection_that_the_other_node_has_closed_is_opened_again(
    tmp_path: Path, run: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(a_shelf(tmp_path, 0), run, 1) as server:
        monkeypatch.setattr(server._http.RequestHandlerClass, "timeout", 0.05)
        peer = Peer(1, SharingPlace(address="127.0.0.1", port=server.port, token=server.token))
        assert bytes(peer.fetch(piece(0))) == CONTENT
        time.sleep(0.2)
        assert bytes(peer.fetch(piece(0))) == CONTENT
        peer.close()
