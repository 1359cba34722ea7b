"""memory: what supervising a training takes, our agent's and its guard's beside that of torchrun's own process."""

from __future__ import annotations

import re
import time
from pathlib import Path

from airflow_provider_ocidist.agent.guard import descendants
from benchmarks.comparison import Comparison, Samples
from benchmarks.nodes import Nodes

TARGET_MB = 40.0
SCRIPT = """
import os, pathlib, time
for step in range(80):
    print("step", step)
    time.sleep(0.1)
pathlib.Path(os.environ["RESULTS"], "began-0").write_text("0")
"""
SETTLED_S = 6.0


class AgentMemory(Comparison):
    name = "memory"
    title = "resident memory of the supervising process, while a script prints steps"
    peer_name = "torchrun's own process"
    unit = "MB"
    target = f"at most {TARGET_MB:.0f} MB"

    def ours(self) -> float:
        """Return the peak of the agent and what its guard has."""
        with Nodes(SCRIPT, 1, kind="python") as nodes:
            agent = nodes.agent(0)
            time.sleep(SETTLED_S)
            guards = [pid for pid in descendants(agent.pid) if b"guard.py" in _command(pid)]
            taken = _memory(agent.pid, "VmHWM") + sum(_memory(pid, "VmRSS") for pid in guards)
            nodes.wait()
            return taken

    def peer(self) -> float:
        with Nodes(SCRIPT, 1) as nodes:
            torchrun = nodes.torchrun(0)
            time.sleep(SETTLED_S)
            taken = _memory(torchrun.pid, "VmHWM")
            nodes.wait()
            return taken

    def met(self, samples: Samples) -> bool:
        return max(samples.ours) <= TARGET_MB


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _memory(pid: int, name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 / 1e6 if found else 0.0


ROW = AgentMemory()
