"""Marks that name a line's node, in a log that several nodes share."""

from __future__ import annotations

import logging
import re

MARK = re.compile(r"\[node (\d+)\] ")
LAYOUT = "ocidist: %(message)s"
"""Format of what the agent itself logs."""


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


class MarkingFormatter(logging.Formatter):
    """Puts the mark before every line that the agent itself logs."""

    def __init__(self, rank: int, layout: str) -> None:
        super().__init__(layout)
        self._mark = mark(rank)

    def format(self, record: logging.LogRecord) -> str:
        return self._mark + super().format(record).replace("\n", f"\n{self._mark}")


def mark_own_lines(rank: int) -> None:
    """Put the mark before every line that this process logs from now on."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(MarkingFormatter(rank, LAYOUT))
