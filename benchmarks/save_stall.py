"""P13, P13g: how long a save stops the training, with the helper, beside torch.save and a copy in memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.comparison import Comparison, Interval, Samples

ROOT = Path(__file__).resolve().parent.parent
TIMES_FASTER = 12
TIMES_A_COPY = 1.5


def stalls_of(kind: str, order: dict[str, object], **environ: str) -> list[float]:
    """Return the stalls of a program of its own, in s. Raises RuntimeError when it fails."""
    command = [sys.executable, "-m", "benchmarks.saving_programs", kind, json.dumps(order)]
    env = {**os.environ, **environ}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{kind} failed: {done.stderr[-2000:]}")
    return [float(each) for each in json.loads(done.stdout.strip().splitlines()[-1])["stalls"]]


class SaveStall(Comparison):
    name = "P13"
    title = "the training's pause for a save of 512 MiB, with the helper"
    peer_name = "torch.save and fsync"
    unit = "s"
    target = f"{TIMES_FASTER} times shorter; at most {TIMES_A_COPY} times a copy in memory"
    device = "cpu"
    mib = 512
    saves = 5
    _folder: Path
    _copies: list[float]

    @contextmanager
    def setting(self) -> Iterator[None]:
        self._copies = []
        with tempfile.TemporaryDirectory() as folder:
            self._folder = Path(folder)
            yield

    def ours(self) -> float:
        self._copies.append(self._median("copy", pause=0.0))
        return self._median("helper", pause=0.5)

    def peer(self) -> float:
        return self._median("torch.save", pause=0.5)

    def _median(self, kind: str, *, pause: float, **more: object) -> float:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            order = {
                "folder": folder,
                "saves": self.saves,
                "pause": pause,
                "device": self.device,
                "mib": self.mib,
                **more,
            }
            return statistics.median(stalls_of(kind, order))

    def floor(self) -> float | None:
        return statistics.median(self._copies)

    def met(self, samples: Samples) -> bool:
        ours, copy = Interval.of(samples.ours), statistics.median(self._copies)
        return samples.ratio.low >= TIMES_FASTER and ours.high <= TIMES_A_COPY * copy


ROW = SaveStall()
