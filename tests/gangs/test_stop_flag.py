"""A stop flag is set from a signal handler at any line of the thread that waits for it, and nothing waits for ever."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_ocidist.gangs.stop_flag import StopFlag

PATIENCE = 20.0


@pytest.fixture
def handler() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Says what the signal handler does; puts back the one of before."""
    before = signal.getsignal(signal.SIGUSR1)

    def handle(work: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: work())

    yield handle
    signal.signal(signal.SIGUSR1, before)


def interrupted_at(line: int, work: Callable[[], Any]) -> tuple[Any, bool]:
    """Return what the work returns when a signal comes at its n-th line, and whether it had as many."""
    left = [line]

    def trace(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                frame.f_trace = None
                signal.raise_signal(signal.SIGUSR1)
        return trace

    sys.settrace(trace)
    try:
        return work(), left[0] <= 0
    finally:
        sys.settrace(None)


def test_it_is_set_at_every_line_of_a_wait(handler: Any) -> None:
    lines = 0
    while True:
        lines += 1
        flag = StopFlag()
        handler(flag.set)
        is_set, was_interrupted = interrupted_at(lines, lambda flag=flag: flag.wait(0.001))
        if not was_interrupted:
            break
        assert flag.is_set()
        assert is_set or flag.wait(0)
    assert lines > 5


def test_it_is_set_at_every_line_of_another_set(handler: Any) -> None:
    lines = 0
    while True:
        lines += 1
        flag = StopFlag()
        handler(flag.set)
        _, was_interrupted = interrupted_at(lines, flag.set)
        assert flag.is_set()
        assert flag.wait(0)
        if not was_interrupted:
            break


def test_a_signal_ends_a_wait_that_has_begun(handler: Any) -> None:
    flag = StopFlag()
    handler(flag.set)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGUSR1))
    timer.start()
    began = time.monotonic()
    assert flag.wait(PATIENCE)
    assert time.monotonic() - began < PATIENCE
    timer.join()


def test_all_who_wait_are_woken_and_it_stays_set() -> None:
    flag, woken = StopFlag(), []
    threads = [threading.Thread(target=lambda: woken.append(flag.wait(PATIENCE))) for _ in range(5)]
    for thread in threads:
        thread.start()
    flag.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert woken == [True] * 5
    assert flag.wait()


def test_without_a_signal_a_wait_lasts_as_long_as_asked_for() -> None:
    flag = StopFlag()
    assert not flag.wait(0.01)
    assert not flag.wait(-1)
    assert not flag.is_set()
