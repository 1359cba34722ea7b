"""Seconds between two events, by a clock that only the test moves."""

from __future__ import annotations

import random

import pytest

from airflow_provider_ocidist.gangs.stopwatch import Stopwatch


@pytest.mark.parametrize("seed", range(20))
def test_each_lap_has_the_seconds_since_the_one_before_whatever_the_zero_of_the_clock(seed: int) -> None:
    dice = random.Random(seed)
    now, before = float(dice.randint(-100, 100)), None
    watch = Stopwatch(lambda: now)
    for _ in range(200):
        now += dice.randint(0, 50)
        match dice.choice(["lap", "lap", "lap", "go on", "reset"]):
            case "lap":
                assert watch.lap() == (0 if before is None else now - before)
                before = now
            case "go on":
                ago = dice.randint(0, 50)
                watch.go_on_after(ago)
                before = now - ago
            case "reset":
                watch.reset()
                before = None
