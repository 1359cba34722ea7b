# PYTHON_ARGCOMPLETE_OK
"""ocidist: describe, check, plan, run and watch training jobs, copy data, run the emulator."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence

from airflow_provider_ocidist import __version__
from airflow_provider_ocidist.cli.completion import command_in_line, complete
from airflow_provider_ocidist.cli.files import WrongFile
from airflow_provider_ocidist.cli.terminal import (
    FINE,
    INTERRUPTED,
    UNUSABLE,
    WRONG,
    Terminated,
    Unusable,
    discard_output,
    say,
)
from airflow_provider_ocidist.errors import OcidistError

GROUPS = {
    "describe": {
        "init": ("init", "write a job, a training script and a Dockerfile to start from"),
        "check": ("check", "report all errors in job files; sends nothing"),
        "schema": ("schema", "print the JSON Schema of job files, for editors"),
    },
    "look ahead": {
        "plan": ("plan", "print what a job file would create; creates nothing, sends nothing"),
        "diff": ("diff", "print the differences between two job files, or between a file and a run"),
        "preflight": ("preflight", "ask the service what would stop a job, and print how to fix it"),
    },
    "run": {
        "run": ("run", "start a job; the run is saved in a file"),
        "watch": ("watch", "follow the logs of all nodes to the end; Ctrl-C does not end the run"),
        "cancel": ("cancel", "end all nodes of a run, and wait until they have ended"),
        "suspend": ("suspend", "end the nodes of a run that stays, on Kubernetes and Run:ai"),
        "resume": ("suspend", "let a suspended run begin"),
        "drill": (
            "drill",
            "train a job again and again with faults on purpose, and report how it recovers",
        ),
    },
    "look": {
        "list": ("status", "list the gangs of the connection's compartment, newest first"),
        "status": ("status", "print the state of a run"),
        "logs": ("status", "print the output of the nodes of a run"),
        "show-config": ("status", "print what was created, from the note of a run"),
    },
    "more": {
        "checkpoints": ("checkpoints", "list, verify, prune, fetch or export stored checkpoints"),
        "copy": (
            "copy",
            "copy a file or a tree between local folders, oci://, http(s):// and any fsspec URI",
        ),
        "emulator": ("emulator", "run a local OCI that runs the nodes"),
    },
}
"""The commands for the help: module in this package, one line. The module has a function `add_<command>`."""
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
EXIT_CODES = """\
exit codes:
  0    all is well; watch and run --wait: the training has succeeded
  1    a job file is wrong, a check or a drill has failed, or there is a difference
  2    the command could not be carried out
  3    the training has failed, or was cancelled
  129  SIGHUP, to `run --wait` or `drill`, as when the terminal is lost: the nodes were ended
  130  Ctrl-C
  143  SIGTERM, to `run --wait` or `drill`: the nodes were ended
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that this terminal cannot show must not end the command.
            stream.reconfigure(errors="backslashreplace")
    arguments = list(sys.argv[1:] if argv is None else argv)
    wanted = arguments[0] if arguments else command_in_line(os.environ.get("COMP_LINE", ""))
    parser = _parser(wanted)
    complete(parser)
    options = parser.parse_args(arguments)
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except WrongFile as error:
        for line in error.lines:
            say(line, "red", stderr=True)
        if error.hint:
            say(error.hint, "yellow", stderr=True)
        return WRONG
    except (Unusable, OcidistError) as error:
        say(f"ocidist: {error}", "red", stderr=True)
        return UNUSABLE
    except Terminated as signal:
        return signal.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return FINE


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
    parser = _Main(prog="ocidist", description="Multi-node PyTorch training on OCI, from a terminal.")
    parser.add_argument("--version", action="version", version=f"ocidist {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True, parser_class=argparse.ArgumentParser)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name == wanted:
            add = getattr(importlib.import_module(f"{__name__}.{module}"), f"add_{name.replace('-', '_')}")
            add(command)
    return parser
