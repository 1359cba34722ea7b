"""What CI and make leave to `.ci/nightly`: long tests that vary what another shows, as tests/nights.toml names them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.skips import IN_CI

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11, where pytest brings it
    import tomli as tomllib

LEFT = Path(__file__).with_name("nights.toml")
ARE_LEFT = "left_to_the_night"
# Taken out, as skips.py takes out `CI`: a run of pytest that a test starts has all tests.
ASKED_TO_LEAVE = os.environ.pop("LEAVE_TO_NIGHT", "") != ""


@dataclass(frozen=True)
class Left:
    """Tests that CI does not run."""

    tests: Sequence[str]
    """Node ids; `*` stands for any text."""
    why: str
    keeps: int = 0
    """Number of the cases of each of these tests that CI runs all the same, the first: of many draws a few."""

    @classmethod
    def read(cls, path: Path) -> Sequence[Left]:
        return [cls(**entry) for entry in tomllib.loads(path.read_text())["left"]]

    def out_of(self, nodeids: Iterable[str]) -> Iterator[str]:
        """Return which of these, in the order of their collection, CI does not run."""
        seen: Counter[str] = Counter()
        for nodeid in filter(self._pattern.fullmatch, nodeids):
            test = nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > self.keeps:
                yield nodeid

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # Not fnmatch: the brackets of a parameter are no set of characters. Made once: there are thousands of tests.
        return re.compile("|".join(".*".join(map(re.escape, each.split("*"))) for each in self.tests))


class Nights:
    """The plugin: takes out what is left to the night, and names how much that is."""

    def __init__(self, left: Sequence[Left]) -> None:
        self._left = left

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        names = [item.nodeid for item in items]
        left = {name for entry in self._left for name in entry.out_of(names)}
        if left:
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
            items[:] = [item for item in items if item.nodeid not in left]

    @pytest.hookimpl(optionalhook=True)  # of xdist
    def pytest_configure_node(self, node: Any) -> None:
        # A worker of xdist sees neither variable: what tests start should do as it does elsewhere.
        node.workerinput[ARE_LEFT] = True

    def pytest_report_header(self) -> str:
        return f"{LEFT.name} leaves {len(self._left)} entries to the night (.ci/nightly)"


def pytest_configure(config: pytest.Config) -> None:
    """In CI and where make asks for it, also in the workers of xdist."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if IN_CI or ASKED_TO_LEAVE if worker is None else worker.get(ARE_LEFT):
        config.pluginmanager.register(Nights(Left.read(LEFT)), "nights")
