"""Submission: a request for a workload as the control plane takes it, checked field by field. Pure."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from airflow_provider_ocidist.emulator.kubernetes.kinds import MAX_REPLICAS
from airflow_provider_ocidist.emulator.runai.refusals import ApiRefusal, bad_request

Kind = Literal["distributed", "trainings"]
NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
"""Pattern of a name, a label of DNS, since what is created in the cluster bears it."""
SUFFIX = 5
"""Number of characters that make a generated name unique."""
QUANTITY = re.compile(r"[+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,2}|[mkMGTPE]i?)?")
MAX_NUMBER = 2**31 - 1
"""Largest number that a field takes."""
MAX_WORKERS = MAX_REPLICAS - 1
MAX_SHOWN = 200
"""Most characters of a value in a message."""


@dataclass(frozen=True, slots=True)
class Must:
    """The type of a field that every object of its place has."""

    type: Any


# A type is a class of Python, a tuple of choices, a pattern, a list that holds the type of its members, or the types of
# an object's fields; where `...` is among these, it may have others, too.
NAMED: Mapping[Any, Any] = {"name": Must(str), ...: Any}
LABEL_FIELDS = {"name": Must(str), "value": str, "exclude": bool}
KEY_OF: Mapping[Any, Any] = {"name": str, "key": str, ...: Any}
TOLERATION = {
    **dict.fromkeys(("name", "key", "operator", "value", "effect"), str),
    "seconds": int,
    "exclude": bool,
}
SECURITY: Mapping[Any, Any] = {"hostNetwork": bool, "hostIpc": bool, ...: Any}
COMPUTE = {
    "cpuCoreLimit": float,
    "cpuCoreRequest": float,
    "cpuMemoryLimit": QUANTITY,
    "cpuMemoryRequest": QUANTITY,
    "extendedResources": [{"resource": Must(str), "quantity": Must(QUANTITY), "exclude": bool}],
    "gpuDevicesRequest": int,
    "gpuMemoryLimit": QUANTITY,
    "gpuMemoryRequest": QUANTITY,
    "gpuPortionLimit": float,
    "gpuPortionRequest": float,
    "gpuRequestType": ("portion", "memory", "migProfile"),
    "largeShmRequest": bool,
    "migProfile": str,
}
VARIABLE = {
    "name": Must(str),
    "value": str,
    "secret": KEY_OF,
    "configMap": KEY_OF,
    "podFieldRef": {"path": Must(str), ...: Any},
    "userCredential": KEY_OF,
    "exclude": bool,
    "description": str,
}
PVC = {
    "name": str,
    "claimName": Must(str),
    "existingPvc": bool,
    "path": Must(str),
    "readOnly": bool,
    "ephemeral": bool,
    "dataSharing": bool,
    "claimInfo": dict,
    "exclude": bool,
}
HOST_PATH: Mapping[Any, Any] = {"path": Must(str), "mountPath": Must(str), "readOnly": bool, ...: Any}
STORAGE = {
    "configMapVolume": [dict],
    "dataVolume": [dict],
    "emptyDirVolume": [dict],
    "git": [dict],
    "hostPath": [HOST_PATH],
    "nfs": [dict],
    "pvc": [PVC],
    "s3": [dict],
    "secretVolume": [dict],
}
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
    "annotations": [LABEL_FIELDS],
    "args": str,
    "autoDeletionTimeAfterCompletionSeconds": int,
    "backoffLimit": int,
    "category": str,
    "command": str,
    "compute": COMPUTE,
    "createHomeDir": bool,
    "environmentVariables": [VARIABLE],
    "exposedUrls": [dict],
    "image": str,
    "imagePullPolicy": ("Always", "Never", "IfNotPresent"),
    "imagePullSecrets": [NAMED],
    "labels": [LABEL_FIELDS],
    "nodeAffinityRequired": dict,
    "nodePools": [str],
    "nodeType": str,
    "podAffinity": dict,
    "ports": [dict],
    "preemptibility": ("preemptible", "non-preemptible"),
    "priorityClass": str,
    "probes": dict,
    "relatedUrls": [dict],
    "restartPolicy": ("Always", "Never", "OnFailure"),
    "security": SECURITY,
    "stdin": bool,
    "storage": STORAGE,
    "terminateAfterPreemption": bool,
    "terminationGracePeriodSeconds": int,
    "tolerations": [TOLERATION],
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
SOURCES = ("value", "secret", "configMap", "podFieldRef", "userCredential")
PRIORITIES = ("very-low", "low", "medium-low", "medium", "medium-high", "high", "very-high")
LEGACY_PRIORITIES = ("train", "build", "interactive-preemptible", "inference")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadSubmission:
    """A workload as asked for."""

    kind: Kind
    name: str
    requested_name: str
    project_id: str
    cluster_id: str
    spec: Mapping[str, Any]
    master: Mapping[str, Any]
    """Specification of the first pod; the same as `spec` unless it was given apart."""

    @property
    def pods(self) -> int:
        """The number of pods: the workers do not count the master."""
        return int(self.spec.get("numWorkers") or 1) + 1 if self.kind == "distributed" else 1

    @property
    def gpus(self) -> Fraction:
        """The GPUs of all pods together."""
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


def submission_of(kind: Kind, body: Any, taken: Mapping[str, object]) -> WorkloadSubmission:
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
    return WorkloadSubmission(
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


def _check_spec(spec: Mapping[str, Any], known: Mapping[Any, Any], path: str) -> None:
    _check(spec, known, path)
    if not spec.get("image") and path == "spec":
        raise bad_request("spec.image is required")
    if not 1 <= (1 if (workers := spec.get("numWorkers")) is None else workers) <= MAX_WORKERS:
        raise bad_request(f"spec.numWorkers must be from 1 to {MAX_WORKERS}")
    _check_compute(spec.get("compute") or {}, f"{path}.compute")
    for name in ("command", "args"):
        _check_words(spec.get(name) or "", f"{path}.{name}")
    for number, item in enumerate(spec.get("environmentVariables") or ()):
        if len([source for source in SOURCES if item.get(source) is not None]) > 1:
            raise bad_request(f"{path}.environmentVariables[{number}] needs one of {', '.join(SOURCES)}")
    priority = spec.get("priorityClass")
    if priority is not None and priority not in (*PRIORITIES, *LEGACY_PRIORITIES):
        raise _noncompliant(f"{path}.priorityClass", f"must be one of {', '.join(PRIORITIES)}")


def _check_words(text: str, path: str) -> None:
    try:
        shlex.split(text)
    except ValueError as error:
        raise bad_request(f"{path} is not a line for a shell: {error}") from error


def _check_compute(compute: Mapping[str, Any], path: str) -> None:
    devices, kind = compute.get("gpuDevicesRequest"), compute.get("gpuRequestType")
    if kind == "portion" and compute.get("gpuPortionRequest") is None:
        raise bad_request(f"{path}.gpuPortionRequest is required where gpuRequestType is portion")
    if compute.get("gpuPortionRequest") is not None and kind != "portion":
        raise bad_request(f"{path}.gpuPortionRequest needs gpuRequestType portion")
    if (devices or 0) > 1 and kind == "memory":
        raise bad_request(f"{path}: with more than one device only gpuRequestType portion is supported")
    if not 0 <= float(compute.get("gpuPortionRequest") or 0) <= 1:
        raise bad_request(f"{path}.gpuPortionRequest must be between 0 and 1")


def _noncompliant(field: str, details: str) -> ApiRefusal:
    """Refuse as a policy does."""
    message = "The workload request does not comply with the policy set by the administrator"
    issue = {"field": field, "details": details, "rule": "options"}
    return ApiRefusal(400, message, complianceIssues=[issue])


def _check(value: Any, known: Mapping[Any, Any], path: str) -> None:
    for problem in _problems(value, known, path):
        raise bad_request(problem)


def _problems(value: Any, wanted: Any, path: str) -> Iterator[str]:
    """Yield what in a value is not of its type; null stands for a field that is not there."""
    if isinstance(wanted, Must):
        yield from _problems(value, wanted.type, path)
    elif isinstance(wanted, Mapping):
        yield from _of_fields(value, wanted, path)
    elif isinstance(wanted, list):
        if not isinstance(value, list):
            yield f"{path} must be a list"
            return
        for number, each in enumerate(value):
            yield from _problems(each, wanted[0], f"{path}[{number}]")
    elif not _fits(value, wanted):
        yield f"{path} cannot be {repr(value)[:MAX_SHOWN]}"


def _of_fields(value: Any, known: Mapping[Any, Any], path: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{path or 'the body'} must be an object"
        return
    before = f"{path}." if path else ""
    for name, wanted in known.items():
        if isinstance(wanted, Must) and value.get(name) in (None, ""):
            yield f"{before}{name} is required"
    for name, item in value.items():
        if name in known:
            if item is not None:
                yield from _problems(item, known[name], f"{before}{name}")
        elif ... not in known:
            yield f"unknown field {before}{name[:MAX_SHOWN]}"


def _fits(item: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return item in wanted
    if isinstance(wanted, re.Pattern):
        return isinstance(item, str) and wanted.fullmatch(item) is not None
    if wanted in (int, float):
        return type(item) in (int, wanted) and 0 <= item <= MAX_NUMBER
    return type(item) is wanted
