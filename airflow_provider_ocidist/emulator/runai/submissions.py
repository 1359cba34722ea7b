"""Submission: a request for a workload as the control plane takes it, checked field by field. Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from airflow_provider_ocidist.emulator.runai.refusals import Refusal, bad_request

Kind = Literal["distributed", "trainings"]
NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
"""A label of DNS: what is created in the cluster bears the name."""
SUFFIX = 5
QUANTITY = re.compile(r"[+]?[0-9.]+[eEinumkKMGTP]*[-+]?[0-9]*")
META = {
    "name": str,
    "useGivenNameAsPrefix": bool,
    "projectId": str,
    "clusterId": str,
    "templateId": str,
    "spec": dict,
}
DISTRIBUTED_META = {**META, "masterSpecSameAsWorker": bool, "masterSpec": dict}
SPEC = {
    "annotations": list,
    "args": str,
    "autoDeletionTimeAfterCompletionSeconds": int,
    "backoffLimit": int,
    "category": str,
    "command": str,
    "compute": dict,
    "createHomeDir": bool,
    "environmentVariables": list,
    "exposedUrls": list,
    "image": str,
    "imagePullPolicy": ("Always", "Never", "IfNotPresent"),
    "imagePullSecrets": list,
    "labels": list,
    "nodeAffinityRequired": dict,
    "nodePools": list,
    "nodeType": str,
    "podAffinity": dict,
    "ports": list,
    "preemptibility": ("preemptible", "non-preemptible"),
    "priorityClass": str,
    "probes": dict,
    "relatedUrls": list,
    "restartPolicy": ("Always", "Never", "OnFailure"),
    "security": dict,
    "stdin": bool,
    "storage": dict,
    "terminateAfterPreemption": bool,
    "terminationGracePeriodSeconds": int,
    "tolerations": list,
    "tty": bool,
    "workingDir": str,
}
DISTRIBUTED_SPEC = {
    **SPEC,
    "cleanPodPolicy": ("None", "All", "Running"),
    "distributedFramework": ("MPI", "PyTorch", "TF", "XGBoost", "JAX"),
    "maxReplicas": int,
    "minReplicas": int,
    "mpiLauncherCreationPolicy": ("AtStartup", "WaitForWorkersReady"),
    "numWorkers": int,
    "slotsPerWorker": int,
    "sshAuthMountPath": str,
}
TRAINING_SPEC = {**SPEC, "completions": int, "parallelism": int}
COMPUTE = {
    "cpuCoreLimit": float,
    "cpuCoreRequest": float,
    "cpuMemoryLimit": QUANTITY,
    "cpuMemoryRequest": QUANTITY,
    "extendedResources": list,
    "gpuDevicesRequest": int,
    "gpuMemoryLimit": QUANTITY,
    "gpuMemoryRequest": QUANTITY,
    "gpuPortionLimit": float,
    "gpuPortionRequest": float,
    "gpuRequestType": ("portion", "memory", "migProfile"),
    "largeShmRequest": bool,
    "migProfile": str,
}
STORAGE = dict.fromkeys(
    (
        "configMapVolume",
        "dataVolume",
        "emptyDirVolume",
        "git",
        "hostPath",
        "nfs",
        "pvc",
        "s3",
        "secretVolume",
    ),
    list,
)
VARIABLE = {
    "name": str,
    "value": str,
    "secret": dict,
    "configMap": dict,
    "podFieldRef": dict,
    "userCredential": dict,
    "exclude": bool,
    "description": str,
}
SOURCES = ("value", "secret", "configMap", "podFieldRef", "userCredential")
PVC = {
    "name": str,
    "claimName": str,
    "existingPvc": bool,
    "path": str,
    "readOnly": bool,
    "ephemeral": bool,
    "dataSharing": bool,
    "claimInfo": dict,
    "exclude": bool,
}
PRIORITIES = ("very-low", "low", "medium-low", "medium", "medium-high", "high", "very-high")
LEGACY_PRIORITIES = ("train", "build", "interactive-preemptible", "inference")


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A workload as asked for."""

    kind: Kind
    name: str
    requested_name: str
    project_id: str
    cluster_id: str
    spec: Mapping[str, Any]
    master: Mapping[str, Any]
    """Of the first pod; the same as `spec` unless it was given apart."""

    @property
    def pods(self) -> int:
        """How many: the workers do not count the master."""
        return int(self.spec.get("numWorkers") or 1) + 1 if self.kind == "distributed" else 1

    @property
    def gpus(self) -> Fraction:
        """Of all pods together."""
        return gpus_of(self.master) + (self.pods - 1) * gpus_of(self.spec)

    @property
    def preemptible(self) -> bool:
        """Trainings are preemptible unless they say otherwise, or ask for an old class that is not."""
        said = self.spec.get("preemptibility")
        return self.spec.get("priorityClass") != "build" if said is None else said == "preemptible"

    @property
    def environment(self) -> dict[str, str]:
        return {item["name"]: item.get("value", "") for item in self.spec.get("environmentVariables") or ()}


def gpus_of(spec: Mapping[str, Any]) -> Fraction:
    """Return the GPUs that one pod asks for; memory of a GPU counts as a whole one here."""
    compute = spec.get("compute") or {}
    portion = compute.get("gpuPortionRequest")
    devices = compute.get("gpuDevicesRequest") or (1 if portion else 0)
    return devices * (Fraction(str(portion)) if portion is not None else Fraction(1))


def submission_of(kind: Kind, body: Any, taken: Mapping[str, object]) -> Submission:
    """Return what a request asks for. Raises the refusal 400. `taken`: names that a generated one must not be."""
    distributed = kind == "distributed"
    _check(body, DISTRIBUTED_META if distributed else META, "")
    for name in ("name", "projectId", "clusterId", "spec"):
        if not body.get(name):
            raise bad_request(f"{name} is required")
    spec, master = body["spec"], body.get("masterSpec")
    _check_spec(spec, DISTRIBUTED_SPEC if distributed else TRAINING_SPEC, "spec")
    if master is not None:
        if body.get("masterSpecSameAsWorker"):
            raise bad_request("masterSpec must not be given with masterSpecSameAsWorker")
        _check_spec(master, SPEC, "masterSpec")
    elif distributed and body.get("masterSpecSameAsWorker") is False:
        raise bad_request("masterSpec is required where masterSpecSameAsWorker is false")
    name = str(body["name"])
    if body.get("useGivenNameAsPrefix"):
        name = _unused(name, taken)
    if not NAME.fullmatch(name):
        raise bad_request(
            f"name {name!r} must be lower-case letters, digits and '-', at most 63, beginning with a letter"
        )
    return Submission(
        kind=kind,
        name=name,
        requested_name=str(body["name"]),
        project_id=body["projectId"],
        cluster_id=body["clusterId"],
        spec=spec,
        master={**spec, **(master or {})},
    )


def _unused(name: str, taken: Mapping[str, object]) -> str:
    while (full := f"{name}-{secrets.token_hex(SUFFIX)[:SUFFIX]}") in taken:
        pass
    return full


def _check_spec(spec: Mapping[str, Any], known: Mapping[str, Any], path: str) -> None:
    _check(spec, known, path)
    if not spec.get("image") and path == "spec":
        raise bad_request("spec.image is required")
    if (1 if (workers := spec.get("numWorkers")) is None else workers) < 1:
        raise bad_request("spec.numWorkers must be at least 1")
    _check_compute(spec.get("compute") or {}, f"{path}.compute")
    _check(spec.get("storage") or {}, STORAGE, f"{path}.storage")
    for number, item in enumerate((spec.get("storage") or {}).get("pvc") or ()):
        _check(item, PVC, f"{path}.storage.pvc[{number}]")
        if not item.get("path"):
            raise bad_request(f"{path}.storage.pvc[{number}].path is required")
    for number, item in enumerate(spec.get("environmentVariables") or ()):
        _check(item, VARIABLE, f"{path}.environmentVariables[{number}]")
        if not item.get("name") or len([source for source in SOURCES if item.get(source) is not None]) > 1:
            raise bad_request(
                f"{path}.environmentVariables[{number}] needs a name, and one of {', '.join(SOURCES)}"
            )
    priority = spec.get("priorityClass")
    if priority is not None and priority not in (*PRIORITIES, *LEGACY_PRIORITIES):
        raise _noncompliant(f"{path}.priorityClass", f"must be one of {', '.join(PRIORITIES)}")


def _check_compute(compute: Mapping[str, Any], path: str) -> None:
    _check(compute, COMPUTE, path)
    devices, kind = compute.get("gpuDevicesRequest"), compute.get("gpuRequestType")
    if kind == "portion" and compute.get("gpuPortionRequest") is None:
        raise bad_request(f"{path}.gpuPortionRequest is required where gpuRequestType is portion")
    if compute.get("gpuPortionRequest") is not None and kind != "portion":
        raise bad_request(f"{path}.gpuPortionRequest needs gpuRequestType portion")
    if (devices or 0) > 1 and kind == "memory":
        raise bad_request(f"{path}: with more than one device only gpuRequestType portion is supported")
    if not 0 <= float(compute.get("gpuPortionRequest") or 0) <= 1:
        raise bad_request(f"{path}.gpuPortionRequest must be between 0 and 1")


def _noncompliant(field: str, details: str) -> Refusal:
    """Refuse as a policy does."""
    message = "The workload request does not comply with the policy set by the administrator"
    issue = {"field": field, "details": details, "rule": "options"}
    return Refusal(400, message, complianceIssues=[issue])


def _check(value: Any, known: Mapping[str, Any], path: str) -> None:
    if not isinstance(value, Mapping):
        raise bad_request(f"{path or 'the body'} must be an object")
    for problem in _problems(value, known, f"{path}." if path else ""):
        raise bad_request(problem)


def _problems(value: Mapping[str, Any], known: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, item in value.items():
        if name not in known:
            yield f"unknown field {path}{name}"
        elif item is not None and not _fits(item, known[name]):
            yield f"{path}{name} cannot be {item!r}"


def _fits(item: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return item in wanted
    if isinstance(wanted, re.Pattern):
        return isinstance(item, str) and wanted.fullmatch(item) is not None
    if wanted is float:
        return type(item) in (int, float)
    return type(item) is wanted
