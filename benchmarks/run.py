"""Run the benchmarks: `python -m benchmarks.run [--rows P0,P7] [--pairs N] [--dirty]`; `make bench` does."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.comparison import FEWEST
from benchmarks.conditions import BUSY, Conditions
from benchmarks.known_rows import known_rows
from benchmarks.pages import ratio_words, verdict, write_pages
from scripts.sweeper import sweep_after_us

RESULTS = Path(__file__).with_name("results.json")
REFUSED = 3
QUIET_WITHIN_S = 300.0
"""How long a row waits for the load of the one before to pass."""
LOOK_S = 5.0


def keep(results: dict[str, dict[str, Any]]) -> None:
    """Write results.json; rows that did not run now stay as they were."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    draft = RESULTS.with_suffix(".draft")
    draft.write_text(json.dumps({**known, **results}, indent=2, sort_keys=True) + "\n")
    draft.replace(RESULTS)


def quiet(within: float) -> Conditions | None:
    """Return the conditions as soon as this machine is quiet; None if it does not become so."""
    deadline = time.monotonic() + within
    while (now := Conditions.now()).busy:
        if time.monotonic() >= deadline:
            return None
        time.sleep(LOOK_S)
    return now


def table(results: dict[str, dict[str, Any]]) -> Table:
    """Return the results as a person reads them."""
    shown = Table(title="medians; the interval is that of the sign test", title_justify="left")
    for title in ("row", "measure", "ours", "peer", "", "ratio", "target", ""):
        shown.add_column(title, overflow="fold")
    for name, row in results.items():
        ours, peer = f"{row['ours']:.4g} {row['unit']}", f"{row['peer']:.4g} {row['unit']}"
        colour = "green" if row["met"] else "red"
        shown.add_row(
            name,
            row["title"],
            ours,
            peer,
            row["peer_name"],
            ratio_words(row),
            row["target"],
            f"[{colour}]{verdict(row)}",
        )
    return shown


def main() -> int:
    # A program that may not keep its bytecode compiles itself at every start: seconds, for the larger peers.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sweep_after_us()
    known = known_rows()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--rows", default=",".join(known), help="names, separated by commas (%(default)s)")
    parser.add_argument(
        "--pairs", type=int, help="how often each side is measured; each row has its own default"
    )
    parser.add_argument(
        "--dirty", action="store_true", help="measure files that are in no commit, and keep no result"
    )
    args = parser.parse_args()
    wanted = args.rows.split(",")
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(known)}")

    if args.pairs is not None and args.pairs < FEWEST:
        parser.error(f"{args.pairs} pairs say nothing: at least {FEWEST}")
    if Conditions.now().dirty and not args.dirty:
        print(
            "files differ from the commit: commit first, or use --dirty, which keeps nothing", file=sys.stderr
        )
        return REFUSED

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a log is as wide as the table
    results: dict[str, dict[str, Any]] = {}
    # What is written here between rows makes the tree differ from its commit: that is the commit of all rows.
    commit = Conditions.now().commit
    for name in wanted:
        row = known[name]
        if lack := row.lacks():
            print(f"this machine has no {lack}: {name} was not measured", file=sys.stderr)
            continue
        began = quiet(QUIET_WITHIN_S)
        if began is None:
            print(
                f"this machine is busy: a load above {BUSY} for each core; {name} was not measured",
                file=sys.stderr,
            )
            return REFUSED
        console.print(f"{name}  {row.title}, beside {row.peer_name}", style="bold")
        samples = row.measure(
            args.pairs or row.pairs, lambda line: console.print(f"  {line}", highlight=False)
        )
        results[name] = {**row.result(samples), "measured": {**began.to_json(), "commit": commit}}
        if not args.dirty:
            keep(results)
            write_pages()
    if not results:
        return REFUSED
    console.print(table(results))
    return 0 if all(row["met"] for row in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
