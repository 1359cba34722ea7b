"""A person's pod template over ours: nothing of either is lost but what the person replaces."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from airflow_provider_ocidist.backends.kubernetes.merging import APPENDED, LIST_KEYS, merged_manifest
from tests.backends.kubernetes.test_names import drawn

LISTS = {"containers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath"}


def any_value(draw: random.Random, depth: int = 3) -> Any:
    if depth == 0 or draw.random() < 0.3:
        return draw.choice([draw.randint(0, 9), draw.choice("abc"), True])
    return any_section(draw, depth - 1)


def any_section(draw: random.Random, depth: int = 3) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(draw.randint(0, 4)):
        name = draw.choice(["spec", "labels", "a", "b", "command", *LISTS, *APPENDED])
        if name in LISTS:
            entries = draw.sample("pqrs", draw.randint(0, 4))
            found[name] = (
                [{LISTS[name]: entry, **any_section(draw, depth - 1)} for entry in entries] if depth else []
            )
        elif name in APPENDED or name == "command":
            found[name] = [draw.choice("xyz") for _ in range(draw.randint(0, 3))]
        else:
            found[name] = any_value(draw, depth)
    return found


def test_an_empty_template_changes_nothing_and_nothing_changes_its_arguments() -> None:
    draw = drawn()
    for _ in range(200):
        base, over = any_section(draw), any_section(draw)
        before = copy.deepcopy((base, over))
        merged_manifest(base, over)
        assert (base, over) == before
        assert merged_manifest(base, {}) == base
        assert merged_manifest(merged_manifest(base, over), over) == merged_manifest(base, over)


def holds(found: Any, wanted: Any, name: str = "") -> bool:
    """Whether everything that a person has written is in a merged template."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            key in found and holds(found[key], item, key) for key, item in wanted.items()
        )
    if isinstance(wanted, list) and name in LIST_KEYS:
        by_name = {item[LIST_KEYS[name]]: item for item in found}
        return all(holds(by_name.get(item[LIST_KEYS[name]]), item) for item in wanted)
    if isinstance(wanted, list) and name in APPENDED:
        return all(item in found for item in wanted)
    return bool(found == wanted)


def test_what_a_person_writes_arrives_and_entries_of_other_names_stay() -> None:
    draw = drawn()
    for _ in range(300):
        base, over = any_section(draw), any_section(draw)
        result = merged_manifest(base, over)
        assert holds(result, over), (base, over, result)
        for name in set(base) - set(over):
            assert result[name] == base[name]
        for name in set(LISTS) & set(base) & set(over):
            kept = [
                item for item in base[name] if item[LISTS[name]] not in {e[LISTS[name]] for e in over[name]}
            ]
            assert all(item in result[name] for item in kept)
            named = [item[LISTS[name]] for item in result[name]]
            assert len(named) == len(set(named))


def test_a_variable_and_a_volume_are_replaced_whole() -> None:
    ours = {
        "env": [{"name": "A", "value": "1"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    theirs = {
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "volumes": [{"name": "shm", "hostPath": {"path": "/dev/shm"}}],
    }
    assert merged_manifest(ours, theirs) == theirs


def test_null_takes_a_key_away() -> None:
    assert merged_manifest({"hostNetwork": True, "a": 1}, {"hostNetwork": None}) == {"a": 1}


NAMED = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
"""What identifies an entry, by Kubernetes' API types (`patchMergeKey`)."""
ONE_SOURCE = {"volumes", "env", "volumeMounts", "volumeDevices", "ports", "hostAliases"}
"""Lists whose entries cannot be mixed."""


@pytest.mark.parametrize("name, key", list(NAMED.items()))
def test_entries_of_each_list_with_names_meet_by_their_name(name: str, key: str) -> None:
    ours = [{key: "a", "x": 1, "s": {"p": 1}}, {key: "b", "x": 2}]
    theirs = [{key: "c", "x": 3}, {key: "a", "y": 4, "s": {"q": 2}}]
    one = {key: "a", "y": 4, "s": {"q": 2}}
    if name not in ONE_SOURCE:
        one |= {"x": 1, "s": {"p": 1, "q": 2}}
    assert merged_manifest({name: ours}, {name: theirs}) == {name: [one, ours[1], theirs[0]]}
    # In a section below as well.
    assert merged_manifest({"spec": {name: ours}}, {"spec": {name: theirs}}) == {
        "spec": {name: [one, ours[1], theirs[0]]}
    }


@pytest.mark.parametrize("name", ["tolerations", "envFrom"])
def test_alternatives_of_both_sides_stay_and_none_twice(name: str) -> None:
    assert merged_manifest({name: [{"a": 1}, {"b": 2}]}, {name: [{"b": 2}, {"c": 3}]}) == {
        name: [{"a": 1}, {"b": 2}, {"c": 3}]
    }


def test_any_other_list_is_replaced() -> None:
    assert merged_manifest({"command": ["a", "b"]}, {"command": ["c"]}) == {"command": ["c"]}
    assert merged_manifest({"command": ["a"]}, {"command": ("b", "c")}) == {"command": ["b", "c"]}
    assert merged_manifest({"env": {"A": 1}}, {"env": [{"name": "B"}]}) == {"env": [{"name": "B"}]}
    assert merged_manifest({"env": [{"name": "A"}]}, {"env": "none"}) == {"env": "none"}


def test_entries_without_a_name_are_like_no_other() -> None:
    ours, theirs = [{"x": 1}, "odd"], [{"x": 1}, {"y": 2}, "odd"]
    assert merged_manifest({"containers": ours}, {"containers": theirs}) == {"containers": [*ours, *theirs]}
    named = [{"name": "a", "x": 1}]
    assert merged_manifest({"containers": ["a"]}, {"containers": named}) == {"containers": ["a", *named]}


def test_a_section_replaces_what_is_none_and_null_below_takes_a_key_away() -> None:
    assert merged_manifest({"a": 1}, {"a": {"b": 2, "c": None}}) == {"a": {"b": 2}}
    assert merged_manifest({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}) == {"a": {"c": 2}}
    containers = [{"name": "m", "command": ["a"], "args": ["b"]}]
    assert merged_manifest({"containers": containers}, {"containers": [{"name": "m", "command": None}]}) == {
        "containers": [{"name": "m", "args": ["b"]}]
    }
    assert merged_manifest({"a": 1}, {"b": None}) == {"a": 1}


def test_what_is_returned_shares_nothing_with_its_arguments() -> None:
    base = {
        "a": {"x": []},
        "containers": [{"name": "m", "args": ["a"]}],
        "tolerations": [{"k": []}],
        "l": [[]],
    }
    over = {
        "b": {"x": []},
        "containers": [{"name": "n", "args": ["a"]}, {"name": "m", "env": [{"name": "A", "v": []}]}],
        "tolerations": [{"j": []}],
        "l": [[1]],
        "volumes": [{"name": "v", "x": []}],
    }
    before = copy.deepcopy((base, over))
    result = merged_manifest(base, over)
    _fill(result)
    assert (base, over) == before


def _fill(value: Any) -> None:
    """Write into every section and list."""
    for item in list(value.values() if isinstance(value, dict) else value):
        if isinstance(item, dict | list):
            _fill(item)
    if isinstance(value, dict):
        value["filled"] = True
    else:
        value.append("filled")
