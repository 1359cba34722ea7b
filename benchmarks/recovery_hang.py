"""P16b: from SIGSTOP of a training process to the first new step, beside torchrun with the same time-out."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from airflow_provider_ocidist.agent import guard
from airflow_provider_ocidist.model.drill import FaultKind
from benchmarks.comparison import Comparison, Interval, Samples
from benchmarks.recovery import (
    PEER_PATIENCE_S,
    PROGRAM,
    SHORT_PAUSE_S,
    await_step,
    end_nodes,
    seconds_to_recover,
    torchrun,
)
from scripts.local_airflow import free_port

HANG_S = 8.0
"""Seconds of `limits.hang_timeout`, and of the peer's process group. What is added is the recovery itself."""
TARGET_S = 30.0
STRUCK_AT = 60
ARGUMENTS = ("--steps", "120", "--save-every", "40", "--pause", str(SHORT_PAUSE_S))
"""A shorter training than that of P16, so that five pairs take less than ten minutes."""
BACKEND = '"gloo")'
"""End of the line of the program that makes the process group."""
TALKING = """import runpy, threading, time
from pathlib import Path

def talk():
    while True:
        print("alive", flush=True)
        time.sleep(1)

threading.Thread(target=talk, daemon=True).start()
runpy.run_path(str(Path(__file__).with_name("resumable.py")), run_name="__main__")
"""
"""Program that prints while it starts, since an import of torch may take longer than `HANG_S`: until a program counts
steps, its output is progress."""


class HangRecovery(Comparison):
    name = "P16b"
    title = (
        f"SIGSTOP of a process of two nodes, until the first new step (limits.hang_timeout {HANG_S:.0f} s, from the "
        "newest checkpoint, same machines)"
    )
    peer_name = (
        f"torchrun --max-restarts, process group with a time-out of {HANG_S:.0f} s (torch's default: 1,800 s); "
        f"{PEER_PATIENCE_S:.0f} s where it did not come back by then"
    )
    unit = "s"
    target = f"at most {TARGET_S:.0f} s"
    pairs = 5

    def ours(self) -> float:
        with tempfile.TemporaryDirectory(prefix="ocidist-bench-") as folder:
            program = _program(Path(folder), PROGRAM.read_text())
            changes: dict[str, object] = {
                "limits.hang_timeout": HANG_S,
                "program.source": folder,
                "program.script": program.name,
                "program.args": list(ARGUMENTS),
            }
            return seconds_to_recover(FaultKind.FREEZE_RANK, changes, step=STRUCK_AT)

    def peer(self) -> float:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ocidist-bench-")))
            program = _program(folder, _limited(PROGRAM.read_text()))
            port = free_port()
            nodes = [torchrun(folder, rank, port, program, ARGUMENTS) for rank in range(2)]
            stack.callback(end_nodes, nodes)
            reached = await_step(folder, lambda steps: max(steps, default=0) >= STRUCK_AT)
            struck_at = time.time()
            os.kill(guard.descendants(nodes[1].pid)[0], signal.SIGSTOP)
            # The first step that was reported before: the training has gone back to its checkpoint.
            with suppress(TimeoutError):
                await_step(
                    folder,
                    lambda steps: any(step <= max(reached) for step in steps[len(reached) :]),
                    within=PEER_PATIENCE_S,
                )
            return time.time() - struck_at

    def met(self, samples: Samples) -> bool:
        return Interval.of(samples.ours).high <= TARGET_S


def _program(folder: Path, text: str) -> Path:
    (folder / "resumable.py").write_text(text)
    program = folder / "program.py"
    program.write_text(TALKING)
    return program


def _limited(text: str) -> str:
    """Return the program with a time-out of its process group."""
    if text.count(BACKEND) != 1:
        raise RuntimeError(f"{PROGRAM} makes its process group in another way now")
    limit = f"timeout=__import__('datetime').timedelta(seconds={HANG_S})"
    return text.replace(BACKEND, f"{BACKEND[:-1]}, {limit})")


ROW = HangRecovery()
