"""Screen: the display of a followed gang: lines, lines above a live summary, or JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.backends.base import Backend, LogLine
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.cli.terminal import (
    colour_of,
    log_text,
    print_json_line,
    say,
    state_text,
    style_of,
    styled,
)
from airflow_provider_ocidist.gangs.gang_log import GangLog
from airflow_provider_ocidist.gangs.pace import Pace
from airflow_provider_ocidist.gangs.watch import Watch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from airflow_provider_ocidist.errors import Cause
    from airflow_provider_ocidist.model.run import NodeStatus, RunRecord, RunStatus

SAME_WARNING_AFTER = 30.0
"""Seconds after which the same warning is shown again."""
SHOWN_NODES = 16
"""Most nodes that the summary shows individually."""
REFRESHES = 4
"""Refreshes of the summary per second."""


def screen_for(record: RunRecord, *, as_json: bool) -> Screen:
    if as_json:
        return JsonScreen()
    return LiveScreen(record) if sys.stdout.isatty() else Screen()


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The end of a gang that has failed."""

    cause: Cause
    message: str
    remedy: str
    result: dict[str, Any] | None = None
    to_go_on: str | None = None
    """Line that says where the training stands, with the command that goes on from there; None: nothing is known."""


class Screen:
    """Lines of nodes in the node's colour; all else on stderr."""

    takes_status = False
    """Whether it shows more of a state than its description."""

    def __init__(self) -> None:
        self._warned: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def watch(self, backend: Backend, record: RunRecord) -> Watch:
        """Return a watch that reports to this screen."""
        return Watch(backend, record, self, gang_log=_ShownLog(self, record.logs_since))

    def info(self, msg: Any, /, *args: Any) -> None:
        self.message(str(msg) % args, "bold")

    def warning(self, msg: Any, /, *args: Any) -> None:
        """Show a warning, unless the same was just shown: an outage is reported once, not every two seconds."""
        text, now = str(msg) % args, time.monotonic()
        # After the first bracket comes the id of the request, which always differs.
        subject = text.partition(" (")[0]
        if now - self._warned.get(subject, -SAME_WARNING_AFTER) >= SAME_WARNING_AFTER:
            self._warned[subject] = now
            self.message(text, "yellow")

    def error(self, msg: Any, /, *args: Any) -> None:
        self.message(str(msg) % args, "red")

    def message(self, text: str, style: str) -> None:
        say(text, style, stderr=True)

    def line(self, line: LogLine) -> None:
        say(log_text(line), style_of(line))

    def status(self, status: RunStatus, said: str) -> None:
        """Show a new state and its description; only if `takes_status`."""

    def show(self, status: RunStatus | None) -> None:
        """Take the newest state, whether it has changed or not."""

    def succeeded(self, result: dict[str, Any], status: RunStatus) -> None:  # noqa: ARG002 - as the others
        checkpoint = status.checkpoint
        say(f"succeeded; newest checkpoint: {checkpoint.uri if checkpoint else 'none'}", "green")

    def failed(self, end: Failed) -> None:
        say(f"{end.cause}: {end.message}", "red", stderr=True)
        say(f"Remedy: {end.remedy}", "yellow", stderr=True)
        if end.to_go_on:
            say(end.to_go_on, "yellow", stderr=True)


class _ShownLog(GangLog):
    def __init__(self, screen: Screen, since: Sequence[float]) -> None:
        super().__init__(screen, since)
        self._screen = screen

    def write_line(self, line: LogLine) -> None:
        self._screen.line(line)

    def write_status(self, status: RunStatus, said: str) -> None:
        if self._screen.takes_status:
            self._screen.status(status, said)
        else:
            super().write_status(status, said)


class JsonScreen(Screen):
    """One object a line, each with its `event`: `log`, `status`, `message`, `end`."""

    takes_status = True

    def message(self, text: str, style: str) -> None:  # noqa: ARG002 - JSON has no colours
        print_json_line({"event": "message", "time": time.time(), "text": text})

    def line(self, line: LogLine) -> None:
        print_json_line({"event": "log", "time": line.time, "rank": line.rank, "text": line.text})

    def status(self, status: RunStatus, said: str) -> None:
        from airflow_provider_ocidist.model import codec

        print_json_line(
            {
                "event": "status",
                "time": time.time(),
                "text": said,
                "nodes": [_node_json(node) for node in status.nodes],
                "progress": codec.encode(status.progress),
                "checkpoint_uri": status.checkpoint.uri if status.checkpoint else None,
            }
        )

    def succeeded(self, result: dict[str, Any], status: RunStatus) -> None:  # noqa: ARG002 - it is in the result
        print_json_line(
            {"event": "end", "outcome": "SUCCEEDED", "cause": None, "message": None, "result": result}
        )

    def failed(self, end: Failed) -> None:
        print_json_line(
            {
                "event": "end",
                "outcome": "FAILED",
                "cause": str(end.cause),
                "message": end.message,
                "remedy": end.remedy,
                "result": end.result,
            }
        )


def _node_json(node: NodeStatus) -> dict[str, Any]:
    phase = str(node.report.phase) if node.report else None
    return {"rank": node.rank, "state": str(node.state), "phase": phase}


class LiveScreen(Screen):
    """The lines of the nodes, and below them a summary that stays at the bottom of the terminal."""

    takes_status = True

    def __init__(self, record: RunRecord) -> None:
        super().__init__()
        self._record = record
        self._status: RunStatus | None = None
        self._pace = Pace()
        self._trouble: str | None = None
        self._console, self._live = self._made()

    def _made(self) -> tuple[Console, Live]:
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False)
        live = Live(
            get_renderable=self._summary, console=console, refresh_per_second=REFRESHES, transient=True
        )
        return console, live

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def message(self, text: str, style: str) -> None:
        self._console.print(styled(text, style), soft_wrap=True)

    def warning(self, msg: Any, /, *args: Any) -> None:
        self._trouble = (str(msg) % args).partition(" (")[0]
        super().warning(msg, *args)

    def line(self, line: LogLine) -> None:
        self.message(log_text(line), style_of(line))

    def show(self, status: RunStatus | None) -> None:
        # The watch keeps the last status: another object is another answer.
        if status is not None and status is not self._status:
            self._status, self._trouble = status, None
            self._pace.add(status, time.time())

    def succeeded(self, result: dict[str, Any], status: RunStatus) -> None:
        self._live.stop()
        super().succeeded(result, status)

    def failed(self, end: Failed) -> None:
        self._live.stop()
        super().failed(end)

    def _summary(self) -> Any:
        from rich.text import Text

        text = Text(no_wrap=True, overflow="ellipsis")
        line = summary(self._record.ref.key.name, self._status, self._pace, self._elapsed())
        text.append(f"{line}\n", style="bold reverse")
        text.append_text(self._nodes())
        return text

    def _elapsed(self) -> float:
        return time.time() - self._record.ref.submitted_at

    def _nodes(self) -> Any:
        from rich.text import Text

        if self._trouble is not None:
            return Text(self._trouble, style="yellow")
        text = Text()
        for node in self._status.nodes[:SHOWN_NODES] if self._status else ():
            text.append(f"{node.rank}: {state_text(node)}  ", style=colour_of(node.rank))
        rest = len(self._status.nodes) - SHOWN_NODES if self._status else 0
        return text.append(f"and {rest} more") if rest > 0 else text


def summary(name: str, status: RunStatus | None, pace: Pace, elapsed: float) -> str:
    """Return the progress line of a gang: step, loss, speed, time since the submission, newest checkpoint."""
    parts = [name, _clock(elapsed)]
    progress = status.progress if status else None
    if progress is not None and progress.step is not None:
        parts.append(f"step {progress.step}" + (f"/{progress.steps}" if progress.steps else ""))
        if progress.loss is not None:
            parts.append(f"loss {progress.loss:.4g}")
        if (speed := pace.steps_per_second) is not None:
            parts.append(f"{speed:.3g} steps/s")
        if progress.throughput is not None:
            parts.append(f"throughput {progress.throughput:.4g}/s")
    checkpoint = status.checkpoint if status else None
    parts.append(f"checkpoint {checkpoint.uri.rpartition('/')[2]}" if checkpoint else "no checkpoint yet")
    return " | ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
