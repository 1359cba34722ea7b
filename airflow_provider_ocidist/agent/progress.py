"""How far the training has come: read from what it prints, and from the file it may write."""

from __future__ import annotations

import json
import math
import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.agent.report import Progress

STEP = re.compile(rb"\bstep\b\s*[:=#]?\s*(\d{1,15})(?:\s*(?:/|of)\s*(\d{1,15}))?", re.IGNORECASE)
LOSS = re.compile(rb"\b(?:train_)?loss\b\s*[:=]?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)", re.IGNORECASE)
LOOKED_AT = 4096
"""Bytes at the end of each piece of output that are searched: the newest step is all that counts."""
LOSSES_KEPT = 1000


class ProgressMeter:
    """The newest step, and when the last sign of life was. Safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the meter's own; it is removed at the end."""
        self.file = folder / "progress.jsonl"
        self._offset = 0
        self._lock = threading.Lock()
        self._progress = Progress(updated_at=time.time())
        self._losses: dict[int, float] = {}

    @property
    def progress(self) -> Progress:
        return self._progress

    @property
    def updated_at(self) -> float:
        return self._progress.updated_at or 0.0

    def loss_at(self, step: int) -> float | None:
        return self._losses.get(step)

    def touch(self) -> None:
        """Note a sign of life that says nothing of the step."""
        self._update({})

    def saw(self, output: bytes) -> None:
        """Take whole lines of output."""
        self.touch()
        for found in read_lines(output[-LOOKED_AT:]):
            self._update(found)

    def read_file(self) -> None:
        """Take what the program has appended to its progress file since the last look."""
        try:
            with self.file.open("rb") as file:
                file.seek(self._offset)
                lines = file.read().rpartition(b"\n")[0]
        except OSError:
            return
        if lines:
            self._offset += len(lines) + 1
            for line in lines.splitlines():
                self._update(read_record(line))

    def close(self) -> None:
        """Read the file a last time and remove it."""
        self.read_file()
        shutil.rmtree(self.file.parent, ignore_errors=True)

    def _update(self, found: dict[str, Any]) -> None:
        with self._lock:
            self._progress = replace(self._progress, updated_at=time.time(), **found)
            if "step" in found and "loss" in found:
                self._losses[found["step"]] = found["loss"]
            if len(self._losses) > LOSSES_KEPT:
                del self._losses[next(iter(self._losses))]


def read_lines(output: bytes) -> list[dict[str, Any]]:
    """Return what each line with a step says: `step 10/300 loss 2.34`, `step: 10, loss=2.34`, `step 10 of 300`."""
    if b"step" not in output.lower():
        return []
    return [found for line in output.splitlines() if (found := _read_line(line))]


def _read_line(line: bytes) -> dict[str, Any]:
    step, loss = STEP.search(line), LOSS.search(line)
    if step is None or not (step[2] or loss or line.lstrip().lower().startswith(b"step")):
        # "going on from step 0" is prose.
        return {}
    return _known(step=int(step[1]), steps=step[2] and int(step[2]), loss=loss and float(loss[1]))


def read_record(line: bytes) -> dict[str, Any]:
    """Return step, steps and loss of one line of the progress file; nothing if it is not such a line."""
    try:
        record = json.loads(line)
        fields = {name: kind(record[name]) for name, kind in _KINDS.items() if record.get(name) is not None}
    except (ValueError, TypeError, AttributeError, OverflowError):
        return {}
    return _known(**fields)


_KINDS: dict[str, type[int | float]] = {"step": int, "steps": int, "loss": float}


def _known(**fields: Any) -> dict[str, Any]:
    # JSON has no NaN: a loss that is one is as good as unknown to whoever reads the report.
    return {name: value for name, value in fields.items() if value is not None and math.isfinite(value)}
