"""What the demo shows while it runs: stages, nodes, steps and loss; live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from airflow_provider_ocidist.backports import Self, moment
from airflow_provider_ocidist.model.run import NodeStatus, RunStatus

STAGES = ("stage_data", "train", "copy_outputs", "report")
COLOURS = {
    "success": "green",
    "failed": "red",
    "upstream_failed": "red",
    "running": "cyan",
    "deferred": "cyan",
}


@dataclass
class Scene:
    """The state of the demo at one moment."""

    began: float = field(default_factory=time.monotonic)
    phase: str = "starting"
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    run: RunStatus | None = None


def seconds_of(task: Mapping[str, Any]) -> float | None:
    """Return how long a task has run, until now if it has not ended."""
    if not task.get("start_date"):
        return None
    start = moment(task["start_date"])
    end = moment(task["end_date"]) if task.get("end_date") else datetime.now(start.tzinfo)
    return (end - start).total_seconds()


class View:
    """Shows a scene: live on a terminal, a line for each change elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.scene = Scene()
        self._said: dict[str, str] = {}
        # Live redraws in a thread of its own, so that the clock ticks while we wait for an answer.
        self._live = Live(get_renderable=self._picture, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def phase(self, text: str) -> None:
        self.scene.phase = text
        self._say("phase", text)

    def show(self, tasks: Mapping[str, Mapping[str, Any]], run: RunStatus | None) -> None:
        self.scene.tasks, self.scene.run = tasks, run
        for name in STAGES:
            if state := tasks.get(name, {}).get("state"):
                self._say(name, f"{name}: {state}")
        for node in run.nodes if run else ():
            self._say(f"node {node.rank}", f"  node {node.rank}: {_node_state(node)}")
        if run and (line := _progress_line(run)):
            self._say("progress", f"  {line}")

    def _say(self, subject: str, text: str) -> None:
        if self.console.is_terminal or self._said.get(subject) == text:
            return
        self._said[subject] = text
        self.console.print(
            f"{time.monotonic() - self.scene.began:6.1f} s  {text}", highlight=False, soft_wrap=True
        )

    def _picture(self) -> Group:
        scene = self.scene
        parts: list[Any] = [Text(f"{time.monotonic() - scene.began:5.1f} s  {scene.phase}", style="bold")]
        if scene.tasks:
            parts.append(_stage_table(scene.tasks))
        if scene.run:
            parts.append(_node_table(scene.run))
            parts.append(_progress_bar(scene.run))
        return Group(*parts)


def _stage_table(tasks: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2))
    for title in ("stage", "state", "seconds"):
        table.add_column(title, justify="right" if title == "seconds" else "left")
    for name in STAGES:
        task = tasks.get(name, {})
        state, seconds = task.get("state") or "waiting", seconds_of(task)
        table.add_row(
            name, Text(state, style=COLOURS.get(state, "dim")), "" if seconds is None else f"{seconds:.1f}"
        )
    return table


def _node_table(run: RunStatus) -> Table:
    table = Table(box=None, padding=(0, 2))
    for title in ("node", "service says", "node says", "address"):
        table.add_column(title)
    for node in run.nodes:
        report = node.report
        table.add_row(
            str(node.rank),
            node.state.value,
            report.phase.value if report else "",
            report.address if report else "",
        )
    return table


def _node_state(node: NodeStatus) -> str:
    return f"{node.state} {node.report.phase}" if node.report else str(node.state)


def _progress_line(run: RunStatus) -> str:
    progress = run.progress
    if progress is None or progress.step is None:
        return ""
    loss = "" if progress.loss is None else f"  loss {progress.loss:.3f}"
    return f"step {progress.step}{f'/{progress.steps}' if progress.steps else ''}{loss}"


def _progress_bar(run: RunStatus) -> Table:
    progress = run.progress
    table = Table.grid(padding=(0, 2))
    if progress and progress.step is not None:
        table.add_row(
            ProgressBar(total=progress.steps, completed=progress.step, width=40), _progress_line(run)
        )
    return table
