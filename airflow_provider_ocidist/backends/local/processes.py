"""The process of one node: whether it lives, how it ended, and how it is signalled, by what its folder holds."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.agent import guard
from airflow_provider_ocidist.backends import bundle
from airflow_provider_ocidist.backends.local import node
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.run import NodeState

CANCELED_FILE = "canceled"
"""File that marks a cancel; its time is that of the first."""
START_TIMEOUT = 60.0
"""Seconds within which a process must have started."""
MOMENTARY = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors of a machine that has no room for one more program now."""
TOO_LONG = (
    ": its variables and arguments are longer than this system allows; put them into a file of the code"
)


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """The process that runs one node of a gang."""

    folder: Path

    # begin

    def start(self, archive: zipfile.ZipFile, python: str, environment: Mapping[str, str]) -> None:
        """Start the process unless it was started before. Raises BackendError when it does not start."""
        if (self.folder / node.STARTED).exists():
            return
        program = shutil.which(python)
        if program is None:
            raise BackendError(
                f"backend.python is not a program that this machine can run: {python}", cause=Cause.CONFIG
            )
        try:
            bundle.unpack(archive, self.folder / "app")
            process = self._spawn(os.path.abspath(program), environment)  # noqa: PTH100 - links stay: a venv is one
        except OSError as error:
            is_jobs = error.errno == errno.E2BIG
            raise BackendError(
                f"a node did not start: {error}{TOO_LONG if is_jobs else ''}",
                cause=Cause.CONFIG if is_jobs else Cause.SERVICE,
                retryable=not is_jobs,
            ) from error
        # While this process lives, it has to reap its child.
        threading.Thread(target=process.wait, name="node", daemon=True).start()
        self._wait_for(process)

    def _spawn(self, python: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / node.ERROR).open("wb") as errors:
            return subprocess.Popen(
                # Isolated: the job's variables for Python are for its own.
                [sys.executable, "-I", node.__file__, str(self.folder), python],
                env={**_inherited(), **environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not (self.folder / node.STARTED).exists():
            # It ends at once where another submitter has started the node; the mark of that one follows in a moment.
            ended = process.poll()
            if ended or time.monotonic() > deadline:
                errors = self.folder / node.ERROR
                text = errors.read_text(errors="replace")[-500:] or f"see {errors}"
                raise BackendError(f"a node did not start: {text}", retryable=True)
            time.sleep(0.02)

    # look

    @property
    def started(self) -> dict[str, Any] | None:
        return read(self.folder / node.STARTED)

    def state(self) -> dict[str, Any] | None:
        """Return what is known of it as fields of a NodeStatus; None: it was never started."""
        started, ended = self.started, read(self.folder / node.ENDED)
        if started is None:
            return None
        at = {"started_at": started["at"]}
        elsewhere = started.get("machine", node.here()) != node.here()
        lives = not elsewhere and _lives(started)
        if ended is None and not (elsewhere or lives):
            # It may just have ended.
            ended = read(self.folder / node.ENDED)
        if ended is not None:
            return at | self._ended(ended)
        canceled = (self.folder / CANCELED_FILE).exists()
        if elsewhere:
            return at | {"state": NodeState.UNKNOWN, "details": self._out_of_sight(started["machine"])}
        if lives:
            return at | {"state": NodeState.ENDING if canceled else NodeState.RUNNING}
        gone = {"state": NodeState.CANCELED} if canceled else {"state": NodeState.FAILED, "cause": Cause.NODE}
        return at | gone | {"details": "its process is gone"}

    def _ended(self, ended: Mapping[str, Any]) -> dict[str, Any]:
        code, canceled = ended["exit_code"], (self.folder / CANCELED_FILE).exists()
        state = NodeState.SUCCEEDED if code == 0 else NodeState.CANCELED if canceled else NodeState.FAILED
        log = f"; its log is incomplete: {ended['log_lacks']}" if "log_lacks" in ended else ""
        found = {"state": state, "details": f"exit code {code}{log}", "finished_at": ended["at"]}
        if "error" not in ended:
            return found
        if ended.get("errno") in MOMENTARY:
            return {
                **found,
                "details": f"its agent could not be started: {ended['error']}",
                "cause": Cause.NODE,
            }
        return {**found, "details": f"backend.python cannot be run: {ended['error']}", "cause": Cause.CONFIG}

    def _out_of_sight(self, machine: Mapping[str, str]) -> str:
        return (
            f"its process was started on {machine['host']}, in another container, or before a restart, and cannot be "
            f"seen from {node.here()['host']}. Stop requests and its lease still end it. If that machine is gone, "
            f"delete {self.folder.parent}"
        )

    @property
    def python(self) -> str:
        """The interpreter of a living node. Raises BackendError where this system does not show it."""
        with suppress(OSError, TypeError, IndexError):
            words = Path(f"/proc/{(self.started or {})['pid']}/cmdline").read_bytes().split(b"\0")
            # The last one, before the end.
            return os.fsdecode(words[-2])
        raise BackendError(f"{self.folder}: the interpreter of its node cannot be read", retryable=True)

    def environment(self) -> dict[str, str]:
        """Return the variables of a living process; none where this system does not show them."""
        started = self.started
        if started is None or not _lives(started):
            return {}
        with suppress(OSError):
            text = os.fsdecode(Path(f"/proc/{started['pid']}/environ").read_bytes())
            return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
        return {}

    # end

    def cancel(self, grace: float) -> None:
        """Ask it to end; kill all of its processes when it was first asked to more than `grace` seconds ago."""
        if self.started is None:
            return
        if time.time() - self._first_canceled_at() > grace:
            self.kill()
        else:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all of its processes at once, also stopped ones, which could not end one another."""
        if self.started is None:
            return
        self._first_canceled_at()
        self._signal(signal.SIGKILL)

    def _first_canceled_at(self) -> float:
        """Return the Unix time of the first cancel, which is now where there was none."""
        mark = self.folder / CANCELED_FILE
        with suppress(FileExistsError):
            mark.touch(exist_ok=False)
        return mark.stat().st_mtime

    def _signal(self, number: int) -> None:
        started = self.started
        if started is None or not _lives(started):
            return
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                below = _below(started["pid"])
                os.killpg(started["pid"], number)
                for pid in below:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
            else:
                os.kill(started["pid"], number)


def _below(pid: int) -> list[int]:
    """Return the living processes below one, where this system shows them."""
    with suppress(OSError):
        return guard.descendants(pid)
    return []


def read(file: Path) -> dict[str, Any] | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        return dict(json.loads(file.read_text()))
    return None


def _inherited() -> dict[str, str]:
    """Return this process's environment without that of Airflow, which holds connections and keys."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}


def _lives(started: Mapping[str, Any]) -> bool:
    if started.get("machine", node.here()) != node.here():
        return False
    try:
        os.kill(started["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return bool(started["began"] == node.began(started["pid"]))
