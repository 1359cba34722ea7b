"""The program: command and arguments, the launcher in them, and processes on each node."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_ocidist.job_file.dialects.base import Draft, Section, Variables
from airflow_provider_ocidist.job_file.dialects.pytorchjob import limits
from airflow_provider_ocidist.job_file.dialects.pytorchjob.environment import (
    DOLLAR,
    REFERENCE,
    expanded,
    literal,
    refuse_references,
)
from airflow_provider_ocidist.job_file.dialects.pytorchjob.roles import Role
from airflow_provider_ocidist.job_file.schema import PLACEHOLDER, value_shown
from airflow_provider_ocidist.job_file.written_values import whole_in
from airflow_provider_ocidist.launchers import command_line
from airflow_provider_ocidist.launchers.command_line import CommandLine

PORT = "23456"
"""Port of the operator."""
TOPOLOGY_FLAGS = {
    "nnodes",
    "nproc-per-node",
    "node-rank",
    "master-addr",
    "master-port",
    "rdzv-endpoint",
    "rdzv-id",
}
"""Flags of torchrun for a node's place in its gang, which our launcher sets in place of the operator's variables."""


def put(draft: Draft, spec: Section, roles: list[Role], *, at_home: bool) -> None:
    """Put the program, and its processes on each node."""
    if at_home and not any(role.container.value.get("command") for role in roles):
        _own_start(draft, spec, roles)
        return
    command, args = _common_line(draft, roles)
    elastic = limits.elastic(draft, spec, roles[-1].replicas)
    if command:
        _command(draft, spec, roles[0], [*command, *args], elastic)
        return
    _own_entrypoint(draft, spec, roles, args)
    if elastic.value:
        where = roles[0].container.at("command")
        draft.complain(elastic.path, f"is for torchrun: name it in {where}")


def _common_line(draft: Draft, roles: list[Role]) -> tuple[list[str], list[str]]:
    """Return command and arguments of the first role; reports differing ones of others."""
    first, *others = [
        [_words(draft, role.container, key, role.env) for key in ("command", "args")] for role in roles
    ]
    for role, line in zip(roles[1:], others, strict=True):
        for key, ours, theirs in zip(("command", "args"), first, line, strict=True):
            if ours != theirs:
                where = role.container.at(key) if key in role.container.value else role.container.path
                what = "all nodes run the same command; what differs can be said in env, or by RANK"
                draft.complain(where, f"{key} differs from {roles[0].container.at(key)}: {what}")
    command, args = first
    return command, args


def _words(draft: Draft, container: Section, key: str, variables: Variables) -> list[str]:
    given = draft.listed(container, key)
    for where, word in given:
        if isinstance(word, bool) or not isinstance(word, str | int | float):
            draft.complain(where, f"must be text, not {value_shown(word)}")
    return [expanded(str(word), variables, DOLLAR) for _, word in given]


def _command(draft: Draft, spec: Section, role: Role, words: list[str], elastic: Section) -> None:
    where = role.container.at("command")
    try:
        parsed = command_line.parse(words)
    except ValueError as error:
        draft.complain(where, str(error))
        draft.put("program.script", where, PLACEHOLDER)
        return
    flags = _placed(draft, role.container, parsed, elastic)
    refuse_references(draft, role.container, [*flags, parsed.script, *parsed.args])
    flags, args = (tuple(map(literal, words)) for words in (flags, parsed.args))
    draft.put_command(where, replace(parsed, flags=flags, script=literal(parsed.script), args=args))
    draft.copy(role.container, {"workingDir": "program.working_dir"})
    processes = _processes(draft, spec, role, parsed.launcher)
    if processes is not None:
        draft.put("launcher.processes_per_node", *processes)


def _own_entrypoint(draft: Draft, spec: Section, roles: list[Role], args: list[str]) -> None:
    """Start the image's own program, with those of the operator's variables known before the nodes start."""
    container = roles[0].container
    refuse_references(draft, container, args)
    draft.put("container.command", container.at("args" if args else "image"), [*map(literal, args)])
    if "workingDir" in container.value:
        draft.complain(
            container.at("workingDir"), "needs a command: without one the image says where it runs"
        )
    processes = _processes(draft, spec, roles[0], "python") or ("", 1)
    nodes = sum(role.replicas for role in roles)
    known = {
        "PYTHONUNBUFFERED": "1",
        "MASTER_PORT": PORT,
        # A program of several processes then fails without the others, instead of training alone.
        "WORLD_SIZE": str(nodes * processes[1]),
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": str(processes[1]),
    }
    for name, value in known.items():
        draft.mapping.setdefault("env", {}).setdefault(name, value)
        draft.paths.setdefault(f"env.{name}", container.path)


def _own_start(draft: Draft, spec: Section, roles: list[Role]) -> None:
    """Leave the start to the images, their arguments to their pods, the meeting to the operator's variables."""
    draft.put("container", roles[0].container.at("image"), {})
    given = spec.value.get("nprocPerNode")
    count = whole_in(given)
    if count is not None:
        draft.put("launcher.processes_per_node", spec.at("nprocPerNode"), count)
    else:
        # The operator's own default, which is not written out.
        draft.only(spec, "nprocPerNode", "auto", "a whole number")
    if "elasticPolicy" in spec.value:
        draft.copy(spec, {"elasticPolicy": "backend.elastic_policy"})
        if len(roles) > 1:
            where = roles[0].section.path
            draft.complain(
                where, "a gang with an elastic policy has Workers only here: make the Master a Worker"
            )


def _placed(draft: Draft, container: Section, parsed: CommandLine, elastic: Section) -> tuple[str, ...]:
    """Return the launcher's flags without those set by the operator's variables, and with its restarts."""
    flags = parsed.flags
    if parsed.launcher == "torchrun":
        given = command_line.values(flags, "torchrun")
        master = f"{draft.mapping.get('name')}-master-0"
        ours = {
            name
            for name, value in given.items()
            if name in TOPOLOGY_FLAGS and (REFERENCE.search(value) or value.partition(":")[0] == master)
        }
        restarts = elastic.value.get("maxRestarts")
        added = (
            ("--max-restarts", str(restarts)) if restarts is not None and "max-restarts" not in given else ()
        )
        return (*added, *command_line.without_flags(flags, "torchrun", ours))
    if elastic.value:
        draft.complain(elastic.path, f"is for torchrun; the command of {container.at('command')} is another")
    return flags


def _processes(draft: Draft, spec: Section, role: Role, launcher: str) -> tuple[str, int] | None:
    """Return the path and the number of processes on a node; None: one for each visible GPU."""
    count = whole_in(spec.value.get("nprocPerNode"))
    if count:
        return spec.at("nprocPerNode"), count
    draft.only(spec, "nprocPerNode", "auto", "cpu", "gpu", "a whole number")
    if launcher in ("python", "command"):
        # The operator starts it once, however many GPUs the pod has.
        return role.container.at("command"), 1
    return (role.gpus_at, role.gpus) if role.gpus else None
