"""Stacks: where each process of a training stands, without its help and without ending it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from airflow_provider_ocidist.agent import guard, program
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model.report import StackPosition

PROGRAM_FOLDER = str(Path(program.__file__).resolve().parent)
"""First folder of the training's PYTHONPATH."""
STACK_SIGNAL = getattr(signal, "SIGRTMIN", 34) + 7
"""Signal that asks a process for its stacks. No library that we know uses the real-time signals; SIGUSR1 and 2 belong
to programs."""
ANSWER_LIMIT = 2.0
"""Seconds within which a process must write the next byte: one that is stopped, or waits for a disk, does not."""
TOTAL_LIMIT = 20.0
"""Seconds for all processes of a node, py-spy's too: idle machines cost money, and the waiting side's patience ends."""
QUIET = 0.1
"""Seconds without another byte after which an answer is complete, unless the process is still at it."""
SPY_LIMIT = 10.0
"""Seconds for py-spy to show all processes of a node; the rest is left for those that are asked themselves."""
KILL_LIMIT = 0.5
"""Seconds for a killed py-spy to end: one that waits for a dead disk does not."""
SPIES = 4
"""Number of processes that py-spy looks at at the same time."""
ABORT_TIME = 1.0
"""Seconds in which processes print their stacks after SIGABRT."""
INNERMOST = 5
"""Number of functions of a stack that a line shows."""
NAMED = 3
"""Most ranks that a message names."""
WAITS = ("(distributed_c10d.py:", "_engine_run_backward (")
"""Functions in which a process waits for the others: a collective of torch's, or the backward pass that runs them."""

FRAME = re.compile(
    r'^\s+(?:File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)'
    r"|(?P<spied>\S.*?) \((?P<place>[^()]+):(?P<number>\d+)\))\s*$"
)
"""Lines of a stack as faulthandler or py-spy writes them."""
THREAD = re.compile(r"^(?:Current thread |Thread )(?P<rest>.*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class ProcessStack:
    """One process: what it is, how the kernel sees it, and the stacks of its threads."""

    pid: int
    rank: int | None
    """Rank from the process's environment; None if that names none."""
    state: str
    """State of the process: `S (sleeping) in futex_wait, 5 threads`."""
    command: str
    text: str = ""
    """Stacks of all threads; empty if the process has not answered, or is no Python."""

    @property
    def frames(self) -> tuple[str, ...]:
        """Functions of the main thread, the innermost first."""
        return main_frames(self.text)

    @property
    def line(self) -> str:
        who = f"process {self.pid}" if self.rank is None else f"rank {self.rank} (process {self.pid})"
        return f"{who} ({self.command[:80]}): {self.state}{frames_shown(self.frames)}"


def frames_shown(frames: Sequence[str]) -> str:
    """Return the innermost functions as they stand in a line, with what goes before them."""
    return f"; in {', in '.join(frames[:INNERMOST])}" if frames else ""


def main_frames(text: str) -> tuple[str, ...]:
    """Return the functions of the main thread, the innermost first, of what faulthandler or py-spy has written."""
    blocks = THREAD.split(text)
    # faulthandler writes the oldest thread last; py-spy writes it first, with its name.
    named = [index for index in range(1, len(blocks), 2) if '"MainThread"' in blocks[index]]
    block = blocks[named[0] + 1] if named else blocks[-1]
    return tuple(_frame(found) for line in block.splitlines() if (found := FRAME.match(line)))


def _frame(found: re.Match[str]) -> str:
    if found["function"]:
        return f"{found['function']} ({Path(found['file']).name}:{found['line']})"
    return f"{found['spied']} ({Path(found['place']).name}:{found['number']})"


# Taking them


def take(guard_pid: int, stack_file: Path, search: str | None = None) -> list[ProcessStack]:
    """Return where the processes below the guard stand; `search`: the PATH on which py-spy may be.

    `stack_file`: the beginning of the names of the files that they answer into.

    Processes that neither py-spy nor our handler can show print their stacks to their own standard error, and end.
    """
    began = time.monotonic()
    until = began + TOTAL_LIMIT
    found = _ranks_first([each for pid in guard.descendants(guard_pid) if (each := process_stack_of(pid))])
    spied = _spy([each.pid for each in found], shutil.which("py-spy", path=search), began + SPY_LIMIT)
    owing: set[Path] = set()
    taken = [
        _with_text(each, spied.get(each.pid) or _answer(each.pid, stack_file, until, owing)) for each in found
    ]
    mute = [each.pid for each in taken if not each.text and catches(each.pid, signal.SIGABRT)]
    ignoring = [pid for pid in mute if not catches(pid, STACK_SIGNAL)]
    for pid in ignoring:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGABRT)
    if ignoring:
        time.sleep(ABORT_TIME)
    return taken


def _with_text(stack: ProcessStack, text: str) -> ProcessStack:
    return ProcessStack(pid=stack.pid, rank=stack.rank, state=stack.state, command=stack.command, text=text)


def _ranks_first(found: Sequence[ProcessStack]) -> list[ProcessStack]:
    """Return the nearest process of each rank before all others: time may not be left for its loaders of data."""
    nearest: dict[int | None, int] = {}
    for each in found:
        nearest.setdefault(each.rank, each.pid)
    return sorted(found, key=lambda each: each.rank is None or nearest[each.rank] != each.pid)


def _spy(pids: Sequence[int], spy: str | None, until: float) -> dict[int, str]:
    """Return what py-spy shows of processes, the first ones first, as far as it comes.

    Nothing of one that is no Python, or that it may not look at.
    """
    if spy is None:
        return {}
    with ThreadPoolExecutor(SPIES) as pool:
        return dict(zip(pids, pool.map(lambda pid: _dump(spy, pid, until), pids)))


def _dump(spy: str, pid: int, until: float) -> str:
    left = until - time.monotonic()
    if left <= 0:
        return ""
    command = [spy, "dump", "--pid", str(pid)]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return ""
    try:
        shown, _ = process.communicate(timeout=left)
    except (subprocess.TimeoutExpired, UnicodeDecodeError):
        # `run` would wait for its end without a limit.
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_LIMIT)
        return ""
    finally:
        if process.stdout is not None:
            process.stdout.close()
    return shown if process.returncode == 0 else ""


def _answer(pid: int, stack_file: Path, until: float, owing: set[Path]) -> str:
    """Return what a process answers; empty if it cannot be asked. `owing`: files into which an answer may yet come."""
    file = _answers_into(pid, stack_file)
    # A process that was forked writes into the file of the one before.
    if file is None or file in owing:
        return ""
    text = _ask(pid, file, until)
    if not text:
        owing.add(file)
    return text


def _answers_into(pid: int, stack_file: Path) -> Path | None:
    """Return the file that a process has open for its answers; None where it has none."""
    begins = f"{stack_file.resolve()}."
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if (target := os.readlink(descriptor)).startswith(begins):  # noqa: PTH115 - a socket is no path
                    return Path(target)
    return None


def _ask(pid: int, file: Path, until: float) -> str:
    """Return what a process writes into the file when it is asked; empty where it has no handler for that."""
    if not catches(pid, STACK_SIGNAL):
        return ""
    before, free = _size(file), _threads(pid) - _blocking(pid, STACK_SIGNAL)
    try:
        os.kill(pid, STACK_SIGNAL)
    except OSError:
        return ""
    size, changed_at = before, time.monotonic()
    while (now := time.monotonic()) < until:
        found = _size(file)
        if _is_pending(pid, STACK_SIGNAL):
            # What arrives before it has begun to answer is a late answer of another process.
            before = size = found
        elif found != size:
            size, changed_at = found, now
        # On a busy machine it may have to wait within its answer: its handler still blocks the signal then.
        if now - changed_at > ANSWER_LIMIT or (
            size > before and now - changed_at > QUIET and not free & _blocking(pid, STACK_SIGNAL)
        ):
            break
        time.sleep(QUIET / 4)
    if size == before:
        return ""
    with file.open("rb") as opened:
        opened.seek(before)
        return opened.read().decode(errors="replace")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


# What the kernel knows


def process_stack_of(pid: int) -> ProcessStack | None:
    """Return a process's command, state and kernel wait; None when it is gone."""
    place = Path(f"/proc/{pid}")
    try:
        words = place.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
        status = _status(place)
        waits = place.joinpath("wchan").read_text() or "0"
        rank = _rank(place)
    except OSError:
        return None
    where = f" in {waits}" if waits != "0" else ""
    state, threads = status.get("State", "?"), status.get("Threads", "?")
    return ProcessStack(
        pid=pid, rank=rank, state=f"{state}{where}, {threads} threads", command=" ".join(words)
    )


def _rank(place: Path) -> int | None:
    for variable in place.joinpath("environ").read_bytes().split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == b"RANK" and value.isdigit():
            return int(value)
    return None


def _status(place: Path) -> dict[str, str]:
    # The kernel cuts a process's name, perhaps within a character.
    lines = place.joinpath("status").read_text(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    return _is_in("SigCgt", Path(f"/proc/{pid}"), number)


def _is_pending(pid: int, number: int) -> bool:
    """Whether no thread of a process has taken a signal yet that was sent to the process."""
    return _is_in("ShdPnd", Path(f"/proc/{pid}"), number)


def _threads(pid: int) -> set[Path]:
    with contextlib.suppress(OSError):
        return set(Path(f"/proc/{pid}/task").iterdir())
    return set()


def _blocking(pid: int, number: int) -> set[Path]:
    """Return a process's threads that block a signal; that which runs a handler blocks the handler's."""
    return {thread for thread in _threads(pid) if _is_in("SigBlk", thread, number)}


def _is_in(signals: str, place: Path, number: int) -> bool:
    """Whether a signal is in a set of those that the kernel shows of a process or thread; False once it is gone."""
    try:
        return bool(int(_status(place)[signals], 16) >> (number - 1) & 1)
    except (OSError, KeyError, ValueError):
        return False


# What they show


def stack_positions(stacks: Sequence[ProcessStack]) -> tuple[StackPosition, ...]:
    """Return where each rank stands: by the first process of it that shows something, which is the nearest to the
    launcher: a loader of data has the rank of its parent.
    """
    found: dict[int, StackPosition] = {}
    for stack in stacks:
        if stack.rank is not None and (stack.rank not in found or not found[stack.rank].at):
            found[stack.rank] = StackPosition(rank=stack.rank, at=stack.frames[:INNERMOST])
    return tuple(found[rank] for rank in sorted(found))


def odd_ones(all_standing: Iterable[StackPosition]) -> str | None:
    """Return which ranks stand elsewhere than the others, in words; None where that shows no difference."""
    known = [each for each in all_standing if each.rank is not None]
    waiting = [each for each in known if _waits_for_others(each)]
    places = Counter(_place(each) for each in known)
    if waiting and 2 * len(waiting) >= len(known):
        odd, where = [each for each in known if each not in waiting], "wait for them"
    elif places and 2 * max(places.values()) > len(known):
        most = max(places, key=lambda place: places[place])
        odd, where = [each for each in known if _place(each) != most], f"stand in {most}"
    else:
        return None
    if not odd:
        return None
    named = "; ".join(f"rank {each.rank} {_where(each)}" for each in odd[:NAMED])
    more = f" and {len(odd) - NAMED} more" if len(odd) > NAMED else ""
    return f"{named}{more}, while {len(known) - len(odd)} of {len(known)} ranks {where}"


def two_positions(all_standing: Sequence[StackPosition]) -> str | None:
    """Return where the two ranks that run stand, and which of them waits; None for another number of ranks.

    Of two, none is the odd one: a reader has to compare them. A training of more has two where the others have ended.
    """
    if len(all_standing) != 2:
        return None
    known = sorted(all_standing, key=_rank_of)
    waiting = [each for each in known if _waits_for_others(each)]
    shown = "; ".join(f"rank {each.rank} {_where(each)}" for each in known)
    if len(waiting) == 2:
        return f"both ranks that run wait for others: {shown}"
    if len(waiting) == 1:
        other = next(each for each in known if each not in waiting)
        does = "does not" if other.at else "does not answer"
        return f"rank {waiting[0].rank} waits for others, and rank {other.rank} {does}: {shown}"
    return f"no stack shows which of the two ranks that run waits for others: {shown}"


def _rank_of(position: StackPosition) -> int:
    return -1 if position.rank is None else position.rank


def _waits_for_others(position: StackPosition) -> bool:
    return any(place in frame for frame in position.at for place in WAITS)


def _place(position: StackPosition) -> str:
    return position.at[0] if position.at else "an unknown place"


def _where(position: StackPosition) -> str:
    return f"stands{frames_shown(position.at)[1:]}" if position.at else "does not answer"


def as_text(stacks: Sequence[ProcessStack]) -> str:
    """Return all that is known, for a file."""
    parts = (f"{stack.line}\n{stack.text}".rstrip() for stack in stacks)
    return "\n\n".join(parts) + "\n"
