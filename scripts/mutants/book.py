"""The records of mutants: which tests judge a module, why some survive, the verdicts of earlier runs."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scripts.mutants.judge import Verdict, path_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LEAST_PERCENT = 90
"""Share of the tried mutants, in per cent, that the tests of a module must kill."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A module with one change."""

    module: str
    owner: str
    """Function or class that is changed."""
    change: str
    """`removed lines -> added lines`."""
    lines: tuple[int, int]
    text: str

    @property
    def name(self) -> str:
        return f"{self.owner}: {self.change}"

    @property
    def is_asked_for(self) -> bool:
        """Whether it is in the part of its file that is judged."""
        return self.owner.startswith(self.module.partition("::")[2])


@dataclass(frozen=True, kw_only=True)
class Score:
    """How many mutants of a module the tests have killed."""

    module: str
    killed: int
    hung: int
    explained: int
    survivors: list[str]
    untried: int
    needless: list[str]
    """Mutants that are listed as explained, though tests kill them."""
    stale: list[str]
    """Mutants that are listed as explained, and that do not exist (any more)."""

    @property
    def percent(self) -> float:
        judged = self.killed + self.hung + len(self.survivors)
        return 100 * (self.killed + self.hung) / judged if judged else 0

    @property
    def is_enough(self) -> bool:
        """Whether so many are killed of those that were tried."""
        return self.percent >= LEAST_PERCENT

    def text(self) -> str:
        counts = f"{self.killed} killed, {self.hung} hung, {len(self.survivors)} survived"
        counts += f", {self.explained} explained" if self.explained else ""
        counts += f", {self.untried} not tried" if self.untried else ""
        lines = [f"{self.module}: {self.percent:.1f} % ({counts})"]
        lines += [f"  survived  {name}" for name in self.survivors]
        lines += [f"  not needed in survivors.toml  {name}" for name in self.needless]
        lines += [f"  no such mutant, in survivors.toml  {name}" for name in self.stale]
        return "\n".join(lines)


class Book:
    """Reads tests/mutants/*.toml; keeps verdicts in a folder."""

    def __init__(self, root: Path, folder: Path, *, fresh: bool = False) -> None:
        """`fresh`: verdicts of earlier runs do not count."""
        self._root = root
        self._verdicts_path = folder / "verdicts.jsonl"
        folder.mkdir(exist_ok=True)
        kept = root / "tests" / "mutants"
        self._tests = tomllib.loads((kept / "modules.toml").read_text())["modules"]
        listed = tomllib.loads((kept / "survivors.toml").read_text()).get("survivor", [])
        self._reasons = {(item["module"], item["mutation"]): item["reason"] for item in listed}
        self._verdicts = {} if fresh else self._read()

    @property
    def modules(self) -> list[str]:
        return list(self._tests)

    @property
    def reasons(self) -> Collection[tuple[str, str]]:
        """The modules and names of the mutants that may survive."""
        return self._reasons.keys()

    def has_lines(self, module: str, mutation: str) -> bool:
        """Whether a module has the lines that a mutant of this name changes."""
        return has_lines(self._root, module, mutation)

    def tests_of(self, module: str) -> list[str]:
        return list(self._tests[module])

    def known(self, mutant: Mutant) -> Verdict | None:
        """Return the verdict of an earlier run, while it must still be true.

        A survivor survives until a test or the module changes, a killed mutant is dead until the test that failed does.
        """
        kept = self._verdicts.get(_key(mutant))
        if kept is None:
            return None
        verdict = Verdict(outcome=kept["outcome"], test=kept["test"])
        return verdict if kept["because"] == self._because(mutant, verdict) else None

    def key_of(self, mutant: Mutant) -> str:
        return _key(mutant)

    def note(self, mutant: Mutant, verdict: Verdict) -> None:
        line = {"key": _key(mutant), "outcome": verdict.outcome, "test": verdict.test}
        line["because"] = self._because(mutant, verdict)
        with self._verdicts_path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def score(self, module: str, known: Mapping[Mutant, Verdict | None]) -> Score:
        outcomes = [verdict.outcome if verdict else "untried" for verdict in known.values()]
        survived = [m.name for m, verdict in known.items() if verdict and verdict.outcome == "survived"]
        may_survive = {m.name for m, verdict in known.items() if not verdict or verdict.outcome == "survived"}
        names = {mutant.name for mutant in known}
        listed = {mutation for where, mutation in self._reasons if where == module}
        return Score(
            module=module,
            killed=outcomes.count("killed"),
            hung=outcomes.count("hung"),
            explained=sum(name in listed for name in survived),
            survivors=[name for name in survived if name not in listed],
            untried=outcomes.count("untried"),
            needless=sorted((listed & names) - may_survive),
            stale=sorted(listed - names),
        )

    def _because(self, mutant: Mutant, verdict: Verdict) -> str:
        if verdict.outcome == "killed" and verdict.test:
            path, _, test = verdict.test.partition("::")
            return self._sources_of(path).get(test.partition("[")[0].rpartition("::")[2], "")
        return "" if verdict.outcome != "survived" else self._all_sources[mutant.module]

    @cached_property
    def _all_sources(self) -> dict[str, str]:
        return {
            module: _hash("".join(_hash(path.read_text()) for name in tests for path in self._files(name)))
            for module, tests in self._tests.items()
        }

    def _files(self, name: str) -> list[Path]:
        path = self._root / name.partition("::")[0]
        return sorted(path.glob("**/test_*.py")) if path.is_dir() else [path]

    def _sources_of(self, path: str) -> dict[str, str]:
        """Return a hash of each test in a file by its name."""
        if path not in self._functions:
            file = self._root / path
            tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
            self._functions[path] = {
                node.name: _hash(ast.dump(node))
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        return self._functions[path]

    @cached_property
    def _functions(self) -> dict[str, dict[str, str]]:
        return {}

    def _read(self) -> dict[str, dict[str, str]]:
        if not self._verdicts_path.exists():
            return {}
        lines = map(json.loads, self._verdicts_path.read_text().splitlines())
        return {line["key"]: line for line in lines}


def _key(mutant: Mutant) -> str:
    return _hash(f"{path_of(mutant.module)}\0{mutant.text}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def has_lines(root: Path, module: str, mutation: str) -> bool:
    """Whether a module has the lines that a mutant changes; the name of a mutant is `owner: change`."""
    owner, _, change = mutation.partition(": ")
    lines = _lines_of(root / path_of(module), owner)
    sides = change.split(" -> ")
    for count in range(1, len(sides)):
        removed = " -> ".join(sides[:count])
        if removed in lines or set(removed.split(" / ")) <= lines:
            return True
    return False


def _lines_of(path: Path, owner: str) -> set[str]:
    """Return the lines of a function or class, or of all of these of one name; empty: those of the file."""
    text = path.read_text()
    found: list[Any] = [ast.parse(text)]
    for name in filter(None, owner.split(".")):
        inner = itertools.chain.from_iterable(ast.walk(each) for each in found)
        found = [each for each in inner if getattr(each, "name", None) == name and hasattr(each, "body")]
    lines = [line.strip() for line in text.splitlines()]
    return set(lines) if not owner else {line for each in found for line in _within(each, lines)}


def _within(node: Any, lines: list[str]) -> list[str]:
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return lines[first - 1 : node.end_lineno]
