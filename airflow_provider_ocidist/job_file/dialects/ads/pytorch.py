"""The runtime `pyTorchDistributed` of ADS's `kind: job`.

ADS's driver parses the user's command; so does this module.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.job_file.dialects.ads import shell
from airflow_provider_ocidist.job_file.dialects.ads.arguments import (
    put_code,
    put_python_path,
    put_words,
    words,
)
from airflow_provider_ocidist.job_file.dialects.ads.environment import put_variable
from airflow_provider_ocidist.job_file.dialects.base import Draft, Section
from airflow_provider_ocidist.job_file.schema import PLACEHOLDER, value_shown
from airflow_provider_ocidist.launchers import command_line
from airflow_provider_ocidist.launchers.command_line import CommandLine

KNOWN = {
    "git",
    "scriptPathURI",
    "entrypoint",
    "command",
    "deepspeed",
    "conda",
    "dependencies",
    "inputs",
    "outputDir",
    "outputUri",
    "workingDir",
    "pythonPath",
}
REFUSED = {
    "entryFunction": "ADS's driver for PyTorch never calls it: call the function at the end of the script, remove this"
}
COMPUTED = {
    "CODE_ENTRYPOINT",
    "CONDA_ENV_BUCKET",
    "CONDA_ENV_NAMESPACE",
    "CONDA_ENV_OBJECT_NAME",
    "CONDA_ENV_REGION",
    "CONDA_ENV_SLUG",
    "CONDA_ENV_TYPE",
    "JOB_RUN_ENTRYPOINT",
    "MAIN_JOB_RUN_OCID",
    "NODE_COUNT",
    "NODE_RANK",
    "OCI__DEEPSPEED",
    "OCI__INPUT_MAPPINGS",
    "OCI__LAUNCH_CMD",
    "OCI__PIP_PKG",
    "OCI__PIP_REQUIREMENTS",
    "OCI__RUNTIME_GIT_BRANCH",
    "OCI__RUNTIME_GIT_COMMIT",
    "OCI__RUNTIME_GIT_SECRET_ID",
    "OCI__RUNTIME_URI",
    "OUTPUT_DIR",
    "OUTPUT_URI",
    "PYTHON_PATH",
    "WORKING_DIR",
}
"""Variables by which ADS passes values of the file to its driver; it overwrites values set by hand."""
NOT_EXPANDED = (
    "contains {!r}, which only a shell expands, and no shell reads it: quote it if the program is to read it as it is, "
    "else let the program find the files, or call bash"
)
LAUNCHERS = {"torchrun": "torchrun", "deepspeed": "deepspeed", "accelerate": "accelerate launch"}


def put(draft: Draft, runtime: Section) -> None:
    """Put the keys that only this runtime has; the environment was put before."""
    _source(draft, runtime)
    _conda(draft, runtime)
    _dependencies(draft, runtime)
    _inputs(draft, runtime)
    _outputs(draft, runtime)
    draft.copy(runtime, {"workingDir": "program.working_dir"})
    put_python_path(draft, runtime)
    _launch(draft, runtime)


def _source(draft: Draft, runtime: Section) -> None:
    git = draft.section(runtime, "git", {"url", "branch", "commit", "gitSecretId"})
    if "git" in runtime.value and "scriptPathURI" in runtime.value:
        draft.complain(
            runtime.at("scriptPathURI"), "and 'git' both say where the code is: remove one of them"
        )
    if "git" in runtime.value:
        if not isinstance(git.value.get("url"), str):
            draft.complain(git.at("url"), "is needed")
            draft.put("program.source", git.at("url"), PLACEHOLDER)
            return
        put_code(draft, git, "url")
        for key, name in (("branch", "OCI__RUNTIME_GIT_BRANCH"), ("commit", "OCI__RUNTIME_GIT_COMMIT")):
            if git.value.get(key):
                put_variable(draft, git.at(key), name, str(git.value[key]))
    elif "scriptPathURI" in runtime.value:
        draft.copy(runtime, {"scriptPathURI": "program.source"})
    else:
        missing = "is needed, or 'scriptPathURI': where the code is"
        draft.put_needed("program.source", runtime, "git", missing)


def _entrypoint(runtime: Section) -> tuple[str, Any]:
    """Return the path and the value of the entrypoint if there is no command, as ADS passes it to its driver."""
    source = runtime.value.get("scriptPathURI")
    if "entrypoint" in runtime.value or not isinstance(source, str):
        return runtime.at("entrypoint"), runtime.value.get("entrypoint")
    return runtime.at("scriptPathURI"), posixpath.basename(source.rstrip("/"))


# the command


def _launch(draft: Draft, runtime: Section) -> None:
    where = runtime.at("command")
    text = runtime.value.get("command")
    entrypoint_path, entrypoint = _entrypoint(runtime)
    if entrypoint:
        put_variable(draft, entrypoint_path, "CODE_ENTRYPOINT", entrypoint)
    values = _values(draft, runtime)
    arguments = _arguments(draft, runtime, values)
    if text is not None and not isinstance(text, str):
        draft.complain(where, f"must be text, not {value_shown(text)}")
        text = None
    if text:
        command = _command(draft, where, command_line.joined_lines(text), arguments, values)
    else:
        command = _default(draft, entrypoint_path, entrypoint, arguments)
    if command is None:
        draft.put("program.script", where, PLACEHOLDER)
        return
    draft.put_command(where if text else entrypoint_path, _with_deepspeed(draft, runtime, command))
    if command.launcher == "python":
        # Started once on each node, as in ADS.
        draft.put("launcher.processes_per_node", where, 1)


def _default(draft: Draft, where: str, script: Any, arguments: list[Any]) -> CommandLine | None:
    if not isinstance(script, str) or not script.endswith(".py"):
        draft.complain(where, "is needed, or 'command': what to run")
        return None
    return CommandLine(launcher="torchrun", script=script, args=tuple(arguments))


def _command(
    draft: Draft, where: str, text: str, arguments: list[Any], values: Mapping[str, str]
) -> CommandLine | None:
    """Parse a command. ADS passes it to a shell; commands that need one get a shell, except for launchers."""
    known = _launcher_of(text)
    try:
        filled = shell.filled(text, values)
        if known is None and shell.needs_shell(filled):
            return shell.command(text, arguments)
        if unknown := shell.variables(filled):
            draft.complain(where, f"${unknown[0]} is known only on the nodes: read it in the program")
            return None
        parts = shell.split(filled)
        command_line.refuse_operators(filled)
        command = command_line.parse(parts)
        special = next(
            (word for word in shell.expansions(filled) if not shell.OF_OPTION.fullmatch(word)), None
        )
        if special is not None:
            draft.complain(where, NOT_EXPANDED.format(special))
            return None
    except ValueError as error:
        draft.complain(where, str(error))
        return None
    # ADS puts them before the whole command, where no launcher reads them.
    return replace(command, args=(*command.args, *arguments))


def _launcher_of(text: str) -> str | None:
    """Return the launcher that ADS would recognise in the command."""
    return next((kind for kind, words in LAUNCHERS.items() if text.startswith(f"{words} ")), None)


def _arguments(draft: Draft, runtime: Section, values: Mapping[str, str]) -> list[Any]:
    """Return the arguments; ADS's driver replaces variables in each."""
    given = words(draft, runtime, "args") or []
    for index, item in enumerate(given):
        if isinstance(item, str):
            given[index] = shell.argument_with(item, values)
            for name in shell.variables(given[index])[:1]:
                draft.complain(
                    f"{runtime.at('args')}.{index}",
                    f"${name} is known only on the nodes: read it in the program",
                )
    return given


def _values(draft: Draft, runtime: Section) -> Mapping[str, str]:
    """Return the variables whose values are known before the nodes start."""
    names = {"OUTPUT_DIR": "outputDir", "OUTPUT_URI": "outputUri", "WORKING_DIR": "workingDir"}
    known = {name: runtime.value.get(key) for name, key in names.items()} | draft.mapping.get("env", {})
    return {name: value for name, value in known.items() if isinstance(value, str)}


def _with_deepspeed(draft: Draft, runtime: Section, command: CommandLine) -> CommandLine:
    """Turn DeepSpeed on if the launcher does not do so itself."""
    wanted = runtime.value.get("deepspeed")
    where = runtime.at("deepspeed")
    if wanted is None or wanted is False:
        return command
    if wanted is not True:
        draft.complain(where, f"must be true or false, not {value_shown(wanted)}")
        return command
    put_variable(draft, where, "OCI__DEEPSPEED", "1")
    if command.launcher not in LAUNCHERS:
        message = (
            "is for the launchers deepspeed, accelerate and torchrun: write one of them before the script"
        )
        draft.complain(where, message)
    if command.launcher == "accelerate" and "use-deepspeed" not in command_line.values(
        command.flags, "accelerate"
    ):
        return replace(command, flags=(*command.flags, "--use_deepspeed"))
    return command


# the rest


def _conda(draft: Draft, runtime: Section) -> None:
    conda = draft.section(runtime, "conda", {"type", "slug", "uri", "region"})
    if not conda.value:
        return
    draft.only(conda, "type", "service", "published")
    published = conda.value.get("type") == "published"
    wanted = (
        {"uri": "backend.conda_uri", "region": "backend.conda_region"}
        if published
        else {"slug": "backend.conda_slug"}
    )
    needed = "uri" if published else "slug"
    if needed not in conda.value:
        draft.complain(conda.at(needed), "is needed")
    for key in {"slug", "uri", "region"} - wanted.keys() & conda.value.keys():
        kind = "published" if published else "service"
        draft.complain(conda.at(key), f"has no meaning with type {kind}: remove it")
    draft.copy(conda, wanted)


def _dependencies(draft: Draft, runtime: Section) -> None:
    section = draft.section(runtime, "dependencies", {"pipRequirements", "pipPackages"})
    draft.copy(section, {"pipRequirements": "dependencies.requirements"})
    put_words(draft, "dependencies.packages", section, "pipPackages")


def _inputs(draft: Draft, runtime: Section) -> None:
    inputs = runtime.value.get("inputs")
    if isinstance(inputs, Mapping):
        path = runtime.at("inputs")
        value = [{"source": source, "target": target} for source, target in inputs.items()]
        draft.put("inputs", path, value)
        draft.paths |= {f"inputs.{index}": f"{path}.{source}" for index, source in enumerate(inputs)}
        draft.paths |= {
            f"inputs.{index}.{key}": f"{path}.{source}"
            for index, source in enumerate(inputs)
            for key in ("source", "target")
        }
    elif inputs is not None:
        draft.complain(runtime.at("inputs"), f"must map sources to targets, not {value_shown(inputs)}")


def _outputs(draft: Draft, runtime: Section) -> None:
    given = [key for key in ("outputDir", "outputUri") if key in runtime.value]
    if len(given) == 1:
        (other,) = {"outputDir", "outputUri"} - set(given)
        draft.complain(runtime.at(other), f"is needed with '{given[0]}'")
    elif given:
        # ADS continues if the folder is missing, and copies from every node, over the other nodes' files.
        output = {
            "path": runtime.value["outputDir"],
            "uri": runtime.value["outputUri"],
            "required": False,
            "nodes": "all",
        }
        draft.put("outputs", runtime.at("outputUri"), [output])
        draft.paths |= {"outputs.0.path": runtime.at("outputDir"), "outputs.0.uri": runtime.at("outputUri")}
