"""A hundred schedules of the simulation, in processes of their own: their clocks and threads are not pytest's."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.simulation import mutants, scenario, seams
from tests.simulation.circumstances import CIRCUMSTANCES, LOOKED_AT, in_order

ROOT = Path(__file__).parents[2]
BROKEN = "an unchanged checkpoint counts as whole"
"""A mutant that most schedules in which something fails in a save find at once."""


def simulate(*arguments: str, expect: int = 0, mutant: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0", mutants.VARIABLE: mutant},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == expect, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def test_a_hundred_schedules_violate_no_rule_and_each_is_the_same_again_in_every_detail():
    campaign = simulate(
        "--seeds", "100", "--seed", "suite", "--processes", "2", "--digests", "8", "--no-shrink"
    )
    again = simulate("--seeds", "8", "--seed", "suite", "--processes", "1", "--digests", "8", "--no-shrink")
    shown = traces(campaign)
    assert len(set(shown.values())) == 8
    assert traces(again) == shown
    # A model that lacks what the code asks for would let every task fail at once, and violate nothing by that.
    assert int(re.findall(r"^tasks: .*?(\d+) success", campaign, re.MULTILINE)[0]) > 30


def traces(printed: str) -> dict[str, str]:
    return dict(re.findall(r"^trace of (\S+): ([0-9a-f]+)$", printed, re.MULTILINE))


def test_what_violates_a_rule_shrinks_and_is_the_same_again():
    shrunk = simulate("--one", "shrinks.7", "--shrink", "wholeness", mutant=BROKEN)
    digest = re.search(r"trace ([0-9a-f]+)$", shrunk, re.MULTILINE)
    again = re.search(r"^again: .*$", shrunk, re.MULTILINE)
    assert digest
    assert again
    recipe = shlex.split(again[0])[-1]
    assert '"left_out": []' not in recipe
    repeated = simulate("--recipe", recipe, mutant=BROKEN, expect=1)
    assert f"trace {digest[1]}" in repeated
    assert "VIOLATION" in repeated
    assert "wholeness" in repeated


def test_every_mutant_finds_the_lines_that_it_changes():
    assert mutants.stale(ROOT / "airflow_provider_ocidist") == []


def test_what_is_left_out_of_the_simulation_or_shared_by_its_processes_is_there():
    package = ROOT / "airflow_provider_ocidist"
    for name in (*seams.NOT_SIMULATED, *seams.PURE):
        place = package.joinpath(*name.split("."))
        assert place.is_dir() or place.with_suffix(".py").is_file(), name


def test_each_circumstance_in_which_a_mutant_shows_is_drawn_now_and_then():
    assert {mutant.needs for mutant in mutants.MUTANTS} - {""} == set(CIRCUMSTANCES)
    drawn = [scenario.draw(f"drawn.{number}") for number in range(2500)]
    found = {name: sum(map(has_it, drawn)) for name, has_it in CIRCUMSTANCES.items()}
    assert {name: count for name, count in found.items() if count < 3} == {}


def test_schedules_with_the_circumstance_that_a_mutant_needs_are_tried_first_also_those_of_a_longer_campaign():
    name = "a node that outlives its gang"
    has_it = CIRCUMSTANCES[name]
    first = [number for number in range(100 * LOOKED_AT) if has_it(scenario.draw(f"drawn.{number}"))]
    assert 2 <= sum(number >= 100 for number in first) < len(first) < 100
    numbers = in_order("drawn", 100, name)
    assert numbers == [*first, *(number for number in range(100) if number not in first)][:100]
    assert in_order("drawn", 200, "") == list(range(200))
