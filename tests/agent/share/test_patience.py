"""Patience: a node is waited for as long as it is not much slower than the store."""

from __future__ import annotations

from airflow_provider_ocidist.agent.share import patience
from airflow_provider_ocidist.agent.share.patience import Patience


def after_reads_of(seconds: float) -> Patience:
    found = Patience()
    found._latest = seconds
    return found


def test_a_piece_is_waited_for_some_seconds_and_longer_where_the_store_is_slow() -> None:
    assert not Patience().is_over(1, patience.LEAST)
    assert Patience().is_over(1, patience.LEAST + 0.1)
    assert not after_reads_of(10.0).is_over(1, 29.0)
    assert after_reads_of(10.0).is_over(1, 31.0)


def test_many_short_waits_count_together() -> None:
    slow = after_reads_of(0.1)
    for _ in range(100):
        slow.waited(1, 1.0)
        slow.was_given(1)
    assert slow.is_over(1, 0.0)
    assert not slow.is_over(2, 0.0)


def test_a_node_that_is_as_fast_as_the_store_is_always_waited_for() -> None:
    fast = after_reads_of(0.5)
    for _ in range(1000):
        fast.waited(1, 0.6)
        fast.was_given(1)
    assert not fast.is_over(1, 0.6)


def test_a_read_that_is_not_over_counts() -> None:
    found = Patience()
    with found.own_read():
        found._running = dict.fromkeys(found._running, -1e9)
        assert not found.is_over(1, 1e6)
    assert not found.is_over(1, 1e6)
