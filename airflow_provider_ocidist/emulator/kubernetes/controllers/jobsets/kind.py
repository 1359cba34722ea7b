"""The kind JobSet."""

from __future__ import annotations

from airflow_provider_ocidist.emulator.kubernetes.controllers.jobsets.look import look
from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import Operator
from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj


def _defaults(jobset: Obj) -> None:
    spec = jobset["spec"]
    spec.setdefault("network", {}).setdefault("enableDNSHostnames", True)
    spec["network"].setdefault("publishNotReadyAddresses", True)
    spec.setdefault("successPolicy", {"operator": "All"})
    spec.setdefault("startupPolicy", {"startupPolicyOrder": "AnyOrder"})
    for replicated in spec.get("replicatedJobs") or ():
        replicated.setdefault("replicas", 1)
        replicated.setdefault("groupName", "default")
        replicated["template"]["spec"].setdefault("completionMode", "Indexed")
        replicated["template"]["spec"]["template"]["spec"].setdefault("restartPolicy", "OnFailure")


JOBSET = Kind(
    name="JobSet",
    plural="jobsets",
    group="jobset.x-k8s.io",
    version="v1alpha2",
    has_status=True,
    is_custom=True,
    schema={
        "spec": {
            "network": {"enableDNSHostnames": "bool", "publishNotReadyAddresses": "bool", "subdomain": "str"},
            "replicatedJobs": "list[object]",
            "successPolicy": "object",
            "failurePolicy": "object",
            "startupPolicy": "object",
            "suspend": "bool",
            "coordinator": "object",
            "managedBy": "str",
            "ttlSecondsAfterFinished": "int",
        },
        "status": "object",
    },
    defaults=_defaults,
    columns=(
        ("TerminalState", ".status.terminalState"),
        ("Restarts", ".status.restarts"),
        ("Suspended", ".spec.suspend"),
    ),
)
JOBSETS = Operator(kind="JobSet", owns=("Job", "Service"), look=look, source="jobset-controller")
