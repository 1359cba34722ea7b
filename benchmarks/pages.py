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

from benchmarks.known_rows import known_rows, order
from benchmarks.validity import Row, objections, valid

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "performance.md"
PLACE = re.compile(r"(<!-- results: ([a-z]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)

MOTO = "moto: "
"""How the peer's requests begin in the details of P19."""

NOT_VALID = "not measured validly"
NO_INTERVAL = "-"
NONE = "No result that counts has these values.\n"

Results = Mapping[str, Row]


def amount(value: float) -> str:
    """Return three digits that count, without a power of ten."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def times(ratio: float) -> str:
    return f"{amount(ratio)} times"


def peer_won(row: Row) -> int:
    """Return how many pairs the peer has won."""
    pairs = zip(row["samples"]["ours"], row["samples"]["peer"], strict=True)
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
    low, high = row["spread"]["ratio"]
    sure = f"{100 * row['coverage']:.0f} %, {row['pairs']} pairs"
    return f"{amount(row['ratio'])} ({amount(low)} to {amount(high)}, {sure})"


def between(values: Mapping[str, Any] | None, unit: str = "") -> str:
    """Return a median with its interval; a dash for what has none."""
    if values is None:
        return NO_INTERVAL
    low, high = values["interval"]
    return f"{amount(values['median'])}{unit} ({amount(low)} to {amount(high)})"


def verdict(row: Row) -> str:
    return "met" if row["met"] else "**missed**"


def taken(row: Row) -> str:
    measured = row["measured"]
    return f"{measured['date']}, `{measured['commit']}`, load {measured['load']:g}"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def all_rows(results: Results) -> str:
    titles = ("row", "measure", "ours", "peer", "winner", "peer / ours", "target", "measured")
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
    """Return the rows that `make bench` knows and that have no result which counts."""
    lines = [
        f"* {name}: {row.title}, beside {row.peer_name}{_why_not(results.get(name))}\n"
        for name, row in known_rows().items()
        if name not in valid(results)
    ]
    return "".join(lines) or "None.\n"


def _why_not(result: Row | None) -> str:
    return f": {NOT_VALID} ({'; '.join(objections(result))})" if result else ""


def creation(results: Results) -> str:
    """Return how long a gang takes to be created: of each size, with an image, on a bad day, and by ADS."""
    kinds = (("P1", "one run of many nodes"), ("P1b", "a run for each node"))
    cases = ("ours 8", "ours 32", "ours 8, image", "ours 32, image", "ours 32, bad day", "ADS 8", "ADS 32")
    lines = [
        [
            name,
            kind,
            *(between(results[name]["intervals"].get(case), " s") for case in cases),
            str(results[name]["orphans"]),
        ]
        for name, kind in kinds
        if "intervals" in results.get(name, {})
    ]
    titles = [re.sub(r"(8|32)", r"with \1 nodes", case) for case in cases]
    return _table_of_some(("row", "as", *titles, "orphans"), lines)


def copies(results: Results) -> str:
    cells = {
        "ours": ("ours", " s"),
        "floor": ("floor", " s"),
        "ours, process": ("ours, process", " s"),
        "CLI, process": ("cli, process", " s"),
        "floor/ours": ("floor/ours", ""),
        "`ocifs`/ours": ("ocifs/ours", ""),
        "CLI/ours": ("cli/ours", ""),
    }
    titles = ("row", "what", "condition", *cells, "most memory of ours")
    lines = []
    for name, what in (
        ("P8", "512 MiB down"),
        ("P10", "512 MiB up"),
        ("P9", "2,000 x 16 KiB down"),
        ("P9b", "2,000 x 16 KiB up"),
    ):
        for condition, found in results.get(name, {}).get("conditions", {}).items():
            if known := found.get("intervals"):
                values = [between(known.get(each), unit) for each, unit in cells.values()]
                lines.append([name, what, condition, *values, f"{results[name]['peak_mb']} MB"])
    return _table_of_some(titles, lines)


def _table_of_some(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table; a sentence instead where no result that counts has the values of it."""
    return table(titles, lines) if lines else NONE


def components(results: Results) -> str:
    row = results.get("airflow", {"gangs": 0, "components": {}})
    lines = [
        [name, *(between(each[column]) for column in ("before", "waiting", "kb"))]
        for name, each in row["components"].items()
    ]
    titles = ("component", "before, MB", f"{row['gangs']:,} gangs waiting, MB", "more for each gang, KB")
    return _table_of_some(titles, lines)


def requests(results: Results) -> str:
    """Return what each request costs the emulator, with signature checks and without, and moto's server."""
    titles = ("server", "request", "signatures", "CPU, us", "p99, ms", "a second")
    sides = (("P19", "", "checked, as by default"), ("P19b", "", "not checked"), ("P19", MOTO, "not checked"))
    lines = []
    for row, prefix, signatures in sides:
        for name, each in sorted(results.get(row, {}).get("details", {}).items()):
            if name.startswith(MOTO) == bool(prefix):
                server = "moto" if prefix else "the emulator"
                cells = [between(each[column]) for column in ("cpu_us", "p99_ms", "per_second")]
                lines.append([server, name.removeprefix(prefix), signatures, *cells])
    return _table_of_some(titles, lines)


def processor(results: Results) -> str:
    """Return what waiting for a thousand gangs on Kubernetes takes of a processor."""
    row = results.get("P5k", {})
    names = {"ours": "ours", "peer": row.get("peer_name", "")}
    lines = [[names[side], between(each, " s")] for side, each in row.get("cpu_s_a_minute", {}).items()]
    return _table_of_some(("triggerer", "of its processor in a minute"), lines)


def gpu_saves(results: Results) -> str:
    """Return how long each way to save from a GPU stops the training."""
    stalls = results.get("P13g", {}).get("stalls", {})
    return _table_of_some(
        ("512 MiB from a GPU, saved by", "stop the training for"),
        [[name, between(each, " s")] for name, each in stalls.items()],
    )


TABLES: Mapping[str, Callable[[Results], str]] = {
    "rows": all_rows,
    "unmeasured": unmeasured,
    "machines": machines,
    "creation": creation,
    "copies": copies,
    "components": components,
    "requests": requests,
    "processor": processor,
    "gpu": gpu_saves,
}


def written(page: str, results: Results) -> str:
    """Return a page with its tables as the results have them. Raises KeyError for a table that is not known.

    What does not count is in no table but that of what was not measured.
    """
    counted = valid(results)
    return PLACE.sub(
        lambda found: (
            f"{found[1]}{TABLES[found[2]](results if found[2] == 'unmeasured' else counted)}{found[3]}"
        ),
        page,
    )


def write_pages() -> None:
    PAGE.write_text(written(PAGE.read_text(), json.loads(RESULTS.read_text())))


def main() -> int:
    write_pages()
    return 0


if __name__ == "__main__":
    sys.exit(main())
