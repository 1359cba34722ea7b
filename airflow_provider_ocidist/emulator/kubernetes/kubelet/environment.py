"""The environment and the command of a container, with all that they refer to."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.quantities import amount

REFERENCE = re.compile(r"\$\$|\$\(([^()]+)\)")


class ConfigError(Exception):
    """A container that cannot be made; the text is that of CreateContainerConfigError."""


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; what is not known stays as it is, and `$$` is a dollar."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return REFERENCE.sub(value, text)


def resolve(cluster: Cluster, pod: Obj, container: Obj) -> dict[str, str]:
    """Return a container's variables. Raises ConfigError for what is referred to and is not there."""
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        found.update(_all_of(cluster, pod, source))
    for variable in container.get("env") or ():
        value = _value(cluster, pod, container, variable, found)
        if value is not None:
            found[variable["name"]] = value
    return found


def _all_of(cluster: Cluster, pod: Obj, source: Obj) -> dict[str, str]:
    kind, name = ("Secret", "secretRef") if "secretRef" in source else ("ConfigMap", "configMapRef")
    data = _data(cluster, pod, kind, source[name])
    return {f"{source.get('prefix', '')}{key}": value for key, value in (data or {}).items()}


def _data(cluster: Cluster, pod: Obj, kind: str, reference: Obj) -> dict[str, str] | None:
    found = cluster.find(kind, pod["metadata"]["namespace"], reference["name"])
    if found is None:
        if reference.get("optional"):
            return None
        raise ConfigError(f'{kind.lower()} "{reference["name"]}" not found')
    data = found.get("data") or {}
    if kind == "Secret":
        return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}
    return dict(data)


def _value(cluster: Cluster, pod: Obj, container: Obj, variable: Obj, known: Mapping[str, str]) -> str | None:
    source = variable.get("valueFrom")
    if not source:
        return expand(variable.get("value") or "", known)
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return _resource(pod, container, source["resourceFieldRef"])
    kind, name = ("Secret", "secretKeyRef") if "secretKeyRef" in source else ("ConfigMap", "configMapKeyRef")
    return _key(_data(cluster, pod, kind, source[name]), pod, kind, source[name])


def _key(data: Mapping[str, str] | None, pod: Obj, kind: str, reference: Obj) -> str | None:
    if data is None or reference["key"] in data:
        return None if data is None else data[reference["key"]]
    if reference.get("optional"):
        return None
    where = f"{pod['metadata']['namespace']}/{reference['name']}"
    raise ConfigError(f"couldn't find key {reference['key']} in {kind} {where}")


def field(pod: Obj, path: str) -> str:
    """Return a field of a pod as text. Raises ConfigError for one that cannot be had."""
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str((pod["metadata"].get(match[1]) or {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        pairs = pod["metadata"].get(path.partition(".")[2]) or {}
        return "\n".join(f'{key}="{value}"' for key, value in sorted(pairs.items()))
    if path == "status.podIPs":
        return str(pod["status"].get("podIP", ""))
    found: Any = pod
    for name in path.split("."):
        found = found.get(name, "") if isinstance(found, dict) else ""
    if isinstance(found, (dict, list)):
        raise ConfigError(f"unsupported fieldPath: {path}")
    return str(found)


def _resource(pod: Obj, container: Obj, reference: Obj) -> str:
    name = reference.get("containerName")
    owners = [each for each in pod["spec"]["containers"] if each["name"] == name] or [container]
    part, _, resource = reference["resource"].partition(".")
    value = (owners[0]["resources"].get(part) or {}).get(resource, 0)
    return str(int(-(-amount(value) // amount(reference.get("divisor") or 1))))


def command(container: Obj, environment: Mapping[str, str]) -> Sequence[str]:
    """Return what a container runs; nothing where it leaves that to its image."""
    parts = [*(container.get("command") or ()), *(container.get("args") or ())]
    return [expand(part, environment) for part in parts]
