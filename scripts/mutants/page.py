"""The page of scores: what the last run of each module has found, the worst first, and each module by its package."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path

from scripts.mutants.book import LEAST_PERCENT, Score

PACKAGE = "airflow_provider_ocidist/"
"""Folder of all modules; the page leaves it out."""
WIDTH = 119
"""Most characters in a line of text."""
PAGE = """# Tests that can fail

`make mutants` puts faults into the modules that decide, one fault at a time, and runs the tests of the module
([which tests](../tests/mutants/modules.toml)). A fault is *killed* if a test fails or hangs. At least {least} % of the
faults in each module must be killed. *Explained* faults change nothing that a test could see; each has its reason in
[survivors.toml](../tests/mutants/survivors.toml), and they do not count.

{summary}

Where not all faults of a module were tried, those that were are a random sample. The smaller it is, the less a score
says: a sample of 30 without a survivor leaves up to 10 % of all faults possible, one of 45 up to 7 % (at 95 %).

Each line is as of its own date and commit, the state of the repository that was tried (`+`: with changes that were not
committed yet). `.ci/nightly` writes the page (`.venv/bin/python -m scripts.mutants --table docs/mutants.md`); what was
not tried since stays as it is.

## Survivors without a reason

{survivors}

## All modules

Paths are below `{package}`; `::` names a class or function of a module.
{tables}"""
_HEAD = """
### {name}

| module | score | faults | tried | killed | explained | survived | as of |
| --- | --: | --: | --: | --: | --: | --: | --- |
"""
_ROW = re.compile(
    r"^\| `(?P<module>[^`]+)` \| [0-9.]+ % \| (?P<faults>[0-9]+) \| (?P<tried>[0-9]+|all) \| (?P<killed>[0-9]+)"
    r" \| (?P<explained>[0-9]+) \| (?P<survived>[0-9]+) \| (?P<date>[0-9-]{10}), (?P<commit>[^ ]+) \|$",
    re.MULTILINE,
)
_SURVIVOR = re.compile(r"^### `(?P<module>[^`]+)`|^- `` (?P<name>.*) ``$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """The state of the repository that was tried."""

    date: str
    commit: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What the page says of one module."""

    module: str
    faults: int
    """Number of all faults, tried or not."""
    killed: int
    explained: int
    survivors: tuple[str, ...]
    date: str
    """Date of the run, as `2026-11-26`."""
    commit: str

    @classmethod
    def of(cls, score: Score, stamp: Stamp) -> Entry:
        killed, survivors = score.killed + score.hung, tuple(score.survivors)
        return cls(
            module=score.module,
            faults=killed + score.explained + len(survivors) + score.untried,
            killed=killed,
            explained=score.explained,
            survivors=survivors,
            **asdict(stamp),
        )

    @property
    def tried(self) -> int:
        return self.killed + self.explained + len(self.survivors)

    @property
    def percent(self) -> float:
        judged = self.killed + len(self.survivors)
        return 100 * self.killed / judged if judged else 0

    def with_reasons(self, explained: Collection[str]) -> Entry:
        """Return the entry where these survivors have a reason by now."""
        left = tuple(name for name in self.survivors if name not in explained)
        return replace(self, survivors=left, explained=self.explained + len(self.survivors) - len(left))

    @property
    def row(self) -> str:
        tried = "all" if self.tried == self.faults else self.tried
        counts = (self.faults, tried, self.killed, self.explained, len(self.survivors))
        cells = [f"`{_short(self.module)}`", f"{self.percent:.1f} %", *map(str, counts)]
        return f"| {' | '.join(cells)} | {self.date}, {self.commit} |"


def read_page(text: str) -> dict[str, Entry]:
    """Return what a page says of each module that was tried.

    A module whose survivors the page does not name is as one that was not tried: nobody could look at them.
    """
    survivors = _named(text)
    entries: dict[str, Entry] = {}
    for found in _ROW.finditer(text):
        module = PACKAGE + found["module"]
        names = survivors.get(module, ())
        if len(names) == int(found["survived"]):
            entries[module] = Entry(
                module=module,
                faults=int(found["faults"]),
                killed=int(found["killed"]),
                explained=int(found["explained"]),
                survivors=tuple(names),
                date=found["date"],
                commit=found["commit"],
            )
    return entries


def _named(text: str) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    module = ""
    for found in _SURVIVOR.finditer(text):
        if found["module"]:
            module = PACKAGE + found["module"]
        else:
            names.setdefault(module, []).append(found["name"])
    return names


def page_of(
    modules: Sequence[str],
    *known: Mapping[str, Entry],
    reasons: Collection[tuple[str, str]] = (),
) -> str:
    """Return the page of these modules with the newest entry of each; of entries of one day, the first.

    `reasons`: the modules and names of survivors that have a reason by now.
    """
    entries: dict[str, Entry] = {}
    for module in modules:
        if found := [each[module] for each in known if module in each]:
            explained = {name for where, name in reasons if where == module}
            entries[module] = max(found, key=_date).with_reasons(explained)
    untried = [module for module in modules if module not in entries]
    return PAGE.format(
        least=LEAST_PERCENT,
        summary=_summary(list(entries.values()), len(modules)),
        survivors="\n\n".join(map(_survivors, _worst_first(entries.values()))) or "None.",
        package=PACKAGE,
        tables="\n".join(_table(*each) for each in _by_package(entries)) + _not_tried(untried),
    )


def _summary(entries: Sequence[Entry], modules: int) -> str:
    killed, left = sum(each.killed for each in entries), sum(len(each.survivors) for each in entries)
    tried, faults = sum(each.tried for each in entries), sum(each.faults for each in entries)
    if not tried:
        return f"None of {modules} modules was tried."
    whole = sum(each.tried == each.faults for each in entries)
    low = sum(each.percent < LEAST_PERCENT for each in entries)
    below = f"{low} of these modules below {LEAST_PERCENT} %" if low else f"no module below {LEAST_PERCENT} %"
    text = (
        f"**{100 * killed / (killed + left):.1f} %** of {killed + left} faults in {len(entries)} of {modules} modules "
        f"are killed, with {below}. {left} survive without a reason, {tried - killed - left} with one. "
        f"Of {faults} faults {tried} were tried: all of {whole} modules, and a sample of the others."
    )
    return textwrap.fill(text, width=WIDTH)


def _worst_first(entries: Iterable[Entry]) -> list[Entry]:
    return sorted((each for each in entries if each.survivors), key=lambda each: (each.percent, each.module))


def _survivors(entry: Entry) -> str:
    of = "all" if entry.tried == entry.faults else f"a sample of {entry.tried} of"
    head = f"### `{_short(entry.module)}`: {entry.percent:.1f} % of {of} {entry.faults}\n"
    return "\n".join([head, *(f"- `` {name} ``" for name in entry.survivors)])


def _by_package(entries: Mapping[str, Entry]) -> list[tuple[str, list[Entry]]]:
    """Return the entries of each package, in the order of their paths."""
    in_order = sorted(entries.values(), key=lambda each: (_package(each.module), each.module))
    return [(name, list(of)) for name, of in groupby(in_order, key=lambda each: _package(each.module))]


def _package(module: str) -> str:
    return _short(module).partition("/")[0]


def _table(package: str, entries: Sequence[Entry]) -> str:
    return _HEAD.format(name=package) + "\n".join(entry.row for entry in entries)


def _not_tried(modules: Sequence[str]) -> str:
    if not modules:
        return "\n"
    return "\n\nNot tried as they are now: " + ", ".join(f"`{_short(module)}`" for module in modules) + ".\n"


def _short(module: str) -> str:
    return module.removeprefix(PACKAGE)


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
        # Lines of November 2026 have the row of the page as it was then.
        return {
            each["module"]: Entry(**{**each, "survivors": tuple(each["survivors"])})
            for each in kept
            if "row" not in each
        }
