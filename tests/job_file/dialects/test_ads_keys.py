"""No key of ADS's YAML is dropped in silence: without it, each of these files means something else, or nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_ocidist.job_file.dialects.ads import DIALECT

GOLDEN = Path(__file__).with_name("golden")
FILES = ["pytorch_full", "pytorch_doc", "distributed_full", "distributed_train", "container"]
IGNORED = {
    "apiVersion": "documented",
    "spec.cluster.spec.main.name": "documented",
    "spec.cluster.spec.worker.name": "documented",
    "spec.cluster.spec.main": "has no other key in one of the files",
    "spec.name": "of a job whose cluster has a name, as documented",
    "spec.cluster.spec.config.env.1.value": "the runtime's own variable of this name wins",
}
"""Paths, or last keys, without an effect, and why."""


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each value in a file, of sections too."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _paths(item, (*path, key))


def _another(value: Any) -> Any:
    """Return another value of the same type; a section becomes empty."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 7
    return type(value)() if isinstance(value, dict | list) else f"{value}-other"


def _holder(mapping: Any, path: tuple[str | int, ...]) -> Any:
    for key in path[:-1]:
        mapping = mapping[key]
    return mapping


@pytest.mark.parametrize("name", FILES)
def test_each_key_has_an_effect(name: str) -> None:
    mapping = yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())
    whole = DIALECT.translate(copy.deepcopy(mapping))
    without_effect = []
    for path in _paths(mapping):
        if path == ("kind",):
            continue
        changed = copy.deepcopy(mapping)
        holder = _holder(changed, path)
        holder[path[-1]] = _another(holder[path[-1]])
        found = DIALECT.translate(changed)
        if (found.mapping, found.problems) == (whole.mapping, whole.problems):
            without_effect.append(".".join(map(str, path)))
    assert [path for path in without_effect if not {path, path.rpartition(".")[2]} & IGNORED.keys()] == []


@pytest.mark.parametrize("name", FILES)
def test_a_key_that_is_unknown_in_its_section_is_reported_by_its_path(name: str) -> None:
    mapping = yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())
    silent = []
    for path in [(), *_paths(mapping)]:
        section = _holder(mapping, (*path, ""))
        own = {"env", "freeformTags", "definedTags", "kwargs", "inputs"}.intersection(map(str, path))
        if not isinstance(section, dict) or own:
            continue
        changed = copy.deepcopy(mapping)
        _holder(changed, (*path, ""))["unheardOf"] = 1
        where = ".".join(map(str, (*path, "unheardOf")))
        if not any(
            problem.path.startswith(where.rpartition(".")[0])
            for problem in DIALECT.translate(changed).problems
        ):
            silent.append(where)
    assert silent == []
