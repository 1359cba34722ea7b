# PYTHON_ARGCOMPLETE_OK
"""ocidist: check a job file, show what it would create, run the emulator."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_provider_ocidist import __version__
from airflow_provider_ocidist.errors import JobFileError, Problem

FINE, WRONG, UNUSABLE = 0, 1, 2
"""Exit codes: all is well; the job file is wrong; the command itself could not be carried out."""
EXAMPLE_NETWORK = "10.0.0."
SHOWN_NODES = 4
"""Nodes whose environment is printed; the others differ by their rank alone."""


class Unusable(Exception):
    """The command cannot be carried out; the message is one line for the user."""


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
    except Unusable as error:
        _say(f"ocidist: {error}", "red", stderr=True)
        return UNUSABLE
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE


def _parser(*, with_emulator: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ocidist", description="Multi-node PyTorch training from Airflow.")
    parser.add_argument("--version", action="version", version=f"ocidist {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)

    check = commands.add_parser("check", help="say everything that is wrong with job files; sends nothing")
    check.add_argument("files", nargs="+", metavar="FILE", help="job file, YAML")
    check.set_defaults(run=_check)

    plan = commands.add_parser(
        "plan", help="print what a job file would create; creates nothing, sends nothing"
    )
    plan.add_argument("file", metavar="FILE", help="job file, YAML")
    plan.add_argument("--nodes", type=int, metavar="N", help="replaces the number of nodes in the file")
    plan.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field of the Airflow connection, as compartment_id=ocid1...; may be repeated",
    )
    plan.set_defaults(run=_plan)
    for command in (check, plan):
        command.add_argument("--json", action="store_true", help="print JSON")

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


# check


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What there is to say of one file."""

    file: str
    problems: tuple[Problem, ...] = ()
    unusable: str | None = None
    summary: str = ""

    @property
    def exit_code(self) -> int:
        return UNUSABLE if self.unusable else WRONG if self.problems else FINE


def _check(options: argparse.Namespace) -> int:
    verdicts = [_verdict(file) for file in options.files]
    if options.json:
        _print_json([_verdict_json(verdict) for verdict in verdicts])
    else:
        for verdict in verdicts:
            _print_verdict(verdict)
    return max(verdict.exit_code for verdict in verdicts)


def _verdict(file: str) -> _Verdict:
    from airflow_provider_ocidist import job_file

    try:
        text = _read(file)
        job = job_file.parse(text, source=file, base_dir=Path(file).parent)
        _plan_of(job, {})
    except Unusable as error:
        return _Verdict(file, unusable=str(error))
    except JobFileError as error:
        return _Verdict(file, problems=error.problems)
    nodes = "1 node" if job.nodes == 1 else f"{job.nodes} nodes"
    return _Verdict(file, summary=f"{job.name}: {nodes}, {job.launcher.kind}, on {job.backend.kind}")


def _read(file: str) -> str:
    from airflow_provider_ocidist import job_file

    try:
        return job_file.read(Path(file))
    except JobFileError as error:
        raise Unusable(f"{file}: {error.problems[0].message}") from error


def _verdict_json(verdict: _Verdict) -> dict[str, Any]:
    problems = [{"path": item.path, "message": item.message, "line": item.line} for item in verdict.problems]
    return {
        "file": verdict.file,
        "ok": verdict.exit_code == FINE,
        "problems": problems,
        "error": verdict.unusable,
    }


def _print_verdict(verdict: _Verdict) -> None:
    if verdict.unusable:
        _say(f"ocidist: {verdict.unusable}", "red", stderr=True)
    elif verdict.problems:
        for problem in verdict.problems:
            _say(_problem_line(verdict.file, problem), "red")
    else:
        _say(f"{verdict.file}: ok ({verdict.summary})", "green")


def _problem_line(file: str, problem: Problem) -> str:
    """Return a problem as compilers print them, so that editors and terminals find the line."""
    place = f"{file}:{problem.line}" if problem.line is not None else file
    return f"{place}: {replace(problem, line=None)}"


# plan


def _plan(options: argparse.Namespace) -> int:
    from airflow_provider_ocidist import job_file

    overrides = {} if options.nodes is None else {"nodes": options.nodes}
    text = _read(options.file)
    try:
        job = job_file.parse(
            text, source=options.file, base_dir=Path(options.file).parent, overrides=overrides
        )
        plan = _plan_of(job, dict(map(_field, options.field)))
    except JobFileError as error:
        for problem in error.problems:
            _say(_problem_line(options.file, problem), "red", stderr=True)
        return WRONG
    report = _plan_report(job, plan)
    if options.json:
        _print_json(report)
    else:
        _print_plan(report)
    return FINE


def _field(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise Unusable(f"--field {text}: write it as NAME=VALUE")
    return name, value


def _plan_of(job: Any, connection: dict[str, Any]) -> Any:
    """Return the plan of a job; what only the connection knows stands in it as `<name of the connection>`.

    Raises JobFileError for whatever the backend itself finds wrong.
    """
    from airflow_provider_ocidist import kinds
    from airflow_provider_ocidist.run import RunKey

    backend = kinds.load("backends", job.backend.kind).BACKEND
    key = RunKey(dag_id="dag", run_id="run", task_id="task")
    try:
        return backend.connect(connection).plan(job, key)
    except JobFileError as error:
        absent = {problem.path.rpartition(".")[2] for problem in error.problems} - connection.keys()
    filled = {name: f"<{name} of the connection>" for name in absent}
    return backend.connect({**connection, **filled}).plan(job, key)


def _plan_report(job: Any, plan: Any) -> dict[str, Any]:
    environments = [_node_environment(job, rank) for rank in range(job.nodes)]
    return {
        "backend": plan.backend,
        "nodes": plan.nodes,
        "reason": plan.reason,
        "code": plan.code or job.program.source or "in the image",
        "run_dir": plan.run_dir,
        "checkpoints_uri": plan.checkpoints_uri,
        "requests": [
            {"verb": item.verb, "body": dict(item.body), "count": item.count} for item in plan.requests
        ],
        "environment": environments,
        "example_launch": _example_launch(job),
    }


def _topology(job: Any, rank: int) -> Any:
    from airflow_provider_ocidist.launchers.base import Topology

    return Topology(
        rank=rank,
        nodes=job.nodes,
        processes_per_node=job.launcher.processes_per_node or 1,
        master_address=f"{EXAMPLE_NETWORK}10",
        address=f"{EXAMPLE_NETWORK}{10 + rank % 240}",
        rendezvous_id=job.name,
        join_timeout=job.limits.join_timeout,
    )


def _node_environment(job: Any, rank: int) -> dict[str, str]:
    from airflow_provider_ocidist import kinds
    from airflow_provider_ocidist.agent.config import RANK_VARIABLE

    launcher, topology = kinds.load("launchers", job.launcher.kind).LAUNCHER, _topology(job, rank)
    ours = {RANK_VARIABLE: str(rank), **launcher.environment(topology)}
    return {**launcher.defaults(topology), **job.env, **ours}


def _example_launch(job: Any) -> str:
    import shlex

    from airflow_provider_ocidist import kinds

    launcher = kinds.load("launchers", job.launcher.kind).LAUNCHER
    interpreter, *rest = launcher.command(job.program, job.launcher, _topology(job, 0))
    # The node's own interpreter, not that of this machine.
    return shlex.join(["python" if interpreter == sys.executable else interpreter, *rest])


def _print_plan(report: dict[str, Any]) -> None:
    _say(f"nothing has been created; {report['reason']}", "bold")
    for name in ("code", "run_dir", "checkpoints_uri"):
        _say(f"{name.removesuffix('_uri').replace('_', ' ')}: {report[name] or 'none'}")
    for number, request in enumerate(report["requests"], 1):
        times = f" ({request['count']} times)" if request["count"] > 1 else ""
        _say(f"\n# request {number}: {request['verb']}{times}", "cyan")
        _print_yaml(request["body"])
    for rank, environment in enumerate(report["environment"][:SHOWN_NODES]):
        _say(f"\n# environment of the training on node {rank}, as if it had one core", "cyan")
        _print_yaml(environment)
    if report["nodes"] > SHOWN_NODES:
        _say(f"\n# and so on up to node {report['nodes'] - 1}", "cyan")
    _say(
        "\n# example of the launch line on node 0; the real addresses are known when the nodes have met",
        "cyan",
    )
    _say(report["example_launch"])


def _print_yaml(value: Any) -> None:
    import yaml

    _say(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=2**20).rstrip())


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _say(text: str, style: str = "", *, stderr: bool = False) -> None:
    stream = sys.stderr if stderr else sys.stdout
    if not stream.isatty():
        print(text, file=stream)
        return
    from rich.console import Console
    from rich.text import Text

    Console(stderr=stderr, highlight=False).print(Text(text, style=style), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
