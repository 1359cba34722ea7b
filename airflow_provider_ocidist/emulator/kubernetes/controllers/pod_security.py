"""Pod Security admission: what a namespace's label forbids pods, with the sentence that people look for.

Source: Kubernetes' documentation, Pod Security Standards; the checks that training jobs meet, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.statuses import forbidden

LABEL = "pod-security.kubernetes.io/enforce"
SECCOMP = ("RuntimeDefault", "Localhost")


def admit(cluster: Cluster, pod: Obj, old: Obj | None) -> None:
    """Refuse with 403 a pod that is beyond the level of its namespace."""
    metadata = pod["metadata"]
    namespace = cluster.find("Namespace", None, metadata["namespace"])
    level = ((namespace or {}).get("metadata", {}).get("labels") or {}).get(LABEL)
    if old is not None or level not in ("baseline", "restricted"):
        return
    found = [*_beyond_baseline(pod["spec"])]
    if level == "restricted":
        found += _beyond_restricted(pod["spec"])
    if found:
        name, why = metadata.get("name") or metadata.get("generateName", ""), ", ".join(found)
        raise forbidden("pods", name, f'violates PodSecurity "{level}:latest": {why}')


def _beyond_baseline(spec: Obj) -> Iterator[str]:
    shared = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    if shared:
        yield f"host namespaces ({', '.join(f'{name}=true' for name in shared)})"
    if names := _those(spec, lambda context: bool(context.get("privileged"))):
        yield f"privileged ({names} must not set securityContext.privileged=true)"
    if paths := [each["name"] for each in spec.get("volumes") or () if each.get("hostPath")]:
        yield f"hostPath volumes ({_named('volume', paths)})"


def _beyond_restricted(spec: Obj) -> Iterator[str]:
    of_pod = spec.get("securityContext") or {}
    if names := _those(spec, lambda context: context.get("allowPrivilegeEscalation") is not False):
        yield (
            f"allowPrivilegeEscalation != false ({names} must set "
            "securityContext.allowPrivilegeEscalation=false)"
        )
    if names := _those(
        spec, lambda context: "ALL" not in ((context.get("capabilities") or {}).get("drop") or ())
    ):
        yield f'unrestricted capabilities ({names} must set securityContext.capabilities.drop=["ALL"])'
    if names := _those(spec, lambda context: not context.get("runAsNonRoot", of_pod.get("runAsNonRoot"))):
        yield f"runAsNonRoot != true (pod or {names} must set securityContext.runAsNonRoot=true)"
    if names := _those(spec, lambda context: _seccomp(context, of_pod) not in SECCOMP):
        yield (
            f"seccompProfile (pod or {names} must set securityContext.seccompProfile.type to "
            '"RuntimeDefault" or "Localhost")'
        )


def _seccomp(context: Obj, of_pod: Obj) -> Any:
    return (context.get("seccompProfile") or of_pod.get("seccompProfile") or {}).get("type")


def _those(spec: Obj, is_beyond: Callable[[Obj], bool]) -> str:
    """Return the containers whose security context is beyond the level, in words; nothing where none is."""
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    names = [each["name"] for each in containers if is_beyond(each.get("securityContext") or {})]
    return _named("container", names) if names else ""


def _named(noun: str, names: list[str]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"{noun}{'s' if len(names) > 1 else ''} {quoted}"
