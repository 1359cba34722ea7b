"""The meeting names a node as lost only for a silence that is its own, and not for an outage of the store."""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.join import gathering
from airflow_provider_ocidist.agent.join.gathering import (
    FIRST_LOOK,
    LAST_LOOK,
    LateNodes,
    SucceededBefore,
    await_others_end,
    await_others_saved,
    meet,
)
from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import Cause, StorageError, TopologyTimeout
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart
from airflow_provider_ocidist.model.work_dir import NODES_FOLDER, report_of
from airflow_provider_ocidist.storage.stores.base import Buffer
from airflow_provider_ocidist.storage.stores.local import LocalStore

SEED = int(os.environ.get("TEST_SEED", "20261126"))
SILENCE = 2.0
"""Seconds without a heartbeat after which a node that is missing counts as lost here."""

JOIN_TIMEOUT = 600.0
"""Seconds without progress after which it does too; the wait of the node that looks is longer already."""


class Outage(LocalStore):
    """A run directory that lists its reports, while requests for them fail or take until the outage ends."""

    def __init__(self, folder: Path, kind: str, lasts: float) -> None:
        super().__init__(folder)
        self.kind = kind
        # Some looks are answered before.
        self.begins_at = time.monotonic() + 0.5
        self.ends_at = self.begins_at + lasts

    def _is_out(self, name: str, *kinds: str) -> bool:
        of_report = name.startswith(f"{NODES_FOLDER}/")
        return of_report and self.kind in kinds and self.begins_at <= time.monotonic() < self.ends_at

    def read(self, name: str) -> bytes:
        if self._is_out(name, "reads"):
            raise StorageError("no answer", retryable=True)
        if self._is_out(name, "retries"):
            time.sleep(max(0.0, self.ends_at - time.monotonic()))
        return super().read(name)

    def write(self, name: str, data: Buffer) -> str | None:
        if self._is_out(name, "writes"):
            raise StorageError("no answer", retryable=True)
        return super().write(name, data)


def a_report(rank: int, phase: Phase = Phase.JOINING) -> NodeReport:
    return NodeReport(rank=rank, phase=phase, address="10.0.0.9", started_at=0.0, heartbeat_at=0.0, moved=1)


@contextmanager
def repeated(write: Callable[[], object]) -> Iterator[None]:
    """Call a function every tenth of a second, in a thread."""
    ends = threading.Event()

    def run() -> None:
        while not ends.wait(0.1):
            write()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@contextmanager
def fetching(folder: Path, *, heard_from: float = math.inf, joins_at: float = math.inf) -> Iterator[None]:
    """Have another node fetch, whose reports change from a time on, and join later."""
    store, report = LocalStore(folder), a_report(1, Phase.FETCHING)
    store.write(report_of(1), report.to_json())

    def write() -> None:
        now = time.monotonic()
        if now >= heard_from:
            phase = Phase.JOINING if now >= joins_at else Phase.FETCHING
            store.write(report_of(1), replace(report, phase=phase, heartbeat_at=now).to_json())

    with repeated(write):
        yield


@contextmanager
def saving(folder: Path, *, unheard: tuple[float, float], then: NodeReport, at: float) -> Iterator[None]:
    """Have another node save, whose reports do not change between two times, and then report something else."""
    store, report = LocalStore(folder), a_report(1, Phase.SAVING)

    def write() -> None:
        now = time.monotonic()
        if not unheard[0] <= now < unheard[1]:
            store.write(report_of(1), replace(then if now >= at else report, heartbeat_at=now).to_json())

    write()
    with repeated(write):
        yield


@contextmanager
def beating(store: LocalStore) -> Iterator[Heartbeat]:
    """Return the heartbeat of a node that has waited for the others for long."""
    heartbeat = Heartbeat(store, a_report(0), StopSwitch(), interval=0.05)
    heartbeat.began_at -= 1000
    heartbeat.start()
    try:
        yield heartbeat
    finally:
        heartbeat.finish()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "GONE_AFTER", SILENCE)
    monkeypatch.setattr(gathering, "OWN_TROUBLE", 0.3, raising=False)
    monkeypatch.setattr(gathering, "SILENT_AFTER", 0.3, raising=False)
    monkeypatch.setattr(gathering, "LOST_AFTER", SILENCE)


@pytest.mark.parametrize("timeout", [JOIN_TIMEOUT, SILENCE])
@pytest.mark.parametrize("kind", ["reads", "writes", "retries"])
def test_a_node_that_fetches_is_not_lost_by_an_outage_of_the_store(
    tmp_path: Path, kind: str, timeout: float
) -> None:
    draw = random.Random(f"{SEED}.{kind}")
    lasts, first_beat = SILENCE + draw.uniform(0.5, 2.0), draw.uniform(0.1, 0.5)
    print(f"seed {SEED}.{kind}: {lasts=} {first_beat=}")
    store = Outage(tmp_path, kind, lasts)
    # It writes all the time where only reads fail, but that cannot be read.
    again_at = store.ends_at + first_beat
    heard_from = time.monotonic() if kind == "reads" else again_at
    with fetching(tmp_path, heard_from=heard_from, joins_at=again_at + 0.3), beating(store) as heartbeat:
        assert [each.rank for each in meet(store, heartbeat, nodes=2, timeout=timeout)] == [0, 1]


@pytest.mark.parametrize("kind", ["none", "reads", "writes", "retries"])
def test_a_node_that_stays_silent_is_named_once_the_store_answers(tmp_path: Path, kind: str) -> None:
    store = Outage(tmp_path, kind, SILENCE)
    with fetching(tmp_path), beating(store) as heartbeat:
        with pytest.raises(LateNodes, match="node 1 of 2") as caught:
            meet(store, heartbeat, nodes=2, timeout=JOIN_TIMEOUT)
        assert caught.value.ranks == (1,)
        assert kind == "none" or time.monotonic() > store.ends_at


def test_a_report_that_is_damaged_is_no_heartbeat(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write(report_of(1), b"{")
    with beating(store) as heartbeat, pytest.raises(LateNodes):
        meet(store, heartbeat, nodes=2, timeout=JOIN_TIMEOUT)


# The wait until the others have saved


@pytest.mark.parametrize("stopped", [True, False])
def test_only_a_node_that_was_not_stopped_has_succeeded_with_0_and_makes_another_launch_impossible(
    tmp_path: Path, *, stopped: bool
) -> None:
    store, again = LocalStore(tmp_path), (Restart(cause=Cause.NODE, message="m"),)
    done = replace(a_report(1, Phase.DONE), exit_code=0, stopped=stopped)
    new = replace(a_report(1, Phase.FETCHING), restarts=again, incarnation=1)
    # At the first look, and at the second the node in its place.
    reports = iter([done, new])
    heartbeat = Heartbeat(store, replace(a_report(0), restarts=again), StopSwitch())

    def look() -> list[NodeReport]:
        return await_others_saved(
            heartbeat,
            nodes=2,
            timeout=JOIN_TIMEOUT,
            patience=JOIN_TIMEOUT,
            on_look=lambda: store.write(report_of(1), next(reports).to_json()),
        )

    if stopped:
        assert look() == [new]
    else:
        with pytest.raises(SucceededBefore, match="node 1 has ended already"):
            look()


AGAIN = (Restart(cause=Cause.NODE, message="m"),)


@pytest.mark.parametrize("kind", ["reads", "writes", "retries"])
def test_a_node_that_saves_is_not_lost_by_an_outage_of_the_store(tmp_path: Path, kind: str) -> None:
    draw = random.Random(f"{SEED}.saving.{kind}")
    lasts, first_beat = SILENCE + draw.uniform(0.5, 2.0), draw.uniform(0.5, 1.0)
    print(f"seed {SEED}.saving.{kind}: {lasts=} {first_beat=}")
    store = Outage(tmp_path, kind, lasts)
    again_at = store.ends_at + first_beat
    gone_back = replace(a_report(1, Phase.FETCHING), restarts=AGAIN)
    unheard = (store.begins_at, again_at)
    with saving(tmp_path, unheard=unheard, then=gone_back, at=again_at + 0.3), beating(store) as heartbeat:
        heartbeat.update(restarts=AGAIN)
        found = await_others_saved(heartbeat, nodes=2, timeout=JOIN_TIMEOUT)
    assert [each.restarts for each in found] == [AGAIN]


def test_a_node_that_stays_silent_is_lost_once_the_store_answers(tmp_path: Path) -> None:
    store = Outage(tmp_path, "reads", SILENCE)
    unheard = (time.monotonic() + 0.2, math.inf)
    with saving(tmp_path, unheard=unheard, then=a_report(1), at=math.inf), beating(store) as heartbeat:
        heartbeat.update(restarts=AGAIN)
        with pytest.raises(TopologyTimeout, match="node 1: exited or silent"):
            await_others_saved(heartbeat, nodes=2, timeout=JOIN_TIMEOUT)
        assert time.monotonic() > store.ends_at + SILENCE


@pytest.mark.parametrize("kind", ["reads", "retries"])
def test_an_outage_of_the_store_lets_no_node_exit_before_those_that_save(tmp_path: Path, kind: str) -> None:
    store = Outage(tmp_path, kind, SILENCE + 1.0)
    ends_at = store.ends_at + 1.0
    done = a_report(1, Phase.DONE)
    # Its last heartbeat is known by then.
    unheard = (store.begins_at - 0.45, store.ends_at + 0.5)
    with saving(tmp_path, unheard=unheard, then=done, at=ends_at):
        await_others_end(store, 0, 3, limit=JOIN_TIMEOUT, signalled=threading.Event())
        assert time.monotonic() >= ends_at


class AwayForOneRead(LocalStore):
    """A run directory in which a number of reads fail, each the first of a file."""

    def __init__(self, folder: Path, failing: int) -> None:
        super().__init__(folder)
        self.failing = failing
        self.read_names: list[str] = []

    def read(self, name: str) -> bytes:
        is_first = name not in self.read_names
        self.read_names.append(name)
        if is_first and self.failing > 0:
            self.failing -= 1
            raise StorageError("timed out", retryable=True)
        return super().read(name)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_store_that_fails_one_read_lets_no_node_exit_before_one_that_saves(
    tmp_path: Path, failing: int
) -> None:
    store = AwayForOneRead(tmp_path, failing)
    for rank in (1, 2):
        LocalStore(tmp_path).write(report_of(rank), a_report(rank, Phase.SAVING).to_json())
    signalled = threading.Event()
    waiting = threading.Thread(
        target=await_others_end, args=(store, 0, 3, JOIN_TIMEOUT, signalled), daemon=True
    )
    waiting.start()
    deadline = time.monotonic() + 20
    while len(store.read_names) < 6 and waiting.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    is_waiting = waiting.is_alive()
    signalled.set()
    waiting.join(20)
    assert is_waiting, "it exits although others save"


def test_a_report_that_cannot_be_read_costs_one_read_at_each_look(tmp_path: Path) -> None:
    store, signalled = AwayForOneRead(tmp_path, 0), threading.Event()
    store.write(report_of(1), b"{")
    await_others_end(store, 0, 3, JOIN_TIMEOUT, signalled)
    assert sorted(store.read_names) == [report_of(1), report_of(2)]


def test_a_node_that_never_reported_and_a_damaged_report_keep_no_node_from_its_exit(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write(report_of(1), b"{")
    began = time.monotonic()
    await_others_end(store, 0, 3, limit=JOIN_TIMEOUT, signalled=threading.Event())
    assert time.monotonic() - began < JOIN_TIMEOUT / 2


def test_a_node_that_is_lost_while_another_is_replaced_is_waited_for_as_long(tmp_path: Path) -> None:
    store, again = LocalStore(tmp_path), (Restart(cause=Cause.NODE, message="m"),)
    heartbeat = Heartbeat(store, replace(a_report(0), restarts=again), StopSwitch())
    done = [replace(a_report(rank, Phase.DONE), exit_code=143) for rank in range(4)]
    came = [replace(a_report(rank, Phase.FETCHING), restarts=again, incarnation=1) for rank in range(4)]
    store.write(report_of(3), replace(a_report(3), heartbeat_at=0.0).to_json())
    began, patience = time.monotonic(), 2.0

    def happens() -> None:
        """Let a node be lost each second, and another come in its place one and a half seconds later."""
        after = time.monotonic() - began
        for rank, at in ((1, 0.0), (2, 1.0), (3, 2.0)):
            if after >= at:
                report = (came if after >= at + 1.5 else done)[rank]
                store.write(report_of(rank), report.to_json())
            else:
                store.write(report_of(rank), replace(a_report(rank), heartbeat_at=after).to_json())

    found = await_others_saved(heartbeat, nodes=4, timeout=60.0, patience=patience, on_look=happens)
    assert found == came[1:]


class Unhurried(StopSwitch):
    """Takes no time for a pause, and records it."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


def test_nodes_that_go_back_together_look_for_each_other_as_often_as_those_that_meet(tmp_path: Path) -> None:
    store, again = LocalStore(tmp_path), (Restart(cause=Cause.USER, message="m"),)
    switch, looks = Unhurried(), iter(range(9))
    heartbeat = Heartbeat(store, replace(a_report(0), restarts=again), switch)

    def look() -> None:
        is_last = next(looks) == 8
        report = replace(a_report(1, Phase.SAVING), heartbeat_at=time.time())
        store.write(report_of(1), replace(report, restarts=again if is_last else ()).to_json())

    await_others_saved(heartbeat, nodes=2, timeout=JOIN_TIMEOUT, on_look=look)
    assert switch.pauses[0] == FIRST_LOOK
    assert switch.pauses == sorted(switch.pauses)
    assert switch.pauses[-1] == LAST_LOOK
