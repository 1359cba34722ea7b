# PYTHON_ARGCOMPLETE_OK
"""ocidist: describe, check, plan, run and watch training jobs, copy data, run the emulator."""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from airflow_provider_ocidist import __version__
from airflow_provider_ocidist.cli.completion import answer_completion, command_in_line
from airflow_provider_ocidist.cli.files import WrongFile
from airflow_provider_ocidist.cli.terminal import (
    INTERRUPTED,
    UNREAD,
    UNUSABLE,
    WRONG,
    Terminated,
    Unusable,
    discard_output,
    last_output,
    open_missing_output,
    say,
)
from airflow_provider_ocidist.errors import OcidistError

GROUPS = {
    "describe a job": {
        "init": (
            "init",
            "write a job file, a training script, a Dockerfile and a compose file to start from",
        ),
        "check": ("check", "report all errors in job files; sends nothing"),
        "schema": ("schema", "print the JSON Schema of job files, for editors"),
    },
    "before a run": {
        "plan": ("plan", "print what a job file would create; creates nothing, sends nothing"),
        "diff": ("diff", "print the differences between two job files, or between a job file and a run"),
        "preflight": ("preflight", "ask the service what would stop a job, and print how to fix it"),
    },
    "run": {
        "run": ("run", "start a job, and write the ids of the run to a file"),
        "watch": ("watch", "follow the logs of all nodes to the end; Ctrl-C does not end the run"),
        "cancel": ("cancel", "end all nodes of a run, and wait until they have ended"),
        "suspend": ("suspend", "end the nodes of a run, and keep the run; on Kubernetes and Run:ai"),
        "resume": ("suspend", "start the nodes of a suspended run; on Kubernetes and Run:ai"),
        "drill": (
            "drill",
            "train a job several times, each with an injected fault, and report how it recovers",
        ),
    },
    "inspect runs": {
        "list": (
            "listing",
            "list the runs in the connection's compartment, namespace or project, newest first",
        ),
        "status": ("status", "print the state of a run"),
        "logs": ("status", "print the output of the nodes of a run"),
        "show-config": ("status", "print the ids of what a run has created"),
    },
    "more": {
        "checkpoints": ("checkpoints", "list, verify, prune, fetch or export stored checkpoints"),
        "copy": (
            "copy",
            "copy a file or a tree between local folders, oci://, http(s):// and any fsspec URI",
        ),
        "emulator": ("emulator", "run an emulator of OCI on this machine"),
    },
}
"""Commands for the help: module in this package, one line. The module has a function `add_<command>`."""
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
EXIT_CODES = """\
exit codes:
  0    success; for watch and run --wait: the training has succeeded
  1    a job file is wrong, a check or a drill has failed, or diff has found a difference
  2    the command could not be carried out
  3    the training has failed, or was cancelled
  129  `run --wait` or `drill` got SIGHUP (the terminal was closed), and has ended the nodes
  130  Ctrl-C
  141  the reader of the output (`| head`) left before the exit code was known, as that of watch
  143  `run --wait` or `drill` got SIGTERM, and has ended the nodes
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    open_missing_output()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that this terminal cannot show must not end the command.
            stream.reconfigure(errors="backslashreplace")
    arguments = list(sys.argv[1:] if argv is None else argv)
    wanted = arguments[0] if arguments else command_in_line(os.environ.get("COMP_LINE", ""))
    parser = _parser(wanted)
    answer_completion(parser)
    if not arguments:
        parser.print_help(sys.stderr)
        raise SystemExit(UNUSABLE)
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        parser.error(_unknown(arguments[0]))
    options = parser.parse_args(arguments)
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except WrongFile as error:
        _say_last([(line, "red") for line in error.lines] + ([(error.hint, "yellow")] if error.hint else []))
        return WRONG
    except BrokenPipeError:
        discard_output()
        return UNREAD
    except (Unusable, OcidistError) as error:
        _say_last([(f"ocidist: {error}", "red")])
        return UNUSABLE
    except OSError as error:
        # Of a place that the user has named, as one whose name is too long, or of a full disk.
        place = f"{error.filename}: " if error.filename else ""
        _say_last([(f"ocidist: {place}{error.strerror or error}", "red")])
        return UNUSABLE
    except Terminated as signal:
        return signal.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def _say_last(lines: Sequence[tuple[str, str]]) -> None:
    """Report why a command ends; the output of errors may be full, or unread, itself."""
    with suppress(Unusable), last_output():
        for line, style in lines:
            say(line, style, stderr=True)


def _unknown(command: str) -> str:
    near = difflib.get_close_matches(command, COMMANDS, n=1)
    what = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}"
    return f"no command {command!r}; {what}"


class _Main(argparse.ArgumentParser):
    """The parser of `ocidist`, whose help shows the commands in groups."""

    def format_help(self) -> str:
        lines = [self.format_usage(), f"{self.description}\n"]
        for title, group in GROUPS.items():
            lines += [f"{title}:", *(f"  {name:<12} {text}" for name, (_, text) in group.items()), ""]
        more = "For details: ocidist COMMAND --help, or docs/command-line.md.\n"
        return "\n".join([*lines, EXIT_CODES, more])


def _parser(wanted: str | None) -> argparse.ArgumentParser:
    """Return the parser; only the wanted command has its arguments and its module loaded."""
    description = "Multi-node PyTorch training from a terminal: on OCI, Kubernetes, Run:ai, or this machine."
    parser = _Main(prog="ocidist", description=description)
    parser.add_argument("--version", action="version", version=f"ocidist {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True, parser_class=argparse.ArgumentParser)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name == wanted:
            add = getattr(importlib.import_module(f"{__name__}.{module}"), f"add_{name.replace('-', '_')}")
            add(command)
    return parser
