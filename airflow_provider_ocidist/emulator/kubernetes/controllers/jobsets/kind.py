"""The kind JobSet."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_ocidist.emulator.kubernetes.controllers.jobsets.look import look
from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import RuledController
from airflow_provider_ocidist.emulator.kubernetes.kinds import MAX_REPLICAS, STATUS, TOO_MANY, Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.statuses import Problem


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


def _problems(spec: Obj) -> Iterator[Problem]:
    for number, replicated in enumerate(spec["replicatedJobs"]):
        path = f"spec.replicatedJobs[{number}]"
        if not replicated.get("name"):
            yield Problem(f"{path}.name", "Required value")
        job = replicated["template"]["spec"]
        if replicated["replicas"] * (job.get("parallelism") or 1) > MAX_REPLICAS:
            yield Problem(f"{path}.replicas", TOO_MANY)


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
            "replicatedJobs": [
                {
                    "name": "str",
                    "groupName": "str",
                    "replicas": "int",
                    "dependsOn": "list[object]",
                    "template": {"metadata": "V1ObjectMeta", "spec": "V1JobSpec"},
                }
            ],
            "successPolicy": {},
            "failurePolicy": {},
            "startupPolicy": {},
            "suspend": "bool",
            "coordinator": {},
            "managedBy": "str",
            "ttlSecondsAfterFinished": "int",
        },
        "status": STATUS,
    },
    defaults=_defaults,
    problems=lambda new, _: list(_problems(new["spec"])),
    columns=(
        ("TerminalState", ".status.terminalState"),
        ("Restarts", ".status.restarts"),
        ("Suspended", ".spec.suspend"),
    ),
)
JOBSETS = RuledController(kind="JobSet", owns=("Job", "Service"), look=look, source="jobset-controller")
