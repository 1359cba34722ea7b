"""Step: what an operator does after one look at an object; `RuledController` looks, and does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from airflow_provider_ocidist.emulator.kubernetes.controllers.manager import KeysOf, itself, owner
from airflow_provider_ocidist.emulator.kubernetes.events import record
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import moment
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError


@dataclass(frozen=True, slots=True)
class Note:
    """An event on the object."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What is done, in this order; the first refused creation ends the step, and no status is written."""

    delete: Sequence[Obj] = ()
    create: Sequence[Obj] = ()
    notes: Sequence[Note] = ()
    status: Obj | None = None
    """New status; None: it stays as it is."""
    update: Sequence[Obj] = ()
    release: Sequence[Obj] = ()
    """Objects that lose their finalizers, since the status now counts them."""
    again_s: float | None = None
    """Seconds until the next look; None: when something changes."""
    remove: bool = False
    """Whether the object itself is deleted."""


Look = Callable[[Obj, Mapping[str, Sequence[Obj]], datetime], Step]
"""Function of an object, what it controls and what it reads by kind, and the time."""


@dataclass(frozen=True, kw_only=True)
class RuledController:
    """A controller whose rules are a pure function."""

    kind: str
    owns: Sequence[str]
    """Kinds of the objects that it makes; each change of one is a reason to look at the owner."""
    look: Look
    reads: Sequence[str] = ()
    """Kinds of the objects of others that it depends on: passed to `look` whole."""
    source: str
    """Source of its events."""
    names_kinds: bool = False
    """Whether its events are SuccessfulCreatePod and the like, not SuccessfulCreate."""

    @property
    def watches(self) -> Mapping[str, KeysOf]:
        return {self.kind: itself, **dict.fromkeys(self.owns, owner(self.kind))}

    def reconcile(self, cluster: Cluster, namespace: str, name: str) -> float | None:
        obj = cluster.find(self.kind, namespace, name)
        if obj is None or is_terminating(obj):
            return None
        owned = {kind: cluster.controlled(kind, obj) for kind in self.owns}
        owned |= {kind: cluster.list(kind) for kind in self.reads}
        step = self.look(obj, owned, datetime.now(timezone.utc))
        self._carry_out(cluster, obj, step)
        return step.again_s

    def _carry_out(self, cluster: Cluster, obj: Obj, step: Step) -> None:
        for thing in step.delete:
            self._delete(cluster, obj, thing)
        for thing in step.create:
            self._create(cluster, obj, thing)
        if step.status is not None:
            cluster.update({**obj, "status": step.status}, "status")
        for thing in step.update:
            cluster.update(thing)
        release(cluster, step.release)
        for note in step.notes:
            self._say(cluster, obj, note)
        if step.remove:
            cluster.delete(self.kind, obj["metadata"]["namespace"], obj["metadata"]["name"])

    def _create(self, cluster: Cluster, obj: Obj, thing: Obj) -> None:
        kind = thing["kind"]
        suffix = kind if self.names_kinds else ""
        try:
            created = cluster.create(thing)
        except KubernetesError as error:
            if error.reason == "AlreadyExists":
                return
            note = Note(f"FailedCreate{suffix}", f"Error creating: {error.message}", warning=True)
            self._say(cluster, obj, note)
            raise
        text = f"Created {kind.lower()}: {created['metadata']['name']}"
        self._say(cluster, obj, Note(f"SuccessfulCreate{suffix}", text))

    def _delete(self, cluster: Cluster, obj: Obj, thing: Obj) -> None:
        metadata = thing["metadata"]
        try:
            cluster.delete(thing["kind"], metadata["namespace"], metadata["name"], uid=metadata["uid"])
        except KubernetesError as error:
            if error.code not in (404, 409):
                raise
            return
        suffix = thing["kind"] if self.names_kinds else ""
        text = f"Deleted {thing['kind'].lower()}: {metadata['name']}"
        self._say(cluster, obj, Note(f"SuccessfulDelete{suffix}", text))

    def _say(self, cluster: Cluster, obj: Obj, note: Note) -> None:
        record(cluster, obj, note.reason, note.message, component=self.source, warning=note.warning)


def release(cluster: Cluster, things: Sequence[Obj]) -> None:
    """Take away all finalizers."""
    for thing in things:
        metadata = thing["metadata"]
        try:
            cluster.modify(thing["kind"], metadata["namespace"], metadata["name"], _without_finalizers)
        except KubernetesError as error:
            if error.code != 404:
                raise


def _without_finalizers(thing: Obj) -> None:
    thing["metadata"].pop("finalizers", None)


def is_terminating(thing: Obj) -> bool:
    return "deletionTimestamp" in thing["metadata"]


def phase(pod: Obj) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def age_s(text: str, now: datetime) -> float:
    """Return the seconds since a time that Kubernetes wrote."""
    return (now - moment(text)).total_seconds()
