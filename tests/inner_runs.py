"""A run of pytest within a test, in a process group of its own, as CI sees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def run_in_ci(
    folder: Path, module: str, arguments: Sequence[str], *, ci: bool = True
) -> Iterator[subprocess.Popen[str]]:
    """Start `python -m MODULE ARGUMENTS` in a folder; kill what is left of it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, "-c", os.devnull, *arguments],
        cwd=folder,
        # The plugins of all that is installed take seconds to load.
        env={
            **os.environ,
            "CI": "1" if ci else "",
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
