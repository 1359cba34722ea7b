"""Run the benchmarks: `python -m benchmarks.run [--rows P0,P7] [--pairs N]`; `make bench` does."""

from __future__ import annotations

import argparse
import json
import os
import sys
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


def keep(results: dict[str, dict[str, Any]]) -> None:
    """Write results.json; rows that did not run now stay as they were."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    draft = RESULTS.with_suffix(".draft")
    draft.write_text(json.dumps({**known, **results}, indent=2, sort_keys=True) + "\n")
    draft.replace(RESULTS)


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
    args = parser.parse_args()
    wanted = args.rows.split(",")
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(known)}")

    if args.pairs is not None and args.pairs < FEWEST:
        parser.error(f"{args.pairs} pairs say nothing: at least {FEWEST}")
    if (conditions := Conditions.now()).busy:
        print(
            f"this machine is busy: a load of {conditions.load} for each core, where {BUSY} is the most",
            file=sys.stderr,
        )
        return REFUSED

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a log is as wide as the table
    results = {}
    for name in wanted:
        row, began = known[name], Conditions.now()
        console.print(f"{name}  {row.title}, beside {row.peer_name}", style="bold")
        samples = row.measure(
            args.pairs or row.pairs, lambda line: console.print(f"  {line}", highlight=False)
        )
        results[name] = {**row.result(samples), "measured": began.to_json()}
        keep(results)
        write_pages()
    console.print(table(results))
    return 0 if all(row["met"] for row in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
