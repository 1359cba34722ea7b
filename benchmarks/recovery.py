"""P16: from SIGKILL of a training process to the first new step, beside torchrun's own restarts."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from airflow_provider_ocidist.agent import guard
from airflow_provider_ocidist.backends.local import Local
from airflow_provider_ocidist.gangs.drill_measures import DrillRecovery
from airflow_provider_ocidist.gangs.drills import carry_out
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.drill import Fault, FaultKind
from benchmarks.comparison import Comparison, Interval, Samples
from scripts.local_airflow import free_port

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "dags_examples" / "jobs" / "drill.yaml"
PROGRAM = ROOT / "dags_examples" / "train" / "resumable.py"
STEPS, SAVE_EVERY, STRUCK_AT = 200, 40, 100
SHORT_PAUSE_S = 0.05
"""Seconds after each step of the program."""
ARGUMENTS = ("--steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--pause", str(SHORT_PAUSE_S))
LEASE = "2h"
"""Value of `limits.lease`, as Airflow sets it: without a lease no lost node is replaced."""
TARGET_S = 10.0
PATIENCE_S = 240.0
PEER_PATIENCE_S = 90.0
"""Seconds that count for the peer where it does not come back: its new processes may read the address of an old one,
and wait for it for good."""


class Recovery(Comparison):
    name = "P16"
    title = "SIGKILL of a process of two nodes, until the first new step (from the newest checkpoint, same machines)"
    peer_name = "torchrun --max-restarts, checkpoints on a shared disk"
    unit = "s"
    target = f"at most {TARGET_S:.0f} s"

    def ours(self) -> float:
        return seconds_to_recover(FaultKind.KILL_RANK, {})

    def peer(self) -> float:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ocidist-bench-")))
            port = free_port()
            nodes = [torchrun(folder, rank, port) for rank in range(2)]
            stack.callback(end_nodes, nodes)
            reached = await_step(folder, lambda steps: max(steps, default=0) >= STRUCK_AT)
            struck_at = time.time()
            os.kill(guard.descendants(nodes[1].pid)[0], signal.SIGKILL)
            # The first step that was reported before: the training has gone back to its checkpoint.
            with suppress(TimeoutError):
                await_step(
                    folder,
                    lambda steps: any(step <= max(reached) for step in steps[len(reached) :]),
                    PEER_PATIENCE_S,
                )
            return min(time.time() - struck_at, PEER_PATIENCE_S)

    def met(self, samples: Samples) -> bool:
        return Interval.of(samples.ours).high <= TARGET_S


def recovery_from(
    kind: FaultKind, changes: Mapping[str, object], *, tries: int = 1, step: int = STRUCK_AT, node: int = 1
) -> DrillRecovery:
    """Return how the training of the example drill went on after a fault on one of its nodes.

    `changes`: values of the job by dotted path. Raises RuntimeError where it did not go on.
    """
    with tempfile.TemporaryDirectory(prefix="ocidist-bench-") as folder:
        job = parsing.load(JOB, overrides={"work_dir": folder, "limits.lease": LEASE, **changes})
        fault = Fault(kind=kind, node=node, step=step)
        log = logging.getLogger("drill")
        done = carry_out(Local.connect({}), job, uuid.uuid4().hex, fault, log, tries=tries)
    if done.failure or done.recovery is None:
        raise RuntimeError(f"the training did not come back: {done.failure}")
    return done.recovery


def seconds_to_recover(
    kind: FaultKind, changes: Mapping[str, object], *, tries: int = 1, step: int = STRUCK_AT
) -> float:
    """Return the seconds from a fault to the first new step, as `recovery_from`."""
    found = recovery_from(kind, changes, tries=tries, step=step).seconds
    if found is None:
        raise RuntimeError("the training did not come back")
    return found


def torchrun(
    folder: Path, rank: int, port: int, program: Path = PROGRAM, arguments: Sequence[str] = ARGUMENTS
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "OCIDIST_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "OCIDIST_PROGRESS_FILE": str(folder / "progress"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += [f"--node-rank={rank}", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=bench"]
    command += [
        f"--rdzv-endpoint=127.0.0.1:{port}",
        f"--rdzv-conf=is_host={rank == 0}",
        "--local-addr=127.0.0.1",
    ]
    command += [str(program), *arguments]
    with (folder / f"log-{rank}").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def await_step(folder: Path, found: Callable[[list[int]], bool], within: float = PATIENCE_S) -> list[int]:
    """Return the steps reported so far, as soon as they are as wanted. Raises TimeoutError after so many seconds."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        steps = _steps(folder / "progress")
        if found(steps):
            return steps
        time.sleep(0.01)
    raise TimeoutError(f"not within {within:.0f} s: {(folder / 'log-0').read_text()[-2000:]}")


def _steps(path: Path) -> list[int]:
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    return [json.loads(line)["step"] for line in lines if line.endswith("}")]


def end_nodes(nodes: list[subprocess.Popen[bytes]]) -> None:
    for node in nodes:
        for pid in [*guard.descendants(node.pid), node.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        node.wait()


ROW = Recovery()
