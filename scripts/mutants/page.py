"""The page of scores: a line for each module, with the date and the commit of the run that the line is of."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.mutants.book import Score

PAGE = """# Tests that can fail

`make mutants` puts faults into the modules that decide, one fault at a time, and runs the tests of the module
([which tests](../tests/mutants/modules.toml)). A fault is *killed* if a test fails or hangs. At least 90 % of the
faults in each module must be killed. *Explained* faults change nothing that a test could see; each has its reason in
[survivors.toml](../tests/mutants/survivors.toml), and they do not count. If not all faults of a module were tried,
those that were tried are a random sample.

Each line is as of its own date and commit, the state of the repository that was tried (`+`: with changes that were not
committed yet). `.ci/nightly` writes the page (`.venv/bin/python -m scripts.mutants --table docs/mutants.md`); it keeps
the lines of modules that were not tried since. Such a line is of the module as it was then: code that
is in another module now, and survivors that have their reason by now, still count in it.

| module | faults | tried | killed | explained | survived | score | date | commit |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

## Survivors without a reason

{survivors}
"""
_ROW = re.compile(
    r"^\| `(?P<module>[^`]+)` \|.*\| (?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2}|) \| [^|]* \|$", re.MULTILINE
)
_SURVIVOR = re.compile(r"^- `(?P<module>[^`]+)`: `` (?P<name>.*) ``$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """The state of the repository that was tried."""

    date: str
    commit: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the page says of one module."""

    module: str
    row: str
    date: str = ""
    """Date of the run, as `2026-11-26`; empty: it was not tried."""
    survivors: tuple[str, ...] = ()

    @classmethod
    def of(cls, score: Score, stamp: Stamp) -> Entry:
        row = f"{score.row()} {stamp.date} | {stamp.commit} |"
        return cls(module=score.module, row=row, date=stamp.date, survivors=tuple(score.survivors))

    @classmethod
    def untried(cls, module: str) -> Entry:
        return cls(module=module, row=f"| `{module}` |  | 0 |  |  |  |  |  |  |")


def read_page(text: str) -> dict[str, Entry]:
    """Return what a page says, by module."""
    survivors: dict[str, list[str]] = {}
    for found in _SURVIVOR.finditer(text):
        survivors.setdefault(found["module"], []).append(found["name"])
    return {
        found["module"]: Entry(
            module=found["module"],
            row=found[0],
            date=found["date"],
            survivors=tuple(survivors.get(found["module"], ())),
        )
        for found in _ROW.finditer(text)
    }


def page_of(modules: Sequence[str], *known: Mapping[str, Entry]) -> str:
    """Return the page of these modules with the newest entry of each; of entries of one day, the first."""
    entries = [
        max((each[module] for each in known if module in each), key=_date, default=Entry.untried(module))
        for module in modules
    ]
    survivors = [line for entry in entries for line in _survivors(entry)]
    return PAGE.format(
        rows="\n".join(entry.row for entry in entries), survivors="\n".join(survivors) or "None."
    )


def _survivors(entry: Entry) -> list[str]:
    count = entry.row.split("|")[6].strip()
    if count not in ("", "0") and not entry.survivors:
        return [f"- `{entry.module}`: {count}, whose names that run has not kept"]
    return [f"- `{entry.module}`: `` {name} ``" for name in entry.survivors]


def _date(entry: Entry) -> str:
    return entry.date


class Entries:
    """The entries that earlier runs have kept in a folder, the last of each module."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "scores.jsonl"

    def add(self, entry: Entry) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(entry)) + "\n")

    def read(self) -> dict[str, Entry]:
        if not self._path.exists():
            return {}
        kept = [json.loads(line) for line in self._path.read_text().splitlines()]
        return {each["module"]: Entry(**{**each, "survivors": tuple(each["survivors"])}) for each in kept}
