"""Paths (I10): the same training, waited for on a worker, in the triggerer, and by a worker that came later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.simulation.faults import Event
from tests.simulation.scenario import Scenario, draw
from tests.simulation.schedule import Outcome, run

EVERY = 20
"""Of so many schedules of a campaign one is compared on its paths."""
RETRIES = 4
"""Enough for each path: to be attached anew takes one."""
Violation = tuple[str, float, str]


def differences(seed: str) -> tuple[list[Violation], list[Outcome]]:
    """Run the training of a seed on each path, with what is odd about nodes and program, but no fault in between."""
    outcomes = {name: run(scenario) for name, scenario in paths(draw(seed)).items()}
    found = [violation for outcome in outcomes.values() for violation in outcome.violations]
    blocking = outcomes["blocking"].result
    for name, outcome in outcomes.items():
        if outcome.result != blocking:
            found.append(("paths", outcome.seconds, f"blocking: {blocking}; {name}: {outcome.result}"))
    return found, list(outcomes.values())


def paths(scenario: Scenario) -> Mapping[str, Scenario]:
    """Return the same training on each path."""
    # How often a task asks for machines goes by its try, of which a worker that dies takes one.
    plain = replace(
        scenario,
        rates=(),
        windows=(),
        events=(),
        hidden=None,
        crowd=0,
        capacity="there",
        retries=RETRIES,
        canceling_forever=False,
    )
    death = Event("worker dies", "kill_worker", 20.0, {})
    return {
        "blocking": replace(plain, deferrable=False),
        "deferred": replace(plain, deferrable=True),
        "re-attached": replace(plain, deferrable=False, events=(death,)),
    }
