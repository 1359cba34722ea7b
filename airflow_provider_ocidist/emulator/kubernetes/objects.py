"""Cluster: all objects of a cluster, in memory, with what etcd and the API server promise of them."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Literal

from airflow_provider_ocidist.emulator.kubernetes import selectors, statuses
from airflow_provider_ocidist.emulator.kubernetes.changes import (
    check_preconditions,
    copy_of,
    grace_of,
    with_status,
    with_the_rest,
)
from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import (
    is_controlled_by,
    label_problems,
    labels_of,
    name_problems,
    now,
    owner_problems,
    owners_of,
    stamp,
    suffix,
)
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError, Problem

MAX_GENERATED_BASE = 58
"""Most characters of `generateName` that a name keeps; what makes it unique follows."""
HISTORY = 4_096
"""Number of changes of each kind that watches can begin at; older ones are compacted."""
logger = logging.getLogger(__name__)
Propagation = Literal["Foreground", "Background", "Orphan"]
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
"""Finalizers that the garbage collector takes away."""
Admission = Callable[["Cluster", Obj, "Obj | None"], None]
"""Function that looks at an object before it is written, and at what it was; it may change it. Raises
KubernetesError."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change. Its receivers must not alter the objects."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Obj
    old: Obj | None = None

    @property
    def version(self) -> int:
        return int(self.object["metadata"]["resourceVersion"])


Callback = Callable[[Event], None]
Key = tuple[str, str]
"""Namespace and name; the namespace of what has none is empty."""


@dataclass(slots=True)
class _Shelf:
    """The objects of one kind."""

    kind: Kind
    objects: dict[Key, Obj] = field(default_factory=dict)
    history: deque[Event] = field(default_factory=lambda: deque(maxlen=HISTORY))
    compacted: int = 0
    """Version up to which changes are forgotten."""
    callbacks: list[Callback] = field(default_factory=list)


class Cluster:
    """The objects of a cluster, by kind, namespace and name. Safe to use from any thread.

    What it returns are copies, which the caller may change and write back. All methods raise KubernetesError.
    """

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._lock = threading.RLock()
        self._shelves = {kind.name: _Shelf(kind) for kind in kinds}
        self._version = 1
        self.compactions = 0
        """Number of times that the history was forgotten: lists that go on from before are refused."""
        self._places: dict[str, tuple[str, Key]] = {}
        """Kind and key of each object, by its uid."""
        self._dependents: dict[str, dict[str, None]] = {}
        """Uids of the objects that name an owner, by the owner's uid, in the order in which they came."""
        self._admissions: dict[str, list[Admission]] = {}

    @property
    def kinds(self) -> Sequence[Kind]:
        return [shelf.kind for shelf in self._shelves.values()]

    @property
    def version(self) -> int:
        """The version of the newest change."""
        return self._version

    def kind(self, name: str) -> Kind:
        return self._shelf(name).kind

    def has_kind(self, name: str) -> bool:
        return name in self._shelves

    def add_admission(self, kind: str, admission: Admission) -> None:
        """Let a function see, and refuse or change, what is to be written of a kind: a webhook, a quota."""
        self._admissions.setdefault(kind, []).append(admission)

    def get(self, kind: str, namespace: str | None, name: str) -> Obj:
        with self._lock:
            return copy_of(self._found(self._shelf(kind), namespace, name))

    def find(self, kind: str, namespace: str | None, name: str) -> Obj | None:
        """Return an object, or None where there is none."""
        with self._lock:
            found = self._shelf(kind).objects.get((namespace or "", name))
            return None if found is None else copy_of(found)

    def list(
        self, kind: str, namespace: str | None = None, labels: str | Mapping[str, str] | None = None
    ) -> list[Obj]:
        """Return objects in the order of their names; `labels` is a selector, or the labels that must be there."""
        text = (
            ",".join(f"{key}={value}" for key, value in labels.items())
            if isinstance(labels, Mapping)
            else labels
        )
        fits = selectors.labels(text or "")
        return [copy_of(obj) for obj in self.stored(kind, namespace) if fits(labels_of(obj))]

    def stored(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return objects in the order of their names as they are stored: the caller must not alter them.

        To copy the thousands that a list may have takes a hundred times as long.
        """
        with self._lock:
            objects = self._shelf(kind).objects
            return [objects[key] for key in sorted(key for key in objects if namespace in (None, "", key[0]))]

    def controlled(self, kind: str, owner: Obj) -> Sequence[Obj]:
        """Return the objects of a kind that an object controls, in the order of their names."""
        uid = owner["metadata"]["uid"]
        with self._lock:
            found = [
                self._at(each) for each in self._dependents.get(uid, ()) if self._places[each][0] == kind
            ]
            return [copy_of(obj) for obj in sorted(found, key=_key) if is_controlled_by(obj, uid)]

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Store a new object and return it with all that the API server adds."""
        obj = copy_of(obj)
        with self._lock:
            shelf = self._shelf(obj["kind"])
            kind, metadata = shelf.kind, obj.setdefault("metadata", {})
            obj["apiVersion"] = kind.api_version
            self._name(shelf, obj)
            namespace = metadata.get("namespace", "") if kind.namespaced else ""
            if kind.namespaced:
                self._check_namespace(kind, namespace, metadata["name"])
            else:
                metadata.pop("namespace", None)
            if (namespace, metadata["name"]) in shelf.objects:
                raise statuses.already_exists(kind.resource, metadata["name"])
            for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"):
                metadata.pop(name, None)
            metadata.update(uid=str(uuid.uuid4()), creationTimestamp=now(), generation=1)
            if kind.has_status:
                obj.pop("status", None)
            with _wrong_shapes_refused(kind, metadata["name"]):
                _complete(kind, obj)
                kind.prepare(obj)
                self._admit(kind, obj, None)
                self._check(kind, obj, None)
            if not dry_run:
                self._write(shelf, obj, None)
            return copy_of(obj)

    def update(self, obj: Obj, subresource: str | None = None, *, dry_run: bool = False) -> Obj:
        """Replace an object, or its status alone; refused as Conflict when it was read before another's change."""
        obj = copy_of(obj)
        with self._lock:
            shelf = self._shelf(obj["kind"])
            kind, metadata = shelf.kind, obj["metadata"]
            old = self._found(shelf, metadata.get("namespace"), metadata["name"])
            self._check_version(kind, metadata, old)
            new = with_status(old, obj) if subresource == "status" else with_the_rest(kind, old, obj)
            with _wrong_shapes_refused(kind, metadata["name"]):
                if subresource is None:
                    _complete(kind, new)
                self._admit(kind, new, old)
                self._check(kind, new, old)
            if not dry_run and new != old:
                if new.get("spec") != old.get("spec"):
                    new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
                self._write(shelf, new, old)
                self._remove_if_over(shelf, new)
            return copy_of(new)

    def modify(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        change: Callable[[Obj], Obj | None],
        subresource: str | None = None,
        *,
        dry_run: bool = False,
    ) -> Obj:
        """Apply a function to the object as it is now, with nobody in between; it changes it, or returns another."""
        with self._lock:
            obj = self.get(kind, namespace, name)
            changed = change(obj)
            return self.update(obj if changed is None else changed, subresource, dry_run=dry_run)

    def delete(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        propagation: Propagation = "Background",
        grace: float | None = None,
        *,
        uid: str | None = None,
        version: str | None = None,
        dry_run: bool = False,
    ) -> Obj:
        """Delete an object, at once or when its finalizers and its grace (seconds, of a pod) are over; return it.

        `uid` and `version`: refused as Conflict unless the object has them.
        """
        with self._lock:
            shelf = self._shelf(kind)
            old = self._found(shelf, namespace, name)
            check_preconditions(shelf.kind, old, uid, version)
            if dry_run:
                return copy_of(old)
            return copy_of(self._delete(shelf, old, propagation, grace))

    def subscribe(self, kind: str, callback: Callback) -> Callable[[], None]:
        """Call back at each change of a kind, in their order, until what is returned is called.

        It runs in the thread that makes the change, which holds the store: it may only take note.
        """
        with self._lock:
            callbacks = self._shelf(kind).callbacks
            callbacks.append(callback)

        def end() -> None:
            with suppress(ValueError):  # it may be ended twice
                callbacks.remove(callback)

        return end

    def subscribe_from(self, kind: str, version: int | None, callback: Callback) -> Callable[[], None]:
        """As `subscribe`, but first with all that happened since a version; None: with all that is there.

        Raises 410 where what happened since is no longer known.
        """
        with self._lock:
            shelf = self._shelf(kind)
            if version is None:
                missed = [Event("ADDED", obj) for _, obj in sorted(shelf.objects.items())]
            elif version < shelf.compacted:
                raise statuses.expired(f"too old resource version: {version} ({shelf.compacted})")
            else:
                missed = [event for event in shelf.history if event.version > version]
            for event in missed:
                callback(event)
            return self.subscribe(kind, callback)

    def compact(self) -> None:
        """Forget what happened so far: watches cannot begin before now."""
        with self._lock:
            self.compactions += 1
            for shelf in self._shelves.values():
                shelf.history.clear()
                shelf.compacted = self._version

    def has_uid(self, uid: str) -> bool:
        return uid in self._places

    def dependents(self, uid: str) -> Sequence[Obj]:
        """Return the objects that name this one as an owner."""
        with self._lock:
            return [copy_of(self._at(each)) for each in self._dependents.get(uid, ())]

    def by_uid(self, uid: str) -> Obj | None:
        with self._lock:
            return copy_of(self._at(uid)) if uid in self._places else None

    def clear(self) -> None:
        """Remove all objects, whatever their finalizers."""
        with self._lock:
            for shelf in self._shelves.values():
                for obj in list(shelf.objects.values()):
                    self._remove(shelf, obj)

    def _at(self, uid: str) -> Obj:
        kind, key = self._places[uid]
        return self._shelves[kind].objects[key]

    def _index(self, kind: Kind, obj: Obj, old: Obj | None) -> None:
        uid = obj["metadata"]["uid"]
        self._places[uid] = (kind.name, _key(obj))
        for each in owners_of(old) if old else ():
            self._dependents.get(each["uid"], {}).pop(uid, None)
        for each in owners_of(obj):
            self._dependents.setdefault(each["uid"], {})[uid] = None

    def _forget(self, obj: Obj) -> None:
        uid = obj["metadata"]["uid"]
        del self._places[uid]
        for each in owners_of(obj):
            self._dependents.get(each["uid"], {}).pop(uid, None)
        if not self._dependents.get(uid, True):
            del self._dependents[uid]

    def _shelf(self, kind: str) -> _Shelf:
        shelf = self._shelves.get(kind)
        if shelf is None:
            raise KubernetesError(404, "NotFound", f'no matches for kind "{kind}"')
        return shelf

    def _found(self, shelf: _Shelf, namespace: str | None, name: str) -> Obj:
        obj = shelf.objects.get((namespace or "", name))
        if obj is None:
            raise statuses.not_found(shelf.kind.resource, name)
        return obj

    def _name(self, shelf: _Shelf, obj: Obj) -> None:
        kind, metadata = shelf.kind, obj["metadata"]
        base = metadata.get("generateName")
        if not metadata.get("name"):
            if not base:
                problem = Problem("metadata.name", "Required value: name or generateName is required")
                raise statuses.unprocessable(kind.title, "", [problem])
            metadata["name"] = base[:MAX_GENERATED_BASE] + suffix()
        if problems := name_problems(kind, metadata["name"]):
            raise statuses.unprocessable(kind.title, metadata["name"], problems)

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        found = self._shelves["Namespace"].objects.get(("", namespace))
        if found is None:
            raise statuses.not_found("namespaces", namespace)
        if "deletionTimestamp" in found["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise statuses.forbidden(kind.resource, name, why)

    def _admit(self, kind: Kind, new: Obj, old: Obj | None) -> None:
        for admission in self._admissions.get(kind.name, ()):
            admission(self, new, old)

    def _check(self, kind: Kind, new: Obj, old: Obj | None) -> None:
        problems = [*owner_problems(new), *label_problems(new), *kind.problems(new, old)]
        if problems:
            raise statuses.unprocessable(kind.title, new["metadata"]["name"], problems)

    def _check_version(self, kind: Kind, metadata: Obj, old: Obj) -> None:
        read = metadata.get("resourceVersion")
        if read and read != old["metadata"]["resourceVersion"]:
            raise statuses.changed(kind.resource, metadata["name"])
        if metadata.get("uid") and metadata["uid"] != old["metadata"]["uid"]:
            why = f"Precondition failed: UID in precondition: {metadata['uid']}"
            why += f", UID in object meta: {old['metadata']['uid']}"
            raise statuses.conflict(kind.resource, metadata["name"], why)

    def _write(self, shelf: _Shelf, new: Obj, old: Obj | None) -> None:
        self._version += 1
        new["metadata"]["resourceVersion"] = str(self._version)
        stored = copy_of(new)
        shelf.objects[_key(stored)] = stored
        self._index(shelf.kind, stored, old)
        self._publish(shelf, Event("MODIFIED" if old else "ADDED", stored, old))

    def _publish(self, shelf: _Shelf, event: Event) -> None:
        if len(shelf.history) == HISTORY:
            shelf.compacted = shelf.history[0].version
        shelf.history.append(event)
        for callback in list(shelf.callbacks):
            callback(event)

    def _delete(self, shelf: _Shelf, old: Obj, propagation: Propagation, grace: float | None) -> Obj:
        new = copy_of(old)
        metadata = new["metadata"]
        if finalizer := {"Foreground": FOREGROUND, "Orphan": ORPHAN}.get(propagation):
            present = metadata.setdefault("finalizers", [])
            present += [finalizer] if finalizer not in present else []
        if grace is None:
            grace = metadata.get("deletionGracePeriodSeconds")  # who asks for no time changes none
        seconds = grace_of(shelf.kind, old, grace)
        lasting = seconds > 0 or metadata.get("finalizers") or (new.get("spec") or {}).get("finalizers")
        if not lasting:
            return self._remove(shelf, old)
        shortened = seconds < metadata.get("deletionGracePeriodSeconds", seconds + 1)
        if "deletionTimestamp" not in metadata or shortened:
            metadata["deletionTimestamp"] = stamp(datetime.now(timezone.utc) + timedelta(seconds=seconds))
            metadata["deletionGracePeriodSeconds"] = int(seconds)
            metadata["generation"] = metadata.get("generation", 1) + 1
        if shelf.kind.name == "Namespace":
            new["status"] = {**new.get("status", {}), "phase": "Terminating"}
        if new != old:
            self._write(shelf, new, old)
        return new

    def _remove_if_over(self, shelf: _Shelf, obj: Obj) -> None:
        """Remove an object whose deletion waited for its last finalizer."""
        metadata = obj["metadata"]
        waits = metadata.get("finalizers") or (obj.get("spec") or {}).get("finalizers")
        if "deletionTimestamp" in metadata and not waits and not metadata.get("deletionGracePeriodSeconds"):
            self._remove(shelf, obj)

    def _remove(self, shelf: _Shelf, old: Obj) -> Obj:
        gone = shelf.objects.pop(_key(old))
        self._forget(gone)
        self._version += 1
        last = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self._version)}}
        self._publish(shelf, Event("DELETED", last, gone))
        return last


def _complete(kind: Kind, obj: Obj) -> None:
    """Fill in what the client left out."""
    if kind.has_spec:
        obj.setdefault("spec", {})
    kind.defaults(obj)


@contextmanager
def _wrong_shapes_refused(kind: Kind, name: str) -> Iterator[None]:
    """Refuse with 422 what the rules of a kind cannot read: in parts of any form they find what they do not expect."""
    try:
        yield
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as error:
        logger.info("%s %s is of a wrong shape", kind.title, name, exc_info=True)
        problem = Problem("spec", f"Invalid value: it is of a wrong shape: {error!r:.200}")
        raise statuses.unprocessable(kind.title, name, [problem]) from error


def _key(obj: Obj) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
