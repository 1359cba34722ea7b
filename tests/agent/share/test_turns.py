"""Turns: pieces are divided evenly, taken from the nodes that have them, and a wait for one always ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from airflow_provider_ocidist.agent.share.turns import WORTH_SHARING, Piece, PieceSource, View, turn_of

STORE = PieceSource()


def view(has: Iterable[str] = (), reads: Iterable[str] = (), *, awaited: bool = True) -> View:
    return View(has=frozenset(has), reads=frozenset(reads), is_awaited=awaited)


def piece(number: int) -> Piece:
    return Piece(id=str(number), number=number, length=1)


def test_all_nodes_agree_who_reads_a_piece_and_each_reads_its_part() -> None:
    readers = Counter[int]()
    for number in range(32):
        turns = [
            turn_of(piece(number), rank, {o: view() for o in range(4) if o != rank}) for rank in range(4)
        ]
        (reader,) = (rank for rank, turn in enumerate(turns) if turn == STORE)
        assert [turn.wait_for for turn in turns] == [None if rank == reader else reader for rank in range(4)]
        readers[reader] += 1
    assert readers == dict.fromkeys(range(4), 8)


def test_what_a_node_has_is_taken_from_it_whatever_node_was_to_read_it() -> None:
    for number in range(4):
        others = {1: view(), 2: view(has=[str(number)])}
        assert turn_of(piece(number), 0, others) == PieceSource(ask=2)


def test_what_many_have_is_taken_from_all_of_them() -> None:
    everything = view(has=map(str, range(30)))
    asked = Counter(turn_of(piece(n), 0, dict.fromkeys((1, 2, 3), everything)).ask for n in range(30))
    assert asked == {1: 10, 2: 10, 3: 10}


def test_what_another_node_reads_already_is_waited_for() -> None:
    assert turn_of(piece(0), 0, {1: view(), 2: view(reads=["0"])}) == PieceSource(wait_for=2)


def test_a_node_that_is_slow_is_not_waited_for_and_has_no_turn() -> None:
    slow = view(reads=["0"], awaited=False)
    assert turn_of(piece(0), 0, {1: slow}) == STORE
    assert {turn_of(piece(number), 0, {1: slow, 2: view()}).wait_for for number in range(6)} == {None, 2}
    assert turn_of(piece(0), 0, {1: view(has=["0"], awaited=False)}) == PieceSource(ask=1)


def test_who_is_alone_reads_all() -> None:
    assert all(turn_of(piece(number), 3, {}) == STORE for number in range(8))


def test_what_a_turn_does_not_name_is_none() -> None:
    assert (STORE.ask, STORE.wait_for) == (None, None)
    assert turn_of(piece(0), 0, {1: view(has=["0"])}).wait_for is None
    assert turn_of(piece(1), 0, {1: view()}).ask is None


def test_who_ask_for_one_piece_ask_different_nodes() -> None:
    has = dict.fromkeys((5, 6, 7), view(has=["0"]))
    assert {turn_of(piece(0), rank, has).ask for rank in range(3)} == {5, 6, 7}


def test_of_two_that_read_a_piece_the_first_is_waited_for_and_one_that_is_slow_is_passed_over() -> None:
    reads = view(reads=["0"])
    assert turn_of(piece(0), 0, {3: reads, 2: reads}) == PieceSource(wait_for=2)
    slow = view(reads=["0"], awaited=False)
    assert turn_of(piece(0), 0, {2: slow, 3: reads}) == PieceSource(wait_for=3)
    # Reading counts before the turn, also where it is this node's.
    assert turn_of(piece(0), 0, {1: view(), 2: view(reads=["0", "1"])}) == PieceSource(wait_for=2)
    assert turn_of(piece(1), 0, {1: view(), 2: view(reads=["0"])}) == PieceSource(wait_for=1)


def test_what_is_worth_sharing_is_as_large_as_the_documents_say() -> None:
    page = (Path(__file__).parents[3] / "docs/nodes.md").read_text()
    (size,) = re.findall(r"([0-9]+) MiB or more is read from the store by one node", page)
    assert int(size) << 20 == WORTH_SHARING
