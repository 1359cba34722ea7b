"""Reporters for `on_progress`: lines in a task log, or a bar in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from airflow_provider_ocidist.model.amounts import size_text, time_text
from airflow_provider_ocidist.storage.transfer import TransferProgress

LINE_EVERY = 2.0
"""Seconds between two lines where there is no terminal."""


def progress_lines(
    write: Callable[[str], object], label: str, every: float = 5.0
) -> Callable[[TransferProgress], None]:
    """Return a reporter that writes one line, as to a log, every `every` seconds, and one at the end."""
    last = time.monotonic()

    def report(now: TransferProgress) -> None:
        nonlocal last
        if _is_done(now) or time.monotonic() - last >= every:
            last = time.monotonic()
            write(describe(label, now))

    return report


def terminal_progress(label: str) -> Callable[[TransferProgress], None]:
    """Return a reporter that draws a bar, or without a terminal lines."""
    if sys.stderr.isatty():
        return _Bar(label)
    return progress_lines(_to_stderr, label, LINE_EVERY)


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class _Bar:
    """A bar that appears with the first report and stays, full, after the last."""

    def __init__(self, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as SpeedColumn

        files = TextColumn("{task.fields[files]}")
        columns = (TextColumn("{task.description}"), BarColumn(), files, DownloadColumn(), SpeedColumn())
        self.console = Console(stderr=True)
        self.bar = Progress(*columns, TimeRemainingColumn(), console=self.console, auto_refresh=False)
        self.task = self.bar.add_task(label, total=None, files="")

    def __call__(self, now: TransferProgress) -> None:
        self.bar.start()
        # A failed copy sends no report, and a hidden cursor would stay hidden.
        self.console.show_cursor(True)
        files = f"{now.files_done}/{now.files_total} files"
        self.bar.update(
            self.task, completed=now.bytes_done, total=now.bytes_total or None, files=files, refresh=True
        )
        if _is_done(now):
            self.bar.stop()


def describe(label: str, now: TransferProgress) -> str:
    """Return one line: `data: 12/40 files, 120 MB of 400 MB, 38 MB/s, 7 s left`."""
    parts = [
        f"{now.files_done}/{now.files_total} files",
        f"{size_text(now.bytes_done)} of {size_text(now.bytes_total)}",
        f"{size_text(now.rate)}/s",
    ]
    if _is_done(now):
        parts.append(f"done in {time_text(now.seconds)}")
    elif now.eta is not None:
        parts.append(f"{time_text(now.eta)} left")
    return f"{label}: {', '.join(parts)}"


def _is_done(now: TransferProgress) -> bool:
    return now.files_done == now.files_total
