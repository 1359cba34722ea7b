"""The kind PyTorchJob."""

from __future__ import annotations

from functools import partial

from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.admission import changed
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.look import Settings, look
from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import Operator
from airflow_provider_ocidist.emulator.kubernetes.kinds import STATUS, Kind

PYTORCHJOB = Kind(
    name="PyTorchJob",
    plural="pytorchjobs",
    group="kubeflow.org",
    has_status=True,
    is_custom=True,
    schema={
        "spec": {
            "elasticPolicy": {
                "minReplicas": "int",
                "maxReplicas": "int",
                "rdzvBackend": "str",
                "rdzvPort": "int",
                "rdzvHost": "str",
                "rdzvId": "str",
                "rdzvConf": "list[object]",
                "standalone": "bool",
                "nProcPerNode": "int",
                "maxRestarts": "int",
                "metrics": "list[object]",
            },
            "runPolicy": {
                "cleanPodPolicy": "str",
                "ttlSecondsAfterFinished": "int",
                "activeDeadlineSeconds": "int",
                "backoffLimit": "int",
                "suspend": "bool",
                "managedBy": "str",
                "schedulingPolicy": {
                    "minAvailable": "int",
                    "queue": "str",
                    "minResources": "dict[str, quantity]",
                    "priorityClass": "str",
                    "scheduleTimeoutSeconds": "int",
                },
            },
            "nprocPerNode": "str",
            "pytorchReplicaSpecs": "dict[str, KubeflowV1ReplicaSpec]",
        },
        "status": STATUS,
    },
    problems=changed,
    columns=(("State", ".status.conditions[-1:].type"),),
)


def operator(settings: Settings) -> Operator:
    return Operator(
        kind="PyTorchJob",
        owns=("Pod", "Service"),
        look=partial(look, settings=settings),
        source="pytorchjob-controller",
        names_kinds=True,
    )
