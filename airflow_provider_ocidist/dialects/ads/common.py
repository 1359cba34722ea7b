"""What the two kinds of ADS files have in common: infrastructure, git, single values."""

from __future__ import annotations

import shlex
from typing import Any

from airflow_provider_ocidist.dialects.base import Draft, Section

INFRASTRUCTURE = {
    "projectId": "backend.project_id",
    "compartmentId": "backend.compartment_id",
    "logGroupId": "backend.log_group_id",
    "logId": "backend.log_id",
    "subnetId": "backend.subnet_id",
    "shapeName": "backend.shape",
    "blockStorageSize": "backend.block_storage_gb",
    "freeformTags": "tags",
}
"""Keys of the infrastructure whose values are taken as they are."""
SHAPE_CONFIG = {"ocpus": "backend.ocpus", "memoryInGBs": "backend.memory_gb"}


def infrastructure(draft: Draft, spec: Section) -> Section:
    outer = draft.section(spec, "infrastructure", {"kind", "type", "apiVersion", "spec"})
    draft.only(outer, "kind", "infrastructure")
    draft.only(outer, "type", "dataScienceJob")
    known = {*INFRASTRUCTURE, "displayName", "shapeConfigDetails", "jobType", "jobInfrastructureType"}
    known.add("maximumRuntimeInMinutes")
    inner = draft.section(outer, "spec", known, later={"storageMount", "definedTags"})
    draft.put("backend.kind", outer.path, "oci_data_science")
    draft.copy(inner, INFRASTRUCTURE)
    draft.copy(draft.section(inner, "shapeConfigDetails", SHAPE_CONFIG), SHAPE_CONFIG)
    draft.only(inner, "jobType", "DEFAULT")
    draft.only(inner, "jobInfrastructureType", "STANDALONE" if "subnetId" in inner.value else "ME_STANDALONE")
    maximum_runtime(draft, inner)
    return inner


def maximum_runtime(draft: Draft, section: Section) -> None:
    key = "maximumRuntimeInMinutes"
    if key in section.value:
        minutes = draft.whole_number(section, key, 1, default=1)
        draft.put("limits.max_runtime", section.at(key), minutes * 60)


def git_url(uri: str, ref: Any) -> str:
    """Return the one URL that says what to clone and what to check out."""
    known = uri.startswith(("git@", "git+", "ssh://", "git://"))
    return (uri if known else f"git+{uri}") + (f"#{ref}" if ref is not None else "")


def text(value: Any) -> Any:
    """Return numbers and booleans as the text that ADS makes of them; anything else is looked at later."""
    return str(value) if isinstance(value, int | float) else value


def words(draft: Draft, section: Section, key: str) -> Any:
    """Return a value whose text, where it is one, is split as a shell would; None when that cannot be done."""
    value = section.value.get(key)
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        draft.complain(section.at(key), f"cannot be split into arguments: {str(error).lower()}")
        return None
