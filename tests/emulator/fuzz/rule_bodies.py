"""Bodies for the control APIs: rules, most of whose fields are of their types."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from airflow_provider_ocidist.emulator.faults import FaultRule
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pod_faults import PodRule
from airflow_provider_ocidist.emulator.nodes.rules import NodeRule
from airflow_provider_ocidist.emulator.runai.quotas import Quota
from tests.emulator.fuzz import values
from tests.emulator.fuzz.api import Door

KINDS: dict[tuple[str, str], type] = {
    ("POST", "/_emulator/faults"): FaultRule,
    ("POST", "/_emulator/nodes"): NodeRule,
    ("POST", "/_emulator/kubernetes/faults"): FaultRule,
    ("POST", "/_emulator/kubernetes/pods"): PodRule,
    ("PUT", "/_emulator/projects/{id}"): Quota,
}
NAMED = {
    ("POST", "/_emulator/seed"): ("seed",),
    ("POST", "/_emulator/sessions"): ("lifetime_s",),
    ("POST", "/_emulator/kubernetes/away"): ("seconds",),
    ("POST", "/_emulator/kubernetes/users"): ("name", "groups", "lifetime_s"),
}
PATTERNS = (".*", "/none", "(", "(?:a?){100}", "[", "x" * 1_001, "GET", "/n/.*")


def body(door: Door, dice: random.Random) -> dict[str, Any] | None:
    """Return a rule for a door; None for one that takes none."""
    place = (door.method, door.template)
    if place in NAMED:
        return {name: _of(str | int | float, dice) for name in NAMED[place] if dice.random() < 0.9}
    if place not in KINDS:
        return None
    types = get_type_hints(KINDS[place])
    names = [field.name for field in fields(KINDS[place]) if dice.random() < 0.25 or field.name == "effect"]
    if KINDS[place] is FaultRule and dice.random() < 0.7:
        names.append("status")
    found = {name: _of(types[name], dice) for name in names}
    for name in found:
        if dice.random() < 0.05:
            found[name] = dice.choice(values.WRONG)
    return found


def _of(wanted: Any, dice: random.Random) -> Any:
    if get_origin(wanted) is Literal:
        return dice.choice(get_args(wanted))
    if get_args(wanted):
        return _of(dice.choice(get_args(wanted)), dice)
    plain = {
        str: lambda: dice.choice(PATTERNS),
        int: lambda: dice.choice((0, 1, 3, 503, 429, -1, 10**12)),
        float: lambda: dice.choice((0, 0.01, 0.5, 1, -1, 1e300, 10**400)),
        bool: lambda: dice.random() < 0.5,
    }
    return plain[wanted]() if wanted in plain else None
