"""What a TrainJob changes in the pods of its runtime, in the words of each release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.release import Release
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj

# Lists of a pod's specification whose entries are merged, with the field that identifies one.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "schedulingGates": "name",
}


def patched(replicated_jobs: Sequence[Obj], patches: Sequence[Obj], release: Release) -> list[Obj]:
    """Return the replicated jobs with all patches applied, in their order."""
    jobs = deepcopy(list(replicated_jobs))
    for name, template in pod_templates(patches, release):
        for job in jobs:
            if job["name"] == name:
                pods = job["template"]["spec"]["template"]
                job["template"]["spec"]["template"] = _merged(pods, template)
    return jobs


def pod_templates(patches: Sequence[Obj], release: Release) -> Iterator[tuple[str, Obj]]:
    """Return the name of a replicated job, and what is to be merged into its pods' template, for each patch."""
    for patch in patches:
        if release.patches == "runtimePatches":
            yield from _of_runtime_patch(patch)
        else:
            inside = {"spec": {key: value for key, value in patch.items() if key != "targetJobs"}}
            template = inside if release.patches == "podSpecOverrides" else _part(patch, "metadata", "spec")
            for target in patch.get("targetJobs") or ():
                yield target["name"], template


def _of_runtime_patch(patch: Obj) -> Iterator[tuple[str, Obj]]:
    spec = ((patch.get("trainingRuntimeSpec") or {}).get("template") or {}).get("spec") or {}
    for job in spec.get("replicatedJobs") or ():
        template = ((job.get("template") or {}).get("spec") or {}).get("template") or {}
        yield job["name"], _part(template, "metadata", "spec")


def _part(holder: Obj, *names: str) -> Obj:
    return {name: holder[name] for name in names if holder.get(name)}


def _merged(base: Any, change: Any, name: str = "") -> Any:
    if isinstance(base, dict) and isinstance(change, dict):
        return {
            **base,
            **{
                key: _merged(base[key], value, key) if key in base else value for key, value in change.items()
            },
        }
    if isinstance(base, list) and isinstance(change, list) and name in _KEYS:
        return _merged_lists(base, change, _KEYS[name])
    return change


def _merged_lists(base: Sequence[Obj], change: Sequence[Obj], key: str) -> list[Obj]:
    found = {one[key]: one for one in base}
    for one in change:
        found[one[key]] = _merged(found.get(one[key], {}), one)
    return list(found.values())
