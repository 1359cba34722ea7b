"""Marks that name a line's node, in a log that several nodes share."""

from __future__ import annotations

import logging
import re

MARK = re.compile(r"\[node (\d+)\] ")
AGENT_PREFIX = "ocidist: "
"""Beginning of each line that the agent itself logs."""
_LEVELS = {name: getattr(logging, name) for name in ("WARNING", "ERROR", "CRITICAL")}
_LEVEL = re.compile(f"{AGENT_PREFIX}({'|'.join(_LEVELS)}): ")


def mark(rank: int) -> str:
    return f"[node {rank}] "


def unmarked(line: str) -> tuple[int | None, str]:
    """Return the rank that a line is marked with, if it is, and the line as it was written."""
    found = MARK.match(line)
    return (int(found[1]), line[found.end() :]) if found else (None, line)


class LineMarker:
    """Puts the mark before every line of a stream that comes in pieces."""

    def __init__(self, rank: int) -> None:
        self._mark = mark(rank).encode()
        self._at_start = True

    def __call__(self, piece: bytes) -> bytes:
        if not piece:
            return piece
        body, end = (piece[:-1], b"\n") if piece.endswith(b"\n") else (piece, b"")
        start = self._mark if self._at_start else b""
        self._at_start = bool(end)
        return start + body.replace(b"\n", b"\n" + self._mark) + end


class AgentFormatter(logging.Formatter):
    """Formats what the agent itself logs: warnings and errors say that they are."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the standard library's name
        level = "" if record.levelno < logging.WARNING else f"{record.levelname}: "
        return f"{AGENT_PREFIX}{level}{record.message}"


def level_of(line: str) -> int:
    """Return the level, as `logging` numbers it, at which the agent has logged a line; INFO for all other lines."""
    found = _LEVEL.match(line)
    return _LEVELS[found[1]] if found else logging.INFO


class MarkingFormatter(AgentFormatter):
    """Puts the mark before every line that the agent itself logs."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._mark = mark(rank)

    def format(self, record: logging.LogRecord) -> str:
        return self._mark + super().format(record).replace("\n", f"\n{self._mark}")


def mark_own_lines(rank: int) -> None:
    """Put the mark before every line that this process logs from now on."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(MarkingFormatter(rank))
