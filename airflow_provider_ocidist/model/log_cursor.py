"""The position in a task's log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model import codec


@dataclass(frozen=True)
class LogCursor:
    """The position in the log of one try of a task: another process continues there, and neither loses nor repeats."""

    try_number: int = field(metadata=codec.key("number"))
    """Number of the try; another try has a log of its own, which begins empty."""
    newest: tuple[float, ...]
    """Unix time of the newest line that was logged, by rank."""
    since: tuple[float, ...]
    """Unix time before which all lines are logged or given up, by rank."""
    lines: tuple[Mapping[str, float], ...]
    """Lines that were logged and are younger than that, by rank: their Unix times by their ids."""

    def __post_init__(self) -> None:
        """Raise ValueError for what no task has saved: nodes may write to its folder."""
        if not len(self.newest) == len(self.since) == len(self.lines):
            raise ValueError("newest, since and lines are not of as many nodes")
