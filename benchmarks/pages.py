"""Write what results.json holds into docs/performance.md: `python -m benchmarks.pages`; `make bench` does at its end.

A table stands between `<!-- results: NAME -->` and `<!-- end of results -->`; nothing there is written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison import FEWEST

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "performance.md"
PLACE = re.compile(r"(<!-- results: ([a-z]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)

Row = Mapping[str, Any]
Results = Mapping[str, Row]


def order(name: str) -> tuple[int, int, str]:
    """Return where a row stands: the numbered ones first, by their number."""
    found = re.fullmatch(r"P(\d+)[a-z]?", name)
    return (0, int(found[1]), name) if found else (1, 0, name)


def amount(value: float) -> str:
    """Return three digits that count, without a power of ten."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def times(ratio: float) -> str:
    return f"{amount(ratio)} times"


def peer_won(row: Row) -> int | None:
    """Return how many pairs the peer has won; None where single pairs were not kept."""
    samples = row.get("samples")
    if samples is None:
        return None
    pairs = zip(samples["ours"], samples["peer"], strict=True)
    return len([1 for ours, theirs in pairs if theirs < ours])


def winner(row: Row) -> str:
    """Return who took less, and how much less."""
    ratio = row["ratio"]
    won = peer_won(row)
    some = f"; the peer won {won} of {row['pairs']} pairs" if won else ""
    if ratio < 1:
        return f"**the peer**, {times(1 / ratio)}{some}"
    return f"ours, {times(ratio)}{some}"


def ratio_words(row: Row) -> str:
    """Return what the peer took of what ours took, and how sure that is."""
    spread = row["spread"]["ratio"]
    middle = amount(row["ratio"])
    if row["pairs"] == 1:
        return f"{middle}, one pair"
    if spread is None:
        return f"{middle}, of medians"
    between = f"{middle} ({amount(spread[0])} to {amount(spread[1])}"
    if row["pairs"] < FEWEST:
        return f"{between}, all of {row['pairs']} pairs)"
    if "coverage" in row:
        return f"{between}, {100 * row['coverage']:.0f} %, {row['pairs']} pairs)"
    return f"{between}, bootstrap, {row['pairs']} pairs)"


def verdict(row: Row) -> str:
    """Return whether the target is met, as far as so many pairs can say."""
    words = "met" if row["met"] else "**missed**"
    return words if row["pairs"] >= FEWEST else f"{words}, as far as {row['pairs']} of {FEWEST} pairs can say"


def taken(row: Row) -> str:
    measured = row["measured"]
    load = "" if measured["load"] is None else f", load {measured['load']:g}"
    return f"{measured['date']}, `{measured['commit']}`{load}"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def all_rows(results: Results) -> str:
    titles = ("row", "measure", "ours", "peer", "less is", "peer / ours", "target", "measured")
    return table(
        titles,
        [
            [
                name,
                row["title"],
                f"{amount(row['ours'])} {row['unit']}",
                f"{row['peer_name']}: {amount(row['peer'])} {row['unit']}",
                winner(row),
                ratio_words(row),
                f"{row['target']}: {verdict(row)}",
                taken(row),
            ]
            for name, row in sorted(results.items(), key=lambda item: order(item[0]))
        ],
    )


def machines(results: Results) -> str:
    """Return which rows were measured on which machine."""
    found: dict[str, list[str]] = {}
    for name in sorted(results, key=order):
        found.setdefault(results[name]["measured"]["machine"], []).append(name)
    return "".join(f"* {machine}: {', '.join(names)}\n" for machine, names in found.items())


def copies(results: Results) -> str:
    titles = (
        "row",
        "what",
        "condition",
        "ours",
        "floor, and how much of it is reached",
        "`ocifs`/ours",
        "CLI/ours",
    )
    rows = []
    for name, what in (
        ("P8", "512 MiB down"),
        ("P10", "512 MiB up"),
        ("P9", "2,000 x 16 KiB down"),
        ("P9b", "2,000 x 16 KiB up"),
    ):
        for condition, found in results[name]["conditions"].items():
            seconds = found["seconds"]
            floor = f"{seconds['floor']:.1f} s, {found['percent_of_floor']} %"
            others = [f"{found[other]:.1f}" for other in ("ocifs/ours", "cli/ours")]
            rows.append([name, what, condition, f"{seconds['ours']:.1f} s", floor, *others])
    return table(titles, rows)


def components(results: Results) -> str:
    found = results["airflow"]["components"]
    rows = [[name, f"{each['before']:.1f}", f"{each['waiting']:.1f}"] for name, each in found.items()]
    sums = [f"{sum(each[when] for each in found.values()):.1f}" for when in ("before", "waiting")]
    return table(("component", "before", "waiting"), [*rows, ["in all", *sums]])


def requests(results: Results) -> str:
    """Return what each request costs the emulator, with signature checks and without."""
    titles = ("request", "signatures", "CPU, us", "p99, ms", "a second")
    kinds = (("P19", "checked, as by default"), ("P19b", "not checked"))
    rows = []
    for row, kind in kinds:
        for name, each in sorted(results[row]["details"].items()):
            if not name.startswith("moto: "):
                cells = [f"{each['cpu_us']:.0f}", f"{each['p99_ms']:.1f}", f"{each['per_second']:,.0f}"]
                rows.append([name, kind, *cells])
    return table(titles, rows)


TABLES: Mapping[str, Callable[[Results], str]] = {
    "rows": all_rows,
    "machines": machines,
    "copies": copies,
    "components": components,
    "requests": requests,
}


def written(page: str, results: Results) -> str:
    """Return a page with its tables as the results have them. Raises KeyError for a table that is not known."""
    return PLACE.sub(lambda found: f"{found[1]}{TABLES[found[2]](results)}{found[3]}", page)


def write_pages() -> None:
    PAGE.write_text(written(PAGE.read_text(), json.loads(RESULTS.read_text())))


def main() -> int:
    write_pages()
    return 0


if __name__ == "__main__":
    sys.exit(main())
