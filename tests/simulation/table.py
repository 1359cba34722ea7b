"""`python -m tests.simulation.table PRINTED`: put what `make simulate-mutants` has printed into its page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.simulation.mutants import MUTANTS

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"
HEAD = ("| defect | point | circumstance | found after | by |", "| --- | --- | --- | --- | --- |")


def rows_of(printed: str) -> list[str]:
    """Return the last row of each mutant that was printed, in the order of the mutants."""
    rows = {
        line.split(" | ")[0].removeprefix("| "): line for line in printed.splitlines() if line[:2] == "| "
    }
    return [rows[mutant.name] for mutant in MUTANTS if mutant.name in rows]


def with_rows(page: str, rows: Sequence[str]) -> str:
    """Return the page with these rows in its first table of defects."""
    before, _, rest = page.partition("\n".join(HEAD))
    _, _, after = rest.partition("\n\n")
    return before + "\n".join((*HEAD, *rows)) + "\n\n" + after


if __name__ == "__main__":
    found = rows_of(Path(sys.argv[1]).read_text())
    PAGE.write_text(with_rows(PAGE.read_text(), found))
    print(f"{len(found)} of {len(MUTANTS)} mutants are in {PAGE.name}")
