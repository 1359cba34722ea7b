"""Conditions of a PyTorchJob: the order is that of the last change, and Failed ends all change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import stamp

# Running and Restarting take the place of one another.
_REPLACED = {"Running": "Restarting", "Restarting": "Running"}


def is_true(status: Obj, kind: str) -> bool:
    return any(one["type"] == kind and one["status"] == "True" for one in status.get("conditions", ()))


def is_finished(status: Obj) -> bool:
    return is_true(status, "Succeeded") or is_true(status, "Failed")


def set_condition(
    status: Obj, kind: str, message: str, now: datetime, *, truth: bool = True, reason: str = ""
) -> bool:
    """Put a condition at the end of the list; return whether anything changed."""
    if is_true(status, "Failed"):
        return False
    new: dict[str, Any] = {
        "type": kind,
        "status": str(truth),
        "reason": reason or f"PyTorchJob{kind}",
        "message": message,
        "lastUpdateTime": stamp(now),
        "lastTransitionTime": stamp(now),
    }
    before = next((one for one in status.get("conditions", ()) if one["type"] == kind), None)
    if before and before["status"] == new["status"]:
        if before["reason"] == new["reason"]:
            return False
        new["lastTransitionTime"] = before["lastTransitionTime"]
    status["conditions"] = [*_kept(status.get("conditions", ()), kind), new]
    return True


def _kept(conditions: Sequence[Obj], kind: str) -> list[Obj]:
    ended = kind in ("Failed", "Succeeded")
    return [
        {**one, "status": "False"} if ended and one["type"] == "Running" else one
        for one in conditions
        if one["type"] not in (kind, _REPLACED.get(kind))
    ]
