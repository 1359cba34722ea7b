"""P16b: from SIGSTOP of a training process to the first new step, beside torchrun with the same time-out."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from airflow_provider_ocidist.agent import guard
from airflow_provider_ocidist.model.drill import FaultKind
from benchmarks.comparison import Comparison, Interval, Samples
from benchmarks.recovery import PROGRAM, STRUCK_AT, await_step, end_nodes, seconds_to_recover, torchrun
from scripts.local_airflow import free_port

HANG_S = 8.0
"""Seconds of `limits.hang_timeout`, and of the peer's process group. What is added is the recovery itself."""
TARGET_S = 30.0
BACKEND = '"gloo")'
"""End of the line of the program that makes the process group."""


class HangRecovery(Comparison):
    name = "P16b"
    title = (
        f"SIGSTOP of a process of two nodes, until the first new step (limits.hang_timeout {HANG_S:.0f} s, from the "
        "newest checkpoint, same machines)"
    )
    peer_name = (
        f"torchrun --max-restarts, process group with a time-out of {HANG_S:.0f} s (torch's default: 1,800 s)"
    )
    unit = "s"
    target = f"at most {TARGET_S:.0f} s"
    pairs = 5

    def ours(self) -> float:
        return seconds_to_recover(FaultKind.FREEZE_RANK, {"limits.hang_timeout": HANG_S})

    def peer(self) -> float:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ocidist-bench-")))
            program = folder / "program.py"
            text = PROGRAM.read_text()
            limited = f"{BACKEND[:-1]}, timeout=__import__('datetime').timedelta(seconds={HANG_S}))"
            if text.count(BACKEND) != 1:
                raise RuntimeError(f"{PROGRAM} makes its process group in another way now")
            program.write_text(text.replace(BACKEND, limited))
            port = free_port()
            nodes = [torchrun(folder, rank, port, program) for rank in range(2)]
            stack.callback(end_nodes, nodes)
            reached = await_step(folder, lambda steps: max(steps, default=0) >= STRUCK_AT)
            struck_at = time.time()
            frozen = guard.descendants(nodes[1].pid)[0]
            os.kill(frozen, signal.SIGSTOP)
            await_step(folder, lambda steps: any(step <= max(reached) for step in steps[len(reached) :]))
            return time.time() - struck_at

    def met(self, samples: Samples) -> bool:
        return Interval.of(samples.ours).high <= TARGET_S


ROW = HangRecovery()
