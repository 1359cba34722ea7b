"""The kinds that every cluster has, with the rules for each."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from itertools import combinations

from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.pod_specs import frozen, pod_defaults, pod_problems, quality
from airflow_provider_ocidist.emulator.kubernetes.quantities import amount
from airflow_provider_ocidist.emulator.kubernetes.statuses import Problem

KEY = re.compile(r"(?!\.$)[-._a-zA-Z0-9]{1,253}")


def _pod_defaults(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    pod_defaults(spec)
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _pod_problems(new: Obj, old: Obj | None) -> list[Problem]:
    problems = pod_problems(new["spec"], "spec")
    if old is not None and frozen(new["spec"]) != frozen(old["spec"]):
        text = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to"
            " existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was"
            " previously negative)"
        )
        problems.append(Problem("spec", text))
    return problems


def _pod_begins(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending", "qosClass": quality(obj["spec"])}


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
