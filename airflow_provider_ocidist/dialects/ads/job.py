"""Oracle ADS, `kind: job` with the runtime `pyTorchDistributed`.

ADS's driver takes apart the command that the user wrote; so does this. What ADS would do and this does not yet is
reported, never dropped.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.dialects.ads.common import git_url, infrastructure, maximum_runtime, words
from airflow_provider_ocidist.dialects.base import Draft, Section, Translation
from airflow_provider_ocidist.job_schema import PLACEHOLDER, shown

KNOWN = {
    "replicas",
    "replica",
    "git",
    "scriptPathURI",
    "entrypoint",
    "command",
    "conda",
    "inputs",
    "outputDir",
    "outputUri",
    "workingDir",
    "env",
    "freeformTags",
    "maximumRuntimeInMinutes",
}
LATER = {"entryFunction", "dependencies", "deepspeed", "pythonPath", "definedTags", "args"}
TORCHRUN_SWITCHES = {"m", "module", "no-python", "run-path", "standalone", "virtual-local-rank"}
"""Flags of torchrun that take no value (torch/distributed/run.py)."""
VARIABLE = re.compile(r"\$(?:\$|\{(\w+)\})")
PYTHON = re.compile(r"python3?(\.\d+)?")


def translate(mapping: Mapping[str, Any]) -> Translation:
    """Return one script on so many equal nodes in our form."""
    draft = Draft()
    draft.keys(mapping, "", {"kind", "apiVersion", "spec"})
    spec = draft.section(mapping, "spec", {"name", "infrastructure", "runtime"})
    infrastructure(draft, spec)
    outer = draft.section(spec, "runtime", {"kind", "type", "apiVersion", "spec"})
    draft.only(outer, "kind", "runtime")
    if "type" not in outer.value:
        draft.complain(outer.at("type"), "is needed: pyTorchDistributed")
    draft.only(outer, "type", "pyTorchDistributed")
    runtime = draft.section(outer, "spec", KNOWN, LATER)
    _name(draft, spec)
    _nodes(draft, runtime)
    _source(draft, runtime)
    _launch(draft, runtime)
    _conda(draft, runtime)
    _data(draft, runtime)
    _environment(draft, runtime)
    draft.copy(runtime, {"workingDir": "program.working_dir"})
    _tags(draft, runtime)
    maximum_runtime(draft, runtime)
    return draft.finished()


def _name(draft: Draft, spec: Section) -> None:
    if "name" not in spec.value:
        draft.complain(spec.at("name"), "is needed")
    draft.put("name", spec.at("name"), spec.value.get("name", PLACEHOLDER))


def _nodes(draft: Draft, runtime: Section) -> None:
    if {"replica", "replicas"} <= runtime.value.keys():
        draft.complain(runtime.at("replica"), "says the same as 'replicas': remove one of them")
    key = "replica" if "replica" in runtime.value and "replicas" not in runtime.value else "replicas"
    draft.put("nodes", runtime.at(key), draft.whole_number(runtime, key, least=1, default=1))


def _source(draft: Draft, runtime: Section) -> None:
    git = draft.section(runtime, "git", {"url", "branch", "commit"}, later={"gitSecretId"})
    if "git" in runtime.value and "scriptPathURI" in runtime.value:
        draft.complain(
            runtime.at("scriptPathURI"), "and 'git' both say where the code is: remove one of them"
        )
    if "git" in runtime.value:
        url = git.value.get("url")
        if not isinstance(url, str):
            draft.complain(git.at("url"), "is needed")
            url = PLACEHOLDER
        ref = git.value.get("commit") or git.value.get("branch")
        draft.put("program.source", git.at("url"), git_url(url, ref))
    elif "scriptPathURI" in runtime.value:
        draft.copy(runtime, {"scriptPathURI": "program.source"})
    else:
        draft.complain(runtime.at("git"), "is needed, or 'scriptPathURI': where the code is")
        draft.put("program.source", runtime.at("git"), PLACEHOLDER)


# the command


def _launch(draft: Draft, runtime: Section) -> None:
    command = words(draft, runtime, "command")
    if command is not None and not isinstance(command, list):
        draft.complain(runtime.at("command"), f"must be text, not {shown(command)}")
        command = None
    where = runtime.at("command")
    if not command:
        _script(draft, runtime.at("entrypoint"), _entrypoint(runtime))
        return
    launcher, *rest = command
    if launcher == "torchrun":
        _torchrun(draft, where, rest)
    elif PYTHON.fullmatch(launcher):
        _python(draft, where, rest)
    else:
        draft.complain(where, f"the launcher {launcher!r} is not supported yet: torchrun and python are")
        _script(draft, where, PLACEHOLDER)


def _entrypoint(runtime: Section) -> Any:
    """Return what runs when there is no command: the entrypoint, or a source that is a single script."""
    source = runtime.value.get("scriptPathURI")
    single = posixpath.basename(source) if isinstance(source, str) and source.endswith(".py") else None
    return runtime.value.get("entrypoint", single)


def _script(draft: Draft, where: str, script: Any) -> None:
    if not script:
        draft.complain(where, "is needed, or 'command': what to run")
        script = PLACEHOLDER
    draft.put("program.script", where, script)


def _torchrun(draft: Draft, where: str, arguments: list[str]) -> None:
    """Split `[flags] script [arguments]`; the flags stay the user's, and win over ours."""
    flags: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        flag = rest.pop(0)
        name = flag.lstrip("-").replace("_", "-")
        if name in ("m", "module"):
            draft.put("program.module", where, value=True)
            continue
        flags.append(flag)
        if "=" not in flag and name not in TORCHRUN_SWITCHES and rest:
            flags.append(rest.pop(0))
    draft.put("launcher.kind", where, "torchrun")
    if flags:
        draft.put("launcher.args", where, flags)
    _script(draft, where, rest[0] if rest else None)
    if rest[1:]:
        draft.put("program.args", where, rest[1:])


def _python(draft: Draft, where: str, arguments: list[str]) -> None:
    """Split `[-u] script [arguments]`. ADS starts it once on each node, so do we."""
    rest = [item for index, item in enumerate(arguments) if not (item == "-u" and index == 0)]
    if rest[:1] == ["-m"]:
        draft.put("program.module", where, value=True)
        rest = rest[1:]
    elif rest and rest[0].startswith("-"):
        draft.complain(where, f"python's own flag {rest[0]} is not supported yet")
    draft.put("launcher.kind", where, "python")
    draft.put("launcher.processes_per_node", where, 1)
    _script(draft, where, rest[0] if rest else None)
    if rest[1:]:
        draft.put("program.args", where, rest[1:])


# the rest


def _conda(draft: Draft, runtime: Section) -> None:
    conda = draft.section(runtime, "conda", {"type", "slug"}, later={"uri", "region"})
    if str(conda.value.get("type", "service")) != "service":
        draft.complain(conda.at("type"), "is not supported yet: service environments are")
    draft.copy(conda, {"slug": "backend.conda_slug"})


def _data(draft: Draft, runtime: Section) -> None:
    inputs = runtime.value.get("inputs")
    if isinstance(inputs, Mapping):
        value = [{"source": source, "target": target} for source, target in inputs.items()]
        draft.put("inputs", runtime.at("inputs"), value)
    elif inputs is not None:
        draft.complain(runtime.at("inputs"), f"must map sources to targets, not {shown(inputs)}")
    given = [key for key in ("outputDir", "outputUri") if key in runtime.value]
    if len(given) == 1:
        (other,) = {"outputDir", "outputUri"} - set(given)
        draft.complain(runtime.at(other), f"is needed with '{given[0]}'")
    elif given:
        # ADS goes on where the folder is missing.
        output = {"path": runtime.value["outputDir"], "uri": runtime.value["outputUri"], "required": False}
        draft.put("outputs", runtime.at("outputUri"), [output])


def _environment(draft: Draft, runtime: Section) -> None:
    """Take variables as a map or as a list of name and value; `${X}` stands for another of them, `$$` for `$`."""
    given = runtime.value.get("env") or {}
    if isinstance(given, list | tuple):
        if not all(
            isinstance(item, Mapping) and {"name", "value"} >= item.keys() >= {"name"} for item in given
        ):
            draft.complain(runtime.at("env"), "must be a list of sections with name and value")
            return
        given = {str(item["name"]): item.get("value") for item in given}
    if not isinstance(given, Mapping):
        draft.complain(
            runtime.at("env"), f"must be a section or a list of name and value, not {shown(given)}"
        )
        return
    texts = {str(name): _variable(value) for name, value in given.items()}
    for name, value in texts.items():
        draft.mapping.setdefault("env", {})[name] = VARIABLE.sub(lambda found: _resolved(found, texts), value)
        draft.paths[f"env.{name}"] = runtime.at("env")


def _variable(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _resolved(found: re.Match[str], texts: Mapping[str, str]) -> str:
    if found[0] == "$$":
        return "$"
    return texts.get(found[1], found[0])


def _tags(draft: Draft, runtime: Section) -> None:
    """Lay the runtime's tags over the infrastructure's."""
    tags = runtime.value.get("freeformTags")
    if isinstance(tags, Mapping):
        draft.put("tags", runtime.at("freeformTags"), {**draft.mapping.get("tags", {}), **tags})
    elif tags is not None:
        draft.put("tags", runtime.at("freeformTags"), tags)
