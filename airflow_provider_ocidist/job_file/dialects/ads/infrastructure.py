"""The infrastructure of an ADS file, the same for both kinds, and its display name."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Any

from airflow_provider_ocidist.job_file.dialects.base import Draft, Section
from airflow_provider_ocidist.job_file.schema import PLACEHOLDER, value_shown

VALUES = {
    "projectId": "backend.project_id",
    "compartmentId": "backend.compartment_id",
    "logGroupId": "backend.log_group_id",
    "logId": "backend.log_id",
    "subnetId": "backend.subnet_id",
    "shapeName": "backend.shape",
    "blockStorageSize": "backend.block_storage_gb",
    "freeformTags": "tags",
    "definedTags": "backend.defined_tags",
}
"""Keys whose values are copied unchanged."""
SHAPE_CONFIG = {"ocpus": "backend.ocpus", "memoryInGBs": "backend.memory_gb"}
SOURCES = "oci://bucket@namespace/prefix, 10.0.0.1:/export, or <mount target's OCID>:<export's OCID>"
KNOWN = {
    *VALUES,
    "displayName",
    "shapeConfigDetails",
    "jobType",
    "jobInfrastructureType",
    "storageMount",
    "maximumRuntimeInMinutes",
}


def infrastructure(draft: Draft, spec: Section) -> Section:
    """Put the section's values, and return it."""
    outer = draft.section(spec, "infrastructure", {"kind", "type", "apiVersion", "spec"})
    draft.only(outer, "kind", "infrastructure")
    draft.only(outer, "type", "dataScienceJob")
    inner = draft.section(outer, "spec", KNOWN, respell=True)
    draft.put("backend.kind", outer.path, "oci_data_science")
    draft.copy(inner, VALUES)
    draft.copy(draft.section(inner, "shapeConfigDetails", SHAPE_CONFIG, respell=True), SHAPE_CONFIG)
    draft.only(inner, "jobType", "DEFAULT")
    _network(draft, inner)
    _mounts(draft, inner)
    maximum_runtime(draft, inner)
    return inner


def _network(draft: Draft, inner: Section) -> None:
    """Take the network's type; ADS lets a subnet decide, whatever is written here."""
    kind = inner.value.get("jobInfrastructureType")
    if "subnetId" in inner.value:
        draft.only(inner, "jobInfrastructureType", "STANDALONE")
    elif kind == "ME_STANDALONE":
        draft.put("backend.managed_network", inner.at("jobInfrastructureType"), value=True)
    elif kind == "STANDALONE":
        draft.complain(inner.at("jobInfrastructureType"), "needs a 'subnetId'; ME_STANDALONE needs none")
    else:
        draft.only(inner, "jobInfrastructureType", "ME_STANDALONE")


def _mounts(draft: Draft, inner: Section) -> None:
    found: list[dict[str, Any]] = []
    for here, mount in draft.listed(inner, "storageMount", "a list of src and dest"):
        if not isinstance(mount, Mapping) or not {"src", "dest"} <= mount.keys():
            draft.complain(here, "must be a section with src and dest")
            continue
        draft.keys(mount, here, {"src", "dest"})
        if ":" not in str(mount["src"]):
            draft.complain(f"{here}.src", f"must be {SOURCES}, not {value_shown(mount['src'])}")
            continue
        place = f"mounts.{len(found)}"
        draft.paths |= {place: here, f"{place}.source": f"{here}.src", f"{place}.path": f"{here}.dest"}
        found.append({"source": mount["src"], "path": mount["dest"]})
    if found:
        draft.put("mounts", inner.at("storageMount"), found)


def maximum_runtime(draft: Draft, section: Section) -> None:
    """Put the limit in minutes that a section may have, in seconds."""
    key = "maximumRuntimeInMinutes"
    if key in section.value:
        minutes = draft.whole_number(section, key, 1, default=1)
        draft.put("limits.max_runtime", section.at(key), minutes * 60)


def put_name(draft: Draft, path: str, name: Any, variables: Mapping[str, Any]) -> None:
    """Put the name of the job; `${X}` in it is a variable of the job's own environment, as in ADS."""
    if name is None:
        draft.complain(path, "is needed")
        name = PLACEHOLDER
    elif isinstance(name, str):
        template = Template(name)
        named = dict.fromkeys(found["named"] or found["braced"] for found in template.pattern.finditer(name))
        unknown = [each for each in named if each and each not in variables]
        for each in unknown:
            draft.complain(path, f"the variable {each} is not in the environment of the job")
        name = PLACEHOLDER if unknown else template.safe_substitute(variables)
    draft.put("name", path, name)
