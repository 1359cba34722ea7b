"""Conditions as Kubernetes' own kinds have them: one of each type, in the order of their first appearance."""

from __future__ import annotations

from datetime import datetime

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import stamp


def is_true(status: Obj, kind: str) -> bool:
    return any(
        one.get("type") == kind and one.get("status") == "True" for one in status.get("conditions", ())
    )


def set_condition(
    status: Obj, kind: str, reason: str, message: str, now: datetime, *, truth: bool = True
) -> bool:
    """Set a condition; return whether its status, reason or message is another now."""
    conditions = status.setdefault("conditions", [])
    new = {"type": kind, "status": str(truth), "reason": reason, "message": message}
    before = next((one for one in conditions if one.get("type") == kind), None)
    if before is None:
        conditions.append({**new, "lastTransitionTime": stamp(now)})
        return True
    if all(before.get(name) == value for name, value in new.items()):
        return False
    if before.get("status") != new["status"]:
        before["lastTransitionTime"] = stamp(now)
    before.update(new)
    return True
