"""Shrink: leave out of a schedule what it does without, as long as it violates the same rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.scenario import Scenario, draw
from tests.simulation.schedule import Outcome, run

MOST_RUNS = 80
PLAIN: dict[str, Any] = {
    "nodes": 1,
    "topology": "job_runs",
    "foreign_jobs": 0,
    "crowd": 0,
    "node_skews": (0.0,),
    "worker_skew": 0.0,
    "triggerer_skew": 0.0,
    "late_node": 0.0,
    "retries": 2,
    "rates": (),
    "windows": (),
    "events": (),
    "hidden": None,
    "max_runtime": None,
    "habits.pause": 0.0,
    "habits.write_seconds": 0.3,
    "habits.step_seconds": 1.0,
    "habits.keeps": 0,
}
"""What a schedule has of each, when nothing is odd about it."""


@dataclass(frozen=True)
class Recipe:
    """How a smaller schedule is made from that of a seed; JSON, so that it can be run again by its text."""

    seed: str
    plain: tuple[str, ...] = ()
    """What is as in `PLAIN`."""
    left_out: tuple[str, ...] = ()
    """Faults by name."""

    def scenario(self) -> Scenario:
        scenario = draw(self.seed).without(frozenset(self.left_out))
        for name in self.plain:
            scenario = _with(scenario, name, PLAIN[name])
        return scenario

    def to_json(self) -> str:
        return json.dumps({"seed": self.seed, "plain": self.plain, "left_out": self.left_out})

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        told = json.loads(text)
        return cls(told["seed"], tuple(told["plain"]), tuple(told["left_out"]))


def shrink(seed: str, rule: str) -> tuple[Recipe, Outcome]:
    """Return the smallest schedule found that violates the rule, with its trace."""
    best = Recipe(seed)
    outcome = run(best.scenario())
    runs = 1
    shrunk = True
    while shrunk and runs < MOST_RUNS:
        shrunk = False
        for smaller in _smaller(best, outcome.fired):
            runs += 1
            found = run(smaller.scenario())
            if rule in found.rules:
                best, outcome, shrunk = smaller, found, True
                break
            if runs >= MOST_RUNS:
                break
    return best, run(best.scenario(), keep_trace=True)


def _smaller(recipe: Recipe, fired: list[str]) -> Iterator[Recipe]:
    """Yield what is smaller by one step: without half of the faults first, then without one, then with plain values."""
    for count in dict.fromkeys((len(fired), len(fired) // 2, len(fired) // 4, 1)):
        for at in range(0, len(fired), count) if count else ():
            yield replace(recipe, left_out=(*recipe.left_out, *fired[at : at + count]))
    scenario = recipe.scenario()
    for name, value in PLAIN.items():
        if name not in recipe.plain and _value(scenario, name) != value:
            yield replace(recipe, plain=(*recipe.plain, name))


def _value(scenario: Scenario, name: str) -> Any:
    of, _, field = name.rpartition(".")
    return getattr(scenario.habits if of else scenario, field)


def _with(scenario: Scenario, name: str, value: Any) -> Scenario:
    of, _, field = name.rpartition(".")
    if of:
        return replace(scenario, habits=replace(scenario.habits, **{field: value}))
    return replace(scenario, **{field: value})
