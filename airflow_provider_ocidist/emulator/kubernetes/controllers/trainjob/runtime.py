"""Runtimes: what an administrator has prepared for jobs; `torch-distributed` comes with the installation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj

GROUP = "trainer.kubeflow.org"
CLUSTER_RUNTIME = "ClusterTrainingRuntime"
ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
CONTAINER = "node"

TORCH_DISTRIBUTED: Obj = {
    "apiVersion": f"{GROUP}/v1alpha1",
    "kind": CLUSTER_RUNTIME,
    "metadata": {"name": "torch-distributed", "labels": {"trainer.kubeflow.org/framework": "torch"}},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": CONTAINER,
                        "template": {
                            "metadata": {"labels": {ANCESTOR: "trainer"}},
                            "spec": {
                                "template": {
                                    "spec": {
                                        "containers": [{"name": CONTAINER, "image": "pytorch/pytorch:2.9.1"}]
                                    }
                                }
                            },
                        },
                    }
                ]
            }
        },
    },
}


def find(job: Obj, owned: Mapping[str, Sequence[Obj]]) -> Obj | None:
    """Return the runtime that a job names."""
    kind, name = reference(job)
    namespace = None if kind == CLUSTER_RUNTIME else job["metadata"]["namespace"]
    return next(
        (
            one
            for one in owned.get(kind, ())
            if one["metadata"]["name"] == name and one["metadata"].get("namespace") == namespace
        ),
        None,
    )


def reference(job: Obj) -> tuple[str, str]:
    """Return kind and name of a job's runtime."""
    ref = job["spec"]["runtimeRef"]
    return ref.get("kind") or CLUSTER_RUNTIME, ref["name"]


def is_trainer(replicated: Obj) -> bool:
    labels = (replicated["template"].get("metadata") or {}).get("labels") or {}
    return bool(labels.get(ANCESTOR) == "trainer")
