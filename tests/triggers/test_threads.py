"""Blocking calls beside an event loop."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from airflow_provider_ocidist.triggers import threads
from airflow_provider_ocidist.triggers.threads import in_thread

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
