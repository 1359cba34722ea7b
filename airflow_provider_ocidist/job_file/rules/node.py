"""Rules for a node: launcher, environment, packages, container."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.job_file.rules.code import requirements_in_the_code
from airflow_provider_ocidist.job_file.rules.values import arguments, can_be_argument, inside
from airflow_provider_ocidist.launchers.base import Launcher
from airflow_provider_ocidist.model.drill import DRILL_VARIABLE, UNDISTURBED, Fault, why_impossible
from airflow_provider_ocidist.model.job import LauncherOptions, TrainingJob, is_placeholder

ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OUR_VARIABLES = "OCIDIST_"
"""Beginning of the variables that ocidist sets itself."""
SHORTEST_LEASE = 60.0
"""Least seconds of a lease: Airflow takes a triggerer for dead after 30 s without a heartbeat."""
NO_REPLACEMENT = (
    "is 0, and the job has a range of nodes: a lost machine is asked for again before the others go on without it. Say "
    "how many may be lost"
)
FIXED_NUMBER = "starts one number of nodes, the job has a range of them"
NO_SINGLE_NODE = (
    "is {kind!r}, and no gang there goes on with fewer nodes. A range of nodes is for oci_data_science in topology "
    "job_runs, and for local"
)


def launcher(job: TrainingJob) -> Iterator[Problem]:
    kind = job.launcher.kind
    try:
        if not is_placeholder(kind):
            kinds.load("launchers", kind)
    except LookupError as error:
        yield Problem("launcher.kind", str(error.args[0]))
    yield from arguments("launcher.args", job.launcher.args)


def elastic(job: TrainingJob) -> Iterator[Problem]:
    """Require what a gang needs that goes on with fewer nodes when machines are lost."""
    if job.min_nodes is None:
        return
    if job.min_nodes > job.nodes:
        yield Problem("nodes", f"must have no greater min than max: {job.min_nodes} is more than {job.nodes}")
    if job.restarts.node == 0:
        yield Problem("restarts.node", NO_REPLACEMENT)
    kinds_of_launchers, launched = kinds.names("launchers"), job.launcher
    if launched.kind in kinds_of_launchers and not _launcher(launched.kind).is_elastic(launched):
        able = [name for name in kinds_of_launchers if _launcher(name).is_elastic(LauncherOptions(kind=name))]
        yield Problem(
            "launcher", f"{FIXED_NUMBER}: take {' or '.join(able)} without such arguments of your own"
        )
    kind = job.backend.kind
    if kind in kinds.names("backends") and not _replaces_nodes(kind):
        yield Problem("backend.kind", NO_SINGLE_NODE.format(kind=kind))


def _replaces_nodes(kind: str) -> bool:
    # Most jobs do not ask, and a DAG file is read often.
    from airflow_provider_ocidist.backends.capabilities import ReplacesNodes

    found = kinds.load("backends", kind).BACKEND
    return issubclass(found, ReplacesNodes) and found.goes_on_with_fewer


def _launcher(kind: str) -> Launcher:
    found: Launcher = kinds.load("launchers", kind).LAUNCHER
    return found


def environment(job: TrainingJob) -> Iterator[Problem]:
    for section, variables in (("env", job.env), ("main_env", job.main_env), ("worker_env", job.worker_env)):
        for name, value in variables.items():
            path = f"{section}.{name}"
            if not (ENVIRONMENT_NAME.fullmatch(name) or is_placeholder(name)):
                yield Problem(
                    path, "is not a valid name for an environment variable: letters, digits and _ only"
                )
            elif name == DRILL_VARIABLE:
                yield from _drill(path, value, job)
            elif name.startswith(OUR_VARIABLES):
                yield Problem(path, f"names that begin with {OUR_VARIABLES} are reserved")
            elif not can_be_argument(value):
                yield Problem(path, f"an environment variable cannot contain {value!r}")
    if job.worker_env and job.nodes == 1:
        yield Problem("worker_env", "is for the nodes after the first, and there is only one")


def _drill(path: str, value: str, job: TrainingJob) -> Iterator[Problem]:
    if is_placeholder(value) or value == UNDISTURBED:
        return
    try:
        problem = why_impossible(Fault.parse(value), job)
    except ValueError as error:
        problem = str(error)
    if problem:
        yield Problem(path, problem)


def dependencies(job: TrainingJob) -> Iterator[Problem]:
    wanted = job.dependencies
    if wanted is None:
        return
    if not (wanted.requirements or wanted.packages):
        yield Problem("dependencies", "is empty: name requirements or packages")
    if wanted.requirements is not None:
        yield from inside("dependencies.requirements", wanted.requirements)
        yield from requirements_in_the_code(job.program, wanted.requirements)
    for index, package in enumerate(wanted.packages):
        yield from _package(f"dependencies.packages.{index}", package)
    if wanted.packages and not wanted.requirements and all(word.startswith("-") for word in wanted.packages):
        yield Problem("dependencies.packages", "contains options of pip, but no package")


def _package(path: str, package: str) -> Iterator[Problem]:
    """Require one word of pip's command line, or an option with its value."""
    if is_placeholder(package):
        return
    if not package.strip() or not can_be_argument(package) or "\n" in package:
        yield Problem(path, "must be one package, as fire==0.4.0, or an option of pip")
    elif package.strip().startswith("-"):
        yield from _option(path, package)
    elif re.search(r"\s-", package):
        yield Problem(path, "must be one package without pip's options: give them entries of their own")


def _option(path: str, package: str) -> Iterator[Problem]:
    try:
        shlex.split(package)
    except ValueError as error:
        yield Problem(path, f"cannot be split into arguments: {str(error).lower()}")


def lease(job: TrainingJob) -> Iterator[Problem]:
    wanted = job.limits.lease
    if wanted and wanted < SHORTEST_LEASE:
        yield Problem(
            "limits.lease",
            f"is {wanted:g} s: a triggerer that is restarted takes longer to renew it. "
            f"Name {SHORTEST_LEASE:.0f} s or more, or 0 for none",
        )


def container(job: TrainingJob) -> Iterator[Problem]:
    container = job.container
    if container is None:
        return
    if job.image is None:
        yield Problem("container", "needs an image: name it")
    yield from arguments("container.entrypoint", container.entrypoint or ())
    yield from arguments("container.command", container.command)
    if container.entrypoint == ():
        yield Problem("container.entrypoint", "is empty: name a program, or leave it out for the image's own")
