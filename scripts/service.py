"""Service: a program of the demo or of a test, with its log, that ends when we do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

KEEPER = Path(__file__).with_name("keeper.py")
GRACE_S = 6.0
"""Seconds between SIGTERM and SIGKILL."""


class ServiceError(Exception):
    """A program did not start, or ended when it should not have."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C: a program that was started and is not recorded yet would never be ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Service:
    """One program under a keeper, in a process group of its own, both of its streams in a log file."""

    def __init__(
        self, name: str, command: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._env = dict(env)
        self._cwd = cwd
        self._keeper: subprocess.Popen[bytes] | None = None
        self._asked_to_stop = False

    def start(self) -> None:
        """Start the program; it dies with the thread that called this."""
        keeper = [sys.executable, "-I", "-S", str(KEEPER), str(GRACE_S), str(os.getpid())]
        self._asked_to_stop = False
        with self.log.open("ab") as log, uninterrupted():
            self._keeper = subprocess.Popen(
                [*keeper, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def pid(self) -> int:
        """The program's own process id (the keeper's child)."""
        assert self._keeper is not None
        keeper = self._keeper.pid
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        if not children:
            raise ServiceError(f"{self.name} is not running")
        return int(children[0])

    def check(self) -> None:
        """Raise ServiceError with the last lines of the log when the program has ended, and nobody has asked it to."""
        if not self.running and not self._asked_to_stop:
            code = self._keeper.returncode if self._keeper else None
            raise ServiceError(
                f"{self.name} ended with exit code {code}; the end of {self.log}:\n{self.tail()}"
            )

    def tail(self, lines: int = 12) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the program itself, as a crash or an administrator would."""
        os.kill(self.pid, number)

    def orphan(self) -> None:
        """SIGKILL the program but for its children, as where no supervisor has them in a group."""
        program = self.pid
        os.kill(self.pid_of_keeper, signal.SIGUSR1)
        time.sleep(0.1)  # else the kernel may report the death to the keeper first
        os.kill(program, signal.SIGKILL)

    @property
    def pid_of_keeper(self) -> int:
        assert self._keeper is not None
        return self._keeper.pid

    def ask_to_stop(self) -> None:
        """Begin to end the program and all that it started; returns at once."""
        self._asked_to_stop = True
        if self.running:
            assert self._keeper is not None
            self._keeper.terminate()

    def stop(self) -> None:
        """End the program and all that it started; returns when nothing is left."""
        if self._keeper is None:
            return
        self.ask_to_stop()
        self._keeper.wait(timeout=GRACE_S + 10)

    def wait(self, timeout: float) -> None:
        """Wait until the program has ended by itself and nothing is left of it."""
        deadline = time.monotonic() + timeout
        while self.running:
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} is still running after {timeout:.0f} s")
            time.sleep(0.05)


def stop_all(services: Sequence[Service]) -> None:
    """End several at once, so that their graces overlap."""
    for service in services:
        service.ask_to_stop()
    for service in services:
        service.stop()
