"""Oracle ADS, `kind: job`: the YAML of its jobs, for the runtimes that several nodes may share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.job_file.dialects.ads import container, environment, pytorch
from airflow_provider_ocidist.job_file.dialects.ads.arguments import replicas
from airflow_provider_ocidist.job_file.dialects.ads.infrastructure import (
    infrastructure,
    maximum_runtime,
    put_name,
)
from airflow_provider_ocidist.job_file.dialects.base import Draft, Section, Translation
from airflow_provider_ocidist.job_file.schema import value_shown

RUNTIMES = {"pyTorchDistributed": pytorch, "container": container}
OTHER_RUNTIMES = {"script", "notebook", "python", "gitPython", "dataFlow", "dataFlowNotebook"}
COMMON = {
    "replicas",
    "replica",
    "env",
    "args",
    "freeformTags",
    "definedTags",
    "maximumRuntimeInMinutes",
}
"""Keys that every runtime has."""


def translate(mapping: Mapping[str, Any]) -> Translation:
    """Return one program, or one container, on so many equal nodes in our form."""
    draft = Draft()
    draft.keys(mapping, "", {"kind", "apiVersion", "spec"})
    spec = draft.section(mapping, "spec", {"name", "infrastructure", "runtime"})
    place = infrastructure(draft, spec)
    outer = draft.section(spec, "runtime", {"kind", "type", "apiVersion", "spec"})
    draft.only(outer, "kind", "runtime")
    kind = _runtime_kind(draft, outer)
    if kind is None:
        return Translation(mapping=mapping, problems=tuple(draft.problems), readable=False)
    described = RUNTIMES[kind]
    runtime = draft.section(outer, "spec", COMMON | described.KNOWN, refused=described.REFUSED, respell=True)
    draft.put("backend.contract", outer.path, "ads_job")
    key, nodes = replicas(draft, runtime, least=1)
    draft.put("nodes", runtime.at(key), nodes)
    variables = environment.converted(environment.listed(draft, runtime, maps=True))
    environment.put(draft, "env", variables, described.COMPUTED)
    _name(draft, spec, place, {name: item.value for name, item in variables.items()})
    described.put(draft, runtime)
    _tags(draft, runtime)
    maximum_runtime(draft, runtime)
    return draft.finished()


def _runtime_kind(draft: Draft, outer: Section) -> str | None:
    """Return the kind of runtime; None if it is not supported."""
    kind, path = outer.value.get("type"), outer.at("type")
    known = " or ".join(RUNTIMES)
    name = kind if isinstance(kind, str) else None
    if name in RUNTIMES:
        return name
    if kind is None:
        draft.complain(path, f"is needed: {known}")
    elif name in OTHER_RUNTIMES:
        draft.complain(path, f"{kind} runs on one node only; ocidist runs {known}")
    else:
        draft.complain(path, f"must be {known}, not {value_shown(kind)}")
    return None


def _name(draft: Draft, spec: Section, place: Section, variables: Mapping[str, Any]) -> None:
    """Take the name of the job, else the infrastructure's, as ADS does."""
    named = spec if "name" in spec.value else place if "displayName" in place.value else spec
    key = "displayName" if named is place else "name"
    put_name(draft, named.at(key), named.value.get(key), variables)


def _tags(draft: Draft, runtime: Section) -> None:
    """Merge the runtime's tags over the infrastructure's."""
    for key, ours in (("freeformTags", "tags"), ("definedTags", "backend.defined_tags")):
        tags = runtime.value.get(key)
        if tags is None:
            continue
        below = draft.mapping["backend"].get("defined_tags") if "." in ours else draft.mapping.get(ours)
        if isinstance(tags, Mapping) and isinstance(below, Mapping):
            tags = {**below, **tags}
        draft.put(ours, runtime.at(key), tags)
