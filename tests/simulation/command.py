"""The command line: campaigns, single seeds, shrinking."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation import crew

LINES = 60
"""Of a trace that are shown of each shrunk schedule."""


def main() -> int:
    arguments = arguments_of()
    os.environ.setdefault("AIRFLOW_HOME", f"/tmp/ocidist-simulation-airflow-{os.getuid()}")
    os.environ.setdefault("AIRFLOW__CORE__UNIT_TEST_MODE", "False")
    if arguments.one is not None and arguments.shrink:
        _shrink({arguments.shrink: arguments.one})
        return 0
    if arguments.one is not None or arguments.recipe is not None:
        return _one(arguments)
    if arguments.mutants:
        from tests.simulation.trials import run_all

        return run_all(arguments.seeds, arguments.seed, arguments.only, arguments.processes)
    from tests.simulation.schedule import run

    # What the first schedule imports and caches is then there for all processes.
    run("first.0")
    return campaign(arguments, _work_numbered)


def _shrink(seeds: dict[str, str]) -> None:
    from tests.simulation.shrink import shrink

    for rule, seed in seeds.items():
        recipe, smallest = shrink(seed, rule)
        print(f"\nthe smallest schedule found that violates {rule!r}, from seed {seed}:")
        print("\n".join(smallest.trace[-LINES:]))
        print(f"faults that it needs: {', '.join(smallest.fired) or 'none'}; trace {smallest.trace_hash}")
        print(f"again: python -m tests.simulation --recipe {shlex.quote(recipe.to_json())}")


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.simulation")
    parser.add_argument("--seeds", type=int, default=300, help="how many schedules")
    parser.add_argument("--seed", default="1", help="of the campaign; schedule n has the seed <seed>.<n>")
    parser.add_argument("--one", help="run one schedule, by its own seed, and print its trace")
    parser.add_argument(
        "--shrink", help="with --one: the rule that the smallest schedule still has to violate"
    )
    parser.add_argument(
        "--recipe", help="run one schedule that was shrunk, by the text that was printed of it"
    )
    parser.add_argument(
        "--digests", type=int, default=0, help="print the digests of the traces of so many schedules"
    )
    parser.add_argument("--dump", help="with --digests: the folder that those traces are written to")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2)
    parser.add_argument(
        "--known", default="", help="regular expression: violations that are known, and not counted"
    )
    parser.add_argument("--mutants", action="store_true", help="put each known defect back, and look for it")
    parser.add_argument("--only", default="", help="regular expression: which mutants")
    return parser.parse_args()


def _one(arguments: argparse.Namespace) -> int:
    import faulthandler

    # On a busy machine the imports alone may take half a minute.
    faulthandler.dump_traceback_later(crew.LIMIT, exit=True)
    from tests.simulation.schedule import run
    from tests.simulation.shrink import Recipe

    recipe = Recipe(arguments.one) if arguments.one is not None else Recipe.from_json(arguments.recipe)
    outcome = run(recipe.scenario(), keep_trace=True)
    print("\n".join(outcome.trace))
    print(f"\n{outcome.scenario}\n")
    print(
        f"task {outcome.state} after {outcome.seconds:.0f} s of the world, {outcome.took * 1000:.0f} ms; "
        f"trace {outcome.trace_hash}"
    )
    for rule, at, text in outcome.violations:
        print(f"VIOLATION at {at:.1f}: {rule}: {text}")
    return 1 if outcome.violations else 0


@dataclass(frozen=True, kw_only=True)
class Done:
    """What came of one schedule of a campaign, as its process hands it on."""

    seed: str
    violations: Sequence[tuple[str, float, str]]
    kinds: Counter[str] = field(default_factory=Counter)
    state: str = "?"
    seconds: float = 0.0
    """Of the world."""
    took: float = 0.0
    """Seconds of a processor."""
    calls: int = 0
    digest: str = ""


@dataclass
class Tally:
    """What all schedules of a campaign have shown."""

    done: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    found: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """By rule: seeds and texts of what violated it."""
    digests: dict[str, str] = field(default_factory=dict)
    virtual: float = 0.0
    took: list[tuple[float, str]] = field(default_factory=list)
    """Seconds of a processor for each schedule, with its seed."""
    spent: Counter[str] = field(default_factory=Counter)
    """The same for the schedules that met a kind of fault."""
    calls: int = 0

    def add(self, done: Done, known: str) -> None:
        """Count one more schedule, and what it violates but for what is known."""
        self.done += 1
        self.kinds.update(done.kinds)
        self.struck.update(set(done.kinds))
        self.states[done.state] += 1
        self.virtual += done.seconds
        self.calls += done.calls
        self.took.append((done.took, done.seed))
        self.spent.update(dict.fromkeys(done.kinds, done.took))
        if done.digest:
            self.digests[done.seed] = done.digest
        for rule, _, text in done.violations:
            if not (known and re.search(known, f"{rule}: {text}")):
                self.found.setdefault(rule, []).append((done.seed, text))

    def print(self, took: float) -> None:
        print(
            f"{self.done} schedules in {took:.1f} s: {self.done / took * 60:.0f} a minute; "
            f"{self.virtual / 3600:.0f} h of the world, {self.calls} requests"
        )
        self._print_costs()
        print("tasks: " + ", ".join(f"{count} {state}" for state, count in self.states.most_common()))
        print(
            "faults (schedules that met them; how often in all; seconds of a processor for such a schedule):"
        )
        for kind, count in self.struck.most_common():
            print(f"  {kind:<28} {count:>6} {self.kinds[kind]:>8} {self.spent[kind] / count:>8.3f}")
        for seed, digest in sorted(self.digests.items()):
            print(f"trace of {seed}: {digest}")
        for rule, where in sorted(self.found.items(), key=lambda item: -len(item[1])):
            print(f"VIOLATED {rule}: {len({seed for seed, _ in where})} schedules")
            for seed, text in where[:3]:
                print(f"    seed {seed}: {text}")
            if others := list(dict.fromkeys(seed for seed, _ in where[3:])):
                print(f"    also {' '.join(others)}")

    def _print_costs(self) -> None:
        took = sorted(self.took) or [(0.0, "")]
        tenth = took[-max(1, len(took) // 10) :]
        whole, slow = (sum(seconds for seconds, _ in some) for some in (took, tenth))
        if not whole:
            return
        print(
            f"{whole / len(took):.3f} s of a processor each: half of them within {took[len(took) // 2][0]:.3f} s, "
            f"the slowest tenth {slow / whole:.0%} of all; slowest "
            + ", ".join(f"{seconds:.2f} s ({seed})" for seconds, seed in reversed(tenth[-5:]))
        )


def work(seed: str, *, digest: bool, dump: str | None) -> Done:
    """Run one schedule of a campaign, and some of them on each path."""
    try:
        return _worked(seed, digest=digest, dump=dump)
    except Exception as error:
        where = traceback.format_exc()[-1500:]
        return Done(seed=seed, violations=[("simulator", 0.0, f"{type(error).__name__}: {error}\n{where}")])


def _worked(seed: str, *, digest: bool, dump: str | None) -> Done:
    from tests.simulation.paths import EVERY, differences
    from tests.simulation.schedule import run

    outcome = run(seed, keep_trace=digest)
    if dump:
        Path(dump).mkdir(parents=True, exist_ok=True)
        (Path(dump) / seed).write_text("\n".join(outcome.trace))
    violations, took = outcome.violations, outcome.took
    if int(seed.rpartition(".")[2]) % EVERY == 0:
        different, others = differences(seed)
        violations = [*violations, *different]
        took += sum(other.took for other in others)
    return Done(
        seed=seed,
        violations=violations,
        kinds=outcome.kinds,
        state=outcome.state,
        seconds=outcome.seconds,
        took=took,
        calls=outcome.calls,
        digest=outcome.trace_hash,
    )


Numbered = tuple[str, bool, str | None]
"""A seed, whether the digest of its trace is shown, and where that trace is written to."""
NO_END = "does not end"


def campaign(
    arguments: argparse.Namespace, work_on: Callable[[Numbered], Done], limit: float = crew.LIMIT
) -> int:
    """Run all schedules, print what they have shown, and shrink what violates a rule; return 1 if anything does."""
    began = time.monotonic()
    tally = Tally()
    for done in crew.run_all(_numbered(arguments), work_on, _lost, arguments.processes, limit):
        tally.add(done, arguments.known)
    tally.print(time.monotonic() - began)
    if tally.found and not arguments.no_shrink:
        # What does not end cannot be run to its end again.
        _shrink({rule: where[0][0] for rule, where in tally.found.items() if rule != NO_END})
    print(f"{len(tally.found)} rules were violated" if tally.found else "no rule was violated")
    return 1 if tally.found else 0


def _lost(what: Numbered, why: str) -> Done:
    """Return what counts of a schedule that has not come to an end."""
    return Done(seed=what[0], violations=[(NO_END, 0.0, why)], took=crew.LIMIT)


def _numbered(arguments: argparse.Namespace) -> Iterator[Numbered]:
    for number in range(arguments.seeds):
        is_shown = number < arguments.digests
        yield f"{arguments.seed}.{number}", is_shown, arguments.dump if is_shown else None


def _work_numbered(what: Numbered) -> Done:
    seed, digest, dump = what
    return work(seed, digest=digest, dump=dump)
