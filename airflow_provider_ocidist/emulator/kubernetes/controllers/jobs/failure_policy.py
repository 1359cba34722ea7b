"""A Job's podFailurePolicy: what a failed pod means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj


@dataclass(frozen=True, slots=True)
class FailureAction:
    """`FailJob`, `Ignore` or `Count`, and the words for it."""

    action: str = "Count"
    message: str = ""


def meaning(job: Obj, pod: Obj) -> FailureAction:
    """Return what the first rule that fits says; without one, the pod counts."""
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or ()
    for number, rule in enumerate(rules):
        if why := next(_reasons(rule, pod), None):
            metadata = pod["metadata"]
            text = f"{why} for pod {metadata['namespace']}/{metadata['name']} matching {rule['action']} rule"
            return FailureAction(rule["action"], f"{text} at index {number}")
    return FailureAction()


def _reasons(rule: Obj, pod: Obj) -> Iterator[str]:
    status = pod.get("status", {})
    if wanted := rule.get("onExitCodes"):
        for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
            ended = container.get("state", {}).get("terminated")
            if ended and ended["exitCode"] != 0 and _fits(wanted, container["name"], ended["exitCode"]):
                yield f"Container {container['name']} failed with exit code {ended['exitCode']}"
    for pattern in rule.get("onPodConditions") or ():
        for one in status.get("conditions", ()):
            if one["type"] == pattern.get("type") and one["status"] == pattern.get("status", "True"):
                yield f"Pod has condition {one['type']}"


def _fits(wanted: Obj, container: str, code: int) -> bool:
    if wanted.get("containerName") not in (None, container):
        return False
    return bool((code in wanted["values"]) == (wanted["operator"] == "In"))
