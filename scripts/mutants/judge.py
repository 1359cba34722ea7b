"""Run the tests that judge a module against one mutant of it after the other.

Importing Airflow and the SDK takes longer than most of the tests: this process imports them once, none of ours, and
forks for each run. All happens in a copy of the tree, so that an interrupted run leaves no mutant behind, and the copy
stands first on PYTHONPATH, so that programs which tests start run the mutant as well.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from scripts import keeper

ROOT = Path(__file__).resolve().parents[2]
OURS = frozenset({"airflow_provider_ocidist", "tests", "scripts", "benchmarks", "conftest", "__main__"})
LEAST_LIMIT_S = 6.0
"""For one test, and again for the whole run: the machine may be busy with other things."""
SLOWER = 5
"""How many times as long as without a fault a test may take before it counts as hanging."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What the tests do without a fault."""

    durations: dict[str, float]
    """Seconds by test."""
    covering: dict[int, frozenset[str]]
    """By line of the module, the tests that ran it in their own process."""

    @property
    def test_limit_s(self) -> float:
        return LEAST_LIMIT_S + SLOWER * max(self.durations.values(), default=0)

    @property
    def limit_s(self) -> float:
        return 2 * LEAST_LIMIT_S + SLOWER * sum(self.durations.values())


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the tests say of one mutant."""

    outcome: str
    """`killed`, `hung` or `survived`."""
    test: str = ""
    """The first test that failed."""


class JudgeError(Exception):
    """The tests cannot judge: they fail without a fault, or there are none."""


def path_of(module: str) -> str:
    """Return the file of a module; the rest of `file.py::Class.function` says which part of it is judged."""
    return module.partition("::")[0]


def copy_tree(target: Path) -> None:
    """Copy all that git knows of or would add."""
    shutil.rmtree(target, ignore_errors=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


@dataclass(kw_only=True)
class Judge:
    """Forks a pytest for each mutant; `tree` is a copy made by `copy_tree`."""

    tree: Path
    log: Path
    """The output of the last run."""
    _stamp: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        keeper.prctl(keeper.PR_SET_CHILD_SUBREAPER, 1)
        os.chdir(self.tree)
        sys.path.insert(0, str(self.tree))
        os.environ["PYTHONPATH"] = str(self.tree)
        # As tests/conftest.py: many programs start here, and each would compile all that it imports.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False
        home = tempfile.mkdtemp(prefix="ocidist-mutants-", dir=self.tree)
        # As tests/conftest.py: Airflow reads it once, here before the fork.
        os.environ.update(
            AIRFLOW_HOME=home,
            AIRFLOW__CORE__LOAD_EXAMPLES="False",
            AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{home}/airflow.db",
        )

    def baseline(self, module: str, tests: Sequence[str]) -> Baseline:
        """Run the tests without a fault. Raises JudgeError when they do not pass."""
        recorder = _Recorder(str(self.tree / path_of(module)))
        said = self._run(tests, [recorder], ["-q"], limit_s=500)
        if not said or said["code"] != 0:
            raise JudgeError(f"{module}: its tests do not pass without a fault, see {self.log}")
        for name in said["modules"]:
            with contextlib.suppress(Exception, SystemExit):  # what cannot be imported alone, the tests do
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # none of it will ever be garbage: no child shall look
        # Airflow looks up its providers. Kept, what it loads of ours would be the same for all mutants.
        for name in [
            name for name in sys.modules if name.partition(".")[0] in OURS - {"scripts", "__main__"}
        ]:
            del sys.modules[name]
        covering = {int(line): frozenset(names) for line, names in said["covering"].items()}
        return Baseline(durations=said["durations"], covering=covering)

    def judge(
        self, module: str, text: str, lines: tuple[int, int], tests: Sequence[str], base: Baseline
    ) -> Verdict:
        """Run the tests against a mutant that run its lines."""
        path = self.tree / path_of(module)
        original = path.read_text()
        try:
            self._write(path, text)
            near = frozenset().union(
                *(base.covering.get(n, frozenset()) for n in range(lines[0], lines[1] + 1))
            )
            sorter = _Sorter(near, base.durations)
            options = ["-x", "-q", "-o", f"timeout={base.test_limit_s:.0f}"]
            said = self._run(tests, [sorter], options, limit_s=base.limit_s)
        finally:
            self._write(path, original)
        if not said:
            return Verdict(outcome="hung")
        return Verdict(outcome="survived" if said["code"] == 0 else "killed", test=said["failed"])

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        # What was compiled is known by the file's time in whole seconds and its size, which mutants may share.
        self._stamp += 1
        os.utime(path, (self._stamp, self._stamp))

    def _run(
        self, tests: Sequence[str], plugins: list[Any], options: Sequence[str], *, limit_s: float
    ) -> dict[str, Any]:
        """Return what pytest's process says; nothing when it died or took too long."""
        receiver, sender = os.pipe()
        child = os.fork()
        if not child:
            os.close(receiver)
            _be_pytest(sender, self.log, tests, plugins, options)
        os.close(sender)
        try:
            said = _read_all(receiver, time.monotonic() + limit_s)
        finally:
            os.close(receiver)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            keeper.end_all(0)
            keeper.reap()
        return dict(json.loads(said)) if said else {}


def _read_all(descriptor: int, deadline: float) -> bytes:
    """Return all that is written until the end; nothing when that does not come in time."""
    parts: list[bytes] = []
    while select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))[0]:
        part = os.read(descriptor, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return b""


def _be_pytest(
    sender: int, log: Path, tests: Sequence[str], plugins: list[Any], options: Sequence[str]
) -> None:
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        report = _Report()
        # Nobody reads what an assert has compared, and to rewrite pytest's plugins for it takes longer than many tests.
        common = ["--assert=plain", "-p", "no:cacheprovider", "--rootdir", str(Path.cwd()), "--tb=short"]
        code = pytest.main([*common, *options, *tests], plugins=[report, *plugins])
        said: dict[str, Any] = {"code": int(code), "failed": report.failed, "modules": _others()}
        for plugin in plugins:
            said |= getattr(plugin, "findings", dict)()
        with os.fdopen(sender, "w") as file:
            json.dump(said, file)
    finally:
        os._exit(0)


def _others() -> list[str]:
    """Return the modules that were imported and are none of ours."""
    return [
        name
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in OURS and "site-packages" in (getattr(module, "__file__", None) or "")
    ]


class _Report:
    """Which test failed first."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


class _Sorter:
    """Only tests that run the mutant's lines, all where none does so in its own process; short ones first.

    What only a program notices that a test starts counts as not noticed, where a test in its own process could.
    """

    def __init__(self, near: frozenset[str], durations: dict[str, float]) -> None:
        self.near = near
        self.durations = durations

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.near:
            items[:] = [item for item in items if item.nodeid in self.near]
        of_file: dict[str, float] = {}
        for item in items:
            name = item.nodeid.partition("::")[0]
            of_file[name] = of_file.get(name, 0) + self.durations.get(item.nodeid, 0)
        items.sort(
            key=lambda item: (
                of_file[item.nodeid.partition("::")[0]],
                item.nodeid.partition("::")[0],
                self.durations.get(item.nodeid, 0),
            )
        )


class _Recorder:
    """How long each test takes, and which lines of one file it runs in its own process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.durations: dict[str, float] = {}
        self.covering: dict[int, set[str]] = {}
        self.test = ""

    def findings(self) -> dict[str, Any]:
        return {
            "durations": self.durations,
            "covering": {line: sorted(names) for line, names in self.covering.items()},
        }

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.test = nodeid
        self.durations[nodeid] = 0
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.durations[report.nodeid] += report.duration

    def _enter(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._line if frame.f_code.co_filename == self.path else None

    def _line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self.covering.setdefault(frame.f_lineno, set()).add(self.test)
        return self._line
