"""Blocking calls beside an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from airflow_provider_ocidist.triggers import threads
from airflow_provider_ocidist.triggers.threads import ask_airflow, in_thread, keep, look_at_storage

pytestmark = pytest.mark.airflow


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("ocidist-trigger")}


def test_threads_end_when_nobody_needs_them_and_come_back_when_somebody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "IDLE", 0.2)
    monkeypatch.setattr(threads, "_threads", threads.Threads())
    before, release = ours(), threading.Event()

    async def calls() -> None:
        many = [asyncio.create_task(in_thread(release.wait)) for _ in range(5)]
        while len(ours() - before) < 5:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert len(ours() - before) == 5
        release.set()
        assert all(await asyncio.gather(*many))
        while ours() - before:
            await asyncio.sleep(0.01)
        assert await in_thread(lambda: threading.current_thread().name.startswith("ocidist-trigger"))

    asyncio.run(asyncio.wait_for(calls(), 60))
    asyncio.run(asyncio.wait_for(in_thread(lambda: None), 60))


def test_a_call_that_is_forgotten_after_its_loop_has_ended_ends_the_threads_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: list[sys.UnraisableHookArgs] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    lent = threads.Threads()

    async def call() -> None:
        with lent.held():
            await asyncio.Event().wait()

    async def begin(work: Coroutine[Any, Any, None]) -> None:
        work.send(None)

    work = call()
    asyncio.run(begin(work))
    del work
    gc.collect()
    assert [str(each.exc_value) for each in lost] == []
    assert lent._held == 0
    assert lent._pool is None


Later = list[tuple[float, Callable[[], None]]]


@contextlib.contextmanager
def timers_of_this_loop() -> Iterator[Later]:
    """Collect what is to run later, with its delay, in place of running it."""
    loop = asyncio.get_running_loop()
    later: Later = []

    def note(delay: float, work: Callable[..., None], *given: Any) -> None:
        later.append((delay, partial(work, *given)))

    loop.call_later = note  # type: ignore[method-assign, assignment]  # takes what is given
    try:
        yield later
    finally:
        del loop.call_later


def is_at_work(pool: ThreadPoolExecutor) -> bool:
    """Whether threads still take calls."""
    try:
        return pool.submit(int).result(60) == 0
    except RuntimeError:
        return False


def test_threads_end_a_minute_after_the_last_call_of_all_and_not_of_each() -> None:
    lent = threads.Threads(2, "lent")

    async def calls() -> None:
        with timers_of_this_loop() as later:
            with lent.held() as pool:
                with lent.held() as same:
                    assert same is pool
                assert later == [], "the first call is not over"
            with lent.held() as same:
                assert same is pool
            assert [delay for delay, _ in later] == [60.0, 60.0]
            (_, of_the_first), (_, of_the_last) = later
            of_the_first()
            assert is_at_work(pool), "another call came after that one"
            with lent.held() as same:
                assert same is pool
                of_the_last()
                assert is_at_work(pool)
            later[-1][1]()
            assert not is_at_work(pool)
            with lent.held() as other:
                assert is_at_work(other)
            later[-1][1]()

    asyncio.run(calls())


def test_the_end_of_threads_waits_for_no_call_that_was_given_up() -> None:
    lent, release = threads.Threads(), threading.Event()

    async def call() -> None:
        with timers_of_this_loop() as later:
            with lent.held() as pool:
                given_up = pool.submit(release.wait, 60)
            later[0][1]()
            assert not given_up.done()
            release.set()
            assert given_up.result(60)

    asyncio.run(call())


KINDS: dict[str, tuple[int, Callable[..., Coroutine[Any, Any, Any]]]] = {
    "ocidist-trigger": (32, in_thread),
    "ocidist-ending": (128, partial(in_thread, ends_a_gang=True)),
    "ocidist-asking": (32, ask_airflow),
    "ocidist-asking-end": (128, partial(ask_airflow, ends_a_gang=True)),
    "ocidist-storage": (32, look_at_storage),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_call_has_so_many_threads_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(threads, "IDLE", 0.0)
    most, run = KINDS[kind]
    release = threading.Event()
    names = []
    before = set(threading.enumerate())

    def wait() -> bool:
        names.append(threading.current_thread().name)
        return release.wait(60)

    async def calls() -> None:
        many = [asyncio.create_task(run(wait)) for _ in range(most + 3)]
        while len(names) < most:
            await asyncio.sleep(0.01)
        for other, (_, run_other) in KINDS.items():
            if other != kind:
                assert (await run_other(lambda: threading.current_thread().name)).startswith(f"{other}_")
        assert len(names) == most
        release.set()
        assert all(await asyncio.gather(*many))
        # Not those of a place, which have the same names.
        while any(thread.name in names for thread in set(threading.enumerate()) - before):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(calls(), 60))
    assert {name.rpartition("_")[0] for name in names} == {kind}
    assert len(set(names)) == most


@pytest.mark.parametrize("kind", [name for name in KINDS if "asking" not in name])
def test_each_place_has_threads_of_its_own_of_each_kind(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(threads, "IDLE", 0.0)
    most, run = KINDS[kind]
    release = threading.Event()
    names: list[str] = []

    def wait() -> bool:
        names.append(threading.current_thread().name)
        return release.wait(60)

    async def calls() -> None:
        many = [asyncio.create_task(run(wait, place="far")) for _ in range(most + 3)]
        while len(names) < most:
            await asyncio.sleep(0.01)
        for place in ("near", ("a", "b"), None):
            name = await run(lambda: threading.current_thread().name, place=place)
            assert name.startswith(f"{kind}_")
        assert len(names) == most
        release.set()
        assert all(await asyncio.gather(*many))

    asyncio.run(asyncio.wait_for(calls(), 60))
    assert len(names) == most + 3


def test_the_threads_of_a_place_are_the_same_at_each_call() -> None:
    lent = threads.Threads(3, "lent")
    assert lent.of("far") is lent.of("far")
    assert lent.of("far") is not lent.of("near")
    assert (lent.of("far")._most, lent.of("far")._name) == (3, "lent")
    assert lent.of(None) is lent


def test_a_call_goes_on_though_its_caller_is_cancelled_and_that_knows_why_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "IDLE", 0.0)
    begun, release, ended = (threading.Event() for _ in range(3))

    def work() -> None:
        begun.set()
        release.wait(60)
        ended.set()

    async def calls() -> None:
        call = asyncio.create_task(in_thread(work))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        call.cancel("cleared by a user")
        with pytest.raises(asyncio.CancelledError, match=r"^cleared by a user$"):
            await call
        release.set()
        while not ended.is_set():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(calls(), 60))


def test_what_is_kept_outlives_its_beginner_and_nothing_is_kept_of_it_afterwards() -> None:
    waited_for: list[weakref.ref[asyncio.Future[None]]] = []
    done = []

    async def work() -> None:
        future = asyncio.get_running_loop().create_future()
        waited_for.append(weakref.ref(future))
        await future
        done.append(True)

    async def begin() -> None:
        task = weakref.ref(keep(work()))
        await asyncio.sleep(0)
        gc.collect()
        future = waited_for[0]()
        assert future is not None, "nothing refers to the task any more"
        future.set_result(None)
        del future
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
        assert done == [True]
        assert task() is None

    asyncio.run(begin())


@pytest.mark.parametrize("end", ["well", "by an error", "cancelled"])
def test_of_what_is_kept_only_an_error_is_said(caplog: pytest.LogCaptureFixture, end: str) -> None:
    caplog.set_level(logging.DEBUG, logger=threads.log.name)
    complaints: list[dict[str, Any]] = []

    async def work() -> None:
        await asyncio.sleep(60 if end == "cancelled" else 0)
        if end == "by an error":
            raise OSError("no answer")

    async def begin() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        task = keep(work())
        await asyncio.sleep(0)
        if end == "cancelled":
            task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        del task
        gc.collect()

    asyncio.run(begin())
    said = [record.getMessage() for record in caplog.records if record.name == threads.log.name]
    assert said == ["background call failed: no answer"] * (end == "by an error")
    assert complaints == []
