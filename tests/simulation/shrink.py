"""Shrink: leave out of a schedule what it does without, as long as it violates the same rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.scenario import Scenario, draw
from tests.simulation.schedule import Outcome, run

MOST_RUNS = 80


def shrink(seed: str, rule: str) -> Outcome:
    """Return the smallest schedule found that violates the rule, with its trace."""
    best = run(draw(seed))
    runs = 1
    shrunk = True
    while shrunk and runs < MOST_RUNS:
        shrunk = False
        for smaller in _smaller(best):
            runs += 1
            outcome = run(smaller)
            if rule in outcome.rules:
                best, shrunk = outcome, True
                break
            if runs >= MOST_RUNS:
                break
    return run(best.scenario, keep_trace=True)


def _smaller(outcome: Outcome) -> Iterator[Scenario]:
    scenario, fired = outcome.scenario, outcome.fired
    for count in dict.fromkeys((len(fired), len(fired) // 2, len(fired) // 4, 1)):
        if count > 0:
            for at in range(0, len(fired), count):
                yield scenario.without(frozenset(fired[at : at + count]))
    plain = Scenario(seed=scenario.seed)
    for name in ("nodes", "topology", "foreign_jobs", "crowd", "node_skews", "late_node", "retries", "rates"):
        value = 1 if name == "nodes" else getattr(plain, name)
        if getattr(scenario, name) != value:
            yield replace(scenario, **{name: value})
    habits = scenario.habits
    for name, value in (("pause", 0.0), ("write_seconds", 0.3), ("step_seconds", 1.0), ("keeps", 0)):
        if getattr(habits, name) != value:
            yield replace(scenario, habits=replace(habits, **{name: value}))
