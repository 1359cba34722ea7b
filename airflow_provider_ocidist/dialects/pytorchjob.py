"""Kubeflow `PyTorchJob` manifests, `apiVersion: kubeflow.org/v1`: the same gang on another platform.

What a manifest says of the cluster it was written for (scheduling, pull policies, ports) means nothing elsewhere and
is accepted; what changes the training and cannot be had is refused. Source: the API of training-operator 1.9.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_ocidist.dialects import commands
from airflow_provider_ocidist.dialects.base import Dialect, Draft, Section, Translation
from airflow_provider_ocidist.job import is_placeholder
from airflow_provider_ocidist.job_schema import PLACEHOLDER, shown

CONTAINER = "pytorch"
"""The one container that the operator looks at."""
GPU = re.compile(r"[\w.-]+/gpu")
PORT = "23456"
REFERENCE = re.compile(r"\$(\$)?\((?P<name>[A-Za-z_][\w.-]*)\)")
"""`$(NAME)`, as Kubernetes fills it in; `$$(NAME)` stands for itself."""
INJECTED = re.compile(r"RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PET_\w+")
"""Variables that the operator sets in every container."""
TOPOLOGY_FLAGS = {
    "nnodes",
    "nproc-per-node",
    "node-rank",
    "master-addr",
    "master-port",
    "rdzv-endpoint",
    "rdzv-id",
}
"""Flags of torchrun that place a node in its gang; what the operator's variables would fill in, our launcher knows."""

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
"""Keys of a pod about the cluster it lands on; here the shape, policies and the subnet of the backend say that."""
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
RUN_POLICY = {"activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "managedBy", "schedulingPolicy"}
ELASTIC = {"maxReplicas", "maxRestarts", "minReplicas", "nProcPerNode", "rdzvBackend"}
NO_ELASTIC = dict.fromkeys(
    ("metrics", "rdzvConf", "rdzvHost", "rdzvId", "rdzvPort", "standalone"),
    "cannot be set here: all nodes start together, and find one another by themselves",
)


@dataclass(slots=True)
class Role:
    """Master or Worker."""

    section: Section
    replicas: int
    pod: Section
    container: Section
    env: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Names to where each stands and its text."""


class PyTorchJob(Dialect):
    """Told by its kind."""

    def matches(self, mapping: Mapping[str, Any]) -> bool:
        return mapping.get("kind") == "PyTorchJob"

    def translate(self, mapping: Mapping[str, Any]) -> Translation:
        draft = Draft()
        # A cluster that was asked for the manifest adds its status.
        draft.keys(mapping, "", {"apiVersion", "kind", "metadata", "spec", "status"})
        draft.only(Section("", mapping), "apiVersion", "kubeflow.org/v1")
        _metadata(draft, mapping)
        spec = draft.section(
            mapping, "spec", {"nprocPerNode", "runPolicy", "elasticPolicy", "pytorchReplicaSpecs"}
        )
        roles = _roles(draft, spec)
        if not roles:
            return Translation(mapping={}, problems=tuple(draft.problems), readable=False)
        draft.put("nodes", roles[-1].section.at("replicas"), sum(role.replicas for role in roles))
        _image(draft, roles)
        _environment(draft, roles)
        _program(draft, spec, roles)
        _volumes(draft, roles)
        _limits(draft, spec, roles)
        return draft.finished()


DIALECT = PyTorchJob()


def _metadata(draft: Draft, mapping: Mapping[str, Any]) -> None:
    cluster = {"creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"}
    known = {"name", "generateName", "namespace", "labels", "annotations", *cluster}
    metadata = draft.section(mapping, "metadata", known)
    key = "name" if "name" in metadata.value or "generateName" not in metadata.value else "generateName"
    if key not in metadata.value:
        draft.complain(metadata.at("name"), "is needed")
    draft.put("name", metadata.at(key), metadata.value.get(key, PLACEHOLDER))
    labels = metadata.value.get("labels")
    if isinstance(labels, Mapping):
        # Tags of OCI have no dots in their keys, and labels of Kubernetes begin with host names.
        for name, value in labels.items():
            ours = str(name).replace(".", "-")
            draft.mapping.setdefault("tags", {})[ours] = value
            draft.paths[f"tags.{ours}"] = metadata.at(f"labels.{name}")
    elif labels is not None:
        draft.complain(metadata.at("labels"), f"must be a section of names and values, not {shown(labels)}")


# roles


def _roles(draft: Draft, spec: Section) -> list[Role]:
    replicas = draft.section(spec, "pytorchReplicaSpecs", {"Master", "Worker"})
    roles = [_role(draft, replicas, name) for name in ("Master", "Worker") if name in replicas.value]
    if not any(role.replicas for role in roles):
        draft.complain(replicas.path, "is needed: Master, Worker, or both, with at least one replica")
    return [role for role in roles if role.replicas]


def _role(draft: Draft, replicas: Section, name: str) -> Role:
    section = draft.section(replicas, name, {"replicas", "restartPolicy", "template"})
    draft.only(section, "restartPolicy", "Always", "OnFailure", "Never", "ExitCode")
    count = draft.whole_number(section, "replicas", 1 if name == "Master" else 0, default=1)
    if name == "Master" and count != 1:
        draft.complain(section.at("replicas"), f"must be 1, not {count}: there is one Master")
    template = draft.section(section, "template", ANY_POD)
    draft.section(template, "metadata", {"annotations", "labels", "name", "namespace", "creationTimestamp"})
    pod = draft.section(template, "spec", {*POD, *PLACEMENT}, refused=NO_POD)
    container = _container(draft, pod)
    role = Role(section=section, replicas=count, pod=pod, container=container)
    role.env = _variables(draft, container)
    return role


def _container(draft: Draft, pod: Section) -> Section:
    containers, path = pod.value.get("containers"), pod.at("containers")
    if not isinstance(containers, list | tuple) or not all(isinstance(item, Mapping) for item in containers):
        draft.complain(path, "is needed: a list with the container 'pytorch'")
        return Section(path, {})
    named = [index for index, item in enumerate(containers) if item.get("name") == CONTAINER]
    for index, item in enumerate(containers):
        if index not in named[:1] and named:
            what = f"is not run here: a node runs the container {CONTAINER!r} alone"
            draft.complain(f"{path}.{index}", f"{shown(item.get('name'))} {what}")
    if not named:
        draft.complain(path, f"one must have the name {CONTAINER!r}, as the operator asks too")
        return Section(path, {})
    section = Section(f"{path}.{named[0]}", containers[named[0]])
    draft.keys(section.value, section.path, {*KNOWN, *INDIFFERENT}, NO_CONTAINER)
    return section


def _image(draft: Draft, roles: list[Role]) -> None:
    first = roles[0].container
    if "image" not in first.value:
        draft.complain(first.at("image"), "is needed")
    draft.put("image", first.at("image"), first.value.get("image", PLACEHOLDER))
    _same(draft, roles, "image", "all nodes run the same image")
    _same(draft, roles, "workingDir", "all nodes run in the same folder")


def _same(draft: Draft, roles: list[Role], key: str, why: str) -> None:
    for role in roles[1:]:
        if role.container.value.get(key) != roles[0].container.value.get(key):
            where = role.container.at(key) if key in role.container.value else role.container.path
            draft.complain(where, f"{key} is not that of {roles[0].container.at(key)}: {why}")


# environment


def _variables(draft: Draft, container: Section) -> dict[str, tuple[str, str]]:
    entries, path = container.value.get("env") or (), container.at("env")
    if not isinstance(entries, list | tuple):
        draft.complain(path, f"must be a list of name and value, not {shown(entries)}")
        return {}
    found: dict[str, tuple[str, str]] = {}
    for index, entry in enumerate(entries):
        here = f"{path}.{index}"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            draft.complain(here, "must be a section with name and value")
            continue
        draft.keys(entry, here, {"name", "value", "valueFrom"})
        if "valueFrom" in entry:
            draft.complain(f"{here}.valueFrom", _reason_against(entry["valueFrom"]))
            continue
        value = "" if entry.get("value") is None else entry["value"]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            draft.complain(f"{here}.value", f"must be text, not {shown(value)}: put it in quotes")
            continue
        # As the cluster does, a variable may use those before it.
        known = {name: text for name, (_, text) in found.items()}
        found[entry["name"]] = (f"{here}.value", _expanded(str(value), known))
    return found


def _reason_against(value: Any) -> str:
    source = next(iter(value), None) if isinstance(value, Mapping) else None
    reasons = {
        "secretKeyRef": "a variable is plain text at the service: let the program read the secret from the vault",
        "configMapKeyRef": "there is no config map here: write the value",
        "fieldRef": "there is no pod here: the program finds its place in RANK and WORLD_SIZE",
        "resourceFieldRef": "there is no pod here: write the value",
    }
    return reasons.get(str(source), "cannot be read here: write the value")


def _environment(draft: Draft, roles: list[Role]) -> None:
    """Put what all nodes share into `env`, and the rest where it is laid over that."""
    values = [{name: text for name, (_, text) in role.env.items()} for role in roles]
    for index, (role, section) in enumerate(zip(roles, ("main_env", "worker_env"), strict=False)):
        for name, (path, text) in role.env.items():
            shared = all(other.get(name) == text for other in values)
            if shared and index:
                continue
            target = "env" if shared else section
            draft.mapping.setdefault(target, {})[name] = text
            draft.paths[f"{target}.{name}"] = path


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        return found[0][1:] if found[1] else variables.get(found["name"], found[0])

    return REFERENCE.sub(value, text)


# the program


def _program(draft: Draft, spec: Section, roles: list[Role]) -> None:
    lines = [_line(draft, role) for role in roles]
    for role, line in zip(roles[1:], lines[1:], strict=True):
        for key, mine, other in zip(("command", "args"), lines[0], line, strict=True):
            if mine != other:
                where = role.container.at(key) if key in role.container.value else role.container.path
                what = "all nodes run the same command; what differs can be said in env, or by RANK"
                draft.complain(where, f"{key} is not that of {roles[0].container.at(key)}: {what}")
    command, args = lines[0]
    container = roles[0].container
    elastic = _elastic(draft, spec, roles)
    _same_gpus(draft, roles)
    if not command:
        _own_entrypoint(draft, spec, roles, args)
        if elastic.value:
            draft.complain(elastic.path, f"is for torchrun: name it in {container.at('command')}")
        return
    where = container.at("command")
    try:
        parsed = commands.parse([*command, *args])
    except ValueError as error:
        draft.complain(where, str(error))
        draft.put("program.script", where, PLACEHOLDER)
        return
    flags = _placed(draft, container, parsed, elastic)
    commands.put(
        draft,
        where,
        commands.Command(
            launcher=parsed.launcher,
            flags=flags,
            script=parsed.script,
            module=parsed.module,
            args=parsed.args,
        ),
    )
    _refuse_references(draft, container, [*flags, parsed.script, *parsed.args])
    draft.copy(container, {"workingDir": "program.working_dir"})
    processes = _processes(draft, spec, container, parsed.launcher)
    if processes is not None:
        draft.put("launcher.processes_per_node", *processes)


def _line(draft: Draft, role: Role) -> tuple[list[str], list[str]]:
    variables = {name: text for name, (_, text) in role.env.items()}
    return _words(draft, role.container, "command", variables), _words(
        draft, role.container, "args", variables
    )


def _words(draft: Draft, container: Section, key: str, variables: Mapping[str, str]) -> list[str]:
    given = container.value.get(key) or []
    if not isinstance(given, list | tuple):
        draft.complain(container.at(key), f"must be a list, not {shown(given)}")
        return []
    for index, word in enumerate(given):
        if isinstance(word, bool) or not isinstance(word, str | int | float):
            draft.complain(container.at(f"{key}.{index}"), f"must be text, not {shown(word)}")
    return [_expanded(str(word), variables) for word in given]


def _own_entrypoint(draft: Draft, spec: Section, roles: list[Role], args: list[str]) -> None:
    """Start what the image starts, with the operator's variables as far as they are known before the nodes are."""
    container = roles[0].container
    draft.put("container.command", container.at("args" if args else "image"), args)
    _refuse_references(draft, container, args)
    if "workingDir" in container.value:
        draft.complain(
            container.at("workingDir"), "needs a command: without one the image says where it runs"
        )
    processes = _processes(draft, spec, container, "python") or ("", 1)
    nodes = sum(role.replicas for role in roles)
    known = {
        "PYTHONUNBUFFERED": "1",
        "MASTER_PORT": PORT,
        # A program that is to be one of several then fails without the others, rather than to train alone.
        "WORLD_SIZE": str(nodes * processes[1]),
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": str(processes[1]),
    }
    for name, value in known.items():
        draft.mapping.setdefault("env", {}).setdefault(name, value)
        draft.paths.setdefault(f"env.{name}", container.path)


def _placed(draft: Draft, container: Section, parsed: commands.Command, elastic: Section) -> tuple[str, ...]:
    """Return the launcher's flags without those that the operator's variables fill in, and with its restarts."""
    flags = parsed.flags
    if parsed.launcher == "torchrun":
        given = commands.values(flags, "torchrun")
        master = f"{draft.mapping.get('name')}-master-0"
        ours = {
            name
            for name, value in given.items()
            if name in TOPOLOGY_FLAGS and (REFERENCE.search(value) or value.partition(":")[0] == master)
        }
        restarts = elastic.value.get("maxRestarts")
        added = (
            ("--max-restarts", str(restarts)) if restarts is not None and "max-restarts" not in given else ()
        )
        return (*added, *commands.without(flags, "torchrun", ours))
    if elastic.value:
        draft.complain(elastic.path, f"is for torchrun; the command of {container.at('command')} is another")
    return flags


def _refuse_references(draft: Draft, container: Section, words: list[str]) -> None:
    for word in words:
        for found in REFERENCE.finditer(word):
            if not found[1] and INJECTED.fullmatch(found["name"]):
                where = container.at("args" if "args" in container.value else "command")
                message = f"$({found['name']}) is not filled in here: the program finds it in its environment"
                draft.complain(where, message)


def _processes(draft: Draft, spec: Section, container: Section, launcher: str) -> tuple[str, int] | None:
    """Return where the number of processes on a node is said, and that; None: one for each GPU that is seen."""
    given = spec.value.get("nprocPerNode")
    if str(given).isdecimal() and int(str(given)):
        return spec.at("nprocPerNode"), int(str(given))
    draft.only(spec, "nprocPerNode", "auto", "cpu", "gpu", "a whole number")
    path, gpus = _gpus(draft, container)
    if launcher in ("python", "command"):
        # The operator starts it once, however many GPUs the pod has.
        return container.at("command"), 1
    return (path, gpus) if gpus else None


def _same_gpus(draft: Draft, roles: list[Role]) -> None:
    counts = [_gpus(draft, role.container) for role in roles]
    for where, count in counts[1:]:
        if count != counts[0][1]:
            place = where or roles[1].container.path
            draft.complain(
                place, f"asks for {count} GPUs, and the Master for {counts[0][1]}: all nodes are of one shape"
            )


def _gpus(draft: Draft, container: Section) -> tuple[str, int]:
    resources = draft.section(container, "resources", {"limits", "requests", "claims"})
    for key in ("limits", "requests"):
        amounts = resources.value.get(key)
        if not isinstance(amounts, Mapping):
            continue
        for name, amount in amounts.items():
            if GPU.fullmatch(str(name)):
                where = resources.at(f"{key}.{name}")
                if str(amount).isdecimal():
                    return where, int(str(amount))
                if not is_placeholder(str(amount)):
                    draft.complain(where, f"must be a whole number, not {shown(amount)}")
    return "", 0


# volumes


def _volumes(draft: Draft, roles: list[Role]) -> None:
    found: dict[str, tuple[str, str]] = {}
    for role in roles:
        for path, source, where in _mounts(draft, role):
            if path in found and found[path][0] != source:
                draft.complain(where, f"mounts something else at {path} than {found[path][1]} does")
            found.setdefault(path, (source, where))
    for index, (path, (source, where)) in enumerate(found.items()):
        draft.mapping.setdefault("mounts", []).append({"source": source, "path": path})
        draft.paths[f"mounts.{index}"] = where
        draft.paths[f"mounts.{index}.path"] = f"{where}.mountPath"


def _mounts(draft: Draft, role: Role) -> list[tuple[str, str, str]]:
    """Return path, source and place of each mount that is storage; a volume that nobody mounts changes nothing."""
    volumes = {
        str(item.get("name")): Section(role.pod.at(f"volumes.{index}"), item)
        for index, item in enumerate(_listed(draft, role.pod, "volumes"))
        if isinstance(item, Mapping)
    }
    mounts = []
    for index, mount in enumerate(_listed(draft, role.container, "volumeMounts")):
        where = role.container.at(f"volumeMounts.{index}")
        if not isinstance(mount, Mapping) or not isinstance(mount.get("mountPath"), str):
            draft.complain(where, "must be a section with name and mountPath")
            continue
        draft.keys(mount, where, {"name", "mountPath", "readOnly", "subPath"})
        volume = volumes.get(str(mount.get("name")))
        if volume is None:
            draft.complain(
                where, f"there is no volume {shown(mount.get('name'))} in {role.pod.at('volumes')}"
            )
            continue
        source = _source(draft, volume, mount["mountPath"])
        if source is not None:
            below = f"/{mount['subPath'].strip('/')}" if isinstance(mount.get("subPath"), str) else ""
            mounts.append((mount["mountPath"].rstrip("/"), source + below, where))
    return mounts


def _listed(draft: Draft, section: Section, key: str) -> list[Any]:
    value = section.value.get(key)
    if value is not None and not isinstance(value, list | tuple):
        draft.complain(section.at(key), f"must be a list, not {shown(value)}")
        return []
    return list(value or ())


def _source(draft: Draft, volume: Section, path: str) -> str | None:
    """Return what to mount; None where the node itself has it, or it cannot be had."""
    kinds = [key for key in volume.value if key != "name"]
    kind = kinds[0] if len(kinds) == 1 else None
    value = volume.value.get(kind) if kind else None
    options = value if isinstance(value, Mapping) else {}
    match kind:
        case "persistentVolumeClaim" if isinstance(options.get("claimName"), str):
            # What the claim stands for is known to the cluster alone; a folder that outlives the run does the same.
            return f"volumes/{options['claimName']}"
        case "nfs" if isinstance(options.get("server"), str) and isinstance(options.get("path"), str):
            return f"{options['server']}:{options['path']}"
        case "emptyDir" | "hostPath" if path.rstrip("/") in ("/dev/shm", "/tmp", "/dev/infiniband"):  # noqa: S108
            # Every node has its own.
            return None
        case "emptyDir":
            draft.complain(
                volume.at("emptyDir"), f"is not made here: let the program make {path}, or use /tmp"
            )
        case "hostPath":
            draft.complain(
                volume.at("hostPath"), "is not to be had here: `mounts` has file systems and buckets"
            )
        case "secret" | "configMap" | "projected" | "downwardAPI":
            draft.complain(volume.at(kind), "is not to be had here: put files into the code or `inputs`")
        case _:
            draft.complain(volume.path, "is no volume that can be had here: use `mounts`")
    return None


# limits


def _limits(draft: Draft, spec: Section, roles: list[Role]) -> None:
    policy = draft.section(spec, "runPolicy", {*RUN_POLICY, "suspend", "ttlSecondsAfterFinished"})
    draft.only(policy, "cleanPodPolicy", "None", "Running", "All")
    draft.only(policy, "managedBy", "kubeflow.org/training-operator")
    for key, least in (("backoffLimit", 0), ("ttlSecondsAfterFinished", 0)):
        if key in policy.value:
            draft.whole_number(policy, key, least, default=0)
    if policy.value.get("suspend"):
        draft.complain(policy.at("suspend"), "cannot be done here: a run starts when its task does")
    if "activeDeadlineSeconds" in policy.value:
        seconds = draft.whole_number(policy, "activeDeadlineSeconds", 1, default=1)
        draft.put("limits.max_runtime", policy.at("activeDeadlineSeconds"), seconds)
    _gang(draft, policy, sum(role.replicas for role in roles))
    for role in roles:
        if "terminationGracePeriodSeconds" in role.pod.value:
            seconds = draft.whole_number(role.pod, "terminationGracePeriodSeconds", 0, default=30)
            # Ours is above 0.
            draft.put("limits.stop_grace", role.pod.at("terminationGracePeriodSeconds"), seconds or 0.1)


def _gang(draft: Draft, policy: Section, nodes: int) -> None:
    scheduling = draft.section(
        policy,
        "schedulingPolicy",
        {"minAvailable", "minResources", "priorityClass", "queue", "scheduleTimeoutSeconds"},
    )
    least = draft.whole_number(scheduling, "minAvailable", 1, default=nodes)
    if least != nodes:
        draft.complain(scheduling.at("minAvailable"), f"must be {nodes}: a gang starts whole or not at all")
    for key in [key for key in ("queue", "priorityClass") if key in scheduling.value]:
        draft.complain(scheduling.at(key), "is not to be had here: Airflow's pools and priorities do that")
    if "scheduleTimeoutSeconds" in scheduling.value:
        seconds = draft.whole_number(scheduling, "scheduleTimeoutSeconds", 1, default=1800)
        draft.put("limits.start_timeout", scheduling.at("scheduleTimeoutSeconds"), seconds)


def _elastic(draft: Draft, spec: Section, roles: list[Role]) -> Section:
    elastic = draft.section(spec, "elasticPolicy", ELASTIC, refused=NO_ELASTIC)
    draft.only(elastic, "rdzvBackend", "c10d", "static")
    workers = roles[-1].replicas
    for key, wrong in (("minReplicas", workers.__lt__), ("maxReplicas", workers.__gt__)):
        count = draft.whole_number(elastic, key, 1, default=workers)
        if wrong(count):
            draft.complain(elastic.at(key), f"{count} leaves out the {workers} replicas that the gang has")
    if "nProcPerNode" in elastic.value:
        count = draft.whole_number(elastic, "nProcPerNode", 1, default=1)
        draft.put("launcher.processes_per_node", elastic.at("nProcPerNode"), count)
    return elastic
