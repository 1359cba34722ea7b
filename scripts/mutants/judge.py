"""Run the tests that judge a module against one mutant of it after the other.

To import Airflow and the SDK, ours, and the tests takes longer than most of the tests do. One process does all of it
once for a module and forks for each mutant, which it puts into the functions that are there already. Where a mutant
changes what the import does, the fork is of a process that has imported all but ours.

All happens in a copy of the tree, so that an interrupted run leaves no mutant behind, and the copy stands first on
PYTHONPATH, so that programs which tests start run the mutant as well.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from scripts.mutants.children import Servant
from scripts.mutants.runs import OURS, Run, serve_afresh, serve_collected

ROOT = Path(__file__).resolve().parents[2]
LEAST_LIMIT_S = 6.0
"""Least seconds for one test, and again for the whole run: the machine may be busy with other things."""
SLOWER = 5
"""Factor of its time without a fault that a test may take before it counts as hanging."""
BASELINE_LIMIT_S = 500
"""Seconds for all tests of a module without a fault."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What the tests do without a fault."""

    durations: dict[str, float]
    """Seconds by test, in the order of the tests."""
    covering: dict[int, frozenset[str]]
    """Tests that ran a line of the module in their own process, by line."""

    @property
    def test_limit_s(self) -> float:
        return LEAST_LIMIT_S + SLOWER * max(self.durations.values(), default=0)

    def limit_s(self, tests: Sequence[str]) -> float:
        return 2 * LEAST_LIMIT_S + SLOWER * sum(self.durations[name] for name in tests)

    def running(self, lines: tuple[int, int]) -> list[str]:
        """Return the tests that run lines in their own process; all where none does.

        What only a program notices that a test starts counts as not noticed, where a test in its own process could.
        """
        near = frozenset[str]().union(*(self.covering.get(n, ()) for n in range(lines[0], lines[1] + 1)))
        return [name for name in self.durations if name in near] or list(self.durations)

    def in_order(self, tests: Sequence[str], kills: Counter[str]) -> list[str]:
        """Return tests as they are to run: those first that have killed most, then short files, and short tests."""
        of_file: dict[str, float] = {}
        for name in tests:
            of_file[_file_of(name)] = of_file.get(_file_of(name), 0) + self.durations[name]
        return sorted(
            tests,
            key=lambda name: (-kills[name], of_file[_file_of(name)], _file_of(name), self.durations[name]),
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict of the tests on one mutant."""

    outcome: str
    """`killed`, `hung` or `survived`."""
    test: str = ""
    """The first test that failed."""


class JudgeError(Exception):
    """The tests cannot judge: they fail without a fault, or there are none."""


def path_of(module: str) -> str:
    """Return the file of a module; the rest of `file.py::Class.function` names the part that is judged."""
    return module.partition("::")[0]


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def copy_tree(target: Path) -> None:
    """Copy all that git knows of or would add."""
    shutil.rmtree(target, ignore_errors=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where tests run."""

    tree: Path
    """A copy of the tree."""
    folder: Path
    """Folder for all that tests leave behind; its path is short enough for those of sockets."""
    log: Path
    """The output of the last run."""


@contextlib.contextmanager
def place_in(folder: Path) -> Iterator[Place]:
    """A copy of the tree in a folder, which is removed, where this process and all that it forks work."""
    tree = folder / f"tree-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as name:
        try:
            copy_tree(tree)
            place = Place(tree=tree, folder=Path(name), log=folder / f"pytest-{os.getpid()}.log")
            settle(place)
            yield place
        finally:
            os.chdir(ROOT)
            shutil.rmtree(tree, ignore_errors=True)


def settle(place: Place) -> None:
    """Have this process, and all that it forks, work in a place."""
    os.chdir(place.tree)
    sys.path.insert(0, str(place.tree))
    # As tests/conftest.py: many programs start here, and each would compile all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    tempfile.tempdir = None
    home = place.folder / "airflow"
    os.environ.update(
        PYTHONPATH=str(place.tree),
        TMPDIR=str(place.folder),
        # What a test draws is the same for each mutant.
        TEST_SEED="1",
        # As tests/conftest.py: Airflow reads it once, here before the fork.
        AIRFLOW_HOME=str(home),
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
        AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{home}/airflow.db",
    )


@dataclass(kw_only=True)
class Bench:
    """Judges the mutants of one module, in the place where this process is settled."""

    place: Place
    module: str
    tests: Sequence[str]
    base: Baseline = field(init=False)
    _kills: dict[str, Counter[str]] = field(init=False, default_factory=dict)
    """Number of mutants that each test has killed, by function."""
    _afresh: Servant | None = field(init=False, default=None)
    _stamp: int = field(init=False, default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        """Run the tests without a fault. Raises JudgeError when they do not pass."""
        self._path = self.place.tree / path_of(self.module)
        self._original = self._path.read_text()
        self._collected = Servant(partial(serve_collected, path=self._path, run=self._run([])))
        try:
            said = self._ask(self._collected, {"record": True, "limit_s": BASELINE_LIMIT_S})
            if not said or said["code"] != 0:
                raise JudgeError(
                    f"{self.module}: its tests do not pass without a fault, see {self.place.log}"
                )
        except BaseException:
            self.end()
            raise
        self.base = Baseline(
            durations=said["durations"],
            covering={int(line): frozenset(names) for line, names in said["covering"].items()},
        )
        _import(said["modules"])

    def end(self) -> None:
        self._collected.end()
        if self._afresh:
            self._afresh.end()

    def judge(self, owner: str, text: str, lines: tuple[int, int]) -> Verdict:
        """Run the tests against a mutant, which changes lines of a function or class; raises JudgeError."""
        kills = self._kills.setdefault(owner, Counter())
        near = self.base.in_order(self.base.running(lines), kills)
        try:
            self._write(text)
            said = self._ask(self._collected, self._request(near) | {"text": text})
            if said.get("afresh"):
                self._afresh = self._afresh or Servant(serve_afresh)
                everything = self.base.in_order(list(self.base.durations), kills)
                said = self._ask(self._afresh, self._request(everything) | {"run": self._run(everything)})
        finally:
            self._write(self._original)
        if not said:
            return Verdict(outcome="hung")
        if said["failed"]:
            kills[said["failed"]] += 1
        return Verdict(outcome="survived" if said["code"] == 0 else "killed", test=said["failed"])

    def _run(self, chosen: Sequence[str]) -> Run:
        return Run(files=list(self.tests), chosen=list(chosen), log=self.place.log, folder=self.place.folder)

    def _request(self, chosen: Sequence[str]) -> dict[str, Any]:
        limits = {"limit_s": self.base.limit_s(chosen), "test_limit_s": self.base.test_limit_s}
        return {"chosen": chosen, **limits}

    def _ask(self, servant: Servant, request: object) -> dict[str, Any]:
        try:
            said = servant.ask(request)
        except EOFError:
            raise JudgeError(f"{self.module}: its test process has ended, see {self.place.log}") from None
        if "error" in said:
            raise JudgeError(f"{self.module}: its tests cannot be run: {said['error']}")
        return said

    def _write(self, text: str) -> None:
        self._path.write_text(text)
        # What was compiled is known by the file's time in whole seconds and its size, which mutants may share.
        self._stamp += 1
        os.utime(self._path, (self._stamp, self._stamp))


def _import(modules: Sequence[str]) -> None:
    """Import what the tests do and is none of ours, for all later forks of this process."""
    for name in modules:
        with contextlib.suppress(Exception, SystemExit):  # what cannot be imported alone, the tests do
            importlib.import_module(name)
    # Airflow looks up its providers. Kept, what it loads of ours would be the same for all mutants.
    kept = {"scripts", "__main__"}
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS - kept]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()  # none of it will ever be garbage: no fork shall look
