"""The kinds of Kubeflow Trainer, with the fields that each release serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import RuledController
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.admission import changed
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.look import look
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.release import Release
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.runtime import CLUSTER_RUNTIME, GROUP
from airflow_provider_ocidist.emulator.kubernetes.kinds import STATUS, Kind, Obj

VERSION = "v1alpha1"
_CONTAINER = {"name": "str", "env": "list[V1EnvVar]", "volumeMounts": "list[V1VolumeMount]"}
_POD = {
    "serviceAccountName": "str",
    "nodeSelector": "dict[str, str]",
    "affinity": "V1Affinity",
    "tolerations": "list[V1Toleration]",
    "volumes": "list[V1Volume]",
    "initContainers": [_CONTAINER],
    "containers": [_CONTAINER],
    "schedulingGates": "list[V1PodSchedulingGate]",
    "imagePullSecrets": "list[V1LocalObjectReference]",
}
_NEW_CONTAINER = {**_CONTAINER, "securityContext": "V1SecurityContext"}
_NEW_POD = {
    **_POD,
    "initContainers": [_NEW_CONTAINER],
    "containers": [_NEW_CONTAINER],
    "securityContext": "V1PodSecurityContext",
}
_TARGETS = {"targetJobs": [{"name": "str"}]}
_METADATA = {"metadata": "V1ObjectMeta"}
_JOB = {"spec": {"template": {**_METADATA, "spec": _NEW_POD}}, **_METADATA}
_JOBSET = {"spec": {"replicatedJobs": [{"name": "str", "template": _JOB}]}, **_METADATA}
PATCHES: Mapping[str, Mapping[str, Any]] = {
    "podSpecOverrides": {**_TARGETS, **_POD},
    "podTemplateOverrides": {**_TARGETS, **_METADATA, "spec": _POD},
    "runtimePatches": {
        "manager": "str",
        "time": "datetime",
        "trainingRuntimeSpec": {"template": _JOBSET},
    },
}
"""Fields of a runtime's pods that may be changed. Source: kubeflow/trainer, trainjob_types.go; of 2.0 only the name."""
_RUNTIME = {
    "spec": {
        "mlPolicy": {"numNodes": "int", "torch": {}, "mpi": {}},
        "podGroupPolicy": "object",
        "template": {"metadata": "V1ObjectMeta", "spec": {}},
    }
}


def kinds(release: Release) -> Sequence[Kind]:
    spec = {
        "runtimeRef": {"apiGroup": "str", "kind": "str", "name": "str"},
        "initializer": "object",
        "trainer": {
            "image": "str",
            "command": "list[str]",
            "args": "list[str]",
            "env": "list[V1EnvVar]",
            "numNodes": "int",
            # A text is not for the CRD's schema to refuse: the webhook that comes before cannot read it.
            "numProcPerNode": "int_or_str",
            "resourcesPerNode": "V1ResourceRequirements",
        },
        "suspend": "bool",
        "managedBy": "str",
        release.patches: [PATCHES[release.patches]],
        **({"activeDeadlineSeconds": "int"} if release.has_deadline else {}),
        **({"labels": "dict[str, str]", "annotations": "dict[str, str]"} if release.has_labels else {}),
    }
    return (
        Kind(
            name="TrainJob",
            plural="trainjobs",
            group=GROUP,
            version=VERSION,
            short_names=("tj",),
            has_status=True,
            is_custom=True,
            schema={"spec": spec, "status": STATUS},
            defaults=_defaults,
            problems=changed,
            columns=(("State", ".status.conditions[-1:].type"),),
        ),
        Kind(
            name="TrainingRuntime",
            plural="trainingruntimes",
            group=GROUP,
            version=VERSION,
            is_custom=True,
            schema=_RUNTIME,
        ),
        Kind(
            name=CLUSTER_RUNTIME,
            plural="clustertrainingruntimes",
            group=GROUP,
            version=VERSION,
            namespaced=False,
            is_custom=True,
            schema=_RUNTIME,
        ),
    )


def _defaults(job: Obj) -> None:
    spec = job["spec"]
    spec.setdefault("suspend", False)
    spec.setdefault("managedBy", "trainer.kubeflow.org/trainjob-controller")
    if "runtimeRef" in spec:
        spec["runtimeRef"] = {"apiGroup": GROUP, "kind": CLUSTER_RUNTIME, **spec["runtimeRef"]}


def operator(release: Release) -> RuledController:
    return RuledController(
        kind="TrainJob",
        owns=("JobSet",),
        reads=("TrainingRuntime", CLUSTER_RUNTIME),
        look=partial(look, release=release),
        source="trainer-controller-manager",
    )
