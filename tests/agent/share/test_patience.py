"""Patience: a node is waited for as long as it is not much slower than the store (docs/decisions/0015)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from airflow_provider_ocidist.agent.share import patience
from airflow_provider_ocidist.agent.share.patience import Patience

SMALL, PIECE = 64 << 10, 8 << 20


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=found.monotonic))
    return found


@pytest.fixture
def after_reads_of(clock: Clock) -> Callable[..., Patience]:
    """Return the patience of a node whose reads from the store took so many seconds, one after the other."""

    def make(*seconds: float, length: int = PIECE) -> Patience:
        found = Patience()
        for each in seconds:
            read(found, clock, each, length)
        return found

    return make


def read(found: Patience, clock: Clock, seconds: float, length: int = PIECE) -> None:
    with found.own_read(length):
        clock.now += seconds


def wait(found: Patience, clock: Clock, rank: int, seconds: float) -> None:
    with found.waiting(rank):
        clock.now += seconds


def test_a_piece_is_waited_for_three_seconds_and_longer_where_the_store_is_slow(
    after_reads_of: Callable[..., Patience],
) -> None:
    for seconds, limit in (
        ((), 3.0),
        ((0.5,), 3.0),
        ((1.0,), 3.0),
        ((10.0,), 30.0),
        ((2.0, 40.0, 10.0), 30.0),
    ):
        found = after_reads_of(*seconds)
        assert not found.is_over(1, limit, PIECE)
        assert found.is_over(1, limit + 0.01, PIECE)


def test_a_small_piece_waits_as_long_as_a_large_one_since_it_may_be_behind_such(
    clock: Clock, after_reads_of: Callable[..., Patience]
) -> None:
    found = after_reads_of(10.0)
    read(found, clock, 0.1, SMALL)
    assert not found.is_over(1, 30.0, SMALL)
    assert found.is_over(1, 30.1, SMALL)


def test_a_piece_larger_than_all_that_were_read_is_waited_for_in_proportion(
    after_reads_of: Callable[..., Patience],
) -> None:
    found = after_reads_of(0.1, length=SMALL)
    assert found.is_over(1, 3.1, SMALL)
    assert not found.is_over(1, 3 * 0.1 * PIECE / (2 * SMALL), PIECE)
    assert found.is_over(1, 3 * 0.1 * PIECE / SMALL + 0.1, PIECE)


def test_all_waits_for_one_node_have_a_limit_besides_those_for_what_it_has_given(
    clock: Clock, after_reads_of: Callable[..., Patience]
) -> None:
    for own, given, limit in (
        (0.0, 0, 30.0),
        (0.0, 5, 30.0),
        (2.0, 0, 36.0),
        (2.0, 1, 42.0),
        (2.0, 10, 96.0),
    ):
        found = after_reads_of(own)
        for _ in range(given):
            found.was_given(1, PIECE)
        wait(found, clock, 1, limit - 0.5)
        wait(found, clock, 1, 0.5)
        assert not found.is_over(1, 0.0, PIECE), "no longer than it may take"
        wait(found, clock, 1, 0.5)
        assert found.is_over(1, 0.0, PIECE)


def test_a_first_wait_has_all_of_the_allowance(clock: Clock, after_reads_of: Callable[..., Patience]) -> None:
    found = after_reads_of(10.0)
    with found.waiting(1):
        clock.now += patience.ALLOWANCE + 30.0
        assert not found.is_over(1, 30.0, PIECE)
        clock.now += 0.01
        assert found.is_over(1, 30.0, PIECE)


def test_a_read_of_one_byte_shows_how_slow_the_store_is_too(after_reads_of: Callable[..., Patience]) -> None:
    found = after_reads_of(10.0, length=1)
    assert not found.is_over(1, 60.0, 4)
    assert found.is_over(1, 60.01, 4)


def test_threads_that_wait_for_a_node_at_the_same_time_wait_once(clock: Clock) -> None:
    found = Patience()
    with ExitStack() as waits:
        for _ in range(8):
            waits.enter_context(found.waiting(1))
            clock.now += 3
        assert not found.is_over(1, 0.0, PIECE)
        clock.now += 7
        assert found.is_over(1, 0.0, PIECE), "a wait counts while it lasts"
    assert found.is_over(1, 0.0, PIECE)
    clock.now += 1000
    fresh = Patience()
    with fresh.waiting(1), fresh.waiting(1):
        clock.now += 20
    clock.now += 1000
    wait(fresh, clock, 1, 10)
    assert not fresh.is_over(1, 0.0, PIECE)
    wait(fresh, clock, 1, 1)
    assert fresh.is_over(1, 0.0, PIECE)


def test_before_its_first_read_a_node_takes_the_store_for_fast(clock: Clock) -> None:
    found = Patience()
    found.was_given(1, PIECE)
    wait(found, clock, 1, 30.5)
    assert found.is_over(1, 0.0, PIECE)


def test_of_another_node_neither_waits_nor_gifts_count(
    clock: Clock, after_reads_of: Callable[..., Patience]
) -> None:
    found = after_reads_of(2.0)
    found.was_given(2, PIECE)
    wait(found, clock, 1, 37.0)
    assert found.is_over(1, 0.0, PIECE)
    assert not found.is_over(2, 0.0, PIECE)
    wait(found, clock, 2, 37.0)
    assert not found.is_over(2, 0.0, PIECE)


def test_a_node_that_is_as_fast_as_the_store_is_always_waited_for(
    clock: Clock, after_reads_of: Callable[..., Patience]
) -> None:
    fast = after_reads_of(0.5)
    for _ in range(1000):
        wait(fast, clock, 1, 0.6)
        fast.was_given(1, PIECE)
    assert not fast.is_over(1, 0.6, PIECE)


def test_a_read_that_is_not_over_counts_as_long_as_it_lasts(clock: Clock) -> None:
    found = Patience()
    with found.own_read(PIECE):
        clock.now += 10
        # Reads in other threads begin and end meanwhile: the longest counts, whichever was begun last.
        with found.own_read(SMALL):
            clock.now += 10
            assert not found.is_over(1, 60.0, SMALL)
            assert found.is_over(1, 60.1, SMALL)
        clock.now += 10
        assert not found.is_over(1, 90.0, PIECE)
        assert found.is_over(1, 90.1, PIECE)
    assert not found.is_over(1, 90.0, PIECE)


def test_a_short_read_beside_a_long_one_before_it_makes_no_node_slow(clock: Clock) -> None:
    found = Patience()
    read(found, clock, 20)
    with found.own_read(PIECE):
        clock.now += 1
        assert not found.is_over(1, 60.0, PIECE)
    assert found.is_over(1, 3.1, PIECE)


def test_a_read_that_fails_is_over(clock: Clock) -> None:
    found = Patience()

    def fails() -> None:
        with found.own_read(PIECE):
            clock.now += 5
            raise OSError("the store")

    with pytest.raises(OSError, match="the store"):
        fails()
    clock.now += 1000
    assert not found.is_over(1, 15.0, PIECE)
    assert found.is_over(1, 15.1, PIECE)
