"""The kinds that every cluster has, with the rules for each."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.quantities import amount
from airflow_provider_ocidist.emulator.kubernetes.statuses import Problem

RESTART_POLICIES = ("Always", "OnFailure", "Never")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
KEY = re.compile(r"(?!\.$)[-._a-zA-Z0-9]{1,253}")
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


def _pod_defaults(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    pod_defaults(spec)
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _pod_problems(new: Obj, old: Obj | None) -> list[Problem]:
    problems = pod_problems(new["spec"], "spec")
    if old is not None and _frozen(new["spec"]) != _frozen(old["spec"]):
        text = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to"
            " existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was"
            " previously negative)"
        )
        problems.append(Problem("spec", text))
    return problems


def _frozen(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a pod's specification that never changes."""
    free = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "nodeName")
    frozen = {name: value for name, value in spec.items() if name not in free}
    for part in ("containers", "initContainers"):
        frozen[part] = [{**each, "image": None} for each in spec.get(part) or ()]
    return frozen


def _pod_begins(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending", "qosClass": quality(obj["spec"])}


def quality(spec: Mapping[str, Any]) -> str:
    """Return the class of a pod by what its containers ask for."""
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


def _secret_defaults(obj: Obj) -> None:
    obj.setdefault("type", "Opaque")
    for name, value in (obj.pop("stringData", None) or {}).items():
        obj.setdefault("data", {})[name] = base64.b64encode(value.encode()).decode()


def _secret_problems(new: Obj, old: Obj | None) -> Iterable[Problem]:
    for name, value in (new.get("data") or {}).items():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError, TypeError):
            yield Problem(f"data[{name}]", "Invalid value: illegal base64 data")
    yield from _size_problems(new, old)


def _size_problems(new: Obj, old: Obj | None) -> Iterable[Problem]:
    data = {**(new.get("data") or {}), **(new.get("binaryData") or {})}
    for key in data:
        if not KEY.fullmatch(key) or key.startswith(".."):
            yield Problem(f"data[{key[:80]}]", "Invalid value: a valid config key must be the name of a file")
    if sum(len(value) for value in data.values()) > 1 << 20:
        yield Problem("data", "Too long: may not be more than 1048576 bytes")
    if old is not None and old.get("immutable") and data != {**(old.get("data") or {})}:
        yield Problem("data", "Forbidden: field is immutable when `immutable` is set")


def _namespace_begins(obj: Obj) -> None:
    obj["spec"] = {"finalizers": ["kubernetes"]}
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
    obj["status"] = {"phase": "Active"}


def _service_defaults(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("clusterIP", "None")
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def _claim_begins(obj: Obj) -> None:
    """Claims are bound at once: each is a folder of this machine."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("storageClassName", "standard")
    spec.setdefault("volumeMode", "Filesystem")
    spec.setdefault("volumeName", f"pvc-{obj['metadata']['uid']}")
    capacity = {"storage": ((spec.get("resources") or {}).get("requests") or {}).get("storage", "1Gi")}
    obj["status"] = {"phase": "Bound", "accessModes": spec.get("accessModes", []), "capacity": capacity}


def _claim_problems(new: Obj, _: Obj | None) -> Iterable[Problem]:
    spec = new.get("spec") or {}
    if not spec.get("accessModes"):
        yield Problem("spec.accessModes", "Required value: at least 1 access mode is required")
    if "storage" not in ((spec.get("resources") or {}).get("requests") or {}):
        yield Problem("spec.resources[storage]", "Required value")


def _limit_range_defaults(obj: Obj) -> None:
    for item in (obj.get("spec") or {}).get("limits") or ():
        if item.get("type") == "Container":
            limits = {**(item.get("max") or {}), **(item.get("default") or {})}
            requests = {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}
            filled = {"default": limits, "defaultRequest": requests}
            item.update({name: amounts for name, amounts in filled.items() if amounts})


RANGE_ORDER = ("min", "defaultRequest", "default", "max")
"""Fields of a LimitRange whose amounts must not fall."""
RANGE_WORDS = dict(zip(RANGE_ORDER, ("min", "default request", "default", "max"), strict=True))


def _limit_range_problems(new: Obj, _: Obj | None) -> Iterable[Problem]:
    for index, item in enumerate((new.get("spec") or {}).get("limits") or ()):
        path = f"spec.limits[{index}]"
        if not item.get("type"):
            yield Problem(f"{path}.type", "Required value")
        for low, high in combinations(RANGE_ORDER, 2):
            bounds = item.get(high) or {}
            for name, value in (item.get(low) or {}).items():
                if name in bounds and amount(value) > amount(bounds[name]):
                    above = f"{RANGE_WORDS[high]} value {bounds[name]}"
                    text = f"{RANGE_WORDS[low]} value {value} is greater than {above}"
                    yield Problem(f"{path}.{low}[{name}]", f'Invalid value: "{value}": {text}')


def _binding_problems(new: Obj, _: Obj | None) -> Iterable[Problem]:
    reference = new.get("roleRef") or {}
    for name in ("kind", "name"):
        if not reference.get(name):
            yield Problem(f"roleRef.{name}", "Required value")
    if reference.get("kind") not in (None, "Role", "ClusterRole"):
        yield Problem("roleRef.kind", 'Unsupported value: supported values: "Role", "ClusterRole"')
    for index, subject in enumerate(new.get("subjects") or ()):
        for name in ("kind", "name"):
            if not subject.get(name):
                yield Problem(f"subjects[{index}].{name}", "Required value")


def _event_defaults(obj: Obj) -> None:
    obj.setdefault("type", "Normal")
    obj.setdefault("count", 1)


KINDS = (
    Kind(
        name="Namespace",
        plural="namespaces",
        namespaced=False,
        short_names=("ns",),
        has_status=True,
        schema="V1Namespace",
        prepare=_namespace_begins,
        columns=(("Status", ".status.phase"),),
    ),
    Kind(
        name="Pod",
        plural="pods",
        short_names=("po",),
        has_status=True,
        schema="V1Pod",
        defaults=_pod_defaults,
        problems=_pod_problems,
        prepare=_pod_begins,
    ),
    Kind(
        name="Service",
        plural="services",
        short_names=("svc",),
        has_status=True,
        schema="V1Service",
        defaults=_service_defaults,
        label_named=True,
        columns=(("Type", ".spec.type"), ("Cluster-IP", ".spec.clusterIP")),
    ),
    Kind(
        name="Secret",
        has_spec=False,
        plural="secrets",
        schema="V1Secret",
        defaults=_secret_defaults,
        problems=lambda new, old: list(_secret_problems(new, old)),
        columns=(("Type", ".type"),),
    ),
    Kind(
        name="ConfigMap",
        has_spec=False,
        plural="configmaps",
        short_names=("cm",),
        schema="V1ConfigMap",
        problems=lambda new, old: list(_size_problems(new, old)),
    ),
    Kind(
        name="PersistentVolumeClaim",
        plural="persistentvolumeclaims",
        short_names=("pvc",),
        has_status=True,
        schema="V1PersistentVolumeClaim",
        prepare=_claim_begins,
        problems=lambda new, old: list(_claim_problems(new, old)),
        columns=(("Status", ".status.phase"), ("Volume", ".spec.volumeName")),
    ),
    Kind(
        name="Event",
        has_spec=False,
        plural="events",
        short_names=("ev",),
        schema="CoreV1Event",
        defaults=_event_defaults,
        columns=(
            ("Last Seen", ".lastTimestamp"),
            ("Type", ".type"),
            ("Reason", ".reason"),
            ("Object", ".involvedObject.name"),
            ("Message", ".message"),
        ),
    ),
    Kind(
        name="ServiceAccount",
        has_spec=False,
        plural="serviceaccounts",
        short_names=("sa",),
        schema="V1ServiceAccount",
    ),
    Kind(
        name="Node",
        plural="nodes",
        namespaced=False,
        short_names=("no",),
        has_status=True,
        schema="V1Node",
        prepare=lambda obj: obj.setdefault("status", {}) and None,
    ),
    Kind(
        name="ResourceQuota",
        plural="resourcequotas",
        short_names=("quota",),
        has_status=True,
        schema="V1ResourceQuota",
    ),
    Kind(
        name="LimitRange",
        plural="limitranges",
        short_names=("limits",),
        schema="V1LimitRange",
        defaults=_limit_range_defaults,
        problems=lambda new, old: list(_limit_range_problems(new, old)),
    ),
    Kind(
        name="CustomResourceDefinition",
        plural="customresourcedefinitions",
        group="apiextensions.k8s.io",
        namespaced=False,
        short_names=("crd", "crds"),
        schema={"spec": {}, "status": {}},
    ),
    Kind(name="Lease", plural="leases", group="coordination.k8s.io", schema="V1Lease"),
    Kind(name="Role", has_spec=False, plural="roles", group="rbac.authorization.k8s.io", schema="V1Role"),
    Kind(
        name="RoleBinding",
        has_spec=False,
        plural="rolebindings",
        group="rbac.authorization.k8s.io",
        schema="V1RoleBinding",
        problems=lambda new, old: list(_binding_problems(new, old)),
    ),
    Kind(
        name="ClusterRole",
        has_spec=False,
        plural="clusterroles",
        group="rbac.authorization.k8s.io",
        namespaced=False,
        schema="V1ClusterRole",
    ),
    Kind(
        name="ClusterRoleBinding",
        has_spec=False,
        plural="clusterrolebindings",
        group="rbac.authorization.k8s.io",
        namespaced=False,
        schema="V1ClusterRoleBinding",
        problems=lambda new, old: list(_binding_problems(new, old)),
    ),
)
