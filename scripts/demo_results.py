"""What the demo ends with: checkpoint, losses, a sample, the curve, and where the time went."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from scripts.demo_view import STAGES, seconds_of


@dataclass(frozen=True, kw_only=True)
class Results:
    """The outputs of one training, in a local folder, and the times of its DAG run."""

    folder: Path
    checkpoint_uri: str
    tasks: Mapping[str, Mapping[str, Any]]
    start_up_s: float
    total_s: float

    @property
    def metrics(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "summary.json").read_text()))


def draw_curve(results: Results) -> Path:
    """Write the loss curve as PNG; return its path."""
    import matplotlib as mpl

    mpl.use("Agg")  # no screen is needed
    from matplotlib.figure import Figure

    metrics = results.metrics
    steps = [row["step"] for row in metrics]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, [row["loss"] for row in metrics], label="training", color="#c74634")
    examined = [
        row
        for row, before in zip(metrics, [{}, *metrics], strict=False)
        if row["val_loss"] != before.get("val_loss")
    ]
    losses = [row["val_loss"] for row in examined]
    axes.plot([row["step"] for row in examined], losses, label="validation", color="#312d2a", marker="o")
    axes.set(xlabel="step", ylabel="loss (nats per letter)", title="retrain_gpt: two nodes, DDP")
    axes.grid(alpha=0.3)
    axes.legend()
    path = results.folder / "loss.png"
    figure.savefig(path, dpi=130)
    return path


def show(results: Results, console: Console) -> None:
    summary = results.summary
    first, last = summary["val_loss_first"], summary["val_loss_last"]
    sample = (results.folder / "sample.txt").read_text().strip()
    console.print(Panel(Text(sample[:400]), title="what the model writes", border_style="dim", width=100))
    console.print(_times(results))
    facts = {
        "checkpoint": results.checkpoint_uri,
        "validation loss": f"{first:.3f} at first, {last:.3f} at last",
        "loss curve": str(draw_curve(results)),
        "outputs": str(results.folder),
    }
    for name, value in facts.items():
        # Nothing cuts these lines: people and scripts copy from them.
        console.print(f"{name:16}{value}", highlight=False, soft_wrap=True)


def _times(results: Results) -> Table:
    table = Table(title="where the time went", title_justify="left", box=None, padding=(0, 2))
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    stages = {name: seconds_of(results.tasks[name]) or 0.0 for name in STAGES}
    known = results.start_up_s + sum(stages.values())
    rows = {
        "emulator and Airflow start": results.start_up_s,
        **stages,
        "Airflow between tasks": results.total_s - known,
    }
    for name, seconds in rows.items():
        table.add_row(name, f"{seconds:.1f}")
    table.add_row("total", f"{results.total_s:.1f}", style="bold")
    return table
