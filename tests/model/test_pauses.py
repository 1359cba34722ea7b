"""Pauses between looks, by generator."""

from __future__ import annotations

import random

import pytest

from airflow_provider_ocidist.model.pauses import END_WITHIN, doubling_pause, next_pause, pause_after


def looks(until: float, shortest: float, longest: float) -> list[float]:
    """Return when somebody looks who waits for what ends then; the last look sees the end."""
    found = [0.0]
    while found[-1] < until:
        found.append(found[-1] + pause_after(found[-1], shortest, longest))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_an_end_is_seen_soon_beside_the_time_that_it_took(seed: int) -> None:
    dice = random.Random(seed)
    shortest, until = dice.uniform(0.1, 2.0), dice.uniform(0.0, 3600.0)
    longest = shortest * dice.uniform(1.0, 20.0)
    late = looks(until, shortest, longest)[-1] - until
    assert late <= min(longest, max(shortest, until / 20))


def test_what_ends_within_seconds_is_looked_at_as_often_as_ever_and_what_takes_minutes_seldom() -> None:
    assert looks(10.0, 1.0, 10.0) == [float(second) for second in range(11)]
    assert len(looks(1800.0, 1.0, 10.0)) < 250
    assert pause_after(1800.0, 1.0, 10.0) == 10.0


@pytest.mark.parametrize("seed", range(20))
def test_a_pause_doubles_from_the_first_to_the_longest_by_number_and_one_by_one(seed: int) -> None:
    dice = random.Random(seed)
    first = dice.uniform(0.1, 60.0)
    longest = first * dice.uniform(1.0, 1000.0)
    pause = first
    for failures in range(1, 30):
        assert doubling_pause(first, longest, failures) == pytest.approx(pause)
        pause = next_pause(pause, longest)
    assert pause == longest
    assert doubling_pause(first, longest, 0) == first
    assert doubling_pause(first, longest, 10_000_000) == longest


def test_a_pause_is_a_twentieth_of_what_was_waited_and_an_end_is_pursued_for_half_an_hour() -> None:
    assert pause_after(100.0, 1.0, 60.0) == 5.0
    assert END_WITHIN == 1800.0
