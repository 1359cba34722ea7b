"""The watches that end a gang, to the very moment: a hang, a lease that nobody renews, machines that nobody uses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.join.lease import LeaseWatch
from airflow_provider_ocidist.agent.monitor import hang
from airflow_provider_ocidist.agent.monitor.hang import (
    FirstStepWatch,
    HangWatch,
    StallTime,
    is_hung,
    talks_only,
)
from airflow_provider_ocidist.agent.monitor.idle import IdleWatch, is_used
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.model.report import Usage

# A hang


class Node:
    """A node's watch, with a limit of 30 s; what its program and the other nodes show is the test's."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, others: Sequence[StallTime | None] = (), **own: Any
    ) -> None:
        self.now = 1000.0
        self.asked: list[float] = []
        self.said: list[str] = []
        self.others = others
        monkeypatch.setattr(hang, "time", SimpleNamespace(monotonic=lambda: self.now))
        meter: Any = SimpleNamespace(
            **{"idle": 0.0, "by_steps": False, "longest_step": 0.0, "step": None, **own}
        )
        self.watch = HangWatch(meter, 30.0, others=self.ask, declare=self.said.append)

    def ask(self) -> Sequence[StallTime | None]:
        self.asked.append(self.now - 1000.0)
        return self.others

    def look(self, after: float = 0.0) -> None:
        self.now = 1000.0 + after
        self.watch.look()


@pytest.mark.parametrize("longest, limit", [(0.0, 30.0), (15.0, 30.0), (15.5, 31.0), (100.0, 200.0)])
def test_a_node_stands_still_once_it_takes_as_long_as_the_limit_or_twice_its_longest_step(
    longest: float, limit: float
) -> None:
    assert is_hung([StallTime(idle=limit, longest_step=longest)], 30.0)
    assert not is_hung([StallTime(idle=limit - 0.5, longest_step=longest)], 30.0)


def test_output_of_others_proves_nothing_where_one_counts_steps() -> None:
    talks, stands, steps = (
        StallTime(idle=0.0),
        StallTime(idle=30.0, by_steps=True),
        StallTime(idle=0.0, by_steps=True),
    )
    assert is_hung([talks, stands], 30.0)
    assert not is_hung([talks, stands, steps], 30.0)
    assert not is_hung([talks, StallTime(idle=30.0)], 30.0)


def test_a_node_that_makes_progress_asks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, [StallTime(idle=99.0)], idle=29.5, by_steps=True)
    for after in (0.0, 7.5, 1000.0):
        node.look(after)
    assert (node.asked, node.said) == ([], [])


@pytest.mark.parametrize(
    "others, said",
    [
        ([], "no output, progress or checkpoint on any node for 30 s; no step was ever seen"),
        (
            [StallTime(idle=30.0)],
            "no output, progress or checkpoint on any node for 30 s; no step was ever seen",
        ),
        (
            [StallTime(idle=30.0, step=7), StallTime(idle=40.0, step=0)],
            "no output, progress or checkpoint on any node for 30 s; the last step was 7",
        ),
        (
            [StallTime(idle=0.0, step=8), StallTime(idle=40.0, by_steps=True, step=6)],
            "no step or checkpoint on any node for 30 s; the last step was 8",
        ),
        ([StallTime(idle=29.5)], None),
        ([StallTime(idle=99.0), None], None),
        ([None], None),
    ],
)
def test_it_is_a_hang_only_where_no_node_moves_and_each_can_be_read(
    monkeypatch: pytest.MonkeyPatch, others: Sequence[StallTime | None], said: str | None
) -> None:
    node = Node(monkeypatch, others, idle=30.0)
    for after in (0.0, 2.0):
        node.look(after)
    assert node.said == ([said] if said else [])
    assert node.asked == ([0.0] if said else [0.0, 2.0]), "a hang is declared once"


def test_a_program_that_has_left_a_process_that_still_writes_a_checkpoint_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    touched: list[None] = []
    node = Node(monkeypatch, idle=30.0, touch=lambda: touched.append(None))
    node.watch.is_saving = lambda: True
    node.look()
    assert touched == [None]
    node.watch.is_saving = lambda: False
    node.look()
    assert touched == [None]


def test_a_node_that_only_prints_looks_four_times_in_the_limit_whether_another_counts_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(monkeypatch, [StallTime(idle=0.0)])
    for after in (0.0, 7.0, 7.5, 14.5, 15.0, 16.0):
        node.look(after)
    assert (node.asked, node.said) == ([7.5, 15.0], [])
    node.others = [StallTime(idle=30.0, by_steps=True, step=3)]
    node.look(22.5)
    assert node.said == ["no step or checkpoint on any node for 30 s; the last step was 3"]


# The first step


class Beginner:
    """A node that only talks, with 40 s for its first step and a warning after 100 s, or as the test says."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        others: Sequence[StallTime | None] = (),
        *,
        timeout: float | None = 40.0,
        warn_after: float | None = 100.0,
        step: int | None = None,
    ) -> None:
        self.now = self.further_at = 1000.0
        self.step = step
        self.others = others
        self.asked: list[float] = []
        self.said: list[str] = []
        self.warned: list[str] = []
        monkeypatch.setattr(hang, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.watch = FirstStepWatch(
            lambda: StallTime(idle=0.0, step=self.step, still=self.now - self.further_at),
            timeout,
            warn_after,
            others=self.ask,
            declare=self.said.append,
            warn=self.warned.append,
        )

    def ask(self) -> Sequence[StallTime | None]:
        self.asked.append(self.now - 1000.0)
        return self.others

    def look(self, after: float) -> None:
        self.now = 1000.0 + after
        self.watch.look()


TALKED = "no node has reported a step, and for 40 s the program has done no more than print (limits.first_step_timeout)"


def test_a_gang_only_talks_once_no_node_has_shown_more_for_as_long_as_the_limit() -> None:
    talks, moves, steps = (
        StallTime(idle=0.0, still=30.0),
        StallTime(idle=0.0, still=29.5),
        StallTime(idle=99.0, still=99.0, step=0),
    )
    assert talks_only([talks, talks], 30.0)
    assert not talks_only([talks, moves], 30.0)
    assert not talks_only([talks, steps], 30.0)


@pytest.mark.parametrize(
    "others, is_over",
    [
        ([], True),
        ([StallTime(idle=0.0, still=40.0)], True),
        ([StallTime(idle=0.0, still=39.5)], False),
        ([StallTime(idle=0.0, still=99.0, step=0)], False),
        ([StallTime(idle=0.0, still=99.0), None], False),
    ],
)
def test_a_first_step_is_overdue_only_where_no_node_shows_more_than_lines_and_each_can_be_read(
    monkeypatch: pytest.MonkeyPatch, others: Sequence[StallTime | None], is_over: bool
) -> None:
    node = Beginner(monkeypatch, others)
    node.look(39.5)
    assert (node.asked, node.said) == ([], []), "what this node shows itself needs no request"
    node.look(40.0)
    node.look(50.0)
    assert node.said == ([TALKED] if is_over else [])
    assert node.asked == ([40.0] if is_over else [40.0, 50.0]), "it is declared once"
    assert node.warned == []


def test_a_step_ends_that_watch_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Beginner(monkeypatch, step=0)
    node.look(1.0)
    node.step = None
    node.look(500.0)
    assert (node.asked, node.said, node.warned) == ([], [], [])


def test_other_nodes_are_asked_four_times_in_the_limit_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Beginner(monkeypatch, [StallTime(idle=0.0, still=1.0)], warn_after=None)
    for after in (40.0, 49.5, 50.0, 59.5, 60.0):
        node.look(after)
    assert node.asked == [40.0, 50.0, 60.0]
    node.further_at = 1060.0
    node.look(99.5)
    assert node.asked == [40.0, 50.0, 60.0]


def test_without_a_limit_the_log_says_once_how_long_all_have_only_talked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Beginner(monkeypatch, [StallTime(idle=0.0, still=99.5)], timeout=None)
    node.look(120.0)
    assert node.warned == []
    node.others = [StallTime(idle=0.0, still=130.0)]
    for after in (145.0, 200.0, 900.0):
        node.look(after)
    (said,) = node.warned
    assert said == (
        "no node has reported a step, and for 130 s the program has done no more than print: it prepares for long, "
        "reports no steps, or hangs; to have such a run ended, set limits.first_step_timeout"
    )
    assert (node.said, node.asked) == ([], [120.0, 145.0])


def test_a_longer_limit_is_named_by_that_line_and_ends_the_run_later(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Beginner(monkeypatch, timeout=400.0)
    for after in (100.0, 399.5):
        node.look(after)
    assert len(node.warned) == 1
    assert node.warned[0].endswith("or hangs; limits.first_step_timeout ends it in time")
    assert node.said == []
    node.look(400.0)
    assert node.said == [TALKED.replace("40 s", "400 s")]


def test_where_neither_is_wanted_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Beginner(monkeypatch, timeout=None, warn_after=None)
    node.look(10_000.0)
    assert (node.asked, node.said, node.warned) == ([], [], [])


# A lease


class Run:
    """A run with a lease of two minutes, which a node looks at as often as the test says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.found: bytes | Exception | None = b"first"
        self.reads: list[float] = []
        self.said: list[str] = []
        self.watch = LeaseWatch(120.0, self.read, declare=self.said.append, clock=lambda: self.now)

    def read(self) -> bytes | None:
        self.reads.append(self.now - 1000.0)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def looks(self, *times: float) -> list[str]:
        for after in times:
            self.now = 1000.0 + after
            self.watch.look()
        return self.said


def test_a_lease_is_read_a_dozen_times_and_ends_when_it_is_over_to_the_second() -> None:
    run = Run()
    assert run.looks(0.0, 9.5, 10.0, 19.5, 20.0, 119.5) == []
    assert run.reads == [0.0, 10.0, 20.0, 119.5]
    assert run.looks(129.0) == []
    assert run.looks(129.5) == ["nobody has waited for this run for 2m (limits.lease)"]


def test_the_end_of_a_lease_is_declared_at_each_look_until_somebody_waits_again() -> None:
    """One that is declared while a node makes ready for another launch is dropped."""
    run = Run()
    run.looks(0.0, 60.0, 120.0)
    assert len(run.said) == 1
    run.looks(125.0, 130.0, 200.0)
    assert (len(run.said), run.reads[-2:]) == (3, [130.0, 200.0])
    run.found = b"second"
    run.looks(210.0, 329.0)
    assert len(run.said) == 3
    run.looks(340.0)
    assert len(run.said) == 4


def test_a_lease_that_is_exactly_over_has_ended() -> None:
    run = Run()
    assert run.looks(0.0, 60.0) == []
    assert run.looks(120.0) != []


def test_a_renewal_counts_from_the_look_that_has_found_it() -> None:
    run = Run()
    run.looks(0.0, 100.0)
    run.found = b"second"
    assert run.looks(115.0, 225.0) == []
    assert run.looks(235.0) != []


def test_nobody_has_to_renew_what_nobody_has_renewed_yet() -> None:
    run = Run()
    run.found = None
    assert run.looks(0.0, 100.0, 500.0) == []
    run.found = b"first"
    assert run.looks(510.0, 629.5) == []
    run.found = None
    assert run.looks(639.5) != [], "one that is deleted is none"


@pytest.mark.parametrize("error", [StorageError("the store is down"), OSError("no such mount")])
def test_time_in_which_a_lease_cannot_be_read_does_not_count(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    run = Run()
    run.looks(0.0, 60.0)
    run.found = error
    run.looks(70.0, 71.0, 500.0)
    assert run.reads == [0.0, 60.0, 70.0, 71.0, 500.0], "it is tried again at once"
    assert caplog.messages == [f"this run's lease cannot be read now: {error}"]
    assert caplog.records[0].levelno == logging.WARNING
    run.found = b"first"
    assert run.looks(501.0, 560.5) == []
    assert run.looks(570.5) != []


@pytest.mark.parametrize(
    "lease, said",
    [
        (7200.0, "2h"),
        (3600.0, "1h"),
        (5400.0, "90m"),
        (60.0, "1m"),
        (61.0, "61s"),
        (8.0, "8s"),
        (0.5, "0.5s"),
    ],
)
def test_how_long_nobody_has_waited_is_said_as_a_job_says_it(lease: float, said: str) -> None:
    found: list[str] = []
    times = iter((0.0, lease))
    watch = LeaseWatch(lease, lambda: b"first", declare=found.append, clock=lambda: next(times))
    watch.look()
    watch.look()
    assert found == [f"nobody has waited for this run for {said} (limits.lease)"]


# Machines that nobody uses


@pytest.mark.parametrize(
    "usage, used",
    [
        (Usage(cores=0.1), True),
        (Usage(cores=0.09), False),
        (Usage(gpu=0.02), True),
        (Usage(gpu=0.019), False),
        (Usage(cores=0.09, gpu=0.019), False),
        (Usage(cores=0.0, gpu=1.0), True),
        (Usage(cores=1.0, gpu=0.0), True),
        (Usage(), False),
    ],
)
def test_a_machine_is_in_use_from_a_tenth_of_a_core_or_a_fiftieth_of_its_gpus(
    usage: Usage, used: bool
) -> None:
    assert is_used(usage) is used


@pytest.mark.parametrize(
    "own, others, asks, ends",
    [
        (100.0, [], True, True),
        (100.0, [100.0, 200.0], True, True),
        (99.5, [200.0], False, False),
        (None, [200.0], False, False),
        (100.0, [200.0, 99.5], True, False),
        (100.0, [None, 200.0], True, False),
    ],
)
def test_a_gang_is_idle_once_each_node_is_known_to_be_for_as_long_as_the_limit(
    own: float | None, others: list[float | None], asks: bool, ends: bool
) -> None:
    said: list[str] = []
    asked: list[int] = []

    def ask() -> list[float | None]:
        asked.append(1)
        return others

    watch = IdleWatch(100.0, own=lambda: own, others=ask, declare=said.append)
    watch.look()
    assert bool(asked) is asks
    watch.look()
    expected = "no node has used a GPU, or 0.1 of a processor core, for 100 s (limits.idle)"
    assert said == ([expected] if ends else []), "it is said once"


def test_a_node_that_counts_no_steps_says_so_and_its_own_step_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = StallTime(idle=1.0)
    assert (bare.by_steps, bare.longest_step, bare.step) == (False, 0.0, None)
    node = Node(monkeypatch, [StallTime(idle=30.0, step=4)], idle=30.0, step=5)
    node.look()
    assert node.said == ["no output, progress or checkpoint on any node for 30 s; the last step was 5"]
