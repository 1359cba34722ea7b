"""Which results count: enough pairs, each kept, from a quiet machine that is known, of a commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.comparison import FEWEST
from benchmarks.conditions import BUSY

Row = Mapping[str, Any]


def objections(row: Row) -> list[str]:
    """Return why a result does not count; nothing for one that does."""
    measured, samples = row["measured"], row.get("samples")
    load, commit = measured["load"], measured["commit"]
    return [
        words
        for words, wrong in (
            (f"{row['pairs']} of {FEWEST} pairs", row["pairs"] < FEWEST),
            ("single pairs were not kept", samples is None or "coverage" not in row),
            ("the load was not written down", load is None),
            (f"a load of {load} for each core, where {BUSY} is the most", load is not None and load > BUSY),
            (f"{commit} and changes that are in no commit", commit.endswith("+")),
            ("the machine was not written down", "not written down" in measured["machine"]),
        )
        if wrong
    ]


def valid(results: Mapping[str, Row]) -> dict[str, Row]:
    return {name: row for name, row in results.items() if not objections(row)}
