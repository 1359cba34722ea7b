"""Command: one program run before the training, such as git or pip; it ends when the node is to end."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from airflow_provider_ocidist.agent.guarded import behind_guard
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.backports import dataclass

KEPT_LINES = 2000
"""Most lines of output that are returned."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a program ended."""

    exit_code: int
    output: str
    """Last lines of both of its streams, in the order of arrival."""


def run(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    switch: StopSwitch,
    *,
    folder: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> Finished:
    """Run a program to its end; kill what remains of it. Raises Stopped when the node is to stop."""
    switch.check()
    process, leash = behind_guard(
        arguments, environ, folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    letting_go = threading.Lock()

    def let_go() -> None:
        nonlocal leash
        with letting_go, suppress(OSError):
            leash, held = -1, leash
            if held >= 0:
                os.close(held)

    switch.listen(let_go)
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    assert process.stdout is not None
    with process.stdout:
        for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip()
            lines.append(line)
            if on_line:
                on_line(line)
    code = process.wait()
    let_go()
    switch.check()
    return Finished(exit_code=code, output="\n".join(lines))
