"""`ocidist plan`: what a job file would create."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.cli.connection import add_connection, connection_of
from airflow_provider_ocidist.cli.files import problem_line, read
from airflow_provider_ocidist.cli.terminal import FINE, WRONG, print_json, print_yaml, say
from airflow_provider_ocidist.errors import JobFileError

EXAMPLE_NETWORK = "10.0.0."
SHOWN_NODES = 4
"""Nodes whose environment is printed; the others differ by their rank alone."""


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "plan", help="print what a job file would create; creates nothing, sends nothing"
    )
    parser.add_argument("file", metavar="FILE", help="job file, YAML")
    parser.add_argument("--nodes", type=int, metavar="N", help="replaces the number of nodes in the file")
    add_connection(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from airflow_provider_ocidist import job_file

    overrides = {} if options.nodes is None else {"nodes": options.nodes}
    text = read(options.file)
    try:
        job = job_file.parse(
            text, source=options.file, base_dir=Path(options.file).parent, overrides=overrides
        )
        plan = plan_of(job, connection_of(options))
    except JobFileError as error:
        for problem in error.problems:
            say(problem_line(options.file, problem), "red", stderr=True)
        return WRONG
    report = _plan_report(job, plan)
    if options.json:
        print_json(report)
    else:
        _print_plan(report)
    return FINE


def plan_of(job: Any, connection: dict[str, Any]) -> Any:
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
    say(f"nothing has been created; {report['reason']}", "bold")
    for name in ("code", "run_dir", "checkpoints_uri"):
        say(f"{name.removesuffix('_uri').replace('_', ' ')}: {report[name] or 'none'}")
    for number, request in enumerate(report["requests"], 1):
        times = f" ({request['count']} times)" if request["count"] > 1 else ""
        say(f"\n# request {number}: {request['verb']}{times}", "cyan")
        print_yaml(request["body"])
    for rank, environment in enumerate(report["environment"][:SHOWN_NODES]):
        say(f"\n# environment of the training on node {rank}, as if it had one core", "cyan")
        print_yaml(environment)
    if report["nodes"] > SHOWN_NODES:
        say(f"\n# and so on up to node {report['nodes'] - 1}", "cyan")
    say(
        "\n# example of the launch line on node 0; the real addresses are known when the nodes have met",
        "cyan",
    )
    say(report["example_launch"])
