"""In CI, names each test that fails as soon as it has: a run that is ended from outside prints no summary."""

from __future__ import annotations

import pytest

from tests.skips import IN_CI


class FailuresAtOnce:
    """The plugin: prints a line for each failure where the results come together."""

    def __init__(self, plugins: pytest.PytestPluginManager) -> None:
        self._plugins = plugins

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._plugins.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.line("")
            reporter.write_line(line_of(report))
            reporter.flush()


def line_of(report: pytest.TestReport) -> str:
    """Return the test, which part of it failed, after how many seconds, and the error's first line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(getattr(crash, "message", report.longrepr)).strip()
    first = message.splitlines()[0] if message else "no message"
    return f"FAILED {report.nodeid} ({report.when}, after {report.duration:.0f} s): {first[:500]}"


def pytest_configure(config: pytest.Config) -> None:
    """Report once, where the results of xdist's workers come together."""
    if IN_CI and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config.pluginmanager), "failures-at-once")
