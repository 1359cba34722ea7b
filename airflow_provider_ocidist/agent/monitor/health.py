"""Health: finds faults of this machine: of its GPUs, its disks, its network to each peer."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from airflow_provider_ocidist.agent.monitor.peers import host_answers
from airflow_provider_ocidist.agent.monitor.usage import SMI_LIMIT
from airflow_provider_ocidist.model.amounts import size_text

logger = logging.getLogger(__name__)

INTERVAL = 300.0
"""Seconds between two checks without a request."""
SLOW_CHECK = 20.0
"""Seconds after which a check that has not come back is itself a finding: a driver or a file server hangs."""
SLOW_WRITE = 10.0
"""Seconds for a write of a few bytes to reach the disk, from which on the disk counts as slow."""
LEAST_SPACE = 50_000_000
"""Bytes below which a disk counts as full."""
NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of a folder that the process may not write; no fault of its disk, unless it could be written before."""
PROBES = 8
"""Number of peers that are probed at the same time."""
REASONS = {
    "hw_thermal_slowdown": "it is too hot",
    "hw_power_brake_slowdown": "throttled by the power supply",
    "hw_slowdown": "throttled by its hardware",
}
"""Reasons why hardware slows a GPU down, by nvidia-smi's name; each explains those below it."""
THROTTLE_FIELDS = ("clocks_throttle_reasons", "clocks_event_reasons")
"""Prefixes of those fields in older and in newer versions of nvidia-smi."""
ENDED_BY_OTHERS = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit codes of a nvidia-smi that others have ended."""
ECC = "ecc.errors.uncorrected.volatile.total"

Gpus = Mapping[str, Sequence[str]]
"""Values that nvidia-smi prints for each GPU, by its index: uncorrected errors, then whether each reason is active."""


class HealthWatch:
    """Checks the node in a thread of its own: at the start, on request, and every few minutes.

    What was found at the start is not reported later where it may have other reasons, as a firewall that drops probes.
    """

    def __init__(
        self, places: Sequence[Path], peers: Mapping[int, str], report: Callable[[tuple[str, ...]], object]
    ) -> None:
        """`peers`: the other nodes' addresses, by rank."""
        self.places = list(places)
        self.peers = peers
        self.report = report
        self._smi = shutil.which("nvidia-smi")
        self._fields: str | None = None
        """Prefix of the fields that this nvidia-smi knows."""
        self._errors_before: dict[str, int] = {}
        self._answered: set[int] = set()
        self._written: set[Path] = set()
        self._at: tuple[str, float] | None = None
        """Subject of the check that runs, and the time since which it does."""
        self._wake = threading.Event()
        self._closing = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="health", daemon=True).start()

    def close(self) -> None:
        self._closing = True
        self._wake.set()

    def ask(self) -> None:
        """Request a check."""
        self._wake.set()

    def stuck(self) -> tuple[str, ...]:
        """Return the check that hangs, if one does."""
        at = self._at
        if at is None or time.monotonic() - at[1] < SLOW_CHECK:
            return ()
        return (f"{at[0]} has not answered for {time.monotonic() - at[1]:.0f} s",)

    def _run(self) -> None:
        while not self._closing:
            try:
                found = self.look()
                if not self._closing:
                    # What is found later is of another launch, or of a node that ends.
                    self.report(found)
            except Exception as error:  # a dead watch would look like "all is well"
                logger.warning("%s: %s", type(error).__name__, error)
            self._wake.wait(INTERVAL)
            self._wake.clear()

    def look(self) -> tuple[str, ...]:
        """Return all findings, one line each."""
        try:
            return (*self._gpus(), *self._disks(), *self._network())
        finally:
            # One that has broken off, as where no thread can be started, does not hang.
            self._at = None

    def _begin(self, what: str) -> None:
        self._at = (what, time.monotonic())

    def _gpus(self) -> list[str]:
        if self._smi is None:
            return []
        self._begin("nvidia-smi")
        for prefix in [self._fields] if self._fields else THROTTLE_FIELDS:
            gpus = ask_gpu_health(self._smi, prefix)
            if gpus is not None:
                self._fields = prefix if gpus else self._fields
                return self._of_gpus(gpus)
        return ["nvidia-smi, which has answered before, fails now"] if self._fields else []

    def _of_gpus(self, gpus: Gpus) -> list[str]:
        found = [f"GPU {index} is slowed down: {why}" for index, row in gpus.items() if (why := slowed(row))]
        for index, row in gpus.items():
            count = int(row[0]) if row[0].isdigit() else 0
            # They are counted since the driver was loaded: earlier ones are another program's.
            before = self._errors_before.setdefault(index, count)
            if count > before:
                found.append(f"GPU {index} has had {count - before} uncorrected memory errors (ECC)")
        return found

    def _disks(self) -> list[str]:
        found = []
        for place in [*self.places]:
            self._begin(f"the disk at {place}")
            if place not in self._written and not may_write(place):
                self.places.remove(place)
                continue
            self._written.add(place)
            finding = disk_fault(place)
            if finding:
                found.append(finding)
        return found

    def _network(self) -> list[str]:
        self._begin("the network")
        answers: dict[int, bool] = {}
        with ThreadPoolExecutor(PROBES) as pool:
            for rank, answer in zip(self.peers, pool.map(self._answers, self.peers.values())):
                # Each has a limit of its own: behind a firewall, those of a large gang take minutes together.
                self._begin("the network")
                answers[rank] = answer
        lost = [rank for rank, answer in answers.items() if not answer and rank in self._answered]
        self._answered |= {rank for rank, answer in answers.items() if answer}
        return [f"node {rank} at {self.peers[rank]} does not answer it any more" for rank in lost]

    def _answers(self, address: str) -> bool:
        """Whether a peer answers; once this is closed none is asked: the interpreter would wait for all of them."""
        return not self._closing and host_answers(address)


def ask_gpu_health(smi: str, prefix: str) -> Gpus | None:
    """Return what nvidia-smi knows of the GPUs' health; None where it fails, as one that has other fields does.

    Nothing of any GPU where it was killed: as this node ends, all that it has started is.
    """
    fields = ",".join(["index", ECC, *(f"{prefix}.{reason}" for reason in REASONS)])
    command = [smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SMI_LIMIT, check=True
        )
    except subprocess.CalledProcessError as error:
        return {} if error.returncode in ENDED_BY_OTHERS else None
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return {row[0]: row[1:] for row in rows if len(row) == 2 + len(REASONS)}


def slowed(row: Sequence[str]) -> str | None:
    """Return why a GPU's hardware slows it down; None where it does not."""
    active = [why for state, why in zip(row[1:], REASONS.values()) if state == "Active"]
    return active[0] if active else None


def may_write(place: Path) -> bool:
    """Whether a folder is one that this process is meant to write to."""
    try:
        _write_through(place)
    except OSError as error:
        return error.errno not in NOT_PERMITTED
    return True


def disk_fault(place: Path) -> str | None:
    """Return what is wrong with the disk at a folder."""
    try:
        free = shutil.disk_usage(place).free
        began = time.monotonic()
        _write_through(place)
        taken = time.monotonic() - began
    except OSError as error:
        return f"the disk at {place} cannot be written: {error.strerror or error}"
    if free < LEAST_SPACE:
        return f"the disk at {place} is full: {size_text(free)} are left"
    return f"the disk at {place} takes {taken:.0f} s for a few bytes" if taken > SLOW_WRITE else None


def _write_through(place: Path) -> None:
    handle, name = tempfile.mkstemp(prefix=".ocidist-health-", dir=place)
    try:
        os.write(handle, b"ocidist")
        os.fsync(handle)
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108 - its name is a string
