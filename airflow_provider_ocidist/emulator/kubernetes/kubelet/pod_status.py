"""A pod's status, from what its containers have come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import now


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerEnd:
    """How a container ended."""

    exit_code: int
    reason: str
    started: str
    finished: str
    container_id: str
    message: str = ""

    def body(self) -> Obj:
        return {
            "exitCode": self.exit_code,
            "reason": self.reason,
            **({"message": self.message} if self.message else {}),
            "startedAt": self.started,
            "finishedAt": self.finished,
            "containerID": self.container_id,
        }


@dataclass(kw_only=True, slots=True)
class ContainerProgress:
    """What one container has come to."""

    name: str
    image: str
    waiting: tuple[str, str] | None = ("ContainerCreating", "")
    """Reason and message why it waits."""
    running_since: str | None = None
    ended: ContainerEnd | None = None
    last: ContainerEnd | None = None
    """End of the run before."""
    restarts: int = 0
    container_id: str = ""
    over: bool = False
    """Whether it has ended and is not restarted."""
    is_sidecar: bool = False
    """Whether it is an init container that runs beside the others, and ends after them."""

    def body(self) -> Obj:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": f"emulator://{self.image}" if self.container_id else "",
            "state": self._state(),
            "lastState": {"terminated": self.last.body()} if self.last else {},
            "ready": self.running_since is not None,
            "started": self.running_since is not None,
            "restartCount": self.restarts,
            **({"containerID": self.container_id} if self.container_id else {}),
        }

    def _state(self) -> Obj:
        if self.running_since is not None:
            return {"running": {"startedAt": self.running_since}}
        if self.ended is not None:
            return {"terminated": self.ended.body()}
        reason, message = self.waiting or ("ContainerCreating", "")
        return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def phase(inits: Sequence[ContainerProgress], mains: Sequence[ContainerProgress]) -> str:
    """Return Pending, Running, Succeeded or Failed; how a sidecar ends does not count, but only that it does."""
    before = [init for init in inits if not init.is_sidecar]
    if any(init.over and init.ended and init.ended.exit_code != 0 for init in before):
        return "Failed"
    if all(main.over for main in mains):
        if any(init.container_id and not init.over for init in inits if init.is_sidecar):
            return "Running"
        return "Succeeded" if all(main.ended and main.ended.exit_code == 0 for main in mains) else "Failed"
    started = any(main.running_since or main.ended or main.last for main in mains)
    return "Running" if started else "Pending"


def conditions(old: Sequence[Mapping[str, Any]], values: Mapping[str, tuple[bool, str, str]]) -> list[Obj]:
    """Return a pod's conditions: those in `values` (status, reason, message) as they are now, the others as before."""
    before = {each["type"]: each for each in old}
    current = {name: _condition(before.get(name), name, *value) for name, value in values.items()}
    return [dict(each) for each in {**before, **current}.values()]


def _condition(old: Mapping[str, Any] | None, name: str, value: bool, reason: str, message: str) -> Obj:
    condition = {"type": name, "status": str(value)}
    condition.update({key: text for key, text in (("reason", reason), ("message", message)) if text})
    same = old is not None and old.get("status") == condition["status"]
    since = old["lastTransitionTime"] if same and old is not None else now()
    return {**condition, "lastProbeTime": None, "lastTransitionTime": since}


def of_pod(
    inits: Sequence[ContainerProgress], mains: Sequence[ContainerProgress]
) -> dict[str, tuple[bool, str, str]]:
    """Return the conditions that the containers make."""
    completed = phase(inits, mains) == "Succeeded"
    unready = [main.name for main in mains if main.running_since is None]
    waiting = [init.name for init in inits if not _lets_others_begin(init)]
    text = f"containers with unready status: [{' '.join(unready)}]" if unready else ""
    reason = "PodCompleted" if completed else "ContainersNotReady"
    ready = (not unready, reason if unready else "", "" if completed else text)
    initialized = f"containers with incomplete status: [{' '.join(waiting)}]"
    return {
        "Initialized": (False, "ContainersNotInitialized", initialized) if waiting else (True, "", ""),
        "Ready": ready,
        "ContainersReady": ready,
    }


def _lets_others_begin(init: ContainerProgress) -> bool:
    if init.is_sidecar:
        return bool(init.container_id)
    return init.ended is not None and init.ended.exit_code == 0
