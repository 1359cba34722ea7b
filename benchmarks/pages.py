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
from benchmarks.known_rows import known_rows, order

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "performance.md"
PLACE = re.compile(r"(<!-- results: ([a-z]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)

GANGS = 1000
"""That wait in Airflow, in the row `airflow`."""
MOTO = "moto: "
"""How the peer's requests begin in the details of P19."""

Row = Mapping[str, Any]
Results = Mapping[str, Row]


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


def unmeasured(results: Results) -> str:
    """Return the rows that `make bench` knows and that have no result."""
    missing = [(name, row) for name, row in known_rows().items() if name not in results]
    lines = [f"* {name}: {row.title}, beside {row.peer_name}\n" for name, row in missing]
    return "".join(lines) or "None.\n"


def creation(results: Results) -> str:
    """Return how long a gang takes to be created: of each size, with an image, on a bad day, and by ADS."""
    kinds = (("P1", "one run of many nodes"), ("P1b", "a run for each node"))
    cases = ("ours 8", "ours 32", "ours 8, image", "ours 32, image", "ours 32, bad day", "ADS 8", "ADS 32")
    lines = []
    for name, kind in kinds:
        if name in results:
            seconds = results[name]["seconds"]
            lines.append(
                [name, kind, *(f"{seconds[case]:.2f} s" for case in cases), str(results[name]["orphans"])]
            )
    titles = [re.sub(r"(8|32)", r"with \1 nodes", case) for case in cases]
    return table(("row", "as", *titles, "orphans"), lines)


def copies(results: Results) -> str:
    titles = (
        "row",
        "what",
        "condition",
        "ours",
        "floor, and how much of it is reached",
        "`ocifs`/ours",
        "CLI/ours",
        "most memory of ours",
    )
    lines = []
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
            peak = f"{results[name]['peak_mb']} MB"
            lines.append([name, what, condition, f"{seconds['ours']:.1f} s", floor, *others, peak])
    return table(titles, lines)


def components(results: Results) -> str:
    found = results["airflow"]["components"]
    values = {name: (each["before"], each["waiting"]) for name, each in found.items()}
    values["in all"] = tuple(sum(column) for column in zip(*values.values(), strict=True))
    lines = [
        [name, f"{before:.1f}", f"{waiting:.1f}", f"{(waiting - before) * 1024 / GANGS:.0f}"]
        for name, (before, waiting) in values.items()
    ]
    return table(("component", "before, MB", "waiting, MB", "more for each gang, KB"), lines)


def requests(results: Results) -> str:
    """Return what each request costs the emulator, with signature checks and without, and moto's server."""
    titles = ("server", "request", "signatures", "CPU, us", "p99, ms", "a second")
    sides = (("P19", "", "checked, as by default"), ("P19b", "", "not checked"), ("P19", MOTO, "not checked"))
    lines = []
    for row, prefix, signatures in sides:
        for name, each in sorted(results[row]["details"].items()):
            if name.startswith(MOTO) == bool(prefix):
                server = "moto" if prefix else "the emulator"
                cells = [f"{each['cpu_us']:,.0f}", f"{each['p99_ms']:.1f}", f"{each['per_second']:,.0f}"]
                lines.append([server, name.removeprefix(prefix), signatures, *cells])
    return table(titles, lines)


TABLES: Mapping[str, Callable[[Results], str]] = {
    "rows": all_rows,
    "unmeasured": unmeasured,
    "machines": machines,
    "creation": creation,
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
