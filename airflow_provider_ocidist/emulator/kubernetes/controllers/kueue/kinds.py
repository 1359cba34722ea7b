"""The kinds of kueue.x-k8s.io/v1beta1 that a person sees: queues, and what waits in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.controllers.kueue.queues import queue_of
from airflow_provider_ocidist.emulator.kubernetes.controllers.kueue.workloads import total
from airflow_provider_ocidist.emulator.kubernetes.kinds import STATUS, Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.statuses import Problem

GROUP = "kueue.x-k8s.io"
VERSION = "v1beta1"
_QUOTA = {"name": "str", **dict.fromkeys(("nominalQuota", "borrowingLimit", "lendingLimit"), "quantity")}
CLUSTER_QUEUE: Mapping[Any, Any] = {
    "resourceGroups": [
        {"coveredResources": "list[str]", "flavors": [{"name": "str", "resources": [_QUOTA]}], ...: "object"}
    ],
    "queueingStrategy": "str",
    "stopPolicy": "str",
    ...: "object",
}


# What these read they can go by later, too; where they cannot, the object is refused for its shape.


def _unreadable_queue(new: Obj, _: Obj | None) -> Sequence[Problem]:
    queue_of(new)
    return ()


def _unreadable_workload(new: Obj, _: Obj | None) -> Sequence[Problem]:
    total(new)
    return ()


KINDS = (
    Kind(
        name="ResourceFlavor",
        plural="resourceflavors",
        group=GROUP,
        version=VERSION,
        namespaced=False,
        is_custom=True,
        schema={"spec": {}},
    ),
    Kind(
        name="ClusterQueue",
        plural="clusterqueues",
        group=GROUP,
        version=VERSION,
        namespaced=False,
        short_names=("cq",),
        has_status=True,
        is_custom=True,
        schema={"spec": CLUSTER_QUEUE, "status": STATUS},
        problems=_unreadable_queue,
        columns=(("Cohort", ".spec.cohort"), ("Pending Workloads", ".status.pendingWorkloads")),
    ),
    Kind(
        name="LocalQueue",
        plural="localqueues",
        group=GROUP,
        version=VERSION,
        short_names=("queue",),
        has_status=True,
        is_custom=True,
        schema={"spec": {"clusterQueue": "str", "stopPolicy": "str"}, "status": STATUS},
        columns=(
            ("ClusterQueue", ".spec.clusterQueue"),
            ("Pending Workloads", ".status.pendingWorkloads"),
            ("Admitted Workloads", ".status.admittedWorkloads"),
        ),
    ),
    Kind(
        name="Workload",
        plural="workloads",
        group=GROUP,
        version=VERSION,
        short_names=("wl",),
        has_status=True,
        is_custom=True,
        schema={
            "spec": {
                "active": "bool",
                "podSets": [
                    {
                        "name": "str",
                        "count": "int",
                        "minCount": "int",
                        "template": "V1PodTemplateSpec",
                        "topologyRequest": {},
                    }
                ],
                "priority": "int",
                "priorityClassName": "str",
                "queueName": "str",
            },
            "status": {**STATUS, "admission": {"clusterQueue": "str", ...: "object"}},
        },
        problems=_unreadable_workload,
        columns=(
            ("Queue", ".spec.queueName"),
            ("Reserved in", ".status.admission.clusterQueue"),
            ("Admitted", '.status.conditions[?(@.type=="Admitted")].status'),
            ("Finished", '.status.conditions[?(@.type=="Finished")].status'),
        ),
    ),
)
