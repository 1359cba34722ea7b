"""Diagnosis: from how the training ended and what it printed to its cause, in one line for a person. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.launchers.base import ProcessFailure

TAIL_LENGTH = 4000
"""Characters of output that a report carries."""

RANKED = re.compile(r"(?:\[(?:default|rank)(\d+)\]:\s?)?(.*)", re.DOTALL)
TRACEBACK = "Traceback (most recent call last):"

LOST_PEER = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|Connection refused|Broken pipe|Socket Timeout"
    r"|Timed out waiting|remote process exited|peer closed"
    r"|RendezvousConnectionError|RendezvousClosedError|DistNetworkError|DistStoreError"
    r"|ncclRemoteError|ncclSystemError|NCCL communicator was aborted|Failed to recv, got 0 bytes"
)
NO_PEERS = re.compile(r"RendezvousTimeoutError")
OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|\bMemoryError\b|(?:can't|cannot) allocate memory|std::bad_alloc",
    re.IGNORECASE,
)
DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a node failed."""

    cause: Cause
    message: str
    exit_code: int
    """Of the process that failed first; negative for a signal."""
    rank: int | None = None
    """Of that process, over all nodes."""
    tail: str = ""
    consequence: bool = False
    """Whether it looks like the echo of another node's failure."""


@dataclass(slots=True)
class Traceback:
    """One exception as Python printed it."""

    rank: int | None
    lines: list[str] = field(default_factory=list)
    chained: bool = False

    @property
    def message(self) -> str:
        return self.lines[-1].strip() if self.lines else ""

    @property
    def consequence(self) -> bool:
        return bool(LOST_PEER.search(self.message))


def diagnose(exit_code: int, output: str, process: ProcessFailure | None, oom_killed: bool | None) -> Failure:
    """Return why the training failed.

    `output` is its end, without the launcher's own report; `process` is what that report says. `oom_killed`:
    whether the kernel has killed for want of memory meanwhile; None when it does not tell.
    """
    code = process.exit_code if process else exit_code
    traceback = _pick(list(tracebacks(output)), process.rank if process else None)
    message = traceback.message if traceback and code > 0 else _ending(code)
    cause = _cause(code, message, oom_killed)
    return Failure(
        cause=cause,
        message=message if cause is not Cause.OOM or code > 0 else f"{message}: out of memory",
        exit_code=code,
        rank=process.rank if process else traceback.rank if traceback else None,
        tail=tail_of(output, traceback if code > 0 else None),
        consequence=bool(code > 0 and traceback and traceback.consequence),
    )


def tracebacks(output: str) -> Iterator[Traceback]:
    """Yield the tracebacks in order of their ends; those of several ranks may be interleaved."""
    opened: dict[str | None, Traceback] = {}
    for line in output.splitlines():
        rank, text = RANKED.fullmatch(line).groups()  # type: ignore[union-attr]
        if text.startswith(TRACEBACK):
            opened[rank] = Traceback(int(rank) if rank else None)
        elif rank in opened and not text.startswith((" ", "\t")) and text:
            opened[rank].lines.append(text)
            yield opened.pop(rank)
        elif rank in opened:
            opened[rank].lines.append(text)


def _pick(found: list[Traceback], rank: int | None) -> Traceback | None:
    """Prefer the rank that failed first, and a reason of its own to the echo of another's."""
    own = [traceback for traceback in found if not traceback.consequence]
    of_rank = [traceback for traceback in found if rank is not None and traceback.rank == rank]
    candidates = of_rank or [traceback for traceback in own if traceback.rank in (None, rank)] or own or found
    return candidates[-1] if candidates else None


def _ending(code: int) -> str:
    if code >= 0:
        return f"the program ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the program was killed by {name}"


def _cause(code: int, message: str, oom_killed: bool | None) -> Cause:
    if OUT_OF_MEMORY.search(message):
        return Cause.OOM
    if DISK_FULL.search(message):
        return Cause.DATA
    if NO_PEERS.search(message) or LOST_PEER.search(message):
        return Cause.NODE
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return Cause.NODE if oom_killed is False else Cause.OOM
    return Cause.NODE if code == -signal.SIGTERM else Cause.USER


def tail_of(output: str, traceback: Traceback | None = None) -> str:
    """Return the end of the output, the traceback always in it."""
    end = output[-TAIL_LENGTH:]
    if traceback is None or traceback.message in end:
        return end
    text = "\n".join([TRACEBACK, *traceback.lines])[-TAIL_LENGTH // 2 :]
    return f"{text}\n...\n{end[-(TAIL_LENGTH - len(text) - 5) :]}"
