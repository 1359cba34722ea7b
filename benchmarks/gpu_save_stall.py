"""P13g: how long a save of 512 MiB from a GPU stops the training, beside torch.save, async_save of torch and a copy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.comparison import Interval, Samples
from benchmarks.save_stall import SaveStall

COPY, OURS, PEER = "a copy into pinned memory", "the helper", "torch.save and fsync"
ASYNC = "async_save with pinned memory"


class GpuSaveStall(SaveStall):
    name = "P13g"
    title = "the training's pause for a save of 512 MiB from a GPU, with the helper"
    pairs = 5
    device = "cuda"
    saves = 3
    _async: list[float]

    def lacks(self) -> str | None:
        return None if shutil.which("nvidia-smi") else "GPU"

    @contextmanager
    def setting(self) -> Iterator[None]:
        self._async = []
        with super().setting():
            yield

    def ours(self) -> float:
        self._async.append(self._median("async_save", pause=0.0))
        return super().ours()

    def result(self, samples: Samples) -> dict[str, Any]:
        stalls = {COPY: self._copies, OURS: samples.ours, ASYNC: self._async, PEER: samples.peer}
        return {
            **super().result(samples),
            "stalls": {name: Interval.of(values).to_json() for name, values in stalls.items()},
        }


ROW = GpuSaveStall()
