"""What happens in the moment in which this process opens a file: so a test can act amid a fetch."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_actions: dict[str, Callable[[], object]] = {}
_hooks: list[Callable[[str, Any], None]] = []


def once_opened(path: Path, then: Callable[[], object]) -> None:
    """Call a function when this process next opens a file, before it does; from the thread that opens it."""
    _actions[str(path)] = then
    if not _hooks:
        # It cannot be removed, and does nothing for any other file.
        _hooks.append(_heed)
        sys.addaudithook(_heed)


def _heed(event: str, arguments: Any) -> None:
    if event == "open" and _actions and not isinstance(arguments[0], int):
        action = _actions.pop(os.fsdecode(arguments[0]), None)
        if action:
            action()


class Held:
    """Holds the thread that next opens a file, until it is let go."""

    def __init__(self, path: Path) -> None:
        self._came, self._may_go = threading.Event(), threading.Event()
        once_opened(path, self._hold)

    def await_it(self) -> None:
        assert self._came.wait(60)

    def let_go(self) -> None:
        self._may_go.set()

    def _hold(self) -> None:
        self._came.set()
        assert self._may_go.wait(60)
