"""Nodes as real processes: start, output as it comes, exit code, signals. No process outlives its node."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.emulator.nodes.node_init import exit_status

INIT = Path(__file__).with_name("node_init.py")
STDOUT, STDERR = 1, 2
PIPE_GRACE_S = 2.0
"""Seconds after the end of the first process in which what others write is still read."""

OnOutput = Callable[[int, bytes], None]
"""Function that gets the stream (1 or 2) and what was written to it; an empty `bytes` means that the stream has
ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCommand:
    """What a node runs, where, and in which environment (all of it)."""

    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    mounts: Mapping[str, Path] = field(default_factory=dict)
    """Folders and files of this machine by the place where only this command sees them."""
    hostname: str | None = None
    """Name of the machine that the command sees, with `mounts`."""
    begins_in: str | None = None
    """Folder in which the command begins, as it sees the file system, with `mounts`; None: in `folder`."""


class Node(asyncio.SubprocessProtocol):
    """A running node. `exited` holds the exit code once its processes are gone and its output is read."""

    def __init__(self, on_output: OnOutput) -> None:
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._on_output = on_output
        self._transport: asyncio.SubprocessTransport | None = None

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGUSR1)

    def _send(self, number: int) -> None:
        if self._transport is None or self._transport.get_returncode() is not None:
            return
        # Not through the transport: it looks first whether the process has ended, and if so takes away the
        # exit code that asyncio is waiting for.
        with suppress(ProcessLookupError):
            os.kill(self._transport.get_pid(), number)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._on_output(fd, data)

    def pipe_connection_lost(self, fd: int, _: Exception | None) -> None:
        self._on_output(fd, b"")

    def process_exited(self) -> None:
        """Close the pipes soon: a kill of the node's first process may leave others that hold them."""
        if self._transport is not None:
            asyncio.get_running_loop().call_later(PIPE_GRACE_S, self._transport.close)

    def connection_lost(self, _: Exception | None) -> None:
        """Set the exit code: asyncio calls this when the process has exited and both pipes are at their end."""
        code = self._transport.get_returncode() if self._transport else None
        if not self.exited.done():
            self.exited.set_result(1 if code is None else exit_status(code))


async def start(command: NodeCommand, on_output: OnOutput) -> Node:
    """Start a node. To be awaited on the server's loop: nodes end when the thread that started them does."""
    loop = asyncio.get_running_loop()
    _, node = await loop.subprocess_exec(
        lambda: Node(on_output),
        *(sys.executable, "-I", "-S", str(INIT), str(os.getpid()), _view(command)),
        *command.arguments,
        stdin=asyncio.subprocess.DEVNULL,
        cwd=command.folder,
        env=dict(command.environment),
        start_new_session=True,
    )
    return node


@cache
def can_mount() -> bool:
    """Return whether this machine lets us give a process a view of the file system of its own: Linux, mostly."""
    if sys.platform != "linux":
        return False
    with tempfile.TemporaryDirectory() as folder:
        view = _view(
            NodeCommand(arguments=(), folder=Path(), environment={}, mounts={"/mnt/x": Path(folder)})
        )
        command = [sys.executable, "-I", "-S", str(INIT), str(os.getpid()), view, "true"]
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _view(command: NodeCommand) -> str:
    # Nested places after those that they lie in.
    mounts = [[str(source), place] for place, source in sorted(command.mounts.items())]
    return json.dumps({"mounts": mounts, "hostname": command.hostname, "folder": command.begins_in})
