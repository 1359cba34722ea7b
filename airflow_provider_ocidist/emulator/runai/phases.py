"""Phases: in which a workload is, from what lies beneath it in the cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_ocidist.emulator.runai.quotas import Held

Desired = Literal["Running", "Stopped", "Deleted"]
NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName")
FINAL = ("Completed", "Failed")


@dataclass(frozen=True, slots=True)
class WorkloadPhase:
    """A phase with its words."""

    name: str
    message: str = ""
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Beneath:
    """What a workload has in the cluster now: plain objects of Kubernetes."""

    job: Mapping[str, Any] | None = None
    """PyTorchJob of the workload; a training on one node has only its pod."""
    pods: Sequence[Mapping[str, Any]] = ()

    @property
    def is_empty(self) -> bool:
        return self.job is None and not self.pods


def phase_of(
    desired: Desired, before: WorkloadPhase, held: Held | None, beneath: Beneath, wanted: int
) -> WorkloadPhase:
    """Return the phase of a workload that wants so many pods. What is over stays as it was."""
    if desired == "Deleted":
        return WorkloadPhase("Deleting")
    if before.name in FINAL:
        return before
    if desired == "Stopped":
        return WorkloadPhase("Stopped" if beneath.is_empty else "Stopping")
    if held is not None:
        return WorkloadPhase("Pending", held.message, held.reason)
    over = _over(beneath)
    return over or _alive(before, beneath.pods, wanted)


def _over(beneath: Beneath) -> WorkloadPhase | None:
    image = next(filter(None, map(_image_trouble, beneath.pods)), None)
    if image is not None:
        return WorkloadPhase("Failed", image)
    if beneath.job is not None:
        conditions = {
            item["type"]: item.get("message", "")
            for item in (beneath.job.get("status") or {}).get("conditions") or ()
            if item.get("status") == "True"
        }
        if "Failed" in conditions:
            return WorkloadPhase("Failed", conditions["Failed"])
        return WorkloadPhase("Completed", conditions["Succeeded"]) if "Succeeded" in conditions else None
    states = [_k8s_phase(pod) for pod in beneath.pods]
    if "Failed" in states:
        return WorkloadPhase("Failed", "The workload has failed: a container has ended with an error")
    return WorkloadPhase("Completed") if states and set(states) == {"Succeeded"} else None


def _alive(before: WorkloadPhase, pods: Sequence[Mapping[str, Any]], wanted: int) -> WorkloadPhase:
    states = [_k8s_phase(pod) for pod in pods]
    running = sum(state in ("Running", "Succeeded") for state in states)
    if running >= wanted:
        return WorkloadPhase("Running")
    if before.name in ("Running", "Degraded"):
        return WorkloadPhase("Degraded", f"{running} of {wanted} pods run")
    if before.name == "Resuming" and not pods:
        return before
    if not pods:
        return WorkloadPhase("Creating")
    unscheduled = next(filter(None, map(_unscheduled, pods)), None)
    if unscheduled is not None:
        return WorkloadPhase("Pending", unscheduled)
    return WorkloadPhase("Initializing")


def _k8s_phase(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _image_trouble(pod: Mapping[str, Any]) -> str | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in NO_IMAGE:
            return f"{waiting['reason']}: {waiting.get('message') or status.get('image')}"
    return None


def _unscheduled(pod: Mapping[str, Any]) -> str | None:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "Not enough resources in the requested nodepool")
    return None
