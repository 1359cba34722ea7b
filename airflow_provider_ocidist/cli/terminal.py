"""What all commands share: how they print, and how they end."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

FINE, WRONG, UNUSABLE, FAILED, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes: all is well; what was looked at is not as it should be (a wrong job file, a failed check, a difference);
the command could not be carried out; the training failed; Ctrl-C."""
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")


class Unusable(Exception):
    """The command cannot be carried out; the message is one line for the user."""


def colour_of(rank: int) -> str:
    """Return the colour of a node, the same in every command."""
    return COLOURS[rank % len(COLOURS)]


def print_yaml(value: Any) -> None:
    import yaml

    say(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=2**20).rstrip())


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """Print one object of a stream, at once."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def say(text: str, style: str = "", *, stderr: bool = False) -> None:
    stream = sys.stderr if stderr else sys.stdout
    if not stream.isatty():
        print(text, file=stream, flush=True)
        return
    from rich.console import Console

    Console(stderr=stderr, highlight=False).print(styled(text, style), soft_wrap=True)


def styled(text: str, style: str) -> Any:
    """Return text for a terminal: its own colours stay, other control sequences do not reach the terminal."""
    from rich.text import Text

    return Text.from_ansi(text, style=style)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines in which the columns begin at the same place."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
