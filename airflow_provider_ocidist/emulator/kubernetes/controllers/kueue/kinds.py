"""The kinds of kueue.x-k8s.io/v1beta1 that a person sees: queues, and what waits in them."""

from __future__ import annotations

from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind

GROUP = "kueue.x-k8s.io"
VERSION = "v1beta1"
KINDS = (
    Kind(
        name="ResourceFlavor",
        plural="resourceflavors",
        group=GROUP,
        version=VERSION,
        namespaced=False,
        is_custom=True,
        schema={"spec": "object"},
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
        schema={"spec": "object", "status": "object"},
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
        schema={"spec": {"clusterQueue": "str", "stopPolicy": "str"}, "status": "object"},
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
                "podSets": "list[object]",
                "priority": "int",
                "priorityClassName": "str",
                "queueName": "str",
            },
            "status": "object",
        },
        columns=(
            ("Queue", ".spec.queueName"),
            ("Reserved in", ".status.admission.clusterQueue"),
            ("Admitted", '.status.conditions[?(@.type=="Admitted")].status'),
            ("Finished", '.status.conditions[?(@.type=="Finished")].status'),
        ),
    ),
)
