"""Diagnosis: finds the cause from the training's exit and output, in one line for a person. Pure."""

from __future__ import annotations

import re
import signal
from dataclasses import field

from airflow_provider_ocidist.agent.diagnose.symptoms import Symptom, last_words, symptom_of
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.launchers.base import ProcessFailure

TAIL_LENGTH = 4000
"""Characters of output that a report carries."""

RANK_PREFIX = re.compile(r"\[(?P<word>[A-Za-z_][\w-]*?)(?P<number>\d+)\]:(?P<space>(?:\s(?! File ))?)")
"""Marks before a line: torchrun's `[default0]:`, with the local rank, and torch's own `[rank3]: `, with the rank.

Of the two blanks before Python's `File`, none is the mark's: `[default0]:  File "train.py", line 3`.
"""
MOST_PREFIXES = 2
"""Most marks before a line: one of each kind."""
TRACEBACK = "Traceback (most recent call last):"
SYNTAX_PLACE = re.compile(r"""\s+File "(?P<file>.+)", line (?P<line>\d+)$""")
"""Line of Python before an error of syntax; of the script itself it is the first one, without `TRACEBACK`."""
SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError)\b")

LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
"""Lines of Python between two tracebacks of one chain."""
INNER = "See inner exception for details."
"""Note of torch that the exception before this one explains more."""
DETAILS = 4
"""Number of lines after the exception's own that hold NCCL's explanation."""

TEARDOWN = (-signal.SIGABRT, -signal.SIGSEGV)
"""Exit codes of a process whose torch threads are torn down, after the exception that ended the program."""
LAST_BREATH = ("terminate called", "Fatal Python error: Aborted", "Fatal Python error: Segmentation fault")
"""First lines of such an end, if it prints one."""
LIBRARY_LOG = re.compile(r"\[?[EIWF]\d{4} ")
"""Beginning of a line of torch's own log in C++ or Python: its teardown warns after the program's last line."""


@dataclass(frozen=True, kw_only=True)
class NodeFailure:
    """Why a node failed."""

    cause: Cause
    message: str
    exit_code: int
    """Exit code of the process that failed first; negative for a signal."""
    rank: int | None = None
    """Rank of that process, over all nodes."""
    tail: str = ""
    consequence: bool = False
    """Whether the failure looks like a consequence of another node's."""
    remedy: str | None = None
    """Remedy for this error, if one is known."""
    killed: bool = False
    """Whether a signal from outside has ended the process, for a reason that nothing shows; its machine lives."""


@dataclass
class Traceback:
    """One exception as Python printed it."""

    rank: int | None
    local_rank: int | None
    lines: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    """Lines after the exception's first, if that is one of NCCL's."""
    uncaught: bool = True
    """Whether its process printed nothing after it: a handled exception is followed by output."""
    earlier: Traceback | None = None
    """The exception before it in its chain: its cause, or the one that was handled when it was raised."""
    headed: bool = True
    """Whether it begins with `TRACEBACK`: an error of syntax in the script itself does not."""

    @property
    def message(self) -> str:
        last = self.last_line
        place = self._syntax_place
        # Unlike another exception, it says in no frame above it where it is.
        return f"{last} ({_name(place['file'])}, line {place['line']})" if place else last

    @property
    def last_line(self) -> str:
        return self.lines[-1].strip() if self.lines else ""

    @property
    def text(self) -> str:
        return "\n".join([TRACEBACK, *self.lines] if self.headed else self.lines)

    @property
    def _syntax_place(self) -> re.Match[str] | None:
        if not SYNTAX.match(self.last_line):
            return None
        # Below it are only the line with the error, and marks below that.
        places = [SYNTAX_PLACE.match(line) for line in self.lines[-4:]]
        return next((place for place in reversed(places) if place), None)

    @property
    def own_symptom(self) -> Symptom | None:
        return symptom_of(" ".join([self.message, *self.details]))

    @property
    def echo(self) -> Traceback | None:
        """The exception of the chain that shows another process's failure, where later ones show no reason of theirs.

        A program may raise an error of its own from it, or meet one as it cleans up.
        """
        # No recursion: a chain may be longer than Python's stack.
        found: Traceback | None = self
        while found is not None and found.own_symptom is None:
            found = found.earlier
        return found if found is not None and found.own_symptom and found.own_symptom.consequence else None

    @property
    def symptom(self) -> Symptom | None:
        return self.echo.own_symptom if self.echo else self.own_symptom

    @property
    def consequence(self) -> bool:
        return self.echo is not None

    @property
    def in_words(self) -> str:
        """Its message, with that of the one which it echoes."""
        if self.echo is None or self.echo is self:
            return self.message
        return f"{self.message} (after {self.echo.message})"


def diagnose(
    exit_code: int, output: str, process: ProcessFailure | None, oom_killed: bool | None
) -> NodeFailure:
    """Return why the training failed.

    `output` is its end, without the launcher's own report; `process` is that report. `oom_killed`: whether the
    kernel has killed a process for lack of memory meanwhile; None if unknown.
    """
    code = process.exit_code if process else exit_code
    traceback = _pick(tracebacks(output), process)
    raised = code > 0 or (code in TEARDOWN and traceback is not None and traceback.uncaught)
    if traceback and raised:
        message, symptom = traceback.in_words, traceback.symptom
    else:
        said = (
            last_words("\n".join(map(_unprefixed, output.splitlines()))) if code != -signal.SIGKILL else None
        )
        message = f"{_ending(code)}: {said}" if said else _ending(code)
        symptom = symptom_of(said) if said else None
    cause = symptom.cause if symptom else _cause_of_ending(code, oom_killed)
    return NodeFailure(
        cause=cause,
        message=f"{message}: out of memory" if cause is Cause.OOM and code < 0 and not symptom else message,
        exit_code=code,
        rank=_rank(process, traceback),
        tail=tail_of(output, traceback if raised else None),
        consequence=symptom is not None and symptom.consequence,
        remedy=symptom.remedy if symptom else None,
        killed=symptom is None and cause is Cause.NODE,
    )


def tracebacks(output: str) -> list[Traceback]:
    """Return the tracebacks in order of their ends; those of several ranks may be interleaved."""
    opened: dict[str, Traceback] = {}
    explained: dict[str, Traceback] = {}
    last: dict[str, Traceback] = {}
    newest: dict[str, Traceback] = {}
    linked: dict[str, Traceback] = {}
    closed: list[Traceback] = []
    for line in output.splitlines():
        prefixes, text = _split(line)
        whose = "".join(prefix[0].strip() for prefix in prefixes)
        if text.startswith(LAST_BREATH):
            last.clear()
        elif text and whose in last and not LIBRARY_LOG.match(text):
            last.pop(whose).uncaught = False
        if text.startswith(LINKS) and whose in newest:
            linked[whose] = newest[whose]
        if text.startswith(TRACEBACK):
            opened[whose] = Traceback(*_ranks(prefixes), earlier=linked.pop(whose, None))
            explained.pop(whose, None)
        elif whose not in opened and SYNTAX_PLACE.match(text):
            opened[whose] = Traceback(*_ranks(prefixes), lines=[text], headed=False)
        elif whose in opened:
            opened[whose].lines.append(text)
            if text and not text.startswith((" ", "\t")):
                ended = opened.pop(whose)
                if ended.headed or SYNTAX.match(text):
                    closed.append(ended)
                    explained[whose] = last[whose] = newest[whose] = ended
        elif whose in explained and "NCCL error" in explained[whose].message:
            explained[whose].details.append(text)
            if len(explained[whose].details) == DETAILS:
                del explained[whose]
    return closed


def _split(line: str) -> tuple[list[re.Match[str]], str]:
    """Return a line's prefixes, which name its process, and the line as it was written."""
    found: list[re.Match[str]] = []
    at = 0
    while len(found) < MOST_PREFIXES and (prefix := RANK_PREFIX.match(line, at)):
        found.append(prefix)
        at = prefix.end()
    return found, line[at:]


def _name(path: str) -> str:
    """Return a file's name; of what is no path, such as `<string>`, all."""
    return path.rpartition("/")[2]


def _unprefixed(line: str) -> str:
    return _split(line)[1]


def _ranks(prefixes: list[re.Match[str]]) -> tuple[int | None, int | None]:
    """Return the rank, and the rank on this node, as far as the prefixes of a traceback's first line show them."""
    # torchrun's role may be called `rank` too; but only torch leaves a space.
    own = [prefix for prefix in prefixes if prefix["word"] == "rank" and prefix["space"]]
    launchers = [prefix for prefix in prefixes if not prefix["space"]]
    return int(own[-1]["number"]) if own else None, int(launchers[0]["number"]) if launchers else None


def _pick(found: list[Traceback], process: ProcessFailure | None) -> Traceback | None:
    """Prefer the process that failed first, and an own error to a consequence of another's."""
    own = [traceback for traceback in found if not traceback.consequence]
    of_process = [traceback for traceback in found if process and _is_of(traceback, process)]
    unknown = [traceback for traceback in own if traceback.rank is None and traceback.local_rank is None]
    candidates = of_process or unknown or own or found
    candidates = [
        traceback for traceback in candidates if not traceback.message.endswith(INNER)
    ] or candidates
    return candidates[-1] if candidates else None


def _is_of(traceback: Traceback, process: ProcessFailure) -> bool:
    if traceback.rank is not None:
        return traceback.rank == process.rank
    return traceback.local_rank is not None and traceback.local_rank == process.local_rank


def _rank(process: ProcessFailure | None, traceback: Traceback | None) -> int | None:
    if process is not None and process.rank is not None:
        return process.rank
    return traceback.rank if traceback else None


def _ending(code: int) -> str:
    if code >= 0:
        return f"the program ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the program was killed by {name}"


def _cause_of_ending(code: int, oom_killed: bool | None) -> Cause:
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return Cause.NODE if oom_killed is False else Cause.OOM
    return Cause.NODE if code == -signal.SIGTERM else Cause.USER


def tail_of(output: str, traceback: Traceback | None = None) -> str:
    """Return the end of the output, the traceback always in it."""
    end = output[-TAIL_LENGTH:]
    if traceback is None or traceback.last_line in end:
        return end
    text = traceback.text[-TAIL_LENGTH // 2 :]
    return f"{text}\n...\n{end[-(TAIL_LENGTH - len(text) - 5) :]}"
