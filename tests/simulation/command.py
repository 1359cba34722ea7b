"""The command line: campaigns, single seeds, shrinking."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shlex
import time
from collections import Counter
from pathlib import Path
from typing import Any

LINES = 60
"""Of a trace that are shown of each shrunk schedule."""


def main() -> int:
    arguments = _arguments()
    os.environ.setdefault("AIRFLOW_HOME", f"/tmp/ocidist-simulation-airflow-{os.getuid()}")
    os.environ.setdefault("AIRFLOW__CORE__UNIT_TEST_MODE", "False")
    if arguments.one is not None and arguments.shrink:
        _shrink({arguments.shrink: arguments.one})
        return 0
    if arguments.one is not None or arguments.recipe is not None:
        return _one(arguments)
    if arguments.mutants:
        from tests.simulation.mutants import run_all

        return run_all(arguments.seeds, arguments.seed, arguments.only)
    if arguments.hashes:
        return _hashes(arguments)
    return _campaign(arguments)


def _shrink(seeds: dict[str, str]) -> None:
    from tests.simulation.shrink import shrink

    for rule, seed in seeds.items():
        recipe, smallest = shrink(seed, rule)
        print(f"\nthe smallest schedule found that violates {rule!r}, from seed {seed}:")
        print("\n".join(smallest.trace[-LINES:]))
        print(f"faults that it needs: {', '.join(smallest.fired) or 'none'}; trace {smallest.trace_hash}")
        print(f"again: python -m tests.simulation --recipe {shlex.quote(recipe.to_json())}")


def _hashes(arguments: argparse.Namespace) -> int:
    from tests.simulation.schedule import run

    for number in range(arguments.seeds):
        seed = f"{arguments.seed}.{number}"
        outcome = run(seed, keep_trace=bool(arguments.dump))
        print(seed, outcome.trace_hash)
        if arguments.dump:
            Path(arguments.dump).mkdir(parents=True, exist_ok=True)
            (Path(arguments.dump) / seed).write_text("\n".join(outcome.trace))
    return 0


def _arguments() -> argparse.Namespace:
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
    parser.add_argument("--hashes", action="store_true", help="print the hash of each schedule's trace")
    parser.add_argument("--dump", help="with --hashes: the folder that the traces are written to")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2)
    parser.add_argument(
        "--known", default="", help="regular expression: violations that are known, and not counted"
    )
    parser.add_argument("--until", default="", help="regular expression: stop at the first such violation")
    parser.add_argument("--mutants", action="store_true", help="put each known defect back, and look for it")
    parser.add_argument("--only", default="", help="regular expression: which mutants")
    return parser.parse_args()


def _one(arguments: argparse.Namespace) -> int:
    import faulthandler

    faulthandler.dump_traceback_later(20, exit=True)
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


def work(seed: str) -> Any:
    import signal

    from tests.simulation.paths import EVERY, differences
    from tests.simulation.schedule import run

    def too_long(*_: Any) -> None:
        import os

        print(f"seed {seed} does not end", flush=True)
        os._exit(9)

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    try:
        outcome = run(seed)
        if int(seed.rpartition(".")[2]) % EVERY == 0:
            found, others = differences(seed)
            outcome.violations.extend(found)
            outcome.took += sum(other.took for other in others)
    except Exception as error:
        import traceback

        return (
            seed,
            [("simulator", 0.0, f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}")],
            Counter(),
            "?",
            0.0,
            0.0,
            0,
        )
    return (
        seed,
        outcome.violations,
        outcome.kinds,
        outcome.state,
        outcome.seconds,
        outcome.took,
        outcome.calls,
    )


def _campaign(arguments: argparse.Namespace) -> int:
    from tests.simulation import seams

    seams.install()
    seeds = [f"{arguments.seed}.{number}" for number in range(arguments.seeds)]
    began = time.monotonic()
    kinds: Counter[str] = Counter()
    struck: Counter[str] = Counter()
    states: Counter[str] = Counter()
    found: dict[str, list[tuple[str, str]]] = {}
    virtual, slowest, calls = 0.0, (0.0, ""), 0
    done = 0
    context = multiprocessing.get_context("fork")
    with context.Pool(arguments.processes, maxtasksperchild=400) as pool:
        for seed, violations, faults, state, seconds, took, made in pool.imap_unordered(
            work, seeds, chunksize=8
        ):
            kinds.update(faults)
            struck.update(set(faults))
            states[state] += 1
            virtual += seconds
            calls += made
            slowest = max(slowest, (took, seed))
            done += 1
            for rule, _, text in violations:
                if arguments.known and re.search(arguments.known, f"{rule}: {text}"):
                    continue
                found.setdefault(rule, []).append((seed, text))
                if arguments.until and re.search(arguments.until, f"{rule}: {text}"):
                    print(f"FOUND after {done} schedules: {rule} (seed {seed})", flush=True)
                    break
    took = time.monotonic() - began
    print(
        f"{len(seeds)} schedules in {took:.1f} s: {len(seeds) / took * 60:.0f} a minute; {virtual / 3600:.0f} h of the "
        f"world, {calls} requests; slowest {slowest[0]:.2f} s ({slowest[1]})"
    )
    print("tasks: " + ", ".join(f"{count} {state}" for state, count in states.most_common()))
    print("faults (schedules that met them; how often in all):")
    for kind, count in struck.most_common():
        print(f"  {kind:<28} {count:>6} {kinds[kind]:>8}")
    for rule, where in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"VIOLATED {rule}: {len({seed for seed, _ in where})} schedules")
        for seed, text in where[:3]:
            print(f"    seed {seed}: {text}")
    if found and not arguments.no_shrink:
        _shrink({rule: where[0][0] for rule, where in found.items()})
    print("no rule was violated" if not found else f"{len(found)} rules were violated")
    return 1 if found else 0
