"""The parts of a pod that are kept and read: how its containers are, and whether it holds a node of ours. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_ocidist.backends.kubernetes.agent_parts import VOLUME
from airflow_provider_ocidist.backends.kubernetes.objects import Obj, picked

CONDITIONS = ("PodScheduled", "DisruptionTarget")
"""Conditions of a pod that say why it waits, or ends."""


def essence(pod: Obj) -> Obj:
    """Return what is read of a pod: those of a thousand gangs are kept between looks."""
    metadata, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
    conditions = [each for each in status.get("conditions") or () if each.get("type") in CONDITIONS]
    volumes = [{"name": VOLUME}] if runs_agent(pod) else []
    return {
        "metadata": picked(metadata, ("name", "uid", "creationTimestamp", "deletionTimestamp")),
        "spec": {**picked(spec, ("restartPolicy",)), **({"volumes": volumes} if volumes else {})},
        "status": {
            **picked(status, ("phase", "reason", "message", "startTime")),
            **({"conditions": conditions} if conditions else {}),
            **{
                name: [picked(each, ("name", "state", "lastState", "restartCount")) for each in status[name]]
                for name in ("initContainerStatuses", "containerStatuses")
                if status.get(name)
            },
        },
    }


def runs_agent(pod: Obj) -> bool:
    """Whether a pod holds a node of ours, and no program with a start of its own."""
    return any(each.get("name") == VOLUME for each in (pod.get("spec") or {}).get("volumes") or ())


def was_restarted(pod: Obj, container: str) -> bool:
    """Whether the container of this name has been started again in its pod."""
    own = container_of(pod, container)
    return int(own.get("restartCount") or 0) > 0


def container_has_begun(pod: Obj, container: str) -> bool:
    """Whether the container of this name has ever run in a pod."""
    own = container_of(pod, container)
    return "waiting" not in (own.get("state") or {"waiting": {}})


def has_company(pod: Obj, container: str) -> bool:
    """Whether the container of this name has ended in a pod that others keep alive."""
    statuses = _statuses(pod)
    own = container_of(pod, container).get("state") or {}
    others = [each for each in statuses if each.get("name") != container]
    return "terminated" in own and any("running" in (each.get("state") or {}) for each in others)


def starts_again(pod: Obj, container: str) -> bool:
    """Whether the kubelet starts the agent's container again, which has failed: its pod lives on, and idles."""
    phase = (pod.get("status") or {}).get("phase")
    if not (runs_agent(pod) and may_restart(pod)) or phase in ("Succeeded", "Failed"):
        return False
    end = exit_of(pod, container)
    return end is not None and end.get("exitCode") != 0


def has_failed(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") == "Failed"


def exit_of(pod: Obj, container: str) -> Obj | None:
    """Return how the container of this name has ended last, if it ever has."""
    own = container_of(pod, container)
    states = ((own.get(name) or {}).get("terminated") for name in ("state", "lastState"))
    return next(filter(None, states), None)


def may_have_ended(pod: Obj, container: str) -> bool:
    """Whether a pod ends, or has ended, or the container of this name has, also if it runs again."""
    is_deleted = "deletionTimestamp" in (pod.get("metadata") or {})
    is_over = (pod.get("status") or {}).get("phase") not in (None, "Pending", "Running")
    return is_deleted or is_over or exit_of(pod, container) is not None


def may_restart(pod: Obj) -> bool:
    """Whether the kubelet starts a pod's containers again by themselves."""
    return str((pod.get("spec") or {}).get("restartPolicy", "Always")) != "Never"


def container_of(pod: Obj, name: str) -> Obj:
    """Return the status of the container of this name; empty where there is none yet."""
    return next((item for item in _statuses(pod) if item.get("name") == name), {})


def _statuses(pod: Obj) -> Sequence[Obj]:
    return (pod.get("status") or {}).get("containerStatuses") or ()
