"""How far the training has come: read from what it prints, from the file it may write, or from TensorBoard's."""

from __future__ import annotations

import os
import shutil
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_provider_ocidist.agent.metrics import (
    Metrics,
    announced_in,
    read_lines,
    read_record,
    read_scalars,
)
from airflow_provider_ocidist.agent.report import Progress
from airflow_provider_ocidist.agent.tensorboard import EventFiles

LOOKED_AT = 4096
"""Bytes at the end of each piece of output that are searched: the newest step is all that counts."""
LOSSES_KEPT = 1000
CURVE_POINTS = 100
"""Losses that a report carries at the most."""


@dataclass(frozen=True)
class Announced:
    """The program's word that a checkpoint is whole."""

    at_ns: int
    """When the progress file was last written to, in ns of Unix time."""
    step: int | None


class LossCurve:
    """The losses of all steps, thinned evenly whenever they have become too many."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []
        self._stride = 1
        self._seen = 0

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        return tuple(self._points)

    def add(self, step: int, loss: float) -> None:
        if self._points and step <= self._points[-1][0]:
            return
        if self._seen % self._stride == 0:
            self._points.append((step, float(f"{loss:.5g}")))
        self._seen += 1
        if len(self._points) > CURVE_POINTS:
            self._points = self._points[::2]
            self._stride *= 2


class ProgressMeter:
    """The newest step, and when the last sign of life was. Safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the meter's own; it is removed at the end."""
        self.file = folder / "progress.jsonl"
        self._offset = 0
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._announced: dict[str, Announced] = {}
        self._progress = Progress(updated_at=time.time())
        self._moved_at = time.monotonic()
        self._losses: dict[int, float] = {}
        self._curve = LossCurve()
        self._events: EventFiles | None = None
        self._told = False
        """Whether output or progress file have named a step: then nothing else is looked at."""

    @property
    def progress(self) -> Progress:
        with self._lock:
            return replace(self._progress, idle=round(self.idle, 1), losses=self._curve.points)

    @property
    def idle(self) -> float:
        """Seconds since the last sign of life, by a clock that does not jump."""
        return time.monotonic() - self._moved_at

    def loss_at(self, step: int) -> float | None:
        return self._losses.get(step)

    def announced(self) -> dict[str, Announced]:
        """Return what the program has named as whole in its progress file until now, by the names of the entries."""
        self._read_file()
        with self._lock:
            return dict(self._announced)

    def touch(self) -> None:
        """Note a sign of life that says nothing of the step."""
        self._update({})

    def saw(self, output: bytes) -> None:
        """Take whole lines of output."""
        self.touch()
        for found in read_lines(output[-LOOKED_AT:]):
            self._update(found, printed=True)

    def look_for_events_in(self, folder: Path) -> None:
        """Look for TensorBoard's files below this folder, as long as the program says nothing in simpler ways."""
        self._events = EventFiles(folder)

    def read(self) -> None:
        """Take what the program has written into files since the last look."""
        self._read_file()
        if self._events and not self._told:
            for found in read_scalars(self._events.new_scalars()):
                self._update(found)

    def _read_file(self) -> None:
        with self._reading:
            try:
                with self.file.open("rb") as file:
                    file.seek(self._offset)
                    lines = file.read().rpartition(b"\n")[0]
                    written_ns = os.fstat(file.fileno()).st_mtime_ns
            except OSError:
                return
            if lines:
                self._offset += len(lines) + 1
                for line in lines.splitlines():
                    self._take_line(line, written_ns)

    def _take_line(self, line: bytes, written_ns: int) -> None:
        found = read_record(line)
        self._told |= "step" in found
        name = announced_in(line)
        if name:
            with self._lock:
                self._announced[name] = Announced(written_ns, found.get("step"))
            if set(found) <= {"step"}:
                # It tells of a checkpoint, and not of how far the training is now.
                return
        self._update(found)

    def close(self) -> None:
        """Read the files a last time and remove our own."""
        self.read()
        shutil.rmtree(self.file.parent, ignore_errors=True)

    def _update(self, found: Metrics, *, printed: bool = False) -> None:
        with self._lock:
            now = self._progress
            if found.pop("of_bar", False) and found["step"] < (now.step or 0):
                # A bar of something else, such as an evaluation, begins anew.
                return
            if "step" in found:
                found["printed"] = printed
                self._told |= printed
            self._progress = replace(now, updated_at=time.time(), **found)
            self._moved_at = time.monotonic()
            if "loss" in found and self._progress.step is not None:
                self._losses[self._progress.step] = found["loss"]
                self._curve.add(self._progress.step, found["loss"])
            if len(self._losses) > LOSSES_KEPT:
                del self._losses[next(iter(self._losses))]
