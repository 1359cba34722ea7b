"""What a node that ends its launch does next."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.stages import meeting
from airflow_provider_ocidist.agent.stages.gang_end import GangEnd
from airflow_provider_ocidist.agent.stopping import Stopped, StopSwitch
from airflow_provider_ocidist.agent.train.supervise import Ended
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Limits, Restarts
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart, StopRequest
from airflow_provider_ocidist.model.work_dir import STOP_FILE, report_of
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.local import LocalStore

AGREED = (Restart(cause=Cause.NODE, message="node 2: lost", rank=2, lost=(2,)),)
CONFIG = SimpleNamespace(nodes=3, min_nodes=2, restarts=Restarts(node=1), replaces=True, limits=Limits())
FEWER = Restart(cause=Cause.CAPACITY, message="no machine", members=(0, 1))
SUCCEEDED = Ended(exit_code=0, output="", stop=None, oom_killed=None)


def context_of(store: Store, rank: int, **changes: Any) -> Any:
    """Return the context of one node of three, the last of which is not among the members in `changes`."""
    report = NodeReport(
        rank=rank, phase=Phase.TRAINING, address="", started_at=0.0, heartbeat_at=0.0, **changes
    )
    switch = StopSwitch()
    return SimpleNamespace(
        config=CONFIG,
        heartbeat=Heartbeat(store, report, switch, interval=0.05),
        switch=switch,
        rank=rank,
        main_rank=0,
        goes_on_from=None,
        is_main=rank == 0,
        is_member=True,
        others=(1 - rank,),
        masked=str,
        meter=SimpleNamespace(step_now=lambda: None),
    )


@pytest.mark.parametrize("rank, restarts", [(0, AGREED), (2, ())])
def test_a_node_that_fails_while_another_takes_its_place_is_not_launched_again(
    tmp_path: Path, rank: int, restarts: tuple[Restart, ...]
) -> None:
    store = LocalStore(tmp_path)
    request = StopRequest(cause=Cause.NODE, message="node 2: lost", restarts=AGREED)
    store.write(STOP_FILE, request.to_json())
    own = Restart(cause=Cause.USER, message="its own failure", rank=rank)
    end = GangEnd(context_of(store, rank))
    assert end.ask_others(Cause.USER, "its own failure", (own,)) == restarts


# A program that succeeds while a late node is admitted


def late_node(store: Store) -> Any:
    """Return the context of a node that waits to take part, in place of the lost one."""
    late = context_of(store, 2, restarts=(FEWER,), incarnation=1)
    late.heartbeat.update(phase=Phase.JOINING)
    late.is_member, late.others, late.awaits_since = False, (0, 1), None
    return late


class Amid(GangEnd):
    """A main node that does something more once it has looked at the others, before it asks them."""

    def __init__(self, context: Any, then: Callable[[], object]) -> None:
        super().__init__(context)
        self._then = then

    def _others(self) -> list[NodeReport | None]:
        found = super()._others()
        self._then()
        return found


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Store, Any, Any]]:
    """Two of three nodes train on without the third; node 0 is the main node."""
    store = LocalStore(tmp_path)
    nodes = [context_of(store, rank, restarts=(FEWER,)) for rank in range(2)]
    for node in (*nodes, late_node(store)):
        node.heartbeat.write()
    for node in nodes:
        node.heartbeat.start()
    yield store, *nodes
    for node in nodes:
        node.heartbeat.finish()


def test_a_node_that_succeeds_once_it_was_looked_at_is_launched_again_as_the_others(two: Any) -> None:
    store, main, other = two
    found: list[Ended] = []
    ending = threading.Thread(target=lambda: found.append(GangEnd(other).agreed(SUCCEEDED, follows=False)))

    def ends() -> None:
        ending.start()
        # Where it does not wait for the main node, it has ended well by then.
        ending.join(0.5)

    Amid(main, ends).admit([2])
    ending.join()
    (ended,) = found
    assert ended.stop is not None
    assert [each.members for each in ended.stop.restarts] == [(0, 1), (0, 1, 2)]
    assert StopRequest.from_json(store.read(STOP_FILE)).restarts == ended.stop.restarts


def test_a_main_node_that_succeeds_while_it_asks_does_as_the_others(two: Any) -> None:
    store, main, _ = two
    found: list[Ended] = []
    end = Amid(main, lambda: (ending.start(), ending.join(0.5)))
    ending = threading.Thread(target=lambda: found.append(end.agreed(SUCCEEDED, follows=False)))
    end.admit([2])
    ending.join()
    (ended,) = found
    assert store.exists(STOP_FILE) == (ended.stop is not None)


def test_after_a_node_has_succeeded_nobody_is_admitted(two: Any) -> None:
    store, main, other = two
    assert GangEnd(other).agreed(SUCCEEDED, follows=False) == SUCCEEDED
    GangEnd(main).admit([2])
    assert not store.exists(STOP_FILE)
    assert GangEnd(main).agreed(SUCCEEDED, follows=False) == SUCCEEDED


def test_nobody_is_admitted_while_it_cannot_be_read_whether_another_has_succeeded(two: Any) -> None:
    store, main, other = two
    other.heartbeat.finish()
    store.delete(report_of(1))
    GangEnd(main).admit([2])
    assert not store.exists(STOP_FILE)


# A late node that leaves while it is admitted


SEED = random.randrange(1_000_000)


def leaves(late: Any) -> bool:
    """Let a node leave as soon as it may; return whether it does, and does not take part."""
    try:
        while not meeting._may_leave(late):
            time.sleep(0.01)
    except Stopped:
        return False
    return True


def test_a_node_that_leaves_once_it_was_looked_at_takes_part(two: Any) -> None:
    store, main, _ = two
    left: list[bool] = []
    leaving = threading.Thread(target=lambda: left.append(leaves(late_node(store))))

    def begin() -> None:
        leaving.start()
        # Where it does not wait for the main node, it has left well by then.
        leaving.join(0.5)

    Amid(main, begin).admit([2])
    leaving.join()
    assert left == [False]


def test_a_node_that_has_left_is_not_admitted(two: Any) -> None:
    store, main, _ = two
    assert leaves(late_node(store))
    GangEnd(main).admit([2])
    assert not store.exists(STOP_FILE)


@pytest.mark.parametrize("number", range(30))
def test_whenever_a_late_node_leaves_it_is_either_admitted_or_gone(two: Any, number: int) -> None:
    draw = random.Random(SEED + number)
    print("seed", SEED + number)
    store, main, _ = two
    left: list[bool] = []
    pauses = [draw.uniform(0.0, 0.02) for _ in range(2)]

    def leave() -> None:
        time.sleep(pauses[0])
        left.append(leaves(late_node(store)))

    leaving = threading.Thread(target=leave)
    leaving.start()
    Amid(main, lambda: time.sleep(pauses[1])).admit([2])
    leaving.join()
    assert left == [not store.exists(STOP_FILE)]


def test_a_node_does_not_leave_while_it_cannot_be_read_whether_it_is_admitted(two: Any) -> None:
    store, _, other = two
    late = late_node(store)
    other.heartbeat.finish()
    store.delete(report_of(1))
    assert not meeting._may_leave(late)
    other.heartbeat.write()
    store.write(STOP_FILE, b"damaged")
    assert not meeting._may_leave(late)
    store.delete(STOP_FILE)
    assert meeting._may_leave(late)
