# PYTHON_ARGCOMPLETE_OK
"""ocidist: check, plan, run and watch training jobs, copy data, run the emulator."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from airflow_provider_ocidist import __version__
from airflow_provider_ocidist.cli import check, copy, plan, runs
from airflow_provider_ocidist.cli.terminal import FINE, UNUSABLE, Unusable, say
from airflow_provider_ocidist.errors import OcidistError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that this terminal cannot show is no reason to end.
            stream.reconfigure(errors="backslashreplace")
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(
        with_emulator="emulator" in (*arguments[:1], *os.environ.get("COMP_LINE", "").split()[1:2])
    )
    _complete(parser)
    options = parser.parse_args(arguments)
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except (Unusable, OcidistError) as error:
        say(f"ocidist: {error}", "red", stderr=True)
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE


def _parser(*, with_emulator: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ocidist", description="Multi-node PyTorch training from Airflow.")
    parser.add_argument("--version", action="version", version=f"ocidist {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    for command in (check, plan, runs, copy):
        command.add(commands)
    emulator = commands.add_parser("emulator", help="run a local OCI that really runs the nodes")
    if with_emulator:
        _add_emulator(emulator)
    return parser


def _add_emulator(parser: argparse.ArgumentParser) -> None:
    try:
        from airflow_provider_ocidist.emulator import command
    except ImportError as error:
        what = f"the emulator needs {error.name}: pip install 'airflow-provider-ocidist[emulator]'"
        parser.set_defaults(run=lambda _: _refuse(what))
        return
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _refuse(message: str) -> int:
    raise Unusable(message)


def _complete(parser: argparse.ArgumentParser) -> None:
    if "_ARGCOMPLETE" not in os.environ:
        return
    try:
        import argcomplete
    except ImportError:
        return
    argcomplete.autocomplete(parser)
