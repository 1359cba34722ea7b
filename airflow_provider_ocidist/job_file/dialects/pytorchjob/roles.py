"""Master and Worker: how many nodes, of one image and one shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_ocidist.job_file.dialects.base import Draft, Section, Variables
from airflow_provider_ocidist.job_file.dialects.pytorchjob import environment
from airflow_provider_ocidist.job_file.schema import value_shown
from airflow_provider_ocidist.job_file.written_values import whole_in
from airflow_provider_ocidist.model.job import is_placeholder

CONTAINER = "pytorch"
"""Name of the one container that the operator reads."""
OF_THE_SHAPE = {"cpu", "memory"}
"""Resources of a pod in place of which a node has those of its shape."""
GPU = re.compile(r"[\w.-]+/gpu")
ANY_POD = {"metadata", "spec"}
POD = {"containers", "volumes", "terminationGracePeriodSeconds", "restartPolicy"}
PLACEMENT = {
    "affinity",
    "automountServiceAccountToken",
    "dnsPolicy",
    "enableServiceLinks",
    "hostIPC",
    "hostNetwork",
    "imagePullSecrets",
    "nodeName",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "serviceAccount",
    "serviceAccountName",
    "subdomain",
    "tolerations",
    "topologySpreadConstraints",
}
"""Keys of a pod about its cluster; here the backend's shape, policies and subnet replace them."""
NO_POD = {
    "initContainers": "is not run here: let `inputs` fetch data, or the program itself make ready",
    "securityContext": "cannot be set here: the image says which user runs",
    "hostAliases": "cannot be set here: nodes find one another by themselves",
}
KNOWN = {"name", "image", "command", "args", "env", "workingDir", "resources", "volumeMounts"}
INDIFFERENT = {
    "imagePullPolicy",
    "ports",
    "stdin",
    "tty",
    "terminationMessagePath",
    "terminationMessagePolicy",
}
NO_CONTAINER = {
    "envFrom": "cannot be read here: write the variables into env; let the program read secrets from the vault",
    "lifecycle": "is not run here: SIGTERM reaches the program itself",
    "livenessProbe": "is not asked here: limits.hang_timeout finds a program that does nothing",
    "readinessProbe": "is not asked here: limits.start_timeout ends a gang that does not start",
    "startupProbe": "is not asked here: limits.start_timeout ends a gang that does not start",
    "securityContext": "cannot be set here: the image says which user runs",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """Master or Worker."""

    section: Section
    replicas: int
    pod: Section
    container: Section
    template: Section
    env: Variables
    gpus: int
    """Number of GPUs of each node; 0 where the manifest asks for none."""
    gpus_at: str
    """Path of that number in the file."""


def read(draft: Draft, spec: Section, *, at_home: bool) -> list[Role]:
    """Return the roles that have nodes, the one with the first node first."""
    replicas = draft.section(spec, "pytorchReplicaSpecs", {"Master", "Worker"})
    names = [name for name in ("Master", "Worker") if name in replicas.value]
    roles = [_read(draft, replicas, name, at_home=at_home) for name in names]
    if not any(role.replicas for role in roles):
        draft.complain(replicas.path, "is needed: Master, Worker, or both, with at least one replica")
    return [role for role in roles if role.replicas]


def put(draft: Draft, roles: list[Role], *, at_home: bool) -> None:
    """Put the number of nodes, and their shared settings."""
    draft.put("nodes", roles[-1].section.at("replicas"), sum(role.replicas for role in roles))
    draft.put_needed("image", roles[0].container, "image")
    _same(draft, roles, "image", "all nodes run the same image")
    if not at_home or any(role.container.value.get("command") for role in roles):
        _same(draft, roles, "workingDir", "all nodes run in the same folder")
    if not at_home:
        _same_gpus(draft, roles)


def _read(draft: Draft, replicas: Section, name: str, *, at_home: bool) -> Role:
    section = draft.section(replicas, name, {"replicas", "restartPolicy", "template"})
    draft.only(section, "restartPolicy", "Always", "OnFailure", "Never", "ExitCode")
    count = draft.whole_number(section, "replicas", 1 if name == "Master" else 0, default=1)
    if name == "Master" and count != 1:
        draft.complain(section.at("replicas"), f"must be 1, not {count}: there is one Master")
    template = draft.section(section, "template", ANY_POD)
    draft.section(template, "metadata", {"annotations", "labels", "name", "namespace", "creationTimestamp"})
    pod = _any_section(draft, template, "spec") if at_home else _pod_elsewhere(draft, template)
    container = _container(draft, pod, at_home=at_home)
    resources = draft.section(container, "resources", {"limits", "requests", "claims"})
    if not at_home:
        _refuse_resources(draft, resources)
    gpus_at, gpus = _gpus(draft, resources)
    return Role(
        section=section,
        replicas=count,
        pod=pod,
        container=container,
        template=template,
        env=environment.variables(draft, container, at_home=at_home),
        gpus=gpus,
        gpus_at=gpus_at,
    )


def _pod_elsewhere(draft: Draft, template: Section) -> Section:
    return draft.section(template, "spec", {*POD, *PLACEMENT}, refused=NO_POD)


def _any_section(draft: Draft, holder: Section, name: str) -> Section:
    """Return a section whose keys the backend checks."""
    value = holder.value.get(name)
    return draft.section(holder, name, value if isinstance(value, Mapping) else ())


def _container(draft: Draft, pod: Section, *, at_home: bool) -> Section:
    containers, path = pod.value.get("containers"), pod.at("containers")
    if not isinstance(containers, list | tuple) or not all(isinstance(item, Mapping) for item in containers):
        draft.complain(path, "is needed: a list with the container 'pytorch'")
        return Section(path, {})
    named = [index for index, item in enumerate(containers) if item.get("name") == CONTAINER]
    for index, item in enumerate(containers):
        if index not in named[:1] and named and not at_home:
            what = f"is not run here: a node runs the container {CONTAINER!r} alone"
            draft.complain(f"{path}.{index}", f"{value_shown(item.get('name'))} {what}")
    if not named:
        draft.complain(path, f"one must have the name {CONTAINER!r}, as the operator asks too")
        return Section(path, {})
    section = Section(f"{path}.{named[0]}", containers[named[0]])
    if not at_home:
        draft.keys(section.value, section.path, {*KNOWN, *INDIFFERENT}, NO_CONTAINER)
    return section


def _refuse_resources(draft: Draft, resources: Section) -> None:
    """Report what a pod may ask for, and a node elsewhere does not get by its shape or is not known to get."""
    if resources.value.get("claims"):
        draft.complain(resources.at("claims"), "cannot be claimed here: backend.shape says what a node has")
    gpus = set()
    for key in ("limits", "requests"):
        known = resources.value.get(key)
        amounts = draft.section(resources, key, known if isinstance(known, Mapping) else ())
        for name in map(str, amounts.value):
            gpus |= {name} if GPU.fullmatch(name) else set()
            if GPU.fullmatch(name) and len(gpus) > 1:
                draft.complain(amounts.at(name), f"is another kind than {min(gpus - {name})}: a node has one")
            elif not GPU.fullmatch(name) and name not in OF_THE_SHAPE:
                draft.complain(
                    amounts.at(name), "cannot be asked for here: backend.shape says what a node has"
                )


def _gpus(draft: Draft, resources: Section) -> tuple[str, int]:
    """Return the path and the number of a node's GPUs."""
    for key in ("limits", "requests"):
        amounts = resources.value.get(key)
        if not isinstance(amounts, Mapping):
            continue
        for name, amount in amounts.items():
            if GPU.fullmatch(str(name)):
                where = resources.at(f"{key}.{name}")
                count = whole_in(amount)
                if count is not None:
                    return where, count
                if not is_placeholder(str(amount)):
                    draft.complain(where, f"must be a whole number, not {value_shown(amount)}")
    return "", 0


def _same(draft: Draft, roles: list[Role], key: str, why: str) -> None:
    for role in roles[1:]:
        if role.container.value.get(key) != roles[0].container.value.get(key):
            where = role.container.at(key) if key in role.container.value else role.container.path
            draft.complain(where, f"{key} differs from {roles[0].container.at(key)}: {why}")


def _same_gpus(draft: Draft, roles: list[Role]) -> None:
    for role in roles[1:]:
        if role.gpus != roles[0].gpus:
            asked = f"asks for {role.gpus} GPUs, and the Master for {roles[0].gpus}"
            draft.complain(role.gpus_at or role.container.path, f"{asked}: all nodes are of one shape")
