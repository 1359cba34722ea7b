"""A service that throttles, or fails for a while, is sent once more what it has refused, and nothing else."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.gangs.actions import Wait
from airflow_provider_ocidist.gangs.poller import Poller
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.watch import Watch
from scripts.emulator_process import Access
from scripts.idle_gangs import IdleGangs, idle_gangs
from tests.gangs.test_poller import until
from tests.storage.unruly_proxy import Fault, UnrulyProxy
from tests.training_jobs import a_job, a_key

SEED = int(os.environ.get("TEST_SEED", random.randrange(10_000)))
REFUSALS: dict[str, dict[str, Any]] = {
    "429 with Retry-After": {"status": 429, "retry_after": "1"},
    "429": {"status": 429},
    "503": {"status": 503},
}
PARTS = {"all": "", "the runs": "/20190101/jobRuns", "the reports": "/o", "the log": "/search"}
SAVED = 2
"""Requests that a submission saves where a list is answered before its job is made."""
LOG = logging.getLogger("test")


@pytest.fixture(scope="module")
def idle(emulator: Access) -> Iterator[IdleGangs]:
    with idle_gangs(emulator, 8, 2) as gangs:
        gangs.report(gangs.records)
        yield gangs


def behind(proxy: UnrulyProxy, emulator: Access, **fields: Any) -> OciDataScience:
    return OciDataScience.connect({**emulator.connection_fields(**fields), "endpoint": proxy.url})


def some_refused(kind: str, count: int, among: int, draw: random.Random) -> list[Fault]:
    """Return faults for so many of the next requests, wherever among them."""
    return [Fault(skip=draw.randrange(among), **REFUSALS[kind]) for _ in range(count)]


def fired(faults: list[Fault]) -> int:
    return sum(fault.times == 0 for fault in faults)


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_look_sends_each_refused_request_once_more_and_nothing_else(idle: IdleGangs, kind: str) -> None:
    draw = random.Random(f"{SEED} look {kind}")
    print(f"TEST_SEED={SEED}")
    with UnrulyProxy(idle.emulator.url) as proxy:
        watch = Watch(behind(proxy, idle.emulator, work_dir=idle.emulator.work_dir), idle.records[0], LOG)
        assert isinstance(watch.look(time.time()), Wait)
        proxy.calm_down()
        assert isinstance(watch.look(time.time()), Wait)
        undisturbed = len(proxy.seen)
        proxy.calm_down()
        faults = proxy.faults = some_refused(kind, 2, undisturbed, draw)
        assert isinstance(watch.look(time.time()), Wait)
        assert fired(faults) == 2
        assert len(proxy.seen) == undisturbed + 2


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_submission_sends_each_refused_request_once_more_and_nothing_else(
    emulator: Access, no_node_starts: None, kind: str
) -> None:
    draw = random.Random(f"{SEED} submission {kind}")
    print(f"TEST_SEED={SEED}")
    undisturbed = requests_of_a_submission(emulator, [])
    # Half as many refusals as requests: in all, at most half as many requests again.
    faults = some_refused(kind, undisturbed // 2, undisturbed - SAVED, draw)
    sent = requests_of_a_submission(emulator, faults)
    refused = fired(faults)
    assert refused
    assert sent - refused <= undisturbed + SAVED, (undisturbed, sent, refused)


def requests_of_a_submission(emulator: Access, faults: list[Fault]) -> int:
    """Return how many requests a first try of two nodes sends while these come true."""
    with UnrulyProxy(emulator.url) as proxy:
        backend = behind(proxy, emulator, work_dir=f"{emulator.work_dir}/{uuid.uuid4().hex[:8]}")
        proxy.faults = faults
        gang = GangSubmitter(backend, a_job(nodes=2), LOG, None, threading.Event())
        ref = gang.adopt_or_submit(a_key(), None, 1).ref
        assert ref.complete
        sent = len(proxy.seen)
        proxy.calm_down()
        backend.cancel(ref)
    return sent


@dataclass
class Source:
    backend: Backend

    def refresh(self, *, anew: bool) -> None:
        raise BackendError(f"nobody asks for new credentials ({anew})", cause=Cause.CONFIG)


def test_a_service_that_throttles_all_the_time_is_asked_at_most_half_as_often_again(idle: IdleGangs) -> None:
    draw = random.Random(f"{SEED} watch")
    parts = {kind: draw.choice(list(PARTS)) for kind in REFUSALS}
    print(f"TEST_SEED={SEED}: {parts}")
    told: list[Any] = []
    with ExitStack() as stack:
        proxies = {kind: stack.enter_context(UnrulyProxy(idle.emulator.url)) for kind in ("", *REFUSALS)}
        followed = [
            follow(behind(proxy, idle.emulator, work_dir=idle.emulator.work_dir), idle, told)
            for proxy in proxies.values()
        ]
        for _, leave in followed:
            stack.callback(leave)
        # The first look reads each report: all have done that before one of them is throttled.
        until(lambda: all(watch.status for watches, _ in followed for watch in watches), seconds=60)
        for proxy in proxies.values():
            proxy.calm_down()
        for kind, part in parts.items():
            proxies[kind].faults = [Fault(path=PARTS[part], times=10**6, **REFUSALS[kind])]
        until(lambda: len(proxies[""].seen) >= 24, seconds=60)
        sent = {kind: len(proxy.seen) for kind, proxy in proxies.items()}
    assert told == []
    undisturbed = sent.pop("")
    assert all(2 <= number <= 1.5 * undisturbed for number in sent.values()), (undisturbed, sent, parts)


def follow(backend: Backend, idle: IdleGangs, told: list[Any]) -> tuple[list[Watch], Callable[[], None]]:
    """Have a poller look at all gangs; return their watches, and what ends that."""
    poller = Poller(Source(backend))
    watches = [Watch(backend, record, LOG) for record in idle.records]
    followed = [poller.follow(watch, 0.5, told.append) for watch in watches]

    def leave() -> None:
        for each in followed:
            poller.leave(each)

    return watches, leave
