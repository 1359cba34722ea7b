"""`ocidist plan`: the requests for a job file."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.cli.connection import add_connection, connection_of, with_connections
from airflow_provider_ocidist.cli.files import add_file, load, problems_of
from airflow_provider_ocidist.cli.terminal import (
    FINE,
    add_json,
    counted,
    last_output,
    print_json,
    print_yaml,
    say,
)
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.model.job import is_placeholder
from airflow_provider_ocidist.model.masking import masked

if TYPE_CHECKING:
    from airflow_provider_ocidist.launchers.base import Placement
    from airflow_provider_ocidist.model.job import TrainingJob
    from airflow_provider_ocidist.model.run import Plan, RunStatus

EXAMPLE_NETWORK = "10.0.0."
"""Beginning of the addresses of nodes in an example."""
SHOWN_NODES = 4
"""Most nodes whose environment is printed; the others differ only by their rank."""
OWN_START = "the image's own start"
LATER = "<known when Airflow has rendered launcher.kind>"
LONGEST_TEXT = 400
"""Most characters of a text that are shown to a person."""


def add_plan(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    parser.add_argument(
        "--like",
        metavar="RUN",
        help="earlier run (its info.yaml or its id): print what the job will use if it goes as that run did",
    )
    add_connection(parser)
    add_json(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class Earlier:
    """An earlier run, which another may go like."""

    name: str
    nodes: int
    status: RunStatus

    def forecast(self, nodes: int, price: float | None) -> str:
        """Return what a run of so many nodes will use, for people. `price`: of a node for an hour."""
        from airflow_provider_ocidist.gangs.spending import forecast_like

        at = time.time() if self.status.at is None else self.status.at
        used = forecast_like(self.status, at, nodes, price)
        if used is None:
            return f"{self.name} has neither ended nor shown a pace"
        other = "" if nodes == self.nodes else f", which had {counted(self.nodes, 'node')}"
        return f"about {used} if it goes as {self.name} did{other}"


def run(options: argparse.Namespace) -> int:
    job = load(options.file, options, templates=True)
    with problems_of(options.file):
        plan, *others = plans_of(job, connection_of(options))
    earlier = _earlier(options, job) if options.like else None
    candidates = [_candidate(job, other, earlier) for other in others]
    report = masked({**_plan_report(job, plan, earlier), "candidates": candidates})
    with last_output():
        if options.json:
            print_json(report)
        else:
            _print_plan(report)
    return FINE


def first_plan(job: TrainingJob, connection: dict[str, Any]) -> Plan:
    """Return the plan of a job for its first choice, without its candidates; raises as `plans_of`."""
    return plans_of(job, connection)[0]


def plans_of(job: TrainingJob, connection: dict[str, Any]) -> list[Plan]:
    """Return the plan of a job and those of its candidates; values that only the connection has are
    `<name of the connection>` in them.

    Raises JobFileError for errors that the backend finds.
    """
    from airflow_provider_ocidist import kinds
    from airflow_provider_ocidist.gangs.candidates import Candidates
    from airflow_provider_ocidist.model.run import RunKey

    backend = kinds.load("backends", job.backend.kind).BACKEND
    key = RunKey(dag_id=job.name, run_id="run", task_id="task")
    log = logging.getLogger(__name__)
    if not connection:
        # It may name the prices that this limit needs.
        job = replace(job, limits=replace(job.limits, max_cost=None))
    try:
        return Candidates(with_connections(backend.connect(connection), connection), job, log).plans(key)
    except JobFileError as error:
        absent = {problem.path.rpartition(".")[2] for problem in error.problems} - connection.keys()
        filled = {name: f"<{name} of the connection>" for name in absent}
        own = {**connection, **filled}
        return Candidates(with_connections(backend.connect(own), own), job, log).plans(key)


def _earlier(options: argparse.Namespace, job: TrainingJob) -> Earlier:
    from airflow_provider_ocidist.cli import note

    named = {"target": options.like, "backend": job.backend.kind}
    backend, record = note.known(argparse.Namespace(**{**vars(options), **named}))
    (status,) = backend.status([record.ref])
    return Earlier(record.ref.key.name, record.ref.nodes, status)


def _candidate(job: TrainingJob, plan: Plan, earlier: Earlier | None) -> dict[str, Any]:
    return {
        "candidate": plan.candidate,
        "reason": plan.reason,
        "machine": dict(plan.machine),
        "cost": _cost(job, plan, earlier),
        "requests": _requests(plan),
    }


def _requests(plan: Plan) -> list[dict[str, Any]]:
    return [{"verb": item.verb, "body": dict(item.body), "count": item.count} for item in plan.requests]


def _cost(job: TrainingJob, plan: Plan, earlier: Earlier | None) -> str:
    """Return what the job can use at most by its limits, and what it will use if it goes as an earlier run did."""
    from airflow_provider_ocidist.gangs.spending import bound

    most = bound(job, plan.price)
    return most if earlier is None else f"{earlier.forecast(job.nodes, plan.price)}; {most}"


def _plan_report(job: TrainingJob, plan: Plan, earlier: Earlier | None) -> dict[str, Any]:
    from airflow_provider_ocidist.gangs.plan_view import naming

    return {
        "backend": plan.backend,
        "topology": plan.topology,
        "nodes": plan.nodes,
        "reason": plan.reason,
        "code": plan.code or job.program.source or "in the image",
        "names": naming(plan),
        "run_dir": plan.run_dir,
        "checkpoints_uri": plan.checkpoints_uri,
        "requests": _requests(plan),
        "environment": [_node_environment(job, plan, rank) for rank in range(job.nodes)],
        "example_launch": _example_launch(job),
        "equivalents": _equivalents(plan),
        "cost": _cost(job, plan, earlier),
    }


def _equivalents(plan: Plan) -> dict[str, str]:
    """Return the command lines of the platform's own tools that say the same; none where it has none for it."""
    from airflow_provider_ocidist import kinds
    from airflow_provider_ocidist.backends.capabilities import HasCommandLine

    backend = kinds.load("backends", plan.backend).BACKEND
    return backend.equivalents(plan) if issubclass(backend, HasCommandLine) else {}


def _example_placement(job: TrainingJob, rank: int) -> Placement:
    """Return a node's placement as it could be: addresses and GPUs are known when the nodes have met."""
    from airflow_provider_ocidist.launchers.base import Placement

    addresses = tuple(f"{EXAMPLE_NETWORK}{10 + rank % 240}" for rank in range(job.nodes))
    return Placement(
        rank=rank,
        nodes=job.nodes,
        processes_per_node=job.launcher.processes_per_node or 1,
        master_address=addresses[0],
        address=addresses[rank],
        addresses=addresses,
        rendezvous_id=job.name,
        join_timeout=job.limits.join_timeout,
    )


def _node_environment(job: TrainingJob, plan: Plan, rank: int) -> dict[str, str]:
    """Return the training's environment on a node: the job's variables, those of its role, and the launcher's.

    If the container has its own start, it has only the variables of the requests.
    """
    if job.container is not None:
        return _requested_environment(plan, rank)
    if is_placeholder(job.launcher.kind):
        return {"launcher.kind": LATER}
    role = {**job.env, **(job.main_env if rank == 0 else job.worker_env)}
    from airflow_provider_ocidist import kinds
    from airflow_provider_ocidist.model.agent_config import RANK_VARIABLE

    launcher, place = kinds.load("launchers", job.launcher.kind).LAUNCHER, _example_placement(job, rank)
    return {**launcher.defaults(place), **role, RANK_VARIABLE: str(rank), **launcher.environment(place)}


def _requested_environment(plan: Plan, rank: int) -> dict[str, str]:
    runs = [item.body for item in plan.requests if item.verb == "CreateJobRun"]
    jobs = [item.body for item in plan.requests if item.verb == "CreateJob"]
    found: dict[str, str] = {}
    for body in (*jobs, *runs[rank if len(runs) > 1 else 0 :][:1]):
        found |= _variables(body)
    return found


def _variables(value: Any) -> dict[str, str]:
    """Return the environment variables in a request, wherever in it they stand."""
    found: dict[str, str] = {}
    for name, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        if name == "environmentVariables":
            found |= item
        elif isinstance(item, Mapping | list | tuple):
            found |= _variables(item)
    return found


def _example_launch(job: TrainingJob) -> str:
    """Return the command line of node 0: the launcher's, or the container's own."""
    if job.container is not None:
        own = [*(job.container.entrypoint or ()), *job.container.command]
        return shlex.join(masked(own)) if own else OWN_START
    if is_placeholder(job.launcher.kind):
        return LATER
    from airflow_provider_ocidist import kinds

    launcher = kinds.load("launchers", job.launcher.kind).LAUNCHER
    interpreter, *rest = launcher.command(job.program, job.launcher, _example_placement(job, 0))
    # The node's interpreter, not this machine's.
    return shlex.join(masked(["python" if interpreter == sys.executable else interpreter, *rest]))


def _shortened(text: str) -> str:
    """Return a text of a request, or what stands for a long one; `--json` prints it whole."""
    if len(text) <= LONGEST_TEXT or text.startswith("{"):
        return text
    return f"<{len(text)} characters; --json shows them>"


def _print_plan(report: dict[str, Any]) -> None:
    from airflow_provider_ocidist.gangs.plan_view import with_texts

    say(f"nothing has been created; {report['reason']}", "bold")
    for name in ("code", "names", "run_dir", "checkpoints_uri", "cost"):
        say(f"{name.removesuffix('_uri').replace('_', ' ')}: {report[name] or 'none'}")
    for number, other in enumerate(report["candidates"], 1):
        say(f"candidate {number}: {other['candidate']}; {other['reason']}; cost: {other['cost']}")
    for number, request in enumerate(report["requests"], 1):
        times = f" ({request['count']} times)" if request["count"] > 1 else ""
        say(f"\n# request {number}: {request['verb']}{times}", "cyan")
        print_yaml(with_texts(request["body"], _shortened))
    for rank, environment in enumerate(report["environment"][:SHOWN_NODES]):
        cores = ", as if it had one core" if "OMP_NUM_THREADS" in environment else ""
        say(f"\n# environment of the training on node {rank}{cores}", "cyan")
        print_yaml(environment)
    if report["nodes"] > SHOWN_NODES:
        say(f"\n# and so on up to node {report['nodes'] - 1}", "cyan")
    say(
        "\n# example of the launch line on node 0; addresses and GPUs are known when the nodes have met",
        "cyan",
    )
    say(report["example_launch"])
    for name, line in report["equivalents"].items():
        say(f"\n# the same by the platform's own command line, {name}", "cyan")
        say(line)
