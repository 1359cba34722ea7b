"""What Kubernetes requires of a job, as far as it can be checked without a cluster. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from airflow_provider_ocidist.backends.kubernetes import mounts
from airflow_provider_ocidist.backends.kubernetes.names import LABEL_LIMIT, RESERVED
from airflow_provider_ocidist.backends.kubernetes.presets import SHAPES
from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.model.job import TrainingJob, is_placeholder

POD_FIELDS = {
    "activeDeadlineSeconds",
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "ephemeralContainers",
    "hostAliases",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostUsers",
    "hostname",
    "hostnameOverride",
    "imagePullSecrets",
    "initContainers",
    "nodeName",
    "nodeSelector",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "resourceClaims",
    "resources",
    "restartPolicy",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "schedulingGroup",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
}
CONTAINER_FIELDS = {
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "name",
    "ports",
    "readinessProbe",
    "resizePolicy",
    "resources",
    "restartPolicy",
    "restartPolicyRules",
    "securityContext",
    "startupProbe",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "volumeDevices",
    "volumeMounts",
    "workingDir",
}
"""Fields of `V1PodSpec` and `V1Container` of the client for 1.35; the API server checks what is below them."""
QUANTITY = re.compile(r"\+?(\d+(\.\d*)?|\.\d+)([numk]|Ki|[MGTPE]i?|[eE][-+]?\d+)?")
"""Pattern of a quantity (Kubernetes' documentation, Quantity); none is below 0."""
LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LISTS = ("containers", "imagePullSecrets", "initContainers", "tolerations", "volumes")
LISTS_IN_CONTAINER = ("args", "command", "env", "envFrom", "ports", "volumeMounts")
OURS_IN_CONTAINER = {
    "command": "is the agent's: name the program in `program`, or a start of its own in `container`",
    "args": "is the agent's: name the arguments in `program.args`",
    "image": "is named in `image`",
}


def alike(job: TrainingJob, nodes: str) -> Iterator[Problem]:
    """Yield the variables of single nodes where an image starts itself, as all `nodes` do alike."""
    for path in ("main_env", "worker_env") if job.container is not None else ():
        if getattr(job, path):
            yield Problem(path, f"is not supported here: {nodes} are alike, and the image starts itself")


def _options(job: TrainingJob) -> Any:
    return job.backend


def _amounts(job: TrainingJob) -> Iterator[Problem]:
    options = _options(job)
    for name in ("cpu", "memory", "shm_size"):
        value = getattr(options, name)
        if value is not None and not is_placeholder(value) and not QUANTITY.fullmatch(value):
            yield Problem(f"backend.{name}", f"must be an amount, as 8, 500m or 64Gi, not {value!r}")
    if options.gpus is not None and options.gpus < 0:
        yield Problem("backend.gpus", "must be 0 or more")


def _preset(job: TrainingJob) -> Iterator[Problem]:
    preset = _options(job).preset
    if preset is not None and not is_placeholder(preset) and preset not in SHAPES:
        yield Problem("backend.preset", f"there is no {preset!r}{near_name(preset, SHAPES)}")


def near_name(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"


def marks(job: TrainingJob) -> Iterator[Problem]:
    """Report tags, labels and annotations that no object can have."""
    options = _options(job)
    for path, entries in (
        ("tags", job.tags),
        ("backend.labels", options.labels),
        ("backend.annotations", options.annotations),
    ):
        for name, value in entries.items():
            yield from _entry(f"{path}.{name}", name, value, is_label=path == "backend.labels")


def _entry(path: str, name: str, value: str, *, is_label: bool) -> Iterator[Problem]:
    if is_placeholder(name):
        return
    if not LABEL_NAME.fullmatch(name):
        yield Problem(path, f"is not a valid key: at most {LABEL_LIMIT} letters, digits, '-', '_' and '.'")
    elif name.startswith((RESERVED, "ocidist-")):
        yield Problem(path, f"keys that begin with {RESERVED} are reserved")
    if is_label and not is_placeholder(value) and not is_label_value(value):
        allowed = f"at most {LABEL_LIMIT} letters, digits, '-', '_' and '.'"
        yield Problem(
            path, f"{value!r} is not a valid value of a label: {allowed}; `annotations` take any text"
        )


def is_label_value(value: str) -> bool:
    return len(value) <= LABEL_LIMIT and LABEL_VALUE.fullmatch(value) is not None


def _secrets(job: TrainingJob) -> Iterator[Problem]:
    for name in _options(job).secrets:
        if not VARIABLE_NAME.fullmatch(name) and not is_placeholder(name):
            yield Problem(f"backend.secrets.{name}", "is not a valid name for an environment variable")
        if name in {**job.env, **job.main_env, **job.worker_env}:
            yield Problem(
                f"backend.secrets.{name}", "is set in the job's environment too: remove one of them"
            )


def pod_template_rules(container: str, options: Iterable[str] = ("pod_template",)) -> Any:
    """Return the rule for the pod templates of a kind whose operator reads the container of this name."""

    def rule(job: TrainingJob) -> Iterator[Problem]:
        for option in options:
            yield from of_template(job, getattr(_options(job), option), f"backend.{option}")

    def of_template(job: TrainingJob, template: Mapping[str, Any], path: str) -> Iterator[Problem]:
        yield from _unknown(template, path, {"metadata", "spec"})
        spec = template.get("spec") or {}
        if not isinstance(spec, Mapping):
            yield Problem(f"{path}.spec", "must be a section with keys and values")
            return
        yield from _unknown(spec, f"{path}.spec", POD_FIELDS)
        if "restartPolicy" in spec:
            yield Problem(
                f"{path}.spec.restartPolicy", "cannot be set in a pod: set `backend.restart_policy`"
            )
        for name in LISTS:
            yield from _no_list(spec, name, f"{path}.spec")
        for name in ("containers", "initContainers"):
            for index, item in enumerate(entries_of(spec, name)):
                yield from _container(job, item, f"{path}.spec.{name}.{index}", container)

    return rule


def _container(job: TrainingJob, item: Any, path: str, main: str) -> Iterator[Problem]:
    if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
        yield Problem(path, f"must be a section with a name; the training's is {main!r}")
        return
    yield from _unknown(item, path, CONTAINER_FIELDS)
    if item["name"] != main:
        return
    for name, why in OURS_IN_CONTAINER.items():
        if name in item and (job.container is None or name == "image"):
            yield Problem(f"{path}.{name}", why)
    for name in LISTS_IN_CONTAINER:
        yield from _no_list(item, name, path)
    for index, entry in enumerate(entries_of(item, "env")):
        if isinstance(entry, Mapping) and str(entry.get("name")).startswith("OCIDIST_"):
            yield Problem(f"{path}.env.{index}", "names that begin with OCIDIST_ are reserved")


def entries_of(section: Mapping[str, Any], name: str) -> list[Any]:
    """Return the entries of a list, none where there is no list."""
    value = section.get(name)
    return list(value) if isinstance(value, list | tuple) else []


def _no_list(section: Mapping[str, Any], name: str, path: str) -> Iterator[Problem]:
    value = section.get(name)
    if isinstance(value, str) and is_placeholder(value):
        return
    if value is not None and not isinstance(value, list | tuple):
        yield Problem(f"{path}.{name}", "must be a list")


def _unknown(value: Mapping[str, Any], path: str, known: Iterable[str]) -> Iterator[Problem]:
    for name in value:
        if name not in known:
            yield Problem(f"{path}.{name}", f"unknown key {str(name)!r}{near_name(str(name), known)}")


def _work_dir(job: TrainingJob) -> Iterator[Problem]:
    place = job.work_dir
    if place is None or not place.startswith("/") or is_placeholder(place):
        return
    if not any(covers(folder, place) for folder in _mounted(job)):
        yield Problem(
            "work_dir",
            f"{place} is a folder: mount the claim that contains it in `mounts`, at the path where Airflow has it "
            "too, or name a bucket",
        )


def _mounted(job: TrainingJob) -> Iterator[str]:
    yield from (mount.path for mount in job.mounts)
    for option in ("pod_template", "main_template"):
        spec = getattr(_options(job), option, {}).get("spec")
        for item in entries_of(spec, "containers") if isinstance(spec, Mapping) else ():
            for mount in entries_of(item, "volumeMounts") if isinstance(item, Mapping) else ():
                yield str(mount.get("mountPath")) if isinstance(mount, Mapping) else ""


def covers(folder: str, place: str) -> bool:
    """Whether a place lies in a folder."""
    return bool(folder) and f"{place.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


RULES = (_amounts, _preset, marks, _secrets, _work_dir, mounts.rules)
