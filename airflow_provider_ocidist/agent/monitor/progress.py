"""The training's progress: from its output, its progress file, or TensorBoard's files."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_provider_ocidist.agent.inotify import IGNORED, MODIFY, Inotify
from airflow_provider_ocidist.agent.monitor.metrics import (
    Metrics,
    OutputReader,
    announced_in,
    last_bar,
    read_record,
    read_scalars,
)
from airflow_provider_ocidist.agent.monitor.process_logs import NewOutput
from airflow_provider_ocidist.agent.monitor.step_clock import STEPS_TIMED, StepClock
from airflow_provider_ocidist.agent.monitor.steps import EpochCounter, LossCurve, OwnSteps, Unplaced
from airflow_provider_ocidist.agent.monitor.tensorboard import EventFiles
from airflow_provider_ocidist.model.codec import replaced
from airflow_provider_ocidist.model.report import Progress, RankPace

LOOKED_AT = 4096
"""Bytes at the end of each piece of output that are searched: only the newest step counts."""
LOSSES_KEPT = 1000
"""Number of the last steps whose losses are kept for their checkpoints."""
PACES_KEPT = 16
"""Most processes of a node whose own step times are reported; more than any machine has GPUs."""


@dataclass(frozen=True)
class Announced:
    """An announced complete checkpoint."""

    at_ns: int
    """Unix time in ns that is not later than the write of its line."""
    step: int | None


class ProgressMeter:
    """The newest step, and the time of the last activity. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the meter's own; it is removed at the end."""
        self.file = folder / "progress.jsonl"
        self._offset = 0
        self._known_by = (0, 0, 0)
        """Inode, size and time of the progress file when it was last read; the size may be less than what was read."""
        self._read_ns = 0
        """Modification time of the progress file at its last reading; what is read next is not older."""
        self._follows = False
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._announced: dict[str, Announced] = {}
        self._progress = Progress(updated_at=time.time())
        self._clock = StepClock()
        self._bar: tuple[bytes, bytes] | None = None
        """Count and total of the progress bar that was printed last, an evaluation's too."""
        self._own = OwnSteps()
        self._own_times: dict[int, deque[float]] = {}
        """Seconds that the program reports for each process's own part of a step, by rank."""
        self._losses: dict[int, float] = {}
        self._curve = LossCurve()
        self._readers: dict[int, OutputReader] = {}
        """Readers of the program's output, by stream."""
        self._epochs = EpochCounter()
        self._unplaced = Unplaced()
        self._events: EventFiles | None = None
        self._hidden_output: NewOutput | None = None
        self._reported = False
        """Whether output or progress file have named a step; then no other source is read."""

    @property
    def progress(self) -> Progress:
        with self._lock:
            clock = self._clock
            return replaced(
                self._progress,
                idle=round(clock.idle, 1),
                still=round(clock.still, 1),
                by_steps=clock.by_steps,
                longest_step=round(clock.longest, 1),
                step_time=clock.pace,
                paces=self._paces(),
                losses=self._curve.points,
                first_step=self._own.first,
                own_steps=self._own.steps,
                goes_on=self._own.goes_on,
                idle_bar=self._own.idle_bar,
            )

    def _paces(self) -> tuple[RankPace, ...]:
        return tuple(
            RankPace(rank=rank, seconds=float(f"{statistics.median(times):.4g}"), steps=len(times))
            for rank, times in sorted(self._own_times.items())
        )

    @property
    def step(self) -> int | None:
        """The step that the program was last seen to report."""
        return self._progress.step

    def step_now(self) -> int | None:
        """Return the step that the program has reported last, also since the last beat."""
        self._read_file()
        return self.step

    @property
    def idle(self) -> float:
        """Seconds since the last progress, by a monotonic clock."""
        return self._clock.idle

    @property
    def still(self) -> float:
        """Seconds since the last progress that is no mere line of output, by a monotonic clock."""
        return self._clock.still

    def first_step_at(self) -> float | None:
        """Return when the program has reported its first step of this launch, on the clock `time.monotonic`."""
        self._read_file()
        return self._clock.first_at

    @property
    def by_steps(self) -> bool:
        """Whether progress is new steps; else it is any output."""
        return self._clock.by_steps

    @property
    def longest_step(self) -> float:
        """Seconds between two steps, at most so far."""
        return self._clock.longest

    def loss_at(self, step: int) -> float | None:
        with self._lock:
            return self._losses.get(step, self._unplaced.loss_at(step))

    def announced(self) -> dict[str, Announced]:
        """Return the announcements in the program's progress file so far, by entry name."""
        self._read_file()
        with self._lock:
            return dict(self._announced)

    @property
    def steps_apart(self) -> int:
        """Steps from one report of the program to the next, in this launch or the last one that had two; else 1."""
        with self._lock:
            return self._clock.habits.apart or 1

    def begin_again(self, hang_timeout: float | None = None) -> None:
        """Forget what the program has reported: it is launched again, and counts from its checkpoint."""
        with self._reading, self._lock:
            self.file.unlink(missing_ok=True)
            self._offset = self._read_ns = 0
            self._known_by = (0, 0, 0)
            self._announced, self._readers = {}, {}
            self._epochs, self._unplaced = EpochCounter(), Unplaced()
            self._progress = Progress(updated_at=time.time())
            self._clock = StepClock(self._clock.habits, hang_timeout)
            self._bar, self._own_times, self._own = None, {}, OwnSteps()

    def launched(self, hang_timeout: float | None = None) -> None:
        """Note that the program is launched now; `hang_timeout`: that of the job."""
        with self._lock:
            self._clock.hang_timeout = hang_timeout
            self._progress = replace(self._progress, updated_at=time.time())
            self._clock.launched()

    def touch(self) -> None:
        """Record progress without a step."""
        self._update({}, further=True)

    def saw(self, output: bytes, stream: int = 1) -> None:
        """Take whole lines of output; `stream`: which one they are from."""
        bar = last_bar(output[-LOOKED_AT:]) or self._bar
        self._update({}, further=bar != self._bar)
        self._bar = bar
        for found in self._reader(stream).read(output[-LOOKED_AT:]):
            self._update(found, printed=True)

    def saw_beginning(self, rest: bytes, stream: int = 1) -> None:
        """Take the output after the last line end."""
        found = self._reader(stream).peek(rest, self._progress.steps)
        if found:
            self._update(found, printed=True)

    def _reader(self, stream: int) -> OutputReader:
        return self._readers.setdefault(stream, OutputReader())

    def look_for_events_in(self, folder: Path) -> None:
        """Look for TensorBoard's files below this folder, until the program reports a step otherwise."""
        self._events = EventFiles(folder)

    def look_for_output_in(self, folder: Path) -> None:
        """Also read output that processes write only to files below this folder."""
        self._hidden_output = NewOutput(folder)

    def read(self) -> None:
        """Take what the program has written into files since the last read."""
        self._read_file()
        for stream, output in self._hidden_output.take() if self._hidden_output else ():
            self.saw(output, stream)
        with self._lock:
            self._place(self._unplaced.late(time.monotonic()))
        if self._events and not self._reported:
            for found in read_scalars(self._events.new_scalars()):
                self._update(found)

    def _read_file(self) -> None:
        with self._reading:
            try:
                # Several times a beat, and mostly there is nothing new.
                now = self.file.stat()
                if (now.st_ino, now.st_size, now.st_mtime_ns) == self._known_by:
                    return
                with self.file.open("rb") as file:
                    # Before what is read: a line that comes meanwhile is later than that.
                    now = os.fstat(file.fileno())
                    written_ns = now.st_mtime_ns
                    file.seek(self._offset)
                    lines, _, rest = file.read().rpartition(b"\n")
            except OSError:
                return
            self._known_by = (now.st_ino, now.st_size, now.st_mtime_ns)
            earlier_ns, self._read_ns = self._read_ns, written_ns
            if lines:
                self._offset += len(lines) + 1
                *others, last = lines.splitlines()
                for line in others:
                    self._take_line(line, earlier_ns)
                # The file's time is that of its end.
                self._take_line(last, earlier_ns if rest else written_ns)

    def follow(self) -> None:
        """Read each line as soon as it is written: only of the last one that is read is the time known."""
        if not self._follows:
            self._follows = True
            threading.Thread(target=self._follow, name="progress", daemon=True).start()

    def _follow(self) -> None:
        # Without an instance of inotify the lines are read at each beat.
        with contextlib.suppress(OSError), contextlib.closing(Inotify(blocks=True)) as events:
            there = events.watch(self.file.parent, MODIFY)
            # What was written before it was watched.
            self._read_file()
            while there:
                found = events.read()
                there = not any(mask & IGNORED for mask, _ in found)
                if any(name == self.file.name for _, name in found):
                    self._read_file()

    def _take_line(self, line: bytes, written_ns: int) -> None:
        """`written_ns`: a time at which it was not written yet, or only just."""
        found = read_record(line)
        self._reported |= "step" in found
        name = announced_in(line)
        if name:
            with self._lock:
                self._announced[name] = Announced(written_ns, found.get("step"))
            if set(found) <= {"step"}:
                # It announces a checkpoint, not the current step.
                return
        self._take_own_time(found)
        # With a line without a step the program itself reports progress.
        self._update(found, further="step" not in found, in_file=True)

    def _take_own_time(self, found: Metrics) -> None:
        rank, seconds = found.pop("rank", None), found.pop("seconds", None)
        if rank is None or seconds is None or seconds < 0:
            return
        with self._lock:
            if rank in self._own_times or len(self._own_times) < PACES_KEPT:
                self._own_times.setdefault(rank, deque(maxlen=STEPS_TIMED)).append(seconds)

    def close(self) -> None:
        """Read the files a last time and remove our own."""
        self.read()
        with self._lock:
            self._place(self._unplaced.rest())
        shutil.rmtree(self.file.parent, ignore_errors=True)

    def _update(
        self, found: Metrics, *, printed: bool = False, further: bool = False, in_file: bool = False
    ) -> None:
        with self._lock:
            now = time.monotonic()
            self._clock.output()
            newest = self._progress.step
            is_record = found.pop("record", False)
            is_of_bar = found.pop("of_bar", False)
            if found.pop("shown_again", False):
                self._place(self._unplaced.shown_again(max(found["step"], newest or 0), now))
            if "epoch" in found:
                found = self._of_all_epochs(found)
            if is_of_bar:
                self._own.showed_bar(found["step"], found.get("steps"))
            else:
                self._own.named(found.get("step"), found.get("steps"), in_file=in_file)
            if is_of_bar and found["step"] < (newest or 0):
                # Another bar, such as an evaluation's, has begun.
                found = {}
            if further:
                self._clock.further()
            if "step" in found:
                self._clock.step(found["step"])
                found["printed"] = printed
                self._reported |= printed
            self._progress = replaced(self._progress, updated_at=time.time(), **found)
            if is_record:
                self._place(self._unplaced.given(found.get("loss"), newest, now))
            elif "loss" in found and self._progress.step is not None:
                self._place([(self._progress.step, found["loss"])])

    def _of_all_epochs(self, found: Metrics) -> Metrics:
        """Convert a line's step within its epoch to a step of the whole training."""
        rest = {name: found[name] for name in found if name not in ("step", "epoch", "epochs", "length")}
        length = found.get("length")
        step = self._epochs.step(found["epoch"], found["step"], length)
        if step is None:
            return {}
        if self._epochs.begins_early and length and "epochs" in found:
            rest["steps"] = found["epochs"] * length
        return {"step": step, **rest}

    def _place(self, losses: Sequence[tuple[int, float]]) -> None:
        for step, loss in losses:
            self._losses[step] = loss
            self._curve.add(step, loss)
        while len(self._losses) > LOSSES_KEPT:
            del self._losses[next(iter(self._losses))]
