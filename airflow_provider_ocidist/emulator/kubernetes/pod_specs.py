"""The specification of a pod, also as a template in other objects: defaults, faults, and its class of service."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.quantities import amount
from airflow_provider_ocidist.emulator.kubernetes.statuses import Problem

RESTART_POLICIES = ("Always", "OnFailure", "Never")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")


def pod_defaults(spec: Obj) -> None:
    """Fill in what a pod's specification leaves out; also in the templates of those that make pods."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("securityContext", {})
    for container in _containers(spec):
        _container_defaults(container)


def _container_defaults(container: Obj) -> None:
    image = str(container.get("image", ""))
    newest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
    container.setdefault("imagePullPolicy", "Always" if newest and "@" not in image else "IfNotPresent")
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    requests, limits = (
        container["resources"].get("requests") or {},
        container["resources"].get("limits") or {},
    )
    if limits:
        container["resources"]["requests"] = {**limits, **requests}


def _containers(spec: Mapping[str, Any]) -> list[Obj]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def pod_problems(
    spec: Mapping[str, Any], path: str, policies: Sequence[str] = RESTART_POLICIES
) -> list[Problem]:
    """Return what is wrong with a pod's specification."""
    problems = []
    if not spec.get("containers"):
        problems.append(Problem(f"{path}.containers", "Required value"))
    if spec.get("restartPolicy") not in policies:
        shown = ", ".join(f'"{policy}"' for policy in policies)
        text = f'Unsupported value: "{spec.get("restartPolicy")}": supported values: {shown}'
        problems.append(Problem(f"{path}.restartPolicy", text))
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    for index, volume in enumerate(spec.get("volumes") or ()):
        problems += _volume_problems(volume, f"{path}.volumes[{index}]")
    for part in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(part) or ()):
            problems += _container_problems(container, f"{path}.{part}[{index}]", volumes)
    return problems + _repeated(_containers(spec), f"{path}.containers")


def _volume_problems(volume: Mapping[str, Any], path: str) -> Iterable[Problem]:
    yield from _label_problems(volume.get("name"), f"{path}.name")
    sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
    for kind in ("configMap", "secret", "downwardAPI"):
        for source in sources:
            for item in (source.get(kind) or {}).get("items") or ():
                yield from _inside_problems(item.get("path"), f"{path}.{kind}.items.path")


def _label_problems(name: Any, path: str) -> Iterable[Problem]:
    if not name:
        yield Problem(path, "Required value")
    elif not NAME.fullmatch(name):
        yield Problem(path, f'Invalid value: "{name[:80]}": must be a lowercase RFC 1123 label')


def _inside_problems(place: Any, path: str) -> Iterable[Problem]:
    """Yield what is wrong with a place below a volume's folder."""
    if not place:
        yield Problem(path, "Required value")
    elif leads_out(place):
        yield Problem(path, f'Invalid value: "{place[:80]}": must be a relative path without ".."')


def leads_out(place: str) -> bool:
    """Return whether a path may leave the folder that it is relative to."""
    return place.startswith("/") or ".." in place.split("/") or "\0" in place


def _container_problems(container: Mapping[str, Any], path: str, volumes: set[Any]) -> Iterable[Problem]:
    yield from _label_problems(container.get("name"), f"{path}.name")
    if not container.get("image"):
        yield Problem(f"{path}.image", "Required value")
    if container.get("imagePullPolicy") not in PULL_POLICIES:
        shown = ", ".join(f'"{policy}"' for policy in sorted(PULL_POLICIES))
        text = f'Unsupported value: "{container.get("imagePullPolicy")}": supported values: {shown}'
        yield Problem(f"{path}.imagePullPolicy", text)
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            yield Problem(f"{path}.volumeMounts[{index}].name", f'Not found: "{mount.get("name")}"')
        if mount.get("subPath"):
            yield from _inside_problems(mount["subPath"], f"{path}.volumeMounts[{index}].subPath")
        where = mount.get("mountPath") or ""
        if not where.startswith("/") or leads_out(where[1:]):
            text = f'Invalid value: "{where[:80]}": must be an absolute path without ".."'
            yield Problem(f"{path}.volumeMounts[{index}].mountPath", text)
    yield from _resource_problems(container.get("resources") or {}, f"{path}.resources.requests")
    for index, variable in enumerate(container.get("env") or ()):
        if not variable.get("name"):
            yield Problem(f"{path}.env[{index}].name", "Required value")


def _resource_problems(resources: Mapping[str, Any], path: str) -> Iterable[Problem]:
    """Yield which requests are above their limits."""
    limits = resources.get("limits") or {}
    for name, value in (resources.get("requests") or {}).items():
        if name in limits and amount(value) > amount(limits[name]):
            text = f'Invalid value: "{value}": must be less than or equal to {name} limit of {limits[name]}'
            yield Problem(path, text)


def _repeated(containers: Sequence[Mapping[str, Any]], path: str) -> list[Problem]:
    problems, seen = [], set()
    for index, container in enumerate(containers):
        name = container.get("name")
        if name and name in seen:
            problems.append(Problem(f"{path}[{index}].name", f'Duplicate value: "{name}"'))
        seen.add(name)
    return problems


def frozen(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a pod's specification that no update may change."""
    free = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "nodeName")
    kept = {name: value for name, value in spec.items() if name not in free}
    for part in ("containers", "initContainers"):
        kept[part] = [{**each, "image": None} for each in spec.get(part) or ()]
    return kept


def quality(spec: Mapping[str, Any]) -> str:
    """Return the class of service (QoS) of a pod, which its containers' requests and limits determine."""
    resources = [container.get("resources") or {} for container in _containers(spec)]
    if not any(each.get("requests") or each.get("limits") for each in resources):
        return "BestEffort"
    wanted = ("cpu", "memory")
    guaranteed = all(
        set(wanted) <= set(each.get("limits") or {})
        and all(each["requests"].get(name) == each["limits"][name] for name in wanted)
        for each in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"
