"""Trials: look for each mutant in a process of its own, until a schedule shows it."""

from __future__ import annotations

import faulthandler
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.simulation import crew, mutants, seams
from tests.simulation.circumstances import LOOKED_AT, having, in_order

LONGEST = 3600.0
"""Seconds that the schedules of one mutant may take together."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The search for one mutant."""

    mutant: str
    seed: str
    seeds: int
    first: int = 0
    """How many schedules were tried before."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a search has ended."""

    trial: Trial
    tried: int = 0
    found: str = ""
    """Seed of the schedule that shows the mutant; empty: none does."""
    rule: str = ""
    """Rule that it violates there, or why nothing was found."""

    @property
    def row(self) -> str:
        mutant = mutants.named(self.trial.mutant)
        tried = f"{self.tried}" if self.found else f"NOT FOUND in {self.tried}"
        by = f"{self.rule} (seed {self.found})" if self.found else self.rule
        return f"| {mutant.name} | {mutant.point} | {mutant.needs or 'any'} | {tried} | {by} |"


def run_all(seeds: int, seed: str, only: str, processes: int) -> int:
    """Look for each mutant, and print a row as soon as it is found; return 1 if one was not."""
    # All that is not ours is imported once, and all seeds are looked at once, for all processes.
    seams.prepare()
    having(seed, LOOKED_AT * seeds)
    began = time.monotonic()
    wanted = [mutant.name for mutant in mutants.MUTANTS if re.search(only, mutant.name)]
    trials = [Trial(mutant=name, seed=seed, seeds=seeds) for name in wanted]
    results: dict[str, Result] = {}
    print("| defect | point | circumstance | found after | by |\n| --- | --- | --- | --- | --- |", flush=True)
    while trials:
        for result in crew.run_all(trials, _try, _lost, processes, LONGEST, replaced_after=1):
            results[result.trial.mutant] = result
            print(result.row, flush=True)
        trials = _to_go_on([results[trial.mutant] for trial in trials])
    missed = sum(not result.found for result in results.values())
    tried = sum(result.tried for result in results.values())
    print(f"{len(results)} mutants, {tried} schedules, {time.monotonic() - began:.0f} s")
    print(f"{missed} mutants were not found" if missed else "every mutant was found")
    return 1 if missed else 0


def _try(trial: Trial) -> Result:
    """Run schedules until one shows the mutant."""
    os.environ[mutants.VARIABLE] = trial.mutant
    from tests.simulation.command import work

    mutant = mutants.named(trial.mutant)
    numbers = in_order(trial.seed, trial.seeds, mutant.needs)
    for tried, number in enumerate(numbers[trial.first :], trial.first + 1):
        seed = f"{trial.seed}.{number}"
        # One that does not end, ends the process.
        faulthandler.dump_traceback_later(crew.LIMIT, exit=True, file=sys.__stderr__)
        done = work(seed, digest=False, dump=None)
        faulthandler.cancel_dump_traceback_later()
        for rule, _, text in done.violations:
            if re.search(mutant.rules, f"{rule}: {text}"):
                return Result(trial=trial, tried=tried, found=seed, rule=rule)
    return Result(trial=trial, tried=len(numbers))


def _lost(trial: Trial, why: str) -> Result:
    return Result(trial=trial, rule=why)


def _to_go_on(results: Sequence[Result]) -> list[Trial]:
    """Return the trials whose schedules violate the rule without the mutant too, to go on with the next schedule."""
    found = [result for result in results if result.found]
    (anyway,) = crew.run_all(
        [found], _violated_anyway, lambda _, why: sys.exit(why), 1, LONGEST, replaced_after=1
    )
    for result in anyway:
        print(
            f"{result.found} violates {result.rule} without {result.trial.mutant!r} too; going on", flush=True
        )
    return [replace(result.trial, first=result.tried) for result in anyway]


def _violated_anyway(found: Sequence[Result]) -> list[Result]:
    """Return those whose schedules violate the rule in the code as it is."""
    os.environ.pop(mutants.VARIABLE, None)
    from tests.simulation.command import work

    violated = []
    for result in found:
        rules = mutants.named(result.trial.mutant).rules
        violations = work(result.found, digest=False, dump=None).violations
        if any(re.search(rules, f"{rule}: {text}") for rule, _, text in violations):
            violated.append(result)
    return violated
