"""Usage: samples the training's use of processors, memory and GPUs."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_provider_ocidist.agent import guard
from airflow_provider_ocidist.agent.monitor.idle import GPU_AT_WORK, is_used
from airflow_provider_ocidist.model.report import Usage

logger = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between two samples, unless a job asks for shorter ones."""
GPU_SAMPLES = 3
"""Number of samples for each call of nvidia-smi, which takes up to a second."""
SMI_LIMIT = 30.0
"""Seconds within which nvidia-smi must answer."""
GPU_QUERY = (
    "--query-gpu=utilization.gpu,utilization.memory,memory.used,memory.total",
    "--format=csv,noheader,nounits",
)
CELLS = 4
"""Number of values for each GPU in the answer."""
GPU_MEMORY_AT_WORK = 2.0
"""Per cent of the time in which a GPU's memory is read or written, from which on it is at work. A collective that waits
forever keeps the GPU itself at 100 %, and its memory idle."""
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class GpuUse:
    """The use of a node's GPUs, as nvidia-smi shows it."""

    rows: tuple[tuple[float, ...], ...] = ()
    """GPU and memory utilization in per cent, and used and total memory in MiB, of each GPU that has them."""
    is_whole: bool = False
    """Whether that is every GPU: slices of one (MIG) have no use of their own."""

    @property
    def busiest(self) -> float | None:
        """Share of the time in which something ran on the GPU that was busiest; None: not known."""
        known = max((row[0] / 100 for row in self.rows), default=None)
        # One that is not known may be at work.
        return known if self.is_whole or (known or 0.0) >= GPU_AT_WORK else None


class UsageMeter:
    """Samples in its own thread, so that a driver that hangs blocks nothing else."""

    def __init__(
        self,
        guard_pid: int,
        publish: Callable[[Usage], object],
        gpu_at_work: Callable[[], object],
        interval: float = INTERVAL,
    ) -> None:
        """`gpu_at_work` is called whenever the GPUs are seen computing. `interval`: seconds between two samples."""
        self.guard_pid = guard_pid
        self.publish = publish
        self.gpu_at_work = gpu_at_work
        self._closing = threading.Event()
        self._smi = shutil.which("nvidia-smi")
        self._gpus = GpuUse()
        self._gpus_at = float("-inf")
        self._spent = (time.monotonic(), 0.0)
        self._interval = interval
        self._used_at = time.monotonic()

    def start(self) -> None:
        threading.Thread(target=self._run, name="usage", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(self._interval):
            try:
                seen = self.look()
                if not self._closing.is_set():
                    # Of the launch that follows it would say that the machine idles.
                    self.publish(seen)
            except Exception as error:  # these numbers are optional
                logger.debug("usage: %s: %s", type(error).__name__, error)

    def look(self) -> Usage:
        now, spent = time.monotonic(), processor_time(self.guard_pid)
        before, spent_before = self._spent
        self._spent = (now, spent)
        memory, limit = memory_in_use()
        if self._smi and now - self._gpus_at >= GPU_SAMPLES * self._interval:
            self._gpus, self._gpus_at = ask_gpu_usage(self._smi), now
            if any(gpu[1] >= GPU_MEMORY_AT_WORK for gpu in self._gpus.rows):
                self.gpu_at_work()
        gpus = self._gpus.rows
        seen = Usage(
            cores=round(max(0.0, spent - spent_before) / max(now - before, 1e-3), 2),
            memory=memory,
            memory_limit=limit,
            gpu=round(sum(gpu[0] for gpu in gpus) / len(gpus) / 100, 3) if gpus else None,
            gpu_memory=round(max(used / total for _, _, used, total in gpus), 3) if gpus else None,
        )
        # The mean of eight would hide one at work.
        used = is_used(replace(seen, gpu=self._gpus.busiest), has_gpus=self._smi is not None)
        if used is not False:
            self._used_at = now
        return replace(seen, idle=None if used is None else round(now - self._used_at, 1))


def ask_gpu_usage(smi: str) -> GpuUse:
    """Return the use of the GPUs; nothing where nvidia-smi fails, or does not answer in time."""
    try:
        output = subprocess.run(
            [smi, *GPU_QUERY], capture_output=True, text=True, errors="replace", timeout=SMI_LIMIT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return GpuUse()
    return read_gpus(output.stdout)


def read_gpus(text: str) -> GpuUse:
    """Return what nvidia-smi's table shows: a line with another number of cells is none of its rows."""
    cells = [line.split(",") for line in text.splitlines()]
    rows = [_row(each) for each in cells if len(each) == CELLS]
    known = tuple(row for row in rows if row is not None)
    return GpuUse(known, is_whole=bool(known) and len(known) == len(rows))


def _row(cells: list[str]) -> tuple[float, ...] | None:
    """Return a row of the table; None: of a GPU that shows no use."""
    try:
        row = tuple(float(cell) for cell in cells)
    except ValueError:
        return None
    return row if row[-1] > 0 else None


def processor_time(root: int) -> float:
    """Return the seconds of processor time of a process, all living ones below it, and those that they have reaped."""
    ticks = 0
    for pid in [root, *guard.descendants(root)]:
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_in_use() -> tuple[int | None, int | None]:
    """Return the used and the total bytes: of the container where it has a limit, else of the machine."""
    try:
        limit = CGROUP.joinpath("memory.max").read_text().strip()
        if limit != "max":
            return int(CGROUP.joinpath("memory.current").read_text()), int(limit)
    except (OSError, ValueError):
        pass
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {
            name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)
        }
        return sizes["MemTotal"] - sizes["MemAvailable"], sizes["MemTotal"]
    except (OSError, ValueError, KeyError, IndexError):
        return None, None
