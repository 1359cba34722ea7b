"""Supervise: run the training, end it when asked, and kill what remains."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from airflow_provider_ocidist.agent import guard
from airflow_provider_ocidist.agent.guarded import behind_guard
from airflow_provider_ocidist.agent.stopping import Stop, StopSwitch
from airflow_provider_ocidist.agent.train.program_output import ProgramOutput
from airflow_provider_ocidist.backports import dataclass

logger = logging.getLogger(__name__)

RESTART_GRACE = 5.0
"""Most seconds between SIGTERM and SIGKILL if the training is launched again."""
KILL_LIMIT = 10.0
"""Seconds to wait for killed processes to end; one may be stuck in a driver."""
OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat")
"""Counters of a container (cgroup v2, v1), and of the whole machine, with others' processes."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the training ended."""

    exit_code: int
    """Exit code of the launcher; negative for a signal."""
    output: str
    """Ends of its standard output and of its standard error, one after the other."""
    stop: Stop | None
    """Stop that was requested before it ended; None: it ended by itself."""
    oom_killed: bool | None
    """Whether the kernel killed any process for lack of memory meanwhile; None if unknown."""


class Training:
    """The launcher and all that it starts, behind a guard that ends with this process and with them."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        working_dir: Path,
        output: ProgramOutput,
        show_stacks: Callable[[int], object],
    ) -> None:
        """`show_stacks` is called with the guard's process before a training that hangs is ended."""
        self.output = output
        self._show_stacks = show_stacks
        # If the guard is killed, we inherit its orphans.
        guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 1)
        self._oom_kills = _count_oom_kills()
        self._process, self._leash = behind_guard(
            command, environ, working_dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        self.ended = threading.Event()
        self._changed = threading.Event()
        self._readers = [self._reader(self._process.stdout, 1), self._reader(self._process.stderr, 2)]
        threading.Thread(target=self._await_end, name="training", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id of the guard; the launcher is its child."""
        return self._process.pid

    def wait(self, switch: StopSwitch, grace: float) -> Ended:
        """Wait for the end; on a stop request, end the training."""
        switch.listen(self._changed.set)
        self._changed.wait()
        stop = None if self.ended.is_set() else switch.stop
        if stop is not None:
            self._end(stop, grace)
        return self._collect(stop)

    def _end(self, stop: Stop, grace: float) -> None:
        """Ask the training to end, and give it time; `_collect` kills what is left."""
        if stop.stacks:
            self._try_to_show_stacks()
        if stop.restarts:
            # The other nodes wait, and what it could save now lacks the failed process's part.
            grace = min(grace, RESTART_GRACE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        if not self.ended.wait(grace):
            logger.warning("the training has not ended %.0f s after SIGTERM: killing it", grace)

    def _try_to_show_stacks(self) -> None:
        try:
            self._show_stacks(self.pid)
        except Exception as error:  # the training hangs all the same, and is to end
            logger.warning("the stacks of the training cannot be shown: %s: %s", type(error).__name__, error)

    def _collect(self, stop: Stop | None) -> Ended:
        self._kill()
        for reader in self._readers:
            reader.join(KILL_LIMIT)
        before, after = self._oom_kills, _count_oom_kills()
        return Ended(
            exit_code=self._process.returncode if self.ended.is_set() else -signal.SIGKILL,
            output=self.output.ends,
            stop=stop,
            oom_killed=None if before is None or after is None else after > before,
        )

    def _kill(self) -> None:
        os.close(self._leash)
        if self.ended.wait(KILL_LIMIT):
            # Nothing is left unless the guard itself was killed.
            guard.kill_descendants(os.getpid())
        else:
            logger.error("processes of the training cannot be killed: %s", guard.descendants(self.pid))

    def _await_end(self) -> None:
        self._process.wait()
        self.ended.set()
        self._changed.set()

    def _reader(self, source: IO[bytes] | None, sink: int) -> threading.Thread:
        assert source is not None
        thread = threading.Thread(target=self.output.pump, args=(source.fileno(), sink), daemon=True)
        thread.start()
        return thread


def _count_oom_kills() -> int | None:
    """Return how many processes were killed for lack of memory: in our container, else on this machine."""
    for file in OOM_COUNTERS:
        try:
            lines = Path(file).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None
