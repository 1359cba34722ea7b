"""What a run skipped and why, said at its end; in CI a skip that tests/skips.toml does not expect fails the run."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11, where pytest brings it
    import tomli as tomllib

EXPECTED = Path(__file__).with_name("skips.toml")
FILES = "skipped_files"
REFUSED = 64
"""Exit code of a run with a skip that CI does not accept, whatever else failed: pytest has codes below 10."""
# Taken out: what tests start should do as it does elsewhere.
IN_CI = os.environ.pop("CI", "").lower() not in ("", "0", "false")


@dataclass(frozen=True)
class Expected:
    """A skip that CI accepts."""

    reason: str
    """A regular expression for all of a test's own words."""
    why: str

    @classmethod
    def read(cls, path: Path) -> Sequence[Expected]:
        return [cls(**entry) for entry in tomllib.loads(path.read_text())["expected"]]


def words_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why a test was skipped, in its own words."""
    words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return words.removeprefix("Skipped: ").strip() or "no reason is given"


def unexpected(reasons: Iterable[str], expected: Sequence[Expected]) -> list[str]:
    """Return the reasons that no entry accepts."""
    return [reason for reason in reasons if not any(re.fullmatch(each.reason, reason) for each in expected)]


def summary(reasons: Counter[str], refused: Sequence[str]) -> list[str]:
    """Return the lines for the end of the run: how many tests were skipped, and why, the most frequent first."""
    if not reasons:
        return ["no test was skipped"]
    lines = [f"skipped: {sum(reasons.values())}"]
    lines += [f"{count:6}  {reason}" for reason, count in reasons.most_common()]
    if refused:
        lines.append(f"not expected in CI, so the run has failed ({EXPECTED.name}): {'; '.join(refused)}")
    return lines


class SkippedFiles:
    """The plugin of a worker of xdist: hands on whole files that were skipped, which xdist does not."""

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._reasons[words_of(report)] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        session.config.workeroutput[FILES] = dict(self._reasons)


class SkipReport:
    """The plugin: counts skips where the results come together, also those of xdist's workers."""

    def __init__(self, expected: Sequence[Expected] = (), *, strict: bool = False) -> None:
        self._expected = expected
        self._strict = strict
        self._reasons: Counter[str] = Counter()

    def _count(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._reasons[words_of(report)] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._count(report)

    @pytest.hookimpl(optionalhook=True)  # of xdist's
    def pytest_testnodedown(self, node: Any) -> None:
        # Every worker collects all, so what one has skipped the others have too.
        self._reasons |= Counter(getattr(node, "workeroutput", {}).get(FILES, {}))

    @property
    def _refused(self) -> list[str]:
        return unexpected(self._reasons, self._expected) if self._strict else []

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._refused and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            session.exitstatus = REFUSED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in summary(self._reasons, self._refused):
            terminalreporter.write_line(line, red=line.startswith("not expected"))


def pytest_configure(config: pytest.Config) -> None:
    """Report once, where the results of xdist's workers come together."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(SkippedFiles(), "skipped-files")
    else:
        config.pluginmanager.register(SkipReport(Expected.read(EXPECTED), strict=IN_CI), "skip-report")
