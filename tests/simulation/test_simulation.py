"""Some hundred schedules of the simulation, in processes of their own: their clocks and threads are not pytest's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KNOWN = (
    "healthy gang ended",  # HANG while a finished model is being delivered; others are yet to be read
    r"success by gang \d+, which is from before the clear",  # yet to be read: seed suite.53
    "of 1 saves, 1 files, 0 of them half",  # yet to be read: seed suite.67
    "endless",  # the only node of a gang may fetch for ever
    "left running",  # a task that fails while it looks for its gang does not end it
    "of 2 saves",  # a folder that is written over in place, on top of what was fetched
)
"""Violations that are found and not mended, or not understood; a line less for each that is."""
ROOT = Path(__file__).parents[2]


def simulate(*arguments: str, expect: int = 0) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == expect, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def test_the_same_seed_is_the_same_schedule_in_every_detail():
    one, other = (simulate("--seeds", "12", "--seed", "same", "--hashes") for _ in range(2))
    assert one == other
    assert len(set(one.split())) == 24  # 12 seeds, 12 traces


def test_some_hundred_schedules_violate_no_rule_but_where_that_is_known():
    simulate(
        "--seeds", "200", "--seed", "suite", "--processes", "2", "--known", "|".join(KNOWN), "--no-shrink"
    )
