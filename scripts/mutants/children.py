"""Processes that `make mutants` forks: servants, which answer requests, and runs, which leave no process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from scripts import keeper

Answer = dict[str, Any]


class Servant:
    """A fork of this process that answers requests, one at a time; it ends with us."""

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        """`serve` gets a request by `recv` and answers it by `send`, until there is none: EOFError."""
        self._connection, theirs = Pipe()
        self._process = os.fork()
        if not self._process:
            self._connection.close()
            _be_servant(serve, theirs)
        theirs.close()

    def ask(self, request: object = None) -> Answer:
        """Raises EOFError when the servant has ended."""
        with contextlib.suppress(BrokenPipeError):
            self._connection.send(request)
        return dict(self._connection.recv())

    def end(self) -> None:
        self._connection.close()
        os.kill(self._process, signal.SIGTERM)
        os.waitpid(self._process, 0)


def _be_servant(serve: Callable[[Connection], None], connection: Connection) -> None:
    try:
        keeper.prctl(keeper.PR_SET_PDEATHSIG, signal.SIGTERM)
        keeper.prctl(keeper.PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGTERM, _end)
        with contextlib.suppress(EOFError):
            serve(connection)
    finally:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            keeper.end_all(0)
        finally:  # whatever is raised: above us stand those who forked us, and they go on by themselves
            os._exit(0)


def _end(_number: int, _frame: object) -> None:
    raise SystemExit


def in_fork(what: Callable[[], Answer], limit_s: float) -> Answer:
    """Return what a function returns in a process of its own; nothing when that died or took too long.

    What it raises is returned as `error`. Ends all descendants of the caller, a servant.
    """
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        os.close(receiver)
        _be_child(sender, what)
    os.close(sender)
    try:
        said = _read_line(receiver, time.monotonic() + limit_s)
    finally:
        os.close(receiver)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        keeper.end_all(0)
        keeper.reap()
    return dict(json.loads(said)) if said else {}


def _be_child(sender: int, what: Callable[[], Answer]) -> None:
    try:
        os.setsid()
        keeper.prctl(keeper.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            said = what()
        except Exception:  # noqa: BLE001  the caller raises it
            said = {"error": traceback.format_exc()}
        with os.fdopen(sender, "w") as file:
            file.write(json.dumps(said) + "\n")
    finally:
        os._exit(0)


def _read_line(descriptor: int, deadline: float) -> bytes:
    """Return what is written until a line's end; nothing when that does not come in time or at all."""
    said = b""
    while select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))[0]:
        part = os.read(descriptor, 1 << 16)
        said += part
        if said.endswith(b"\n") or not part:
            return said if part else b""
    return b""
