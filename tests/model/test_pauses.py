"""Pauses between looks, by generator."""

from __future__ import annotations

import random

import pytest

from airflow_provider_ocidist.model.pauses import pause_after


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
