"""The normal form of a job's mapping, in which it is checked, whatever types a caller has used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.job_file import schema


def normalised(value: Any, path: str, problems: list[Problem]) -> Any:
    """Return a copy made of dicts with text as keys, lists, and single values; add what is neither to `problems`."""
    match value:
        case Mapping():
            return {
                _key(key, path, problems): normalised(item, _below(path, key), problems)
                for key, item in value.items()
            }
        case list() | tuple():
            return [normalised(item, _below(path, index), problems) for index, item in enumerate(value)]
        case set() | frozenset():
            problems.append(Problem(path, "must be a list: a set has no order"))
            return []
        case os.PathLike():
            return os.fspath(value)
        case timedelta():
            return value.total_seconds()
    return value


def _key(key: Any, path: str, problems: list[Problem]) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int | float):
        problems.append(
            Problem(path, f"a name must be text, not {schema.value_shown(key)}: put it in quotes")
        )
    return str(key)


def _below(path: str, part: object) -> str:
    return f"{path}.{part}" if path else str(part)
