"""Preflight: what would stop a job on a cluster, found beforehand; each finding names the fix."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.backends.capabilities import Finding
from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.errors import ROLE
from airflow_provider_ocidist.backends.kubernetes.operator import Operator
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.work_dir.parallel import in_parallel

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Right:
    """Something that a user may do, as a Role names it."""

    group: str
    resource: str
    verb: str

    @property
    def words(self) -> str:
        return f"{self.verb} {self.resource}"

    @property
    def attributes(self) -> dict[str, str]:
        resource, _, part = self.resource.partition("/")
        return {
            "group": self.group,
            "resource": resource,
            "verb": self.verb,
            **({"subresource": part} if part else {}),
        }


def spared_by(operator: Operator) -> list[Right]:
    """Return the rights of container/kubernetes/role.yaml without which many gangs cost more to wait for."""
    watched = ((operator.group, operator.plural), ("", "pods"), ("", "events"))
    return [Right(group, resource, "watch") for group, resource in watched]


def rights(operator: Operator) -> list[Right]:
    """Return the other rights of container/kubernetes/role.yaml: nothing goes without them."""
    own = [
        Right(operator.group, operator.plural, verb) for verb in ("create", "get", "list", "patch", "delete")
    ]
    pods = [Right("", "pods", "list"), Right("", "pods", "delete"), Right("", "pods/log", "get")]
    shared = [Right("", kind, verb) for kind in ("configmaps", "secrets") for verb in ("create", "get")]
    return [*own, Right("", "events", "list"), *pods, *shared]


def sign_in(api: Api) -> Finding:
    try:
        version = api.get("/version").get("gitVersion")
    except BackendError as error:
        return Finding.failed("sign-in", str(error), "correct the connection, or the kubeconfig")
    return Finding.passed("sign-in", f"the API server answers (Kubernetes {version})")


def operators(api: Api, operator: Operator) -> Finding:
    """Report whether the cluster has the kind."""
    name = f"{operator.kind} ({operator.group}/{operator.version})"
    try:
        served = api.get(operator.path)
    except BackendError as error:
        if error.status_code == 404:
            return Finding.failed("operator", f"the cluster has no {name}", operator.remedy)
        return Finding.failed("operator", str(error), operator.remedy)
    if operator.plural not in {str(each.get("name")) for each in served.get("resources") or ()}:
        return Finding.failed("operator", f"the cluster has no {name}", operator.remedy)
    return Finding.passed("operator", f"the cluster has {name}")


def rights_of_user(api: Api, operator: Operator, namespace: str) -> Finding:
    """Report which rights the user lacks in the namespace."""
    wanted = [*rights(operator), *spared_by(operator)]
    try:
        given = in_parallel(lambda right: _is_allowed(api, namespace, right), wanted)
    except BackendError as error:
        return Finding.warned("rights", f"they cannot be asked for: {error}", ROLE)
    lacking = [right for right, allowed in zip(wanted, given, strict=True) if not allowed]
    said = f"not allowed in namespace {namespace}: {', '.join(right.words for right in lacking)}"
    if set(lacking) & set(rights(operator)):
        return Finding.failed("rights", said, ROLE)
    if lacking:
        return Finding.warned("rights", f"{said}: each look at many gangs lists all of them", ROLE)
    return Finding.passed("rights", f"all that is needed in namespace {namespace}")


def _is_allowed(api: Api, namespace: str, right: Right) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"namespace": namespace, **right.attributes}},
    }
    return bool((api.create(REVIEWS, review).get("status") or {}).get("allowed"))


def named(
    api: Api, namespace: str, pods: Sequence[Mapping[str, Any]], made: Collection[str]
) -> Iterator[Finding]:
    """Report the Secrets and ConfigMaps that pods name and that are not there; `made`: those that the gang brings."""
    for kind, plural in (("Secret", "secrets"), ("ConfigMap", "configmaps")):
        for name in sorted({name for pod in pods for name in _names(pod, kind)} - set(made)):
            try:
                api.get(f"/api/v1/namespaces/{namespace}/{plural}/{name}")
            except BackendError as error:
                if error.status_code == 404:
                    fix = f"create it, or correct the name: kubectl get {plural} -n {namespace}"
                    yield Finding.failed(
                        kind.lower(), f"there is no {kind} {name} in namespace {namespace}", fix
                    )
                else:
                    yield Finding.warned(kind.lower(), f"{kind} {name} cannot be seen: {error}", ROLE)
            else:
                yield Finding.passed(kind.lower(), f"{kind} {name} is there")


def needed(
    api: Api,
    operator: Operator,
    objects: Sequence[tuple[str, str, str]],
    grace: float,
    *,
    replaces: bool = False,
) -> Iterator[Finding]:
    """Report which objects of an administrator are not there, or leave a node less than `grace` seconds to end.

    `objects`: path, name, remedy. `replaces`: whether a lost pod is to be created again alone: also what prevents that.
    """
    for path, name, remedy in objects:
        subject = name.partition(" ")[0]
        try:
            found = api.get(path)
        except BackendError as error:
            if error.status_code == 404:
                yield Finding.failed(subject, f"there is no {name}", remedy)
            else:
                yield Finding.warned(subject, f"{name} cannot be seen: {error}", remedy)
        else:
            yield Finding.passed(subject, f"{name} is there")
            given, why = operator.grace_of(found), operator.obstacle(found) if replaces else None
            if why is not None:
                yield Finding.warned(
                    "restarts.node",
                    f"{name}: {why}: a lost pod is created again only with all others",
                    f"name a runtime such as {REPLACING} in backend.runtime",
                )
            if given is not None and given < grace:
                yield Finding.warned(
                    "stop_grace",
                    f"{name} gives a node {given:g} s to end, but limits.stop_grace and the last save "
                    f"need {grace:g} s",
                    f"set terminationGracePeriodSeconds: {grace:g} in it, or name another in backend.runtime",
                )


REPLACING = "container/kubernetes/training-runtime-replacing.yaml"
REFERENCES = {
    "Secret": ("secretKeyRef", "secretRef", "secret"),
    "ConfigMap": ("configMapKeyRef", "configMapRef", "configMap"),
}
"""Keys by which a pod names objects of each kind."""


def _names(value: Any, kind: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in REFERENCES[kind] and isinstance(item, Mapping) and not item.get("optional"):
                found = item.get("name") or item.get("secretName")
                yield from [str(found)] if found else []
            elif key == "imagePullSecrets" and kind == "Secret" and isinstance(item, list | tuple):
                yield from (
                    str(each["name"]) for each in item if isinstance(each, Mapping) and "name" in each
                )
            else:
                yield from _names(item, kind)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _names(item, kind)
