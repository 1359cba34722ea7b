"""Calls side by side: each is made once, all are over before an error is raised, never more than allowed at a time."""

from __future__ import annotations

import random
import threading

import pytest

from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.work_dir.parallel import both, in_parallel, until_stopped


@pytest.mark.parametrize("seed", range(20))
def test_each_call_is_made_once_with_its_result_in_its_place_and_so_many_at_a_time(seed: int) -> None:
    dice = random.Random(seed)
    items, at_a_time = list(range(dice.choice([0, 1, 2, 3, 40]))), dice.choice([1, 2, 5, 32])
    lock, made, now, most = threading.Lock(), [], [0], [0]

    def work(item: int) -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        made.append(item)
        with lock:
            now[0] -= 1
        return -item

    assert in_parallel(work, iter(items), at_a_time) == [-item for item in items]
    assert sorted(made) == items
    assert most[0] <= at_a_time


def test_calls_are_under_way_at_the_same_time() -> None:
    barrier = threading.Barrier(3, timeout=60)
    assert sorted(in_parallel(lambda _: barrier.wait(), range(3))) == [0, 1, 2]
    barrier = threading.Barrier(2, timeout=60)
    assert sorted(both(barrier.wait, barrier.wait)) == [0, 1]


def test_the_first_error_is_raised_once_all_calls_are_over() -> None:
    over: list[int] = []

    def work(item: int) -> None:
        over.append(item)
        if item % 2:
            raise ValueError(item)

    with pytest.raises(ValueError, match=r"^1$"):
        in_parallel(work, range(20), 3)
    assert sorted(over) == list(range(20))


@pytest.mark.parametrize("which", [0, 1])
def test_of_two_calls_both_are_over_before_either_error_is_raised(which: int) -> None:
    over: list[str] = []

    def fail() -> None:
        raise KeyError("why")

    def last() -> None:
        over.append("over")

    with pytest.raises(KeyError, match="why"):
        both(*((fail, last) if which else (last, fail)))
    assert over == ["over"]
    assert both(lambda: 1, lambda: 2) == (1, 2)


def test_what_is_no_error_ends_the_caller_once_the_other_threads_are_over() -> None:
    over, main = [], threading.current_thread()
    begun, ends = threading.Event(), threading.Event()

    def work(item: int) -> None:
        if threading.current_thread() is main:
            ends.set()
            assert begun.wait(60)
            raise KeyboardInterrupt
        begun.set()
        assert ends.wait(60)
        over.append(item)

    with pytest.raises(KeyboardInterrupt):
        in_parallel(work, range(9), 2)
    assert len(over) == 8


@pytest.mark.parametrize("which", range(4))
def test_what_ends_a_thread_ends_the_caller_and_is_no_result(which: int) -> None:
    barrier = threading.Barrier(2, timeout=60)

    def work(item: int) -> int:
        if item < 2:  # one is made by the caller's thread, the other by another
            barrier.wait()
        if item == which:
            raise SystemExit(item)
        return item

    with pytest.raises(SystemExit):
        in_parallel(work, range(4), 2)


def test_an_interrupted_caller_makes_no_further_call() -> None:
    made: list[int] = []

    def work(item: int) -> None:
        made.append(item)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_parallel(work, range(5), 1)
    assert made == [0]


@pytest.mark.parametrize("stop", [None, threading.Event(), StopFlag()])
def test_a_call_that_is_not_stopped_is_waited_for_and_its_error_raised(stop: threading.Event | None) -> None:
    made: list[int] = []
    until_stopped(lambda: made.append(1), stop)
    assert made == [1]
    with pytest.raises(KeyError):
        until_stopped(lambda: {}["nothing"], stop)


@pytest.mark.parametrize("kind", [threading.Event, StopFlag])
@pytest.mark.parametrize("before", [True, False])
def test_a_call_that_is_stopped_is_not_waited_for_and_goes_on(
    kind: type[threading.Event], before: bool
) -> None:
    stop, begun, may_end, made = kind(), threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert may_end.wait(60)
        made.set()

    if before:
        stop.set()
    else:
        threading.Thread(target=lambda: (begun.wait(60), stop.set())).start()
    until_stopped(work, stop)
    assert begun.wait(60)
    assert not made.is_set()
    may_end.set()
    assert made.wait(60)
