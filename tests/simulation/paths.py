"""Paths (I10): the same training, waited for on a worker, in the triggerer, and by a worker that came later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.simulation.faults import Event
from tests.simulation.scenario import SHAPES, Scenario, draw
from tests.simulation.schedule import Outcome, run

EVERY = 100
"""Of so many schedules of a campaign one is compared on its paths."""
RETRIES = 4
"""Enough for each path: to be attached anew takes one."""
Violation = tuple[str, float, str]


def differences(seed: str) -> tuple[list[Violation], list[Outcome]]:
    """Run the training of a seed on each path, with what is odd about nodes and program, but no fault in between."""
    outcomes = {name: run(scenario) for name, scenario in paths(draw(seed)).items()}
    found = [violation for outcome in outcomes.values() for violation in outcome.violations]
    blocking = outcomes["blocking"]
    for name, outcome in outcomes.items():
        if outcome.result != blocking.result or outcome.gangs not in _as_many(blocking, name):
            was, differs = ((*each.result, f"{each.gangs} gangs") for each in (blocking, outcome))
            found.append(("paths", outcome.seconds, f"blocking: {was}; {name}: {differs}"))
    return found, list(outcomes.values())


def _as_many(blocking: Outcome, name: str) -> range:
    """Return how many gangs there may be on a path: the death of a worker takes a try, and so perhaps the last gangs.

    A try that finds no machine in time asks for several, one after another (q1.900).
    """
    all_tried = name == "re-attached" and blocking.state == "failed" and blocking.gangs > RETRIES
    of_one_try = -(-blocking.gangs // (RETRIES + 1)) if all_tried else 0
    return range(blocking.gangs - of_one_try, blocking.gangs + 1)


def _never_there(scenario: Scenario) -> tuple[tuple[str, float, float], ...]:
    """Return the refused shapes as shapes of which there never is a machine; none where no other is left.

    When a task asks decides what is there by then, and how often it asks goes by its try, of which a worker that dies
    takes one.
    """
    refused = {shape for shape, _, _ in scenario.refused_shapes}
    is_one_left = bool(set(SHAPES[: 1 + scenario.candidates]) - refused)
    return tuple((shape, 0.0, float("inf")) for shape in sorted(refused)) if is_one_left else ()


def paths(scenario: Scenario) -> Mapping[str, Scenario]:
    """Return the same training on each path."""
    # A deadline or a budget ends a gang amid a save or just after it, by the second in which somebody looks. Where that
    # was trained to its end, the next gang has nothing left to train, which is another result (w7.0, s8.300).
    plain = replace(
        scenario,
        rates=(),
        windows=(),
        events=(),
        hidden=None,
        crowd=0,
        capacity="there",
        refused_shapes=_never_there(scenario),
        retries=RETRIES,
        canceling_forever=False,
        max_runtime=None,
        node_seconds=None,
    )
    death = Event("worker dies", "kill_worker", 20.0, {})
    return {
        "blocking": replace(plain, deferrable=False),
        "deferred": replace(plain, deferrable=True),
        "re-attached": replace(plain, deferrable=False, events=(death,)),
    }
