"""Reads the environment of a node that Oracle ADS has started with our image, in our own terms. Pure.

Names are those of oracle-ads 2.16.1: `ads/opctl/distributed/common` for `kind: distributed`, and
`ads/jobs/builders/infrastructure/dsc_job_runtime.py` for `kind: job`.
"""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Mapping, Sequence

from airflow_provider_ocidist.agent.prepare.code import CODE_VARIABLE
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.launchers import command_line
from airflow_provider_ocidist.launchers.command_line import CommandLine
from airflow_provider_ocidist.model.agent_config import RANK_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.job import Dependencies, Input, LauncherOptions, Limits, Output, Program
from airflow_provider_ocidist.storage.locations import join

CLUSTER_MODES = ("MAIN", "WORKER")
CODE_DIR = "/code"
"""Folder of the user's code in the images of `kind: distributed`."""
TIMEOUT = "600"
"""Seconds that ADS waits for the other nodes."""
MOST_DIGITS = 15
WORK_DIR_VARIABLE = "OCIDIST_WORK_DIR"
LAUNCH_VARIABLE = "OCI__LAUNCH_CMD"
NOT_DONE = {
    "PROFILE": "a profiler is not put before the program: name it in the entry script",
    "OCI__CERTIFICATE_OCID": "certificates are not downloaded",
    "OCI__CERTIFICATE_AUTHORITY_OCID": "certificates are not downloaded",
    "OCI__ENTRY_SCRIPT_KWARGS": "a program has no keyword arguments: write them as args",
    "ENTRY_FUNCTION": "the script is run as a whole",
    "CONDA_ENV_TYPE": "a container has its own environment",
    "OCI__METRICS_NAMESPACE": "GPU metrics are in the node's report instead",
}
"""Effect at ADS of each variable that we ignore, or why it has no meaning here."""


@dataclass(frozen=True, kw_only=True)
class NodeInstructions:
    """One node's settings."""

    config: AgentConfig
    environ: Mapping[str, str]
    """Environment of the node, with the variables that agent and program also read."""
    not_done: Sequence[str] = ()
    """Sentences about what the agent does not do."""


def speaks(environ: Mapping[str, str]) -> bool:
    """Whether ADS has started this node."""
    return is_cluster(environ) or "NODE_COUNT" in environ


def is_cluster(environ: Mapping[str, str]) -> bool:
    """Whether the node is of `kind: distributed`: only the main node's id distinguishes its gang."""
    return "OCI__MODE" in environ


def is_main(environ: Mapping[str, str]) -> bool:
    return _rank(environ) == "0"


def meeting_point(environ: Mapping[str, str]) -> str:
    """Return the folder where ADS's clusters of one job join. Raises AgentError when none is named."""
    return join(_needed(environ, "OCI__WORK_DIR"), environ.get("JOB_OCID", "Undefined"))


def instructions_of_cluster(environ: Mapping[str, str], gang: str) -> NodeInstructions:
    """Return what a node of `kind: distributed` is to do; `gang` is the OCID of its main node's job run.

    Raises AgentError that names the variable and the remedy.
    """
    if environ.get("OCI__CLUSTER_TYPE", "PYTORCH") != "PYTORCH" or environ.get("OCI__PS_COUNT", "0") != "0":
        raise _fault("OCI__CLUSTER_TYPE", "must be PYTORCH, without parameter servers")
    if environ["OCI__MODE"] not in CLUSTER_MODES:
        raise _fault("OCI__MODE", f"is {environ['OCI__MODE']!r}: must be MAIN or WORKER")
    nodes = number_in(environ, "OCI__WORKER_COUNT", "0") + 1
    script, code_dir = _needed(environ, "OCI__ENTRY_SCRIPT"), environ.get("OCI__CODE_DIR", CODE_DIR)
    program = Program(
        script=within_code(script, code_dir) if environ.get("OCI__RUNTIME_TYPE") else script,
        args=tuple(_words(environ, "OCI__ENTRY_SCRIPT_ARGS")),
        python_path=_python_path(environ.get("OCI__RUNTIME_PYTHON_PATH", "")),
        source=_source(environ) if environ.get("OCI__RUNTIME_TYPE") else None,
        source_secret=environ.get("OCI__RUNTIME_GIT_SECRET_ID"),
    )
    config = AgentConfig(
        run_name=gang,
        nodes=nodes,
        run_dir=join(meeting_point(environ), gang),
        program=program,
        launcher=LauncherOptions(kind="python"),
        outputs=_synchronized(environ),
        limits=Limits(join_timeout=float(number_in(environ, "OCI__TIMEOUT", TIMEOUT))),
    )
    return _instructions(config, environ, code_dir=code_dir)


def instructions_of_job(
    environ: Mapping[str, str], arguments: Sequence[str], own_folder: str
) -> NodeInstructions:
    """Return what a node of `kind: job` is to do; `arguments` are those of the container.

    `own_folder` is where a node without others keeps its report. Raises AgentError that names the variable.
    """
    nodes = number_in(environ, "NODE_COUNT", "1")
    # One job run for all nodes, or one for each: then the workers get the main node's OCID.
    gang = environ.get("MAIN_JOB_RUN_OCID") or _needed(environ, "JOB_RUN_OCID")
    work_dir = environ.get(WORK_DIR_VARIABLE) or environ.get("OCI__WORK_DIR")
    if work_dir is None and nodes > 1:
        raise _fault(
            WORK_DIR_VARIABLE,
            "is not set: the nodes meet and report in a folder that all of them reach; name one in the job's env, "
            "as oci://bucket@namespace/path",
        )
    launcher, program = _command(environ, arguments)
    config = AgentConfig(
        run_name=gang,
        nodes=nodes,
        run_dir=join(work_dir, environ.get("JOB_OCID", "job"), gang) if work_dir else own_folder,
        program=program,
        launcher=launcher,
        inputs=_inputs(environ),
        outputs=_outputs(environ),
        dependencies=_dependencies(environ),
        limits=Limits(join_timeout=float(number_in(environ, "OCI__RDZV_TIMEOUT", TIMEOUT))),
        one_run=nodes > 1 and "CLUSTER_NODES_METADATA_FILE" in environ,
    )
    return _instructions(config, environ, code_dir=environ.get("CODE_DIR"))


def _instructions(config: AgentConfig, environ: Mapping[str, str], code_dir: str | None) -> NodeInstructions:
    rank = _rank(environ)
    looked_for = {RANK_VARIABLE: rank, "NODE_RANK": rank, CODE_VARIABLE: code_dir}
    known = {name: value for name, value in looked_for.items() if value}
    undone = [f"{name} is set, but {why}" for name, why in NOT_DONE.items() if environ.get(name, "0") != "0"]
    return NodeInstructions(config=config, environ={**environ, **known}, not_done=undone)


def _rank(environ: Mapping[str, str]) -> str | None:
    return environ.get("RANK" if is_cluster(environ) else "NODE_RANK")


# the code


def within_code(script: str, code_dir: str) -> str:
    """Return a fetched script's path within the code: ADS has the code in a fixed folder."""
    return script.removeprefix(f"{code_dir.rstrip('/')}/")


def _source(environ: Mapping[str, str]) -> str:
    uri, kind = _needed(environ, "OCI__RUNTIME_URI"), environ.get("OCI__RUNTIME_TYPE", "git")
    if kind == "remote":
        return uri
    if kind != "git":
        raise _fault("OCI__RUNTIME_TYPE", f"is {kind!r}: must be git or remote")
    ref = environ.get("OCI__RUNTIME_GIT_COMMIT") or environ.get("OCI__RUNTIME_GIT_BRANCH")
    prefix = "" if uri.startswith(("git@", "git+", "git://", "ssh://")) else "git+"
    return f"{prefix}{uri}{f'#{ref}' if ref else ''}"


def _python_path(text: str) -> tuple[str, ...]:
    """Split a list, also one that ADS has written as a Python literal."""
    if text.startswith("["):
        try:
            return tuple(map(str, ast.literal_eval(text)))
        except (ValueError, SyntaxError) as error:
            raise AgentError(
                f"the Python path {text!r} is not a list: {error}", cause=Cause.CONFIG
            ) from error
    return tuple(part for part in text.split(":") if part)


def _command(environ: Mapping[str, str], arguments: Sequence[str]) -> tuple[LauncherOptions, Program]:
    """Return what to start, and how: the command of the variable, with the container's arguments after it."""
    command = _parsed(environ, arguments)
    program = Program(
        script=command.script,
        module=command.module,
        args=command.args,
        working_dir=environ.get("WORKING_DIR"),
        python_path=_python_path(environ.get("PYTHON_PATH", "")),
        source=_source(environ) if environ.get("OCI__RUNTIME_URI") else None,
        source_secret=environ.get("OCI__RUNTIME_GIT_SECRET_ID"),
    )
    # ADS's driver starts a plain program once on each node.
    once = 1 if command.launcher == "python" else None
    return LauncherOptions(kind=command.launcher, args=command.flags, processes_per_node=once), program


def _parsed(environ: Mapping[str, str], arguments: Sequence[str]) -> CommandLine:
    where = LAUNCH_VARIABLE if environ.get(LAUNCH_VARIABLE) else "the container's cmd"
    # ADS gives a container's command as one word.
    given = _of_command(where, arguments[0]) if len(arguments) == 1 else arguments
    words = [*_of_command(LAUNCH_VARIABLE, environ.get(LAUNCH_VARIABLE, "")), *given]
    if not words and environ.get("CODE_ENTRYPOINT"):
        words = ["torchrun", environ["CODE_ENTRYPOINT"]]
    if not words:
        raise _fault(
            LAUNCH_VARIABLE,
            "is not set: name the program in it, or as the container's cmd, as torchrun train.py",
        )
    try:
        return command_line.parse(words)
    except ValueError as error:
        raise _fault(where, str(error)) from error


def _of_command(where: str, text: str) -> list[str]:
    """Return the words of a command, which no shell reads. Raises AgentError for what only a shell could do."""
    words = _split(where, command_line.joined_lines(text))
    try:
        command_line.refuse_operators(text)
    except ValueError as error:
        raise _fault(where, str(error)) from error
    return words


# data and packages


def _inputs(environ: Mapping[str, str]) -> tuple[Input, ...]:
    try:
        mappings = json.loads(environ.get("OCI__INPUT_MAPPINGS") or "{}")
        return tuple(Input(source=source, target=target) for source, target in mappings.items())
    except (ValueError, AttributeError) as error:
        raise _fault("OCI__INPUT_MAPPINGS", f"is not a JSON object of URIs and paths: {error}") from error


def _outputs(environ: Mapping[str, str]) -> tuple[Output, ...]:
    path, uri = environ.get("OUTPUT_DIR"), environ.get("OUTPUT_URI")
    return (Output(path=path, uri=uri, required=False),) if path and uri else ()


def _synchronized(environ: Mapping[str, str]) -> tuple[Output, ...]:
    """Return the folder that ADS's containers copy to `sync/<job>/<run>` all the time; we, at the end."""
    if environ.get("SYNC_ARTIFACTS") != "1":
        return ()
    bucket = environ.get("WORKSPACE")
    root = (
        join(f"oci://{bucket}", environ.get("WORKSPACE_PREFIX", ""))
        if bucket
        else _needed(environ, "OCI__WORK_DIR")
    )
    uri = join(root, "sync", environ.get("JOB_OCID", "Undefined"), "${JOB_RUN_OCID}")
    path = environ.get("OCI__SYNC_DIR", "/opt/ml")
    return (Output(path=path, uri=uri, required=False, nodes="all", when="always"),)


def _dependencies(environ: Mapping[str, str]) -> Dependencies | None:
    packages, requirements = _words(environ, "OCI__PIP_PKG"), environ.get("OCI__PIP_REQUIREMENTS")
    if not packages and not requirements:
        return None
    return Dependencies(requirements=requirements, packages=tuple(packages))


# single variables


def _words(environ: Mapping[str, str], name: str) -> list[str]:
    return _split(name, environ.get(name, ""))


def _split(where: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise _fault(where, f"cannot be split into arguments: {str(error).lower()}") from error


def number_in(environ: Mapping[str, str], name: str, default: str) -> int:
    text = environ.get(name, default)
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise _fault(name, f"is {text[:40]!r}: must be a number of at most {MOST_DIGITS} digits")
    return int(text)


def _needed(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise _fault(name, "is not set, though ADS has started this node")
    return environ[name]


def _fault(name: str, problem: str) -> AgentError:
    return AgentError(f"{name} {problem}", cause=Cause.CONFIG)
