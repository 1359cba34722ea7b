"""A cluster beneath the stand-in whose pods are in the phase that a test says."""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]


class PaperCluster:
    """Keeps objects; a PyTorchJob has its pods at once, a deletion takes effect when the test says so."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._all: dict[tuple[str, str, str], Object] = {}
        self.created: list[Object] = []
        self.holds_deletions = False

    def create(self, obj: Object) -> Object:
        with self._lock:
            obj = copy.deepcopy(obj)
            metadata = obj["metadata"]
            metadata["uid"] = str(uuid.uuid4())
            self._all[obj["kind"], metadata.get("namespace", ""), metadata["name"]] = obj
            self.created.append(obj)
            if obj["kind"] == "PyTorchJob":
                self._make_pods(obj)
            return copy.deepcopy(obj)

    def _make_pods(self, job: Object) -> None:
        metadata = job["metadata"]
        for role, spec in job["spec"]["pytorchReplicaSpecs"].items():
            for number in range(spec["replicas"]):
                template = copy.deepcopy(spec["template"])
                template["metadata"] |= {
                    "name": f"{metadata['name']}-{role.lower()}-{number}",
                    "namespace": metadata["namespace"],
                    "owner": metadata["name"],
                }
                self.create({"apiVersion": "v1", "kind": "Pod", **template})

    def find(self, kind: str, namespace: str | None, name: str) -> Object | None:
        with self._lock:
            return copy.deepcopy(self._all.get((kind, namespace or "", name)))

    def list(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> Sequence[Object]:
        with self._lock:
            return [
                copy.deepcopy(obj)
                for (each, where, _), obj in sorted(self._all.items())
                if each == kind
                and where == namespace
                and (labels or {}).items() <= obj["metadata"].get("labels", {}).items()
            ]

    def delete(self, kind: str, namespace: str | None, name: str) -> object:
        with self._lock:
            self._all[kind, namespace or "", name]["metadata"]["deletionTimestamp"] = "now"
            if not self.holds_deletions:
                self.finish_deletions()
            return None

    def finish_deletions(self) -> None:
        with self._lock:
            going = {key for key, obj in self._all.items() if "deletionTimestamp" in obj["metadata"]}
            names = {name for _, _, name in going}
            for key, obj in list(self._all.items()):
                if key in going or obj["metadata"].get("owner") in names:
                    del self._all[key]

    # what the test says

    def clear(self) -> None:
        with self._lock:
            self._all.clear()
            self.created.clear()
            self.holds_deletions = False

    def names(self, kind: str) -> Sequence[str]:
        with self._lock:
            return sorted(name for each, _, name in self._all if each == kind)

    def set_pods(self, workload: str, *phases: str, **status: Any) -> None:
        """Put a workload's pods into phases, by their names' order; the last phase is that of all the rest."""
        with self._lock:
            pods = [
                obj
                for (kind, _, _), obj in sorted(self._all.items())
                if kind == "Pod" and obj["metadata"]["labels"]["workloadName"] == workload
            ]
            for number, pod in enumerate(pods):
                pod["status"] = {"phase": phases[min(number, len(phases) - 1)], **status}

    def set_job(self, workload: str, condition: str, message: str = "") -> None:
        with self._lock:
            for (kind, _, name), obj in self._all.items():
                if kind == "PyTorchJob" and name == workload:
                    item = {"type": condition, "status": "True", "message": message}
                    obj["status"] = {"conditions": [{"type": "Created", "status": "True"}, item]}
