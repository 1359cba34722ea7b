"""P0: the demo's training as an Airflow task, beside the same script under plain torchrun."""

from __future__ import annotations

import os
import pydoc_data.topics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks.comparison import Comparison, Samples
from scripts.airflow_api import ENDED
from scripts.demo import DAG_ID, DemoError, Follower, Place, Stage, stage
from scripts.demo_view import View, seconds_of
from scripts.local_airflow import free_port

SCRIPT = Path(__file__).resolve().parent.parent / "dags_examples" / "train" / "gpt.py"
TARGET_S = 5.0
NODES = 2


class TrainingOverhead(Comparison):
    name = "P0"
    title = "the demo's training on two nodes, from task start to task end"
    peer_name = "plain torchrun"
    unit = "s"
    target = f"at most {TARGET_S:.0f} s more"
    pairs = 6  # a pair takes more than a minute
    _stage: Stage
    _folder: Path

    @contextmanager
    def setting(self) -> Iterator[None]:
        """Airflow and the emulator run throughout, so that both sides share the machine with them."""
        with tempfile.TemporaryDirectory() as folder:
            self._folder = Path(folder)
            with stage(Place(self._folder / "demo"), View(Console(quiet=True))) as self._stage:
                yield

    def ours(self) -> float:
        api = self._stage.airflow.api
        follower = Follower(self._stage, self._stage.trigger(self._folder / "results"))
        # Seldom, so that polling does not slow the training.
        while api.dag_run(DAG_ID, follower.run_id)["state"] not in ENDED:
            time.sleep(1)
        if api.dag_run(DAG_ID, follower.run_id)["state"] != "success":
            raise DemoError(follower.failure())
        taken = seconds_of(follower.tasks()["train"])
        assert taken is not None
        return taken

    def peer(self) -> float:
        """Run the two nodes as two torchruns on loopback, with the demo's own arguments."""
        endpoint = f"127.0.0.1:{free_port()}"
        began = time.perf_counter()
        nodes = [self._torchrun(rank, endpoint) for rank in range(NODES)]
        codes = [node.wait(timeout=600) for node in nodes]
        if any(codes):
            raise DemoError(f"torchrun ended with {codes}; its output is in {self._folder}")
        return time.perf_counter() - began

    def _torchrun(self, rank: int, endpoint: str) -> subprocess.Popen[bytes]:
        folder = Path(tempfile.mkdtemp(prefix=f"node-{rank}-", dir=self._folder))
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            str(NODES),
            "--nproc-per-node",
            "1",
        ]
        command += ["--node-rank", str(rank), "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
        command += ["--rdzv-id", endpoint, "--local-addr", "127.0.0.1"]
        command += [
            str(SCRIPT),
            "--data",
            pydoc_data.topics.__file__,
            "--steps",
            "300",
            "--learning-rate",
            "3e-3",
        ]
        # Left to itself, torch takes all cores in both nodes and is six times slower; that would not be a fair peer.
        env = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // NODES))}
        with (folder / "log").open("wb") as log:
            return subprocess.Popen(
                command, cwd=folder, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def met(self, samples: Samples) -> bool:
        return samples.excess.high <= TARGET_S


ROW = TrainingOverhead()
