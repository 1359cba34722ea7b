"""Oracle ADS, `kind: distributed`: the YAML of `ads opctl run` for its PyTorch clusters.

Where ADS drops a key in silence, loses quoting or ignores a limit, this reports it or does what was meant.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.dialects.ads.common import git_url, infrastructure, text, words
from airflow_provider_ocidist.dialects.base import Draft, Section, Translation
from airflow_provider_ocidist.job_schema import PLACEHOLDER, shown

IMAGE_CODE_DIR = "/code"
"""Where ADS's own images hold the user's code."""

UNSUPPORTED_VARIABLES = {"SYNC_ARTIFACTS", "PROFILE"}
"""Switches of ADS's image that do more than tell the program something."""


def translate(mapping: Mapping[str, Any]) -> Translation:
    """Return one main node, some workers and one image in our form."""
    draft = Draft()
    draft.keys(mapping, "", {"kind", "apiVersion", "spec"})
    spec = draft.section(mapping, "spec", {"name", "infrastructure", "cluster", "runtime"})
    place = infrastructure(draft, spec)
    cluster = _cluster(draft, spec)
    runtime = _runtime(draft, spec)
    _name(draft, spec.value, place.value, cluster.value)
    _environment(draft, cluster, runtime)
    return draft.finished()


def _cluster(draft: Draft, spec: Section) -> Section:
    outer = draft.section(spec, "cluster", {"kind", "apiVersion", "spec"})
    draft.only(outer, "kind", "PYTORCH")
    known = {"name", "image", "workDir", "config", "main", "worker"}
    later = {"ephemeral", "ps", "certificate", "caCert", "cert"}
    inner = draft.section(outer, "spec", known, later)
    draft.copy(inner, {"workDir": "work_dir"})
    _image(draft, inner)
    _nodes(draft, inner)
    return inner


def _roles(cluster: Section) -> list[Section]:
    named = [(cluster.at(name), cluster.value.get(name)) for name in ("main", "worker")]
    return [Section(path, value) for path, value in named if isinstance(value, Mapping)]


def _image(draft: Draft, cluster: Section) -> None:
    """Take the one image of all nodes: ADS asks the cluster first, then the main node, then the workers."""
    holders = [cluster, *_roles(cluster)]
    found = [(section.at("image"), section.value["image"]) for section in holders if "image" in section.value]
    if not found:
        draft.complain(cluster.at("image"), "is needed")
        draft.put("image", cluster.at("image"), PLACEHOLDER)
        return
    path, image = found[0]
    draft.put("image", path, image)
    for other, different in found[1:]:
        if different != image:
            draft.complain(other, "is not supported yet: all nodes run the same image")


def _nodes(draft: Draft, cluster: Section) -> None:
    # The name of a role becomes that of its job runs in ADS; ours are named after the Airflow task.
    known = {"name", "replicas", "replica", "config", "image"}
    main, worker = draft.section(cluster, "main", known), draft.section(cluster, "worker", known)
    if "main" not in cluster.value:
        draft.complain(main.path, "is needed")
    key, count = _replicas(draft, main, least=1)
    if count != 1:
        draft.complain(main.at(key), f"must be 1, not {count}: there is one main node")
    key, workers = _replicas(draft, worker, least=0) if "worker" in cluster.value else ("replicas", 0)
    draft.put("nodes", worker.at(key), 1 + workers)


def _replicas(draft: Draft, role: Section, least: int) -> tuple[str, int]:
    """Return under which of two spellings a role says its nodes, and how many; without a word it is one."""
    if "replica" in role.value and "replicas" in role.value:
        draft.complain(role.at("replica"), "says the same as 'replicas': remove one of them")
    key = "replica" if "replica" in role.value and "replicas" not in role.value else "replicas"
    return key, draft.whole_number(role, key, least, default=1)


def _runtime(draft: Draft, spec: Section) -> Section:
    outer = draft.section(spec, "runtime", {"kind", "type", "apiVersion", "spec"})
    draft.only(outer, "kind", "python")
    draft.only(outer, "type", "git", "remote")
    known = {"entryPoint", "args", "env", "uri", "branch", "commit", "codeDir"}
    inner = draft.section(outer, "spec", known, later={"kwargs", "pythonPath", "gitSecretId"})
    source = str(outer.value.get("type") or "").casefold()
    _code(draft, inner, source)
    _script(draft, inner, "" if source else IMAGE_CODE_DIR)
    _arguments(draft, inner)
    return inner


def _code(draft: Draft, runtime: Section, source: str) -> None:
    useless = {"git": (), "remote": ("branch", "commit")}.get(source, ("uri", "branch", "commit", "codeDir"))
    for key in [key for key in useless if key in runtime.value]:
        draft.complain(
            runtime.at(key), f"means nothing {'with type remote' if source else 'without a type'}: remove it"
        )
    if source not in ("git", "remote"):
        return
    uri = runtime.value.get("uri")
    if uri is None:
        draft.complain(runtime.at("uri"), "is needed")
        uri = PLACEHOLDER
    elif isinstance(uri, str) and source == "git":
        uri = git_url(uri, runtime.value.get("commit") or runtime.value.get("branch"))
    draft.put("program.source", runtime.at("uri"), uri)


def _script(draft: Draft, runtime: Section, folder: str) -> None:
    script = runtime.value.get("entryPoint")
    if script is None:
        draft.complain(runtime.at("entryPoint"), "is needed")
        script = PLACEHOLDER
    elif isinstance(script, str):
        script = posixpath.join(folder, script)
    draft.put("program.script", runtime.at("entryPoint"), script)


def _arguments(draft: Draft, runtime: Section) -> None:
    arguments = words(draft, runtime, "args")
    if isinstance(arguments, list | tuple):
        arguments = [text(item) for item in arguments]
        _refuse_code_dir(draft, runtime, arguments)
    if arguments is not None:
        draft.put("program.args", runtime.at("args"), arguments)


def _refuse_code_dir(draft: Draft, runtime: Section, arguments: list[Any]) -> None:
    """Report arguments that count on where ADS puts fetched code; here each attempt has its own folder."""
    folder = runtime.value.get("codeDir")
    for index, item in enumerate(arguments if isinstance(folder, str) else []):
        if isinstance(item, str) and str(folder).rstrip("/") in item:
            message = (
                f"names the codeDir {folder}, where the code does not lie here: write it relative to the code"
            )
            draft.complain(runtime.at(f"args.{index}"), message)


def _name(
    draft: Draft, spec: Mapping[str, Any], infrastructure: Mapping[str, Any], cluster: Mapping[str, Any]
) -> None:
    """Take the name that ADS would show; it never shows `spec.name`, which is better than none."""
    names = (
        ("spec.cluster.spec.name", cluster.get("name")),
        ("spec.infrastructure.spec.displayName", infrastructure.get("displayName")),
        ("spec.name", spec.get("name")),
    )
    path, name = next(((path, name) for path, name in names if name is not None), ("spec.name", None))
    if name is None:
        draft.complain(path, "is needed")
        name = PLACEHOLDER
    elif isinstance(name, str) and "${" in name:
        draft.complain(path, "variables in it are not supported yet")
    draft.put("name", path, name)


def _environment(draft: Draft, cluster: Section, runtime: Section) -> None:
    """Merge in ADS's order: the cluster's first, then the runtime's, then the role's."""
    config = draft.section(cluster, "config", {"env"}, later={"startOptions"})
    configs = [draft.section(role, "config", {"env"}, later={"startOptions"}) for role in _roles(cluster)]
    own = [_variables(draft, config) for config in configs]
    if any(_values(other) != _values(own[0]) for other in own[1:]):
        draft.complain(configs[1].at("env"), "is not supported yet: it must be the same for all nodes")
    for variables in (_variables(draft, config), _variables(draft, runtime), *own[:1]):
        for name, (path, value) in variables.items():
            _variable(draft, name, path, value)


def _values(variables: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, (_, value) in variables.items()}


def _variable(draft: Draft, name: str, path: str, value: Any) -> None:
    if name == "OCI__TIMEOUT":
        seconds = int(value) if str(value).isdecimal() else value
        draft.put("limits.join_timeout", path, seconds)
    elif name.startswith("OCI__") or name in UNSUPPORTED_VARIABLES:
        draft.complain(path, f"the variable {name} is not supported yet")
    else:
        draft.mapping.setdefault("env", {})[name] = value
        draft.paths[f"env.{name}"] = path


def _variables(draft: Draft, section: Section) -> dict[str, tuple[str, Any]]:
    """Return the variables of a list of names and values: where each is, and its text."""
    entries, path = section.value.get("env"), section.at("env")
    if entries is None:
        return {}
    if not isinstance(entries, list | tuple):
        draft.complain(path, f"must be a list of name and value, not {shown(entries)}")
        return {}
    found: dict[str, tuple[str, Any]] = {}
    for index, entry in enumerate(entries):
        here = f"{path}.{index}"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str) or "value" not in entry:
            draft.complain(here, "must be a section with name and value")
            continue
        draft.keys(entry, here, {"name", "value"})
        if entry["name"] in found:
            draft.complain(f"{here}.name", f"{entry['name']} is there twice")
        found[entry["name"]] = (f"{here}.value", text(entry["value"]))
    return found
