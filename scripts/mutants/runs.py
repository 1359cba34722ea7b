"""What the servants of `make mutants` do: pytest, in forks of a process that has imported and collected before."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from _pytest.main import pytest_runtestloop as run_all

from scripts.mutants.children import Answer, in_fork
from scripts.mutants.patching import Functions, Place, functions_of, place_of

OURS = frozenset({"airflow_provider_ocidist", "tests", "scripts", "benchmarks", "conftest", "__main__"})


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of pytest."""

    files: list[str]
    chosen: list[str]
    """The tests to run, in order; all that are collected when there are none."""
    log: Path
    folder: Path
    """Folder for what tests leave behind."""

    def arguments(self) -> list[str]:
        # Compared values are not read, and rewriting asserts in pytest's plugins takes longer than many tests.
        return [
            *("--assert=plain", "-p", "no:cacheprovider", "--tb=short", "-q"),
            *("--rootdir", str(Path.cwd()), "--basetemp", str(self.folder / "t")),
            *self.files,
        ]

    def start(self, plugins: Sequence[object]) -> int:
        """Run pytest here, and return its exit code."""
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        return int(pytest.main(self.arguments(), plugins=list(plugins)))


def serve_afresh(connection: Connection) -> None:
    """Answer requests by runs that import ours anew: a Run as `run`, and its limits."""
    while True:
        request = connection.recv()
        connection.send(in_fork(partial(_run_afresh, request), request["limit_s"]))


def _run_afresh(request: dict[str, Any]) -> Answer:
    report = _Report()
    code = request["run"].start([report, _Chooser(request)])
    return {"code": code, "failed": report.failed}


def serve_collected(connection: Connection, *, path: Path, run: Run) -> None:
    """Collect once, then answer each request by a fork that runs a mutant of `path`: `text`, the tests and limits.

    A mutant that changes what the import did is answered with `afresh`. A request to `record` is for a run without one.
    """
    collected = _Collected(connection, path)
    collected.watch()
    run.start([collected])


class _Collected:
    """Takes over where pytest would run what it has collected."""

    def __init__(self, connection: Connection, path: Path) -> None:
        self.connection = connection
        self.path = path
        self.ran: set[Place] = set()

    def watch(self) -> None:
        """Record which functions run before the tests do: their effect is there already."""
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == str(self.path):
            self.ran.add(place_of(frame.f_code))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sys.setprofile(None)
        if session.testsfailed:
            self.connection.recv()
            self.connection.send({})
            return True
        gc.collect()
        functions = functions_of(str(self.path), self.path.read_text(), self.ran)
        gc.freeze()
        while True:  # until the servant is ended
            request = self.connection.recv()
            self.connection.send(self._answer(session, functions, request))

    def _answer(self, session: pytest.Session, functions: Functions, request: dict[str, Any]) -> Answer:
        changed: dict[Place, CodeType] = {}
        if "text" in request:
            found = functions.changed_by(request["text"])
            if found is None:
                return {"afresh": True}
            changed.update(found)
        return in_fork(lambda: _run_here(session, functions, changed, request), request["limit_s"])


def _run_here(
    session: pytest.Session,
    functions: Functions,
    changed: dict[Place, CodeType],
    request: dict[str, Any],
) -> Answer:
    """Run tests that are collected, in a fork."""
    if not functions.put(changed):
        return {"afresh": True}
    report = _Report()
    recorder = _Recorder(functions.code.co_filename) if request.get("record") else None
    for plugin in filter(None, (report, recorder)):
        session.config.pluginmanager.register(plugin)
    _choose(session.config, session.items, request)
    try:
        run_all(session)
    except session.Failed:
        pass
    return {"code": int(bool(report.failed)), "failed": report.failed} | (
        {"modules": _others(), **recorder.findings()} if recorder else {}
    )


def _choose(config: pytest.Config, items: list[pytest.Item], request: dict[str, Any]) -> None:
    """Leave the tests that are asked for, in their order, and stop at the first that fails."""
    if chosen := request.get("chosen"):
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[name] for name in chosen if name in by_name] or items
        config.option.maxfail = 1
        setattr(config, "_env_timeout", request["test_limit_s"])  # noqa: B010  as pytest-timeout keeps it


def _others() -> list[str]:
    """Return the modules that were imported and are none of ours."""
    return [
        name
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in OURS and "site-packages" in (getattr(module, "__file__", None) or "")
    ]


class _Chooser:
    """Chooses among the tests when they are collected."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        _choose(config, items, self.request)


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


class _Recorder:
    """How long each test takes, and which lines of one file it runs in its own process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.durations: dict[str, float] = {}
        self.covering: dict[int, set[str]] = {}
        self.test = ""

    def findings(self) -> Answer:
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
