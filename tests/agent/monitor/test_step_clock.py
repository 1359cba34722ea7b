"""What counts as progress in each launch of a program, second by second."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.agent.monitor.step_clock import OUTPUT_COUNTS_FOR, StepClock, StepHabits
from tests.agent.gangs import until

SEED = int(os.environ.get("TEST_SEED", "20261127"))


class Time:
    """A clock that the test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def hung_after(clock: StepClock, time: Time, hang_timeout: float, *, patience: float, each: float) -> float:
    """Return for how many seconds a launch that only talks goes on before it counts as hung; inf: for longer."""
    began = time.now
    while time.now - began < patience:
        time.now += each
        clock.output()
        if clock.idle >= max(hang_timeout, 2 * clock.longest):
            assert clock.by_steps, "so that what other nodes print does not count either"
            return time.now - began
    return math.inf


@pytest.mark.parametrize("number", range(40))
def test_a_program_that_has_counted_steps_before_may_talk_for_so_long_and_no_longer(number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    time, hang_timeout = Time(), draw.uniform(10.0, 2000.0)
    each = draw.uniform(0.01, 0.3) * hang_timeout
    print(f"seed {SEED}.{number}")
    first = StepClock(None, hang_timeout, time)
    first.launched()
    time.now += draw.uniform(1.0, 5 * hang_timeout)
    for step in range(1, draw.randint(3, 9)):
        first.step(step)
        time.now += 1.0
    habits = first.habits
    # Until the launch, it waits for the others, for as long as they need.
    later = StepClock(habits, hang_timeout, time)
    time.now += draw.uniform(0.0, 99 * hang_timeout)
    assert not later.by_steps
    later.launched()
    is_seen = draw.random() < 0.5
    if is_seen:
        later.step(7)
    took = hung_after(later, time, hang_timeout, patience=99 * hang_timeout, each=each)
    least = max(habits.counts_after or 0.0, OUTPUT_COUNTS_FOR * hang_timeout)
    assert -1e-6 < took - (least + hang_timeout) <= each + 1e-6


@pytest.mark.parametrize("number", range(40))
def test_a_program_that_has_shown_one_step_may_talk_for_so_long_before_the_second(number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    time, hang_timeout = Time(), draw.uniform(10.0, 2000.0)
    each = draw.uniform(0.01, 0.3) * hang_timeout
    print(f"seed {SEED}.{number}")
    clock = StepClock(None, hang_timeout, time)
    clock.launched()
    # Loading and compilation take as long as they do.
    slow = hung_after(clock, time, hang_timeout, patience=draw.uniform(0.1, 9.0) * hang_timeout, each=each)
    assert slow == math.inf
    first_after = time.now - 1000.0
    clock.step(1)
    took = hung_after(clock, time, hang_timeout, patience=99 * hang_timeout, each=each)
    least = max(first_after, OUTPUT_COUNTS_FOR * hang_timeout)
    assert -1e-6 < took - (least + hang_timeout) <= each + 1e-6


def test_without_a_limit_for_hangs_one_step_says_nothing_of_the_next() -> None:
    time = Time()
    clock = StepClock(None, None, time)
    clock.launched()
    clock.step(1)
    time.now += 1e6
    clock.output()
    assert not clock.by_steps


def test_a_program_that_has_counted_no_steps_may_talk_for_ever_in_each_launch() -> None:
    time = Time()
    for _ in range(2):
        first = StepClock(None, 10.0, time)
        first.launched()
        later = StepClock(first.habits, 10.0, time)
        later.launched()
        for clock in (first, later):
            assert hung_after(clock, time, 10.0, patience=5000.0, each=1.0) == math.inf
            assert not clock.by_steps


def test_silence_is_no_progress_in_any_launch() -> None:
    time = Time()
    for habits in (None, StepHabits(counts_after=500.0)):
        clock = StepClock(habits, 10.0, time)
        clock.launched()
        time.now += 7.0
        clock.output()
        time.now += 12.0
        assert clock.idle == 12.0


@pytest.mark.parametrize("progress", ["step", "further"])
def test_what_is_progress_itself_counts_at_any_time(progress: str) -> None:
    time = Time()
    clock = StepClock(StepHabits(counts_after=5.0), 10.0, time)
    clock.launched()
    for step in range(9):
        time.now += 60.0
        clock.output()
        if progress == "step":
            clock.step(step)
        else:
            clock.further()
        assert clock.idle == 0.0


def test_the_longest_pause_between_two_steps_is_known_in_later_launches() -> None:
    time = Time()
    first = StepClock(None, 10.0, time)
    for step, pause in ((1, 0.0), (2, 30.0), (3, 2.0)):
        time.now += pause
        first.step(step)
    assert StepClock(first.habits, 10.0, time).longest == first.longest == 30.0


@pytest.mark.parametrize(
    "steps, apart",
    [((), None), ((5,), None), ((10, 20, 30), 10), ((1, 10, 20, 30, 40), 10), ((8, 9, 3, 4), 1)],
)
def test_how_many_steps_lie_between_two_reports_is_known_in_later_launches(
    steps: tuple[int, ...], apart: int | None
) -> None:
    first = StepClock()
    for step in steps:
        first.step(step)
    assert first.habits.apart == StepClock(first.habits).habits.apart == apart


def test_a_meter_remembers_of_a_launch_how_the_program_reports_and_forgets_the_steps(tmp_path: Path) -> None:
    meter = ProgressMeter(tmp_path)
    assert meter.steps_apart == 1
    meter.launched()
    meter.saw(b"step 10 loss 2.0\nstep 20 loss 2.0\n")
    assert (meter.step, meter.by_steps, meter.steps_apart) == (20, True, 10)
    meter.begin_again(hang_timeout=0.0)
    assert (meter.step, meter.by_steps, meter.steps_apart) == (None, False, 10)
    meter.launched()
    meter.saw(b"still here\n")
    until(lambda: meter.by_steps)


@pytest.mark.parametrize(
    "line", ["step {step:,}/{steps:,} loss 2.1", "iter {step:_}: loss 2.1, time 3,000.12ms"]
)
def test_a_training_that_writes_its_steps_with_separators_moves_on_with_each(
    tmp_path: Path, line: str
) -> None:
    time, meter = Time(), ProgressMeter(tmp_path)
    meter._clock = StepClock(None, 60.0, time)
    meter.launched(60.0)
    for step in range(900, 2000):
        time.now += 3.0
        meter.saw(f"{line.format(step=step, steps=10_000)}\n".encode())
        assert (meter.step, meter.idle) == (step, 0.0)
    assert (meter.longest_step, meter.steps_apart) == (3.0, 1)


def test_the_pace_is_taken_over_the_last_twenty_steps_once_six_were_reported() -> None:
    time = Time()
    clock = StepClock(None, 10.0, time)
    times = [(0.0, 10), (30.0, 20), (40.0, 30), (50.0, 40), (60.0, 50)]
    for at, step in times:
        time.now = 1000.0 + at
        clock.step(step)
        assert clock.pace is None
    time.now = 1000.0 + 90.0
    clock.step(60)
    assert clock.pace == 90.0 / 50
    for number in range(1, 40):
        time.now += 5.0
        clock.step(60 + number)
    assert clock.pace == 5.0, "what was before is forgotten"


def test_lines_alone_leave_a_program_still_and_whatever_else_is_progress_does_not() -> None:
    time = Time()
    clock = StepClock(None, 30.0, time)
    time.now += 500.0
    clock.launched()
    for _ in range(5):
        time.now += 10.0
        clock.output()
    assert (clock.idle, clock.still) == (0.0, 50.0)
    clock.further()
    assert clock.still == 0.0
    time.now += 10.0
    clock.step(1)
    time.now += 3.0
    assert clock.still == 3.0
