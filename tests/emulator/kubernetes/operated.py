"""An object under an operator's rules, without a server: pods end as the test says, and time passes when it says so."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import Step
from airflow_provider_ocidist.emulator.kubernetes.metadata import stamp

BEGIN = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


def dice() -> random.Random:
    """Return random numbers whose seed is printed."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    return random.Random(seed)


@dataclass
class Operated:
    """One object, and what its operator makes of it."""

    obj: dict[str, Any]
    look: Callable[..., Step]
    owned: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    now: datetime = BEGIN
    deleted: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    removed: bool = False
    again_s: float | None = None
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        metadata = self.obj["metadata"]
        metadata.update(uid="uid-1", namespace="training", creationTimestamp=stamp(self.now))

    @property
    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["metadata"]["name"]: pod for pod in self.owned.get("Pod", [])}

    def settle(self) -> dict[str, Any]:
        """Look until nothing changes any more; return the status."""
        for _ in range(10):
            if not self.look_once():
                return self.status
        raise AssertionError("the operator finds no rest")

    def look_once(self) -> bool:
        """Do what one look leads to; return whether there was anything."""
        step = self.look(self.obj, self.owned, self.now)
        for thing in step.delete:
            self.delete(thing)
        for thing in step.create:
            metadata = thing["metadata"]
            metadata.setdefault("uid", "uid")
            metadata.setdefault("name", f"{metadata.get('generateName', '')}{next(self.numbers):05}")
            self.owned.setdefault(thing["kind"], []).append(thing)
        for thing in step.update:
            things = self.owned[thing["kind"]]
            things[[each["metadata"]["name"] for each in things].index(thing["metadata"]["name"])] = thing
        self.events += [note.reason for note in step.notes]
        self.removed, self.again_s = step.remove, step.again_s
        if step.status is not None:
            self.obj["status"] = step.status
        for thing in step.release:
            thing["metadata"].pop("finalizers", None)
        return bool(step.delete or step.create or step.update or step.release or step.status is not None)

    def delete(self, thing: dict[str, Any]) -> None:
        self.deleted.append(f"{thing['kind']}/{thing['metadata']['name']}")
        self.owned[thing["kind"]].remove(thing)

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @property
    def status(self) -> dict[str, Any]:
        return self.obj.get("status", {})

    def condition(self, kind: str) -> dict[str, Any] | None:
        return next((one for one in self.status.get("conditions", ()) if one["type"] == kind), None)

    def truths(self) -> dict[str, bool]:
        """Return the conditions in their order."""
        return {one["type"]: one["status"] == "True" for one in self.status.get("conditions", ())}

    def pod(self, name: str, phase: str, *, code: int | None = None, restarts: int = 0) -> None:
        """Say how a pod is; with a code, its first container has ended."""
        pod = self.pods[name]
        state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        first = pod["spec"]["containers"][0]["name"]
        containers = [{"name": first, "restartCount": restarts, "state": state, "ready": phase == "Running"}]
        pod["status"] = {"phase": phase, "containerStatuses": containers}
