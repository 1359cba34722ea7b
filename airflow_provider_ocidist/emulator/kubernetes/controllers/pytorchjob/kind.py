"""The kind PyTorchJob."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.admission import changed
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.generation import Generation
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.look import Settings, look
from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import RuledController
from airflow_provider_ocidist.emulator.kubernetes.kinds import STATUS, Kind

SINCE_1_7 = ("nprocPerNode", "suspend", "managedBy")


def pytorchjob(generation: Generation) -> Kind:
    """Return the kind with the fields of one generation of the operator: a strict server refuses others."""
    if generation.torchrun_environment:
        return _NEWEST
    schema: Any = _NEWEST.schema
    spec = _without(schema["spec"], SINCE_1_7)
    spec["runPolicy"] = _without(spec["runPolicy"], SINCE_1_7)
    return replace(_NEWEST, schema={**schema, "spec": spec})


def _without(fields: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


_NEWEST = Kind(
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


def operator(settings: Settings) -> RuledController:
    return RuledController(
        kind="PyTorchJob",
        owns=("Pod", "Service"),
        look=partial(look, settings=settings),
        source="pytorchjob-controller",
        names_kinds=True,
    )
