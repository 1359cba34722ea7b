"""The command lines of Run:ai's own tools that say the same as a plan, in both of their generations. Pure.

Source: run-ai/docs, docs/Researcher/cli-reference: runai-submit-dist-pytorch.md (v1) and
new-cli/runai_training_pytorch_submit.md (v2).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.model.run import Plan

OUR_VARIABLES = "OCIDIST_"
"""Prefix of the variables whose values are left to the shell: `-e NAME=$NAME`."""
FLAGS = {
    "compute.cpuCoreRequest": ("--cpu", "--cpu-core-request"),
    "compute.cpuCoreLimit": ("--cpu-limit", "--cpu-core-limit"),
    "compute.cpuMemoryRequest": ("--memory", "--cpu-memory-request"),
    "compute.cpuMemoryLimit": ("--memory-limit", "--cpu-memory-limit"),
    "compute.gpuMemoryRequest": ("--gpu-memory", "--gpu-memory-request"),
    "nodeType": ("--node-type", "--node-type"),
    "imagePullPolicy": ("--image-pull-policy", "--image-pull-policy"),
    "backoffLimit": ("--backoff-limit", "--backoff-limit"),
    "cleanPodPolicy": ("--clean-pod-policy", None),
}
"""Flag of each generation, by the field of the request; None: it has none."""
SWITCHES = {"compute.largeShmRequest": "--large-shm", "security.hostNetwork": "--host-network"}
NOWHERE = (
    "imagePullSecrets",
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "autoDeletionTimeAfterCompletionSeconds",
    "preemptibility",
    "priorityClass",
    "storage.secretVolume",
)
"""Fields for which these documents name no flag of either generation."""


def equivalents(plan: Plan) -> dict[str, str]:
    """Return the command lines by generation, `v1` and `v2`, each with a comment for what it cannot say."""
    (request,) = plan.requests
    body, many = request.body, plan.nodes > 1
    project = str(body["projectId"]).removeprefix("<id of project ").removesuffix(">")
    name = body["name"]
    starts = (
        [
            *(("runai", "submit-dist", "pytorch") if many else ("runai", "submit")),
            "--name",
            name,
            "-p",
            project,
        ],
        [
            *(("runai", "training", "pytorch") if many else ("runai", "training")),
            "submit",
            name,
            "-p",
            project,
        ],
    )
    return {
        f"v{number + 1}": _line([*start, *_words(body["spec"], number)], _left_out(body["spec"], number))
        for number, start in enumerate(starts)
    }


def _words(spec: Mapping[str, Any], generation: int) -> Iterator[str]:
    if "numWorkers" in spec:
        yield f"--workers={spec['numWorkers']}"
    yield from ("-i", spec["image"])
    yield from _gpus(spec.get("compute") or {}, generation)
    for field, flags in FLAGS.items():
        value, flag = _at(spec, field), flags[generation]
        if value is not None and flag is not None:
            yield from (flag, f"{value:g}" if isinstance(value, float) else str(value))
    yield from (flag for field, flag in SWITCHES.items() if _at(spec, field))
    for flag, text in _repeated(spec, generation):
        yield from (flag, text)
    words = [word for part in ("command", "args") for word in shlex.split(spec.get(part) or "")]
    yield from (["--command", "--", *words] if words else [])


def _gpus(compute: Mapping[str, Any], generation: int) -> Iterator[str]:
    devices, share = compute.get("gpuDevicesRequest"), compute.get("gpuPortionRequest")
    if generation == 0 and share is not None:
        yield from ("-g", f"{devices * share:g}")
    elif devices and not (generation == 0 and compute.get("gpuMemoryRequest")):
        yield from ("-g", str(devices))
    if generation == 1 and compute.get("gpuRequestType"):
        yield from ("--gpu-request-type", compute["gpuRequestType"])
        yield from ("--gpu-portion-request", f"{share:g}") if share is not None else ()


def _repeated(spec: Mapping[str, Any], generation: int) -> Iterator[tuple[str, str]]:
    storage = spec.get("storage") or {}
    for item in storage.get("pvc") or ():
        yield "--existing-pvc", f"claimname={item['claimName']},path={item['path']}"
    for item in storage.get("nfs") or ():
        if generation == 0:
            yield "--volume", f"{item['path']}:{item['mountPath']}::{item['server']}"
        else:
            text = f"path={item['path']},server={item['server']},mountpath={item['mountPath']},readwrite"
            yield "--nfs", text
    if spec.get("nodePools"):
        yield "--node-pools", ",".join(spec["nodePools"])
    for item in _at(spec, "compute.extendedResources") or ():
        yield "--extended-resource", f"{item['resource']}={item['quantity']}"
    for item in spec.get("tolerations") or ():
        parts = ("operator", "key", "value", "effect", "seconds")
        yield "--toleration", ",".join(f"{part}={item[part]}" for part in parts if part in item)
    for section, flag in (("labels", "--label"), ("annotations", "--annotation")):
        for item in spec.get(section) or ():
            yield flag, f"{item['name']}={item['value']}"
    for item in spec["environmentVariables"]:
        if "value" in item:
            name = item["name"]
            yield "-e", f"{name}=${name}" if name.startswith(OUR_VARIABLES) else f"{name}={item['value']}"


def _left_out(spec: Mapping[str, Any], generation: int) -> Iterator[str]:
    fields = [*NOWHERE, *(field for field, flags in FLAGS.items() if flags[generation] is None)]
    yield from (field for field in fields if _at(spec, field) not in (None, [], {}))
    yield from (item["name"] for item in spec["environmentVariables"] if "value" not in item)
    for item in _at(spec, "storage.pvc") or ():
        if item["readOnly"]:
            yield f"{item['claimName']}, read only"


def _at(spec: Mapping[str, Any], field: str) -> Any:
    section, _, name = field.rpartition(".")
    return ((spec.get(section) or {}) if section else spec).get(name)


def _line(words: Sequence[str], left_out: Iterator[str]) -> str:
    # The shell fills in its variables.
    quoted = [word if "=$" + OUR_VARIABLES in word else shlex.quote(word) for word in words]
    note = ", ".join(left_out)
    return " ".join(quoted) + (f"  # without {note}" if note else "")
