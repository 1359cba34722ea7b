"""Conditions: when, of which commit and on what machine something was measured, and how busy that was."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.backports import UTC

ROOT = Path(__file__).resolve().parent.parent
BUSY = 0.5
"""Load for each core above which nothing is measured: what waits for a core would be measured with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """What a result depends on besides the code, as it stands in results.json."""

    date: str
    """UTC, as ISO 8601 has it."""
    commit: str
    """Short; with `+` where files differ from it."""
    machine: str
    load: float
    """Of the last minute, for each core, at the start."""

    @classmethod
    def now(cls) -> Conditions:
        return cls(
            date=datetime.now(UTC).date().isoformat(),
            commit=commit(),
            machine=machine(),
            load=round(load_per_core(), 2),
        )

    @property
    def busy(self) -> bool:
        return self.load > BUSY

    @property
    def dirty(self) -> bool:
        return self.commit.endswith("+")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def load_per_core() -> float:
    return os.getloadavg()[0] / cores()


def cores() -> int:
    return len(os.sched_getaffinity(0))


def machine() -> str:
    """Return cores, processor, memory, system and GPUs in one line; nothing names this machine among others."""
    words = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*:\s*(.+)", words)
    gibibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    name = " ".join(model[1].split()) if model else platform.machine()
    release = platform.release().partition("-")[0]
    python = platform.python_version()
    return f"{cores()} cores of {name}, {gibibytes:.0f} GiB, Linux {release}, Python {python}{gpus()}"


def gpus() -> str:
    """Return each GPU with its driver's version, behind a comma; the empty text where there is none."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return ""
    query = ["--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run([smi, *query], capture_output=True, text=True, timeout=60, check=False)
    rows = [line.rpartition(", ") for line in done.stdout.splitlines() if done.returncode == 0]
    return "".join(f", {name} with driver {driver}" for name, _, driver in rows)


def commit() -> str:
    """Return the commit that is checked out; `unknown` outside of a repository."""
    done = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return "unknown"
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", ":!benchmarks/results.json", ":!docs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() + ("+" if changed.stdout.strip() else "")
