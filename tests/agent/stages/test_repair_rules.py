"""When a repair is given up, by a clock that the test moves; what it gets, and what it logs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.stages import repair
from airflow_provider_ocidist.agent.stages.repair import (
    is_overtaken,
    repair_within,
    store_missing,
)
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage import fences, repairs
from airflow_provider_ocidist.storage.fences import advance_fence
from airflow_provider_ocidist.storage.stores import opening
from airflow_provider_ocidist.storage.stores.opening import open_store

GIVEN_UP = "the repair of stored checkpoints is given up: "
TOO_LONG = f"{GIVEN_UP}it takes too long"
OVERTAKEN = f"{GIVEN_UP}a later attempt or launch saves there, or its fence is damaged"
ASKED = Stop(message="node 1 ended the run")


class Clock:
    """Seconds that pass when the test says so, and how often they were looked at."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(repair, "time", clock)
    monkeypatch.setattr(repair, "LOOK_INTERVAL", 0.001)
    monkeypatch.setattr(repair, "FENCE_INTERVAL", 0.001)
    return clock


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    """Return what was logged since, with its level."""
    caplog.set_level(logging.DEBUG, logger="ocidist")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def goes_on(clock: Clock, cancel: threading.Event) -> None:
    """Wait until what the clock shows now has been seen: it is no reason to leave off."""
    until = clock.looks + 3
    while clock.looks < until and not cancel.is_set():
        time.sleep(0.001)
    assert not cancel.is_set()


def repaired(work: Callable[[threading.Event], object], **limits: Any) -> bool:
    """Repair; return whether the work was done to its end, with all that it asserts."""
    ended = []

    def noted(cancel: threading.Event) -> None:
        work(cancel)
        ended.append(True)

    repair_within(noted, **limits)
    return ended == [True]


# For how long


def test_a_repair_may_take_as_long_as_it_may_in_all_and_no_longer(
    clock: Clock, said: Callable[[], list[tuple[str, str]]]
) -> None:
    def work(cancel: threading.Event) -> None:
        for passed in (0.0, 99.0, 100.0):
            clock.now = 1000.0 + passed
            goes_on(clock, cancel)
        clock.now += 0.5
        assert cancel.wait(60)

    assert repaired(work, in_all=100.0)
    assert said() == [("WARNING", TOO_LONG)]


def test_a_repair_without_a_limit_may_take_for_ever_and_its_watches_end_with_it(
    clock: Clock, said: Callable[[], list[tuple[str, str]]]
) -> None:
    before, watches = {*threading.enumerate()}, set[threading.Thread]()

    def work(cancel: threading.Event) -> None:
        watches.update({*threading.enumerate()} - before)
        clock.now += 1e9
        goes_on(clock, cancel)

    assert repaired(work)
    assert said() == []
    assert len(watches) >= 2
    # A store that never answers must not keep the node from its end.
    assert all(each.daemon for each in watches)
    for each in watches:
        each.join(60)
        assert not each.is_alive()


@pytest.mark.usefixtures("clock")
def test_the_error_of_a_repair_is_raised_and_ends_its_watches() -> None:
    before = {*threading.enumerate()}
    with pytest.raises(ZeroDivisionError):
        repair_within(lambda _: 1 // 0, in_all=100.0)
    for each in {*threading.enumerate()} - before:
        each.join(60)
        assert not each.is_alive()


# Who asks it to end


@pytest.mark.parametrize("grace", [None, 600.0])
def test_a_stop_request_counts_unless_the_node_ends_anyway(
    clock: Clock, said: Callable[[], list[tuple[str, str]]], grace: float | None
) -> None:
    switch = StopSwitch()

    def work(cancel: threading.Event) -> None:
        switch.ask(ASKED)
        if grace is None:
            assert cancel.wait(60)
        else:
            goes_on(clock, cancel)

    if grace is None:
        with pytest.raises(Stopped) as caught:
            repair_within(work, switch=switch)
        assert caught.value.stop is ASKED
    else:
        assert repaired(work, switch=switch, grace=grace)
    assert said() == []


@pytest.mark.usefixtures("clock")
def test_a_stop_request_from_before_ends_a_repair_that_takes_no_time_too() -> None:
    switch = StopSwitch()
    switch.ask(ASKED)
    with pytest.raises(Stopped, match=r"^node 1 ended the run$"):
        repair_within(lambda cancel: cancel.wait(60), switch=switch)


def test_a_signal_alone_does_not_count_before_the_node_is_to_end(clock: Clock) -> None:
    switch = StopSwitch()
    switch.signalled.set()
    assert repaired(lambda cancel: goes_on(clock, cancel), in_all=100.0, switch=switch)


@pytest.mark.parametrize("grace", [0.0, 10.0])
@pytest.mark.parametrize("comes_at", [0.0, 40.0])
def test_after_a_signal_a_node_that_ends_anyway_has_its_grace_left_from_then(
    clock: Clock, said: Callable[[], list[tuple[str, str]]], grace: float, comes_at: float
) -> None:
    switch = StopSwitch()

    def work(cancel: threading.Event) -> None:
        clock.now += comes_at
        goes_on(clock, cancel)
        switch.signalled.set()
        goes_on(clock, cancel)
        for _ in range(2):
            clock.now += grace / 2
            goes_on(clock, cancel)
        clock.now += 0.5
        assert cancel.wait(60)

    assert repaired(work, in_all=1000.0, switch=switch, grace=grace)
    assert said() == [("WARNING", TOO_LONG)]


def test_a_signal_gives_a_repair_no_more_time_than_it_had(clock: Clock) -> None:
    switch = StopSwitch()

    def work(cancel: threading.Event) -> None:
        switch.signalled.set()
        goes_on(clock, cancel)
        clock.now += 5.0
        goes_on(clock, cancel)
        clock.now += 0.5
        assert cancel.wait(60)

    assert repaired(work, in_all=5.0, switch=switch, grace=100.0)


def test_a_node_that_counts_as_lost_leaves_off_at_once(
    clock: Clock, said: Callable[[], list[tuple[str, str]]]
) -> None:
    switch = StopSwitch()
    switch.ask(ASKED)

    def work(cancel: threading.Event) -> None:
        goes_on(clock, cancel)
        switch.ask(Stop(message="the others go on without it", is_lost=True))
        assert cancel.wait(60)

    assert repaired(work, in_all=1000.0, switch=switch, grace=600.0)
    assert said() == [("WARNING", TOO_LONG)]


# Who overtakes it


@pytest.mark.usefixtures("clock")
def test_where_another_saves_already_nothing_is_repaired(said: Callable[[], list[tuple[str, str]]]) -> None:
    begun: list[object] = []
    repair_within(begun.append, overtaken=lambda: True)
    assert begun == []
    assert said() == [("WARNING", OVERTAKEN)]


def test_where_another_begins_to_save_meanwhile_the_repair_leaves_off(
    clock: Clock, said: Callable[[], list[tuple[str, str]]]
) -> None:
    others = threading.Event()
    looks = []

    def overtaken() -> bool:
        looks.append(others.is_set())
        return looks[-1]

    def work(cancel: threading.Event) -> None:
        while len(looks) < 4:
            time.sleep(0.001)
        goes_on(clock, cancel)
        others.set()
        assert cancel.wait(60)

    assert repaired(work, overtaken=overtaken)
    assert said() == [("WARNING", OVERTAKEN)]


@pytest.mark.usefixtures("clock")
def test_another_that_began_at_the_very_end_is_seen_afterwards(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[tuple[str, str]]]
) -> None:
    monkeypatch.setattr(repair, "FENCE_INTERVAL", 3600.0)
    others: list[bool] = []
    repair_within(lambda _: others.append(True), overtaken=lambda: bool(others))
    assert said() == [("WARNING", OVERTAKEN)]


def test_a_store_that_does_not_say_whether_another_saves_holds_up_no_limit(
    clock: Clock, said: Callable[[], list[tuple[str, str]]]
) -> None:
    answered = threading.Event()
    looks = []

    def overtaken() -> bool:
        looks.append(True)
        if len(looks) == 2:
            answered.wait(60)
        return False

    def work(cancel: threading.Event) -> None:
        while len(looks) < 2:
            time.sleep(0.001)
        clock.now += 101.0
        assert cancel.wait(60)

    assert repaired(work, in_all=100.0, overtaken=overtaken)
    answered.set()
    assert said() == [("WARNING", TOO_LONG)]


# What a node asks for


def a_node(
    uri: str | None, *, rank: int = 0, nodes: int = 4, others: tuple[int, ...] = (1, 2, 3), **more: Any
) -> Any:
    checkpoints = SimpleNamespace(uri=uri) if uri != "none" else None
    config = SimpleNamespace(checkpoints=checkpoints, nodes=nodes)
    return SimpleNamespace(
        config=config, rank=rank, others=others, **{"access": None, "fence": Fence(attempt=1), **more}
    )


@pytest.mark.parametrize("rank, begin_at", [(0, 0.0), (1, 0.25), (3, 0.75)])
@pytest.mark.parametrize("alone", [True, False])
def test_each_node_begins_elsewhere_and_sends_what_its_folder_has(
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[[], list[tuple[str, str]]],
    rank: int,
    begin_at: float,
    *,
    alone: bool,
) -> None:
    given: list[Any] = []

    def stored(*places: object, **how: object) -> tuple[str, ...]:
        given.extend([places, how])
        return ("step-2", "step-1")

    monkeypatch.setattr(repairs, "store_missing", stored)
    node = a_node("oci://b@n/kept", rank=rank, others=() if alone else (1,), access="mine")
    cancel = threading.Event()
    store_missing(node, Path("/here"), cancel)
    assert given == [
        ("oci://b@n/kept", Path("/here"), "mine"),
        {"begin_at": begin_at, "alone": alone, "cancel": cancel},
    ]
    assert said() == [("INFO", "stored again, as files were missing that are on this node: step-2, step-1")]


@pytest.mark.parametrize("uri", [None, "none"])
def test_a_job_that_stores_no_checkpoints_asks_for_nothing(
    monkeypatch: pytest.MonkeyPatch, uri: str | None
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(repairs, "store_missing", lambda *given, **_: asked.append(given))
    monkeypatch.setattr(opening, "open_store", lambda *given: asked.append(given))
    monkeypatch.setattr(fences, "current_fence", asked.append)
    store_missing(a_node(uri), Path("/here"), threading.Event())
    assert is_overtaken(a_node(uri)) is False
    assert asked == []


@pytest.mark.parametrize("error", [StorageError("no answer"), OSError("no answer"), None])
def test_what_cannot_be_stored_again_is_said_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[tuple[str, str]]], error: Exception | None
) -> None:
    def fails(*_: object, **__: object) -> tuple[str, ...]:
        if error:
            raise error
        return ()

    monkeypatch.setattr(repairs, "store_missing", fails)
    store_missing(a_node("oci://b@n/kept"), Path("/here"), threading.Event())
    expected = [("WARNING", "what is missing of stored checkpoints cannot be stored again: no answer")]
    assert said() == (expected if error else [])


OWN = Fence(generation=1, attempt=2, launch=1)


@pytest.mark.parametrize(
    "found, expected",
    [
        (None, False),
        (Fence(generation=1, attempt=2), False),
        (OWN, False),
        (Fence(generation=1, attempt=2, launch=2), True),
        (Fence(generation=1, attempt=3), True),
        (Fence(generation=2, attempt=1), True),
    ],
)
def test_only_a_later_attempt_or_launch_overtakes(
    tmp_path: Path, found: Fence | None, *, expected: bool
) -> None:
    place = str(tmp_path / "kept")
    if found:
        advance_fence(open_store(place), found)
    assert is_overtaken(a_node(place, fence=OWN)) is expected


def test_a_damaged_fence_counts_as_a_later_one_and_one_that_cannot_be_read_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "kept")
    open_store(place).write("fence.json", b"{")
    assert is_overtaken(a_node(place)) is True
    for error in (StorageError("no answer"), OSError("no answer")):

        def fails(_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(fences, "current_fence", fails)
        assert is_overtaken(a_node(place)) is False


def test_the_fence_is_read_where_the_node_saves_and_with_its_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "open_store", lambda *given: given)
    read: list[object] = []
    monkeypatch.setattr(fences, "current_fence", read.append)
    assert is_overtaken(a_node("oci://b@n/kept", access="mine")) is False
    assert read == [("oci://b@n/kept", "mine")]
