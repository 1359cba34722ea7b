"""Bodies for the stand-in for Run:ai: mostly well-formed, some of their values of another type."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.emulator.runai import submissions
from tests.emulator.fuzz import values

TEXTS = ("text", "", "a", "/data", "8Gi", "\N{ROCKET}", "a" * 300, "'", "a b")


def body(kind: submissions.Kind, dice: random.Random, access: Any) -> dict[str, Any]:
    """Return a submission; `access` has the ids of project and cluster."""
    distributed = kind == "distributed"
    meta = submissions.DISTRIBUTED_META if distributed else submissions.META
    found = _object(meta, dice, 0.3)
    found |= {"name": f"w{dice.getrandbits(40):x}", "projectId": access.project_id}
    found |= {"clusterId": access.cluster_id}
    spec = submissions.DISTRIBUTED_SPEC if distributed else submissions.TRAINING_SPEC
    found["spec"] = {**_object(spec, dice, 0.3), "image": "i"}
    if distributed and dice.random() < 0.3:
        found |= {"masterSpec": _object(submissions.SPEC, dice, 0.2), "masterSpecSameAsWorker": False}
    else:
        found = {name: each for name, each in found.items() if not name.startswith("master")}
    for _ in range(dice.choice((0, 0, 1, 2))):
        holder, key = dice.choice(list(values.values_in(found)))
        holder[key] = copy.deepcopy(dice.choice(values.WRONG))
    return found


def _object(known: Mapping[Any, Any], dice: random.Random, share: float) -> dict[str, Any]:
    return {
        name: value(wanted, dice)
        for name, wanted in known.items()
        if name is not ... and (isinstance(wanted, submissions.Must) or dice.random() < share)
    }


def value(wanted: Any, dice: random.Random) -> Any:
    """Return a value of a type in the notation of `submissions`."""
    if isinstance(wanted, submissions.Must):
        return value(wanted.type, dice) or "x"
    if isinstance(wanted, Mapping):
        return _object(wanted, dice, 0.5)
    if isinstance(wanted, list):
        return [value(wanted[0], dice) for _ in range(dice.randrange(3))]
    if isinstance(wanted, tuple):
        return dice.choice(wanted)
    if isinstance(wanted, re.Pattern):
        return dice.choice(("1", "500M", "16Gi", "0.5", "1e3"))
    plain = {
        str: lambda: dice.choice(TEXTS),
        int: lambda: dice.choice((0, 1, 2, 3)),
        float: lambda: dice.choice((0, 0.5, 1)),
        bool: lambda: dice.random() < 0.5,
        dict: lambda: {"a": dice.choice(values.WRONG[:-1])},
    }
    return plain[wanted]()
