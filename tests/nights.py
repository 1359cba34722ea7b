"""What CI and make leave to `.ci/nightly`: long tests that vary what another shows, as tests/nights.toml names them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
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

    @classmethod
    def read(cls, path: Path) -> Sequence[Left]:
        return [cls(**entry) for entry in tomllib.loads(path.read_text())["left"]]

    def has(self, nodeid: str) -> bool:
        return self._pattern.fullmatch(nodeid) is not None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # Not fnmatch: the brackets of a parameter are no set of characters. Made once: there are thousands of tests.
        return re.compile("|".join(".*".join(map(re.escape, each.split("*"))) for each in self.tests))


class Nights:
    """The plugin: takes out what is left to the night, and names how much that is."""

    def __init__(self, left: Sequence[Left]) -> None:
        self._left = left

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        out = [item for item in items if any(left.has(item.nodeid) for left in self._left)]
        if out:
            taken = set(out)
            items[:] = [item for item in items if item not in taken]
            config.hook.pytest_deselected(items=out)

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
