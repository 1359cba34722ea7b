"""`make mutants MODULES=...`: put faults into modules one at a time, and count those that no test notices."""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.mutants.book import Book, Mutant, Score
from scripts.mutants.judge import ROOT, Bench, JudgeError, Place, Verdict, path_of, place_in

FOLDER = ROOT / ".mutants"
MAKER = ROOT / ".venv-mutants" / "bin" / "python"
MADE = FOLDER / "made"
GENERATOR = Path(__file__).with_name("generate.py")
PAGE = """# Tests that can fail

`make mutants` puts faults into the modules that decide, one fault at a time, and runs the tests of the module
([which tests](../tests/mutants/modules.toml)). A fault is *killed* if a test fails or hangs. At least 90 % of the
faults in each module must be killed. *Explained* faults change nothing that a test could see; each has its reason in
[survivors.toml](../tests/mutants/survivors.toml), and they do not count. If not all faults of a module were tried,
those that were tried are a random sample.

Results of {date}, commit {commit}, written by `.venv/bin/python -m scripts.mutants --table docs/mutants.md`.

| module | faults | tried | killed | explained | survived | score |
| --- | --- | --- | --- | --- | --- | --- |
{rows}

## Survivors without a reason

{survivors}
"""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is tried."""

    until: float
    """End of all tries, on the clock `time.monotonic`."""
    each_s: float
    """Most seconds for one module."""
    sample: int | None
    """Number of mutants of each module, with those that are known; None: all."""


def mutants_of(module: str) -> Iterator[Mutant]:
    """Return the mutants of a module, its path given from the root. Raises CalledProcessError."""
    for line in made(ROOT / path_of(module), MADE).splitlines():
        fields = json.loads(line)
        mutant = Mutant(**{**fields, "lines": tuple(fields["lines"])}, module=module)
        if mutant.is_asked_for:
            yield mutant


def made(path: Path, folder: Path) -> str:
    """Return the mutants of a file as lines of JSON, made when neither it nor the generator is as it was before."""
    rests_on = hashlib.sha256(path.read_bytes() + GENERATOR.read_bytes()).hexdigest()
    kept = folder / f"{'.'.join(path.relative_to(ROOT).parts)}.jsonl"
    if kept.exists():
        first, _, lines = kept.read_text().partition("\n")
        if first == rests_on:
            return lines
    command = [str(MAKER), str(GENERATOR), str(path)]
    lines = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    folder.mkdir(parents=True, exist_ok=True)
    kept.write_text(f"{rests_on}\n{lines}")
    return lines


def try_module(module: str, book: Book, place: Place, effort: Effort) -> Score:
    """Return how many of a module's mutants the tests kill, of those that are tried. Raises JudgeError."""
    mutants = list(mutants_of(module))
    known = {mutant: book.known(mutant) for mutant in mutants}
    # In hash order, so that the part which an interrupted run has tried is a fair sample.
    untried = sorted((mutant for mutant, verdict in known.items() if verdict is None), key=book.key_of)
    if effort.sample is not None:
        untried = untried[: max(effort.sample - (len(mutants) - len(untried)), 0)]
    if untried and time.monotonic() < effort.until:
        bench = Bench(place=place, module=module, tests=book.tests_of(module))
        try:
            known |= dict(try_each(untried, book, bench, min(effort.until, time.monotonic() + effort.each_s)))
        finally:
            bench.end()
    return book.score(module, known)


def try_each(
    mutants: Sequence[Mutant], book: Book, bench: Bench, until: float
) -> Iterator[tuple[Mutant, Verdict]]:
    """Try mutants while there is time, and record their verdicts. Raises JudgeError."""
    begun = time.monotonic()
    for number, mutant in enumerate(mutants, start=1):
        if time.monotonic() > until:
            break
        verdict = bench.judge(mutant.owner, mutant.text, mutant.lines)
        book.note(mutant, verdict)
        yield mutant, verdict
        if number % 25 == 0:
            took = (time.monotonic() - begun) / number
            text = f"{mutant.module}: {number} of {len(mutants)}, {took:.2f} s each"
            print(text, file=sys.stderr, flush=True)


def chosen(names: Sequence[str], modules: Sequence[str]) -> list[str]:
    """Return the modules that are named by their path or the end or a folder of it. Raises ValueError."""
    found: dict[str, None] = {} if names else dict.fromkeys(modules)
    for name in names:
        plain = name.removesuffix(".py").strip("/")
        fits = [
            module
            for module in modules
            if f"/{path_of(module).removesuffix('.py')}".endswith(f"/{plain}") or f"/{plain}/" in f"/{module}"
        ]
        if not fits:
            raise ValueError(
                f"{name}: no module of tests/mutants/modules.toml; there are {', '.join(modules)}"
            )
        found.update(dict.fromkeys(fits))
    return list(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="paths, or ends of paths; all when none is named")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop then; the next run goes on")
    parser.add_argument("--each", type=float, default=float("inf"), help="minutes for each module, at most")
    parser.add_argument("--sample", type=int, help="try so many of each module, with those that are known")
    parser.add_argument("--fresh", action="store_true", help="try also what earlier runs have tried")
    parser.add_argument("--table", type=Path, help="write there what is known of all modules, as Markdown")
    arguments = parser.parse_args()
    until = time.monotonic() + 60 * arguments.minutes
    book = Book(ROOT, FOLDER, fresh=arguments.fresh)
    try:
        modules = chosen(arguments.modules, book.modules)
    except ValueError as error:
        parser.error(str(error))
    if arguments.table:
        arguments.table.write_text(table([known_score(module, book) for module in book.modules]))
        return 0
    effort = Effort(until=until, each_s=60 * arguments.each, sample=arguments.sample)
    with place_in(FOLDER) as place:
        results = [is_good(module, book, place, effort) for module in modules]
    return 0 if all(results) else 1


def known_score(module: str, book: Book) -> Score:
    """Return the score of a module by the verdicts of earlier runs that are still true."""
    return book.score(module, {mutant: book.known(mutant) for mutant in mutants_of(module)})


def table(scores: Sequence[Score]) -> str:
    """Return the page with a line for each module."""
    describe = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    survivors = [f"- `{score.module}`: `` {name} ``" for score in scores for name in score.survivors]
    return PAGE.format(
        rows="\n".join(score.row() for score in scores),
        survivors="\n".join(survivors) or "None.",
        date=today,
        commit=commit,
    )


def is_good(module: str, book: Book, place: Place, effort: Effort) -> bool:
    """Try a module and print its score; return whether that is enough."""
    try:
        score = try_module(module, book, place, effort)
    except JudgeError as error:
        print(error, flush=True)
        return False
    print(score.text(), flush=True)
    return score.is_enough and (effort.sample is not None or not score.untried)


if __name__ == "__main__":
    sys.exit(main())
