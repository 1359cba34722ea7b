"""Jobs of operators on the running stand-in: their nodes wait at a gate until the test opens it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from tests.emulator.kubernetes.waiting import until

PLURALS = {"PyTorchJob": "pytorchjobs", "TrainJob": "trainjobs", "Workload": "workloads", "JobSet": "jobsets"}
WAIT = "while [ ! -e /gate/{name} ]; do sleep 0.03; done"
"""A line of shell: wait until a file is there."""


@dataclass(frozen=True)
class Gangs:
    """Custom jobs in a cluster, by the official client; `gate` is a folder that all nodes see at /gate."""

    kube: Any
    gate: Path

    def template(self, script: str, container: str, **more: Any) -> dict[str, Any]:
        main = {"name": container, "image": "python:3.12", "command": ["sh", "-c", script], **more}
        main["volumeMounts"] = [{"name": "gate", "mountPath": "/gate"}]
        return {"spec": {"containers": [main], **self.volumes(), "terminationGracePeriodSeconds": 5}}

    def volumes(self) -> dict[str, Any]:
        return {"volumes": [{"name": "gate", "hostPath": {"path": str(self.gate)}}]}

    def pytorchjob(
        self,
        master: str = "true",
        worker: str | None = "true",
        *,
        policy: str = "Never",
        workers: int = 1,
        **spec: Any,
    ) -> dict[str, Any]:
        specs: dict[str, Any] = {}
        for kind, script, count in (("Master", master, 1), ("Worker", worker, workers)):
            if script is not None:
                template = self.template(script, "pytorch")
                specs[kind] = {"replicas": count, "restartPolicy": policy, "template": template}
        return {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "train"},
            "spec": {"runPolicy": {}, "pytorchReplicaSpecs": specs, **spec},
        }

    def trainjob(self, script: str, *, nodes: int = 2, **spec: Any) -> dict[str, Any]:
        mounts = [{"name": "gate", "mountPath": "/gate"}]
        pods = {"spec": {**self.volumes(), "containers": [{"name": "node", "volumeMounts": mounts}]}}
        jobs = [{"name": "node", "template": {"spec": {"template": pods}}}]
        patch = {
            "manager": "example.com/tests",
            "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}},
        }
        trainer = {"numNodes": nodes, "numProcPerNode": 1, "image": "python:3.12"}
        return {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "train"},
            "spec": {
                "runtimeRef": {"name": "torch-distributed"},
                "trainer": {**trainer, "command": ["sh", "-c", script]},
                "runtimePatches": [patch],
                **spec,
            },
        }

    def create(self, job: dict[str, Any], **options: Any) -> dict[str, Any]:
        group, version = job["apiVersion"].split("/")
        plural = PLURALS[job["kind"]]
        created: dict[str, Any] = self.kube.custom.create_namespaced_custom_object(
            group, version, self.kube.namespace, plural, job, **options
        )
        return created

    def get(self, job: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.kube.custom.get_namespaced_custom_object(*self._place(job))
        return found

    def exists(self, job: dict[str, Any]) -> bool:
        group, version, namespace, plural, name = self._place(job)
        found = self.kube.custom.list_namespaced_custom_object(group, version, namespace, plural)["items"]
        return any(one["metadata"]["name"] == name for one in found)

    def patch(self, job: dict[str, Any], spec: dict[str, Any]) -> None:
        self.kube.custom.patch_namespaced_custom_object(*self._place(job), {"spec": spec})

    def delete(self, job: dict[str, Any]) -> None:
        self.kube.custom.delete_namespaced_custom_object(*self._place(job))

    def _place(self, job: dict[str, Any]) -> tuple[str, ...]:
        group, version = job["apiVersion"].split("/")
        return group, version, self.kube.namespace, PLURALS[job["kind"]], job["metadata"]["name"]

    def status(self, job: dict[str, Any]) -> dict[str, Any]:
        return dict(self.get(job).get("status", {}))

    def condition(self, job: dict[str, Any], kind: str) -> dict[str, Any]:
        """Return a condition once it is True."""

        def find() -> dict[str, Any] | None:
            found = self.status(job).get("conditions", ())
            return next((one for one in found if one["type"] == kind and one["status"] == "True"), None)

        return until(find)

    def truths(self, job: dict[str, Any]) -> dict[str, bool]:
        return {one["type"]: one["status"] == "True" for one in self.status(job).get("conditions", ())}

    def pods(self) -> dict[str, Any]:
        found = self.kube.core.list_namespaced_pod(self.kube.namespace).items
        return {pod.metadata.name: pod for pod in found}

    def node(self, index: int) -> str:
        """Return the name of a TrainJob's pod, once it is there."""
        return until(
            lambda: next((name for name in self.pods() if name.startswith(f"train-node-0-{index}-")), None)
        )

    def runs(self, pod: str) -> bool:
        found = self.pods().get(pod)
        return found is not None and found.status.phase == "Running"

    def opened(self, name: str) -> None:
        (self.gate / name).touch()

    def restarts(self, pod: str) -> int:
        return sum(one.restart_count for one in self.pods()[pod].status.container_statuses or ())


def wait(name: str) -> str:
    return WAIT.format(name=name)


def refused(code: int) -> Any:
    return pytest.raises(kubernetes.client.ApiException, check=lambda error: error.status == code)
