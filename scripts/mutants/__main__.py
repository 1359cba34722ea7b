"""`make mutants MODULES=...`: put faults into modules one at a time, and count those that no test notices."""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.mutants.book import Book, Mutant, Score
from scripts.mutants.judge import ROOT, Bench, JudgeError, Place, Verdict, path_of, place_in
from scripts.mutants.page import Entries, Entry, Stamp, page_of, read_page

FOLDER = ROOT / ".mutants"
MAKER = ROOT / ".venv-mutants" / "bin" / "python"
MADE = FOLDER / "made"
GENERATOR = Path(__file__).with_name("generate.py")


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is tried, of which state of the repository."""

    until: float
    """End of all tries, on the clock `time.monotonic`."""
    each_s: float
    """Most seconds for one module."""
    sample: int | None
    """Number of mutants of each module, or as many as an earlier run has tried; None: all."""
    stamp: Stamp


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
    """Return how many of a module's mutants the tests kill, of those that are tried; keep it for the page.

    Raises JudgeError.
    """
    mutants = list(mutants_of(module))
    known = {mutant: book.known(mutant) for mutant in mutants}
    # In hash order, so that the part which is tried, or which an interrupted run has tried, is a fair sample.
    order = sorted(mutants, key=book.key_of)
    untried = [mutant for mutant in sampled(order, known, effort.sample) if known[mutant] is None]
    if untried and time.monotonic() < effort.until:
        bench = Bench(place=place, module=module, tests=book.tests_of(module))
        try:
            known |= dict(try_each(untried, book, bench, min(effort.until, time.monotonic() + effort.each_s)))
        finally:
            bench.end()
    elif untried:
        # Of what earlier runs have tried, survivors may not count any more: that would be too good for the page.
        return book.score(module, known)
    fair = set(itertools.takewhile(known.get, order))
    score = book.score(module, {mutant: known[mutant] if mutant in fair else None for mutant in mutants})
    Entries(FOLDER).add(Entry.of(score, effort.stamp))
    return score


def sampled(
    order: Sequence[Mutant], known: Mapping[Mutant, Verdict | None], sample: int | None
) -> Sequence[Mutant]:
    """Return the first so many, but all up to the last that is known; None: all.

    Of a larger sample the killed stay known when their module's tests change, the survivors do not: with these alone
    left out, the score would be too good.
    """
    if sample is None:
        return order
    last = max((number for number, mutant in enumerate(order, start=1) if known[mutant]), default=0)
    return order[: max(sample, last)]


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
    parser.add_argument("--sample", type=int, help="try so many of each module, or as many as before")
    parser.add_argument("--fresh", action="store_true", help="try also what earlier runs have tried")
    parser.add_argument("--table", type=Path, help="write there the last scores of all modules, as Markdown")
    arguments = parser.parse_args()
    until = time.monotonic() + 60 * arguments.minutes
    book = Book(ROOT, FOLDER, fresh=arguments.fresh)
    try:
        modules = chosen(arguments.modules, book.modules)
    except ValueError as error:
        parser.error(str(error))
    if arguments.table:
        arguments.table.write_text(updated(arguments.table, book))
        return 0
    effort = Effort(until=until, each_s=60 * arguments.each, sample=arguments.sample, stamp=stamp_of_now())
    with place_in(FOLDER) as place:
        results = [is_good(module, book, place, effort) for module in modules]
    return 0 if all(results) else 1


def updated(page: Path, book: Book) -> str:
    """Return the page with what the last runs have found; what they have not tried stays as the page has it.

    A module that has lost a line in which a fault had survived is another one: what the page says of it is dropped.
    """
    before = read_page(page.read_text()) if page.exists() else {}
    before = {
        module: entry
        for module, entry in before.items()
        if module in book.modules and _is_of_now(entry, book)
    }
    return page_of(book.modules, Entries(FOLDER).read(), before, reasons=book.reasons)


def _is_of_now(entry: Entry, book: Book) -> bool:
    return all(book.has_lines(entry.module, name) for name in entry.survivors)


def stamp_of_now() -> Stamp:
    """Return the date and the commit, with `+` where the package or the tests are not as committed."""
    commit = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--", "airflow_provider_ocidist", "tests")
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    return Stamp(date=f"{today}", commit=f"{commit}+" if changed else commit)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.strip()


def is_good(module: str, book: Book, place: Place, effort: Effort) -> bool:
    """Try a module and print its score; return whether that is enough, and survivors.toml up to date."""
    try:
        score = try_module(module, book, place, effort)
    except JudgeError as error:
        print(error, flush=True)
        return False
    print(score.text(), flush=True)
    return score.is_enough and not score.stale and (effort.sample is not None or not score.untried)


if __name__ == "__main__":
    sys.exit(main())
