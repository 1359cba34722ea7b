"""A person's pod template over ours: nothing of either is lost but what the person replaces."""

from __future__ import annotations

import copy
import random
from typing import Any

from airflow_provider_ocidist.backends.kubernetes.merging import APPENDED, KEYS, merged_manifest
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
    if isinstance(wanted, list) and name in KEYS:
        by_name = {item[KEYS[name]]: item for item in found}
        return all(holds(by_name.get(item[KEYS[name]]), item) for item in wanted)
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
