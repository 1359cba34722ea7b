"""Shared by all commands: output and exit codes."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from airflow_provider_ocidist.agent.train.shared_log import level_of
from airflow_provider_ocidist.model.masking import masked_messages, masked_text

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import LogLine
    from airflow_provider_ocidist.model.run import NodeStatus

FINE, WRONG, UNUSABLE, FAILED, INTERRUPTED, UNREAD = 0, 1, 2, 3, 130, 141
"""Exit codes: success; a finding (a wrong job file, a failed check, a difference); a command that could not be carried
out; a failed training; Ctrl-C; nobody reads the output any more. After other signals: 128 and their number."""
NODE_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")
"""Colours of nodes, by rank; those of a larger gang are used again."""

_hidden: set[str] = set()
"""Secrets known to this process, which it never prints."""


class Unusable(Exception):
    """The command cannot be carried out; the message is one line for the user."""


def local_path(given: Path) -> Path:
    """Return a path of this machine that a user has given, with the home that `~` means. Raises Unusable."""
    try:
        return given.expanduser()
    except RuntimeError as error:
        raise Unusable(
            f"{given} names no place: there is no user of that name here; write ./{given} for a name that begins so"
        ) from error


class Terminated(KeyboardInterrupt):
    """A signal was received, as from a CI at its time-out; it ends what Ctrl-C would end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@contextmanager
def signals_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP of a lost terminal, act like Ctrl-C in the main thread; what is ignored stays so."""

    def terminate(number: int, _: object) -> NoReturn:
        # Once, since the cancel then takes a moment.
        for each in taken:
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    taken = [each for each, handler in before.items() if handler is not signal.SIG_IGN]
    for each in taken:
        signal.signal(each, terminate)
    try:
        yield
    finally:
        for each in taken:
            signal.signal(each, before[each])


def open_missing_output() -> None:
    """Let a command that was started without an output, as by `>&-`, print to nobody."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - until the process ends


def discard_output() -> None:
    """Let nothing more be printed to a pipe that its reader has closed; Python would report it again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            # What was printed in vain is still in the buffer.
            stream.flush()
        except OSError:
            _discard(stream)


def _discard(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextmanager
def last_output() -> Iterator[None]:
    """Print what a command prints last. Its exit code is known: a reader that has left (`| head`) changes nothing."""
    try:
        yield
    except BrokenPipeError:
        discard_output()


@contextmanager
def _printing(stream: TextIO) -> Iterator[None]:
    """Print at once: an error at the exit of Python has no exit code of ours. Raises Unusable, BrokenPipeError."""
    try:
        yield
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is left in the buffer would fail again.
        _discard(stream)
        raise Unusable(f"the output cannot be written: {error.strerror}") from error


def hide(secrets: Collection[str]) -> None:
    """Mask these secrets in all further output of this process."""
    _hidden.update(secrets)


def add_json(parser: argparse.ArgumentParser, text: str = "print JSON") -> None:
    """Add the argument for JSON output."""
    parser.add_argument("--json", action="store_true", help=text)


def counted(count: int, noun: str) -> str:
    """Return a number of things: `1 node`, `3 nodes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def log_text(line: LogLine) -> str:
    return f"[node {line.rank}] {line.text}"


def state_text(node: NodeStatus) -> str:
    """Return a node's state at the service and its own phase: `RUNNING training`."""
    return f"{node.state} {node.report.phase}" if node.report else str(node.state)


def colour_of(rank: int) -> str:
    """Return the colour of a node, the same in every command."""
    return NODE_COLOURS[rank % len(NODE_COLOURS)]


def style_of(line: LogLine) -> str:
    """Return the style of a node's line: what its agent warns of stands out from the colour of the node."""
    level = level_of(line.text)
    if level >= logging.ERROR:
        return "red"
    return "yellow" if level >= logging.WARNING else colour_of(line.rank)


def print_yaml(value: Any) -> None:
    import yaml

    _print(yaml.safe_dump(_shown(value), sort_keys=False, allow_unicode=True, width=2**20).rstrip())


def print_json(value: Any, *, masked: bool = True) -> None:
    with _printing(sys.stdout):
        print(json.dumps(_shown(value) if masked else value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """Print one object of a stream, at once."""
    with _printing(sys.stdout):
        print(json.dumps(_shown(value), ensure_ascii=False))


def _shown(value: Any) -> Any:
    return masked_messages(value, frozenset(_hidden))


def say(text: str, style: str = "", *, stderr: bool = False) -> None:
    _print(without_secrets(text), style, stderr=stderr)


def without_secrets(text: str) -> str:
    """Return text without the secrets known to this process."""
    return masked_text(text, frozenset(_hidden))


def _print(text: str, style: str = "", *, stderr: bool = False) -> None:
    stream = sys.stderr if stderr else sys.stdout
    with _printing(stream):
        if stream.isatty():
            from rich.console import Console

            Console(stderr=stderr, highlight=False).print(_styled(text, style), soft_wrap=True)
        else:
            print(text, file=stream)


def styled(text: str, style: str) -> Any:
    """Return text for a terminal, without secrets and control sequences other than colours."""
    return _styled(without_secrets(text), style)


def _styled(text: str, style: str) -> Any:
    from rich.text import Text

    return Text.from_ansi(text, style=style)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
