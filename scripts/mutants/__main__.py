"""`make mutants MODULES=...`: put faults into modules one at a time, and count those that no test notices."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.mutants.book import Book, Mutant, Score
from scripts.mutants.judge import ROOT, Judge, JudgeError, copy_tree, path_of

FOLDER = ROOT / ".mutants"
MAKER = ROOT / ".venv-mutants" / "bin" / "python"
PAGE = """# Tests that can fail

`make mutants` puts faults into the modules that decide, one at a time, and runs the tests that judge the module
([which](../tests/mutants/modules.toml)). At least 90 % of the faults in each are to be noticed. *Explained* are those
that change nothing that a test could see, each with its reason in
[survivors.toml](../tests/mutants/survivors.toml); they do not count. A fault is *killed* when a test fails or hangs.

Known on {date} at commit {commit}; written by `.venv/bin/python -m scripts.mutants --table docs/mutants.md`.

| module | faults | killed | explained | survived | score |
| --- | --- | --- | --- | --- | --- |
{rows}
"""


def mutants_of(module: str) -> Iterator[Mutant]:
    """Return the mutants of a module, its path given from the root. Raises CalledProcessError."""
    command = [str(MAKER), str(Path(__file__).with_name("generate.py")), str(ROOT / path_of(module))]
    made = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    for line in made.splitlines():
        fields = json.loads(line)
        mutant = Mutant(**{**fields, "lines": tuple(fields["lines"])}, module=module)
        if mutant.is_asked_for:
            yield mutant


def try_module(module: str, book: Book, judge: Judge, until: float, each: float) -> Score:
    """Return how many of a module's mutants the tests kill, of those that are tried in time. Raises JudgeError.

    `until`: of the monotonic clock; `each`: seconds for the mutants of this module.
    """
    mutants = list(mutants_of(module))
    known = {mutant: book.known(mutant) for mutant in mutants}
    # In an order that says nothing, so that the part which an interrupted run has tried is a fair sample.
    untried = sorted((mutant for mutant, verdict in known.items() if verdict is None), key=book.key_of)
    if untried and time.monotonic() < until:
        base = judge.baseline(module, book.tests_of(module))
        until = min(until, time.monotonic() + each)
        for number, mutant in enumerate(untried, start=1):
            if time.monotonic() > until:
                break
            verdict = judge.judge(module, mutant.text, mutant.lines, book.tests_of(module), base)
            book.note(mutant, verdict)
            known[mutant] = verdict
            if number % 25 == 0:
                print(f"{module}: {number} of {len(untried)}", file=sys.stderr, flush=True)
    return book.score(module, known)


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
    tree = FOLDER / f"tree-{os.getpid()}"
    try:
        copy_tree(tree)
        judge = Judge(tree=tree, log=FOLDER / f"pytest-{os.getpid()}.log")
        results = [is_good(module, book, judge, until, 60 * arguments.each) for module in modules]
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    return 0 if all(results) else 1


def known_score(module: str, book: Book) -> Score:
    """Return the score of a module by the verdicts of earlier runs that are still true."""
    return book.score(module, {mutant: book.known(mutant) for mutant in mutants_of(module)})


def table(scores: Sequence[Score]) -> str:
    """Return the page with a line for each module."""
    describe = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()
    today = dt.datetime.now(tz=dt.timezone.utc).date()
    return PAGE.format(rows="\n".join(score.row() for score in scores), date=today, commit=commit)


def is_good(module: str, book: Book, judge: Judge, until: float, each: float) -> bool:
    """Try a module and print its score; return whether that is enough."""
    try:
        score = try_module(module, book, judge, until, each)
    except JudgeError as error:
        print(error, flush=True)
        return False
    print(score.text(), flush=True)
    return score.is_enough


if __name__ == "__main__":
    sys.exit(main())
