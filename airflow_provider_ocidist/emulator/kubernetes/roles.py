"""Roles: what a user may do, by the bindings in the cluster (RBAC)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes import statuses
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.users import SERVICE_ACCOUNT, User

Rule = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """What somebody wants to do."""

    verb: str
    group: str
    resource: str
    """Resource in the plural, with its subresource: `pods/log`."""
    namespace: str = ""
    name: str = ""


def check(cluster: Cluster, user: User, action: Action) -> None:
    """Raise 403 for what the user may not do."""
    if allowed(cluster, user, action):
        return
    where = f'in the namespace "{action.namespace}"' if action.namespace else "at the cluster scope"
    plural, _, subresource = action.resource.partition("/")
    resource = f"{plural}.{action.group}" if action.group else plural
    raise statuses.forbidden(
        f"{resource}/{subresource}" if subresource and not action.name else resource,
        action.name,
        f'User "{user.name}" cannot {action.verb} resource "{action.resource}" in API group "{action.group}" {where}',
    )


def allowed(cluster: Cluster, user: User, action: Action) -> bool:
    return user.is_admin or any(_fits(rule, action) for rule in rules(cluster, user, action.namespace))


def rules(cluster: Cluster, user: User, namespace: str) -> Iterator[Rule]:
    """Yield the rules that bindings give a user, cluster-wide and in a namespace."""
    bindings = cluster.list("ClusterRoleBinding")
    if namespace:
        bindings += cluster.list("RoleBinding", namespace)
    for binding in bindings:
        if any(_is(subject, user, binding) for subject in binding.get("subjects") or ()):
            yield from _rules_of(cluster, binding)


def _rules_of(cluster: Cluster, binding: Obj) -> Sequence[Rule]:
    reference = binding["roleRef"]
    namespace = binding["metadata"].get("namespace") if reference["kind"] == "Role" else None
    role = cluster.find(reference["kind"], namespace, reference["name"])
    found: Sequence[Rule] = (role or {}).get("rules") or ()
    return found


def _is(subject: Mapping[str, Any], user: User, binding: Obj) -> bool:
    if subject["kind"] == "Group":
        return subject["name"] in user.groups
    if subject["kind"] == "ServiceAccount":
        namespace = subject.get("namespace") or binding["metadata"].get("namespace", "")
        return user.name == f"{SERVICE_ACCOUNT}{namespace}:{subject['name']}"
    return bool(subject["name"] == user.name)


def _fits(rule: Rule, action: Action) -> bool:
    names = rule.get("resourceNames") or ()
    return (
        _has(rule.get("verbs"), action.verb)
        and _has(rule.get("apiGroups"), action.group)
        and _has_resource(rule.get("resources") or (), action.resource)
        and (not names or action.name in names)
    )


def _has(values: Sequence[str] | None, wanted: str) -> bool:
    return "*" in (values or ()) or wanted in (values or ())


def _has_resource(values: Sequence[str], wanted: str) -> bool:
    _, slash, subresource = wanted.partition("/")
    return _has(values, wanted) or bool(slash and f"*/{subresource}" in values)
