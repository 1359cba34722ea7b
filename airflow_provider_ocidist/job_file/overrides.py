"""Overrides: values that replace those of a job file before it is checked, each at its dotted path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.job_file.normal_form import normalised
from airflow_provider_ocidist.job_file.written_values import numbers
from airflow_provider_ocidist.job_file.yaml_document import is_index


def override(mapping: dict[str, Any], overrides: Mapping[str, Any], problems: list[Problem]) -> list[Problem]:
    """Put values at their paths; return a problem for each path that does not exist.

    Sections are merged, except that another kind of backend empties the section `backend`. Values that no job can hold
    are added to `problems`.
    """
    misplaced = []
    if overridden_kind(overrides, kind_in(mapping)) != kind_in(mapping):
        # What the file says is for another kind.
        mapping["backend"] = {}
    for path, given in overrides.items():
        value = normalised(numbers(given, str), path, problems)
        holder: Any = mapping
        *above, last = path.split(".")
        for part in above:
            holder = _entered(holder, part)
        if isinstance(holder, dict):
            holder[last] = _merged(holder.get(last), value)
        elif isinstance(holder, list) and is_index(last, holder):
            holder[int(last)] = _merged(holder[int(last)], value)
        else:
            misplaced.append(Problem(path, "there is no such key in the job"))
    return misplaced


def kind_in(mapping: Mapping[str, Any]) -> Any:
    """Return the kind of backend that a job's mapping names, of any type, else the default one."""
    backend = mapping.get("backend")
    return backend.get("kind", kinds.DEFAULT_BACKEND) if isinstance(backend, dict) else kinds.DEFAULT_BACKEND


def overridden_kind(overrides: Mapping[str, Any], kind: Any) -> Any:
    """Return the kind of backend that overrides name, of any type, else `kind`."""
    section = overrides.get("backend")
    if isinstance(section, Mapping):
        kind = section.get("kind", kind)
    return overrides.get("backend.kind", kind)


def _entered(holder: Any, part: str) -> Any:
    if isinstance(holder, dict):
        if holder.get(part) is None:
            holder[part] = {}
        return holder[part]
    return holder[int(part)] if isinstance(holder, list) and is_index(part, holder) else None


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _merged(old.get(key), value) for key, value in new.items()}
    return new
