"""A repair of stored checkpoints takes no longer than it may, and its end is no failure."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stages.repair import (
    is_overtaken,
    repair_within,
    store_missing,
)
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.storage.fences import advance_fence
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.storage.published import publish

SEED = int(os.environ.get("TEST_SEED", "20261126"))


@pytest.fixture
def silent_server() -> Iterator[tuple[str, int]]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


@pytest.mark.parametrize("heeds", [True, False])
def test_a_repair_that_waits_for_a_server_which_never_answers_is_given_up(
    silent_server: tuple[str, int],
    caplog: pytest.LogCaptureFixture,
    *,
    heeds: bool,
) -> None:
    left_off = threading.Event()

    def repair(cancel: threading.Event) -> None:
        with socket.create_connection(silent_server) as asked:
            asked.settimeout(0.1 if heeds else 60.0)
            while not cancel.is_set():
                with contextlib.suppress(OSError):
                    asked.recv(1)
        left_off.set()

    repair_within(repair, switch=StopSwitch(), in_all=0.3)
    assert left_off.is_set() is heeds
    assert "the repair of stored checkpoints is given up" in caplog.text


@pytest.mark.parametrize("is_asked_before", [True, False])
def test_a_stop_request_ends_a_repair_and_is_the_reason(*, is_asked_before: bool) -> None:
    switch = StopSwitch()
    asked = Stop(message="node 1 ended the run")
    if is_asked_before:
        switch.ask(asked)
    else:
        threading.Timer(0.2, switch.ask, [asked]).start()
    with pytest.raises(Stopped, match="node 1 ended the run"):
        repair_within(lambda cancel: cancel.wait(60), switch=switch)


def test_a_repair_that_is_done_returns_at_once_and_its_error_is_raised() -> None:
    repair_within(lambda _: None, in_all=600.0)
    with pytest.raises(ZeroDivisionError):
        repair_within(lambda _: 1 // 0, switch=StopSwitch())


ASKED = Stop(message="node 1 ended the run")


def test_a_repair_that_is_of_no_use_any_more_leaves_off() -> None:
    began, chosen, left_off = threading.Event(), threading.Event(), threading.Event()

    def repair(cancel: threading.Event) -> None:
        began.set()
        if cancel.wait(60):
            left_off.set()

    def needless() -> bool:
        if began.is_set():
            chosen.set()
        return chosen.is_set()

    repair_within(repair, in_all=600.0, switch=StopSwitch(), needless=needless)
    assert chosen.is_set()
    assert left_off.wait(60)
    done: list[bool] = []
    repair_within(lambda cancel: done.append(cancel.wait(0.5)), needless=lambda: False)
    assert done == [False]


def ending_node() -> StopSwitch:
    """Return the switch of a node that was asked to end before it repairs."""
    switch = StopSwitch()
    switch.ask(ASKED)
    return switch


@pytest.mark.parametrize("comes_after", [0.0, 0.7])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_node_that_ends_anyway_leaves_off_soon_after_a_signal_and_where_it_counts_as_lost(
    caplog: pytest.LogCaptureFixture, comes_after: float, *, is_lost: bool
) -> None:
    switch, left_off = ending_node(), threading.Event()
    lost = Stop(message="the others go on without it", is_lost=True)
    comes = threading.Timer(comes_after, switch.ask if is_lost else switch.signalled.set, [lost] * is_lost)

    def repair(cancel: threading.Event) -> None:
        if cancel.wait(60.0):
            left_off.set()

    comes.start()
    repair_within(repair, in_all=600.0, switch=switch, grace=600.0 if is_lost else 0.3)
    assert left_off.is_set()
    assert "the repair of stored checkpoints is given up" in caplog.text


@pytest.mark.parametrize("is_signalled", [True, False])
def test_a_node_that_ends_anyway_repairs_on_within_its_time_though_it_was_asked_to_end(
    caplog: pytest.LogCaptureFixture, *, is_signalled: bool
) -> None:
    switch, done = ending_node(), []
    if is_signalled:
        switch.signalled.set()
    repair_within(lambda cancel: done.append(not cancel.wait(1.5)), in_all=600.0, switch=switch, grace=600.0)
    assert done == [True]
    assert "given up" not in caplog.text


def a_node(root: Path, fence: Fence) -> NodeContext:
    """Return the first of two nodes that save to one place, with this fence."""
    config = AgentConfig(
        run_name="run",
        nodes=2,
        run_dir=str(root / "run"),
        program=Program(script="program.py"),
        checkpoints=Checkpoints(path=str(root / "here"), uri=str(root / "kept")),
        generation=fence.generation,
        attempt=fence.attempt,
    )
    context = NodeContext(config, {"OCIDIST_NODE_RANK": "0", "HOME": str(root)}, StopSwitch())
    before = tuple(Restart(cause=Cause.USER, message="one before") for _ in range(fence.launch))
    context.heartbeat.update(restarts=before)
    return context


def a_lacking_checkpoint(root: Path) -> Path:
    """Publish a checkpoint of which the stored file is lost afterwards; return that file's place."""
    (root / "here").mkdir()
    (root / "here" / "step-1.pt").write_text("weights")
    publish(root / "here" / "step-1.pt", str(root / "kept"), step=1, fence=Fence(attempt=1))
    stored = root / "kept" / "step-1.pt" / "step-1.pt"
    stored.unlink()
    return stored


FENCES = [
    Fence(generation=generation, attempt=attempt, launch=launch)
    for generation in (0, 1)
    for attempt in (1, 2)
    for launch in (0, 1)
]


@pytest.mark.parametrize("number", range(12))
def test_only_who_has_the_highest_fence_repairs(tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    own, other = draw.choice(FENCES), draw.choice(FENCES)
    stored, context = a_lacking_checkpoint(tmp_path), a_node(tmp_path, own)
    advance_fence(open_store(str(tmp_path / "kept")), max(other, Fence(attempt=1)))
    repair_within(
        lambda cancel: store_missing(context, tmp_path / "here", cancel),
        overtaken=lambda: is_overtaken(context),
    )
    assert stored.exists() is (own >= other), (own, other)


def test_a_repair_leaves_off_where_a_later_launch_begins_meanwhile_or_the_fence_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_lacking_checkpoint(tmp_path)
    context, place = a_node(tmp_path, Fence(attempt=1)), open_store(str(tmp_path / "kept"))
    left_off = []
    begins = threading.Timer(0.3, advance_fence, [place, Fence(attempt=1, launch=1)])

    def repair(cancel: threading.Event) -> None:
        begins.start()
        left_off.append(cancel.wait(60.0))

    repair_within(repair, overtaken=lambda: is_overtaken(context))
    assert left_off == [True]
    assert "given up: a later attempt or launch saves there" in caplog.text
    place.write("fence.json", b"{")
    repair_within(lambda _: left_off.append(False), overtaken=lambda: is_overtaken(context))
    assert left_off == [True]
