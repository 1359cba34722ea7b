"""Program output: what the training prints is forwarded at once, its end kept, and its progress read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import time
from collections.abc import Collection

from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.agent.output_masking import OutputMask
from airflow_provider_ocidist.agent.train.shared_log import LineMarker

CHUNK = 1 << 16
"""Most bytes of output that are read at a time."""
PIPE_SIZE = 1 << 20
"""Bytes that a pipe of the training holds, where the node permits it."""
SET_PIPE_SIZE = 1031
"""Number of Linux's F_SETPIPE_SZ; `fcntl` has the name since Python 3.10."""
GATHERING = 0.01
"""Seconds after one piece of output in which more is gathered; the first piece is not delayed."""
KEPT = 1 << 18
"""Bytes at the end of the output that are kept for the diagnosis."""
OVERWRITTEN = re.compile(rb"[^\n\r]*\r(?=[^\n])")
"""Earlier states of a progress bar: overwritten in a terminal, and left out of the output's end."""


class ProgramOutput:
    """The training's output: forwarded at once, with secrets masked; its end kept, its progress read."""

    def __init__(
        self, meter: ProgressMeter, mark_as: int | None = None, secrets: Collection[str] = ()
    ) -> None:
        """`mark_as`: the rank that every forwarded line is marked with."""
        self.meter = meter
        self.secrets = secrets
        self.mark_as = mark_as
        self._kept = bytearray()
        self._kept_of: dict[int, bytearray] = {}
        self._lock = threading.Lock()

    @property
    def end(self) -> str:
        """What was printed last, in about the order of its arrival."""
        with self._lock:
            return self._kept[-KEPT:].decode(errors="replace")

    @property
    def ends(self) -> str:
        """The end of the output stream by stream: in `end`, one stream's line may split the other's traceback."""
        with self._lock:
            kept = [self._kept_of[sink][-KEPT:] for sink in sorted(self._kept_of)]
        return b"".join(kept).decode(errors="replace")

    def pump(self, source: int, sink: int) -> None:
        """Forward everything from one file descriptor to another until its end."""
        rest = b""
        marked = bytes if self.mark_as is None else LineMarker(self.mark_as)
        mask = OutputMask(self.secrets)
        _widen(source)
        while chunk := os.read(source, CHUNK):
            said = mask(chunk)
            _write(sink, marked(said))
            # Lines are kept whole, so that those of the two streams do not run into each other. A progress bar
            # returns to the beginning of its line for hours.
            lines, rest = _split(rest + said)
            self._take(lines, sink)
            if len(rest) > CHUNK:
                self._take(rest, sink)
                rest = b""
            else:
                self.meter.saw_beginning(rest, sink)
            if len(chunk) < CHUNK:
                # Otherwise a program that prints line by line would wake us, and wait for us, at each.
                time.sleep(GATHERING)
        said = mask.rest()
        _write(sink, marked(said))
        rest += said
        # The other stream's output must not begin within a line.
        self._take(rest and rest + b"\n", sink)

    def _take(self, lines: bytes, sink: int) -> None:
        if not lines:
            return
        self.meter.saw(lines, sink)
        if b"\r" in lines:
            lines = OVERWRITTEN.sub(b"", lines)
        with self._lock:
            for kept in (self._kept, self._kept_of.setdefault(sink, bytearray())):
                if kept.endswith(b"\r"):
                    del kept[kept.rfind(b"\n") + 1 :]
                kept.extend(lines)
                if len(kept) > 2 * KEPT:
                    del kept[:-KEPT]


def _split(output: bytes) -> tuple[bytes, bytes]:
    """Return the whole lines, and what follows them."""
    end = max(output.rfind(b"\n"), output.rfind(b"\r")) + 1
    return output[:end], output[end:]


def _widen(pipe: int) -> None:
    """Enlarge the pipe for gathered output, if the node permits it."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, SET_PIPE_SIZE, PIPE_SIZE)


def _write(sink: int, data: bytes) -> None:
    view = memoryview(data)
    # The reader of our output may close it; the training goes on.
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(sink, view) :]
