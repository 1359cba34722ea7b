"""The pods of a manifest as they are, but for what is said elsewhere in a job: image, command, plain variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.job_file.dialects.base import Draft
from airflow_provider_ocidist.job_file.dialects.pytorchjob import environment
from airflow_provider_ocidist.job_file.dialects.pytorchjob.roles import CONTAINER, Role

TEMPLATE_PATHS = {"Master": "backend.main_template", "Worker": "backend.worker_template"}
OF_ALL = "backend.pod_template"
"""Path of the settings of all pods; also of a manifest with Workers alone, of which the first becomes the Master unless
there is an elastic policy."""
SAID_IN_JOB = ("image", "command", "args", "workingDir")


def put(draft: Draft, roles: Sequence[Role]) -> None:
    """Put the template of each role."""
    for role in roles:
        where = OF_ALL if len(roles) == 1 else TEMPLATE_PATHS[role.section.path.rpartition(".")[2]]
        draft.put(where, role.template.path, _template(role, own_start="container" in draft.mapping))


def _template(role: Role, *, own_start: bool) -> dict[str, Any]:
    metadata = role.template.value.get("metadata")
    marks = metadata if isinstance(metadata, Mapping) else {}
    kept = {name: marks[name] for name in ("labels", "annotations") if marks.get(name)}
    # The operator sets a pod's policy from the role's own; an agent's pod has more time than its program.
    said = ("restartPolicy",) if own_start else ("restartPolicy", "terminationGracePeriodSeconds")
    spec = {name: value for name, value in role.pod.value.items() if name not in said}
    containers = spec.get("containers")
    if isinstance(containers, list | tuple):
        spec["containers"] = [_container(item, own_start=own_start) for item in containers]
    return {**({"metadata": kept} if kept else {}), "spec": spec}


def _container(item: Any, *, own_start: bool) -> Any:
    if not isinstance(item, Mapping) or item.get("name") != CONTAINER:
        return item
    said = ("image",) if own_start else SAID_IN_JOB
    found = {name: value for name, value in item.items() if name not in said}
    if isinstance(found.get("env"), list | tuple):
        found["env"] = [entry for entry in found["env"] if environment.stays(entry)]
    return {name: value for name, value in found.items() if value is not None}
