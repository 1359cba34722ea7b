"""Programs behind the guard, which ends them when this process ends, also by `kill -9`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.agent import guard


def behind_guard(
    command: Sequence[str], environ: Mapping[str, str], folder: Path | None, **streams: Any
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a program; return the guard's process, and its leash: when that is closed, the guard ends the program.

    `streams`: what Popen takes for the output.
    """
    read_end, leash = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, str(read_end), *command],
        env=dict(environ),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        pass_fds=[read_end],
        start_new_session=True,
        **streams,
    )
    os.close(read_end)
    return process, leash
