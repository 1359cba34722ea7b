"""Discovery: what this API server serves, in the forms that clients ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj

VERSION = {
    "major": "1",
    "minor": "33",
    "gitVersion": "v1.33.4+ocidist",
    "gitCommit": "0",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
AGGREGATED = "as=APIGroupDiscoveryList"
SUBRESOURCES = {
    "Pod": (("log", "Pod", ("get",)), ("eviction", "Eviction", ("create",))),
    "ServiceAccount": (("token", "TokenRequest", ("create",)),),
}
"""Parts of each kind besides `status`: name, kind, verbs."""
IN_ALL = ("Pod", "Service", "Job")
"""Kinds that `kubectl get all` shows."""
REVIEWS = (
    ("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "SelfSubjectRulesReview", "selfsubjectrulesreviews"),
    ("authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews"),
)
"""Kinds that can only be created, and are answered at once."""
REVIEW_KINDS = tuple(
    Kind(name=name, plural=plural, group=group, namespaced=False) for group, name, plural in REVIEWS
)


def versions(server: str) -> Obj:
    """Answer /api."""
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": server}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def group_list(kinds: Sequence[Kind]) -> Obj:
    """Answer /apis."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [group(name, kinds) for name in groups(kinds)],
    }


def groups(kinds: Sequence[Kind]) -> list[str]:
    return list(dict.fromkeys(kind.group for kind in _all(kinds) if kind.group))


def _all(kinds: Iterable[Kind]) -> list[Kind]:
    return [*kinds, *REVIEW_KINDS]


def group(name: str, kinds: Sequence[Kind]) -> Obj:
    """Answer /apis/{group}."""
    found = dict.fromkeys(kind.version for kind in _all(kinds) if kind.group == name)
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in found]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": versions,
        "preferredVersion": versions[0],
    }


def resource_list(api_version: str, kinds: Sequence[Kind]) -> Obj | None:
    """Answer /api/v1 and /apis/{group}/{version}; None where there is no such version."""
    own = [kind for kind in _all(kinds) if kind.api_version == api_version]
    if not own:
        return None
    resources = [each for kind in own for each in _resources(kind)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api_version,
        "resources": resources,
    }


def _categories(kind: Kind) -> Obj:
    return {"categories": ["all"]} if kind.name in IN_ALL else {}


def _resources(kind: Kind) -> Iterable[Obj]:
    verbs = ("create",) if kind in REVIEW_KINDS else VERBS
    yield {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.name,
        "verbs": list(verbs),
        **({"shortNames": list(kind.short_names)} if kind.short_names else {}),
        **_categories(kind),
    }
    for name, of_kind, own_verbs in subresources(kind):
        yield {
            "name": f"{kind.plural}/{name}",
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": of_kind,
            "verbs": list(own_verbs),
        }


def subresources(kind: Kind) -> Sequence[tuple[str, str, Sequence[str]]]:
    status = (("status", kind.name, ("get", "patch", "update")),) if kind.has_status else ()
    return (*status, *SUBRESOURCES.get(kind.name, ()))


def aggregated(kinds: Sequence[Kind], *, core: bool) -> Obj:
    """Answer /api or /apis for clients that want all of it at once."""
    names = [""] if core else groups(kinds)
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [_aggregated_group(name, kinds) for name in names],
    }


def _aggregated_group(name: str, kinds: Sequence[Kind]) -> Obj:
    own = [kind for kind in _all(kinds) if kind.group == name]
    return {
        "metadata": {"name": name} if name else {},
        "versions": [
            {
                "version": version,
                "freshness": "Current",
                "resources": [_aggregated_kind(kind) for kind in own if kind.version == version],
            }
            for version in dict.fromkeys(kind.version for kind in own)
        ],
    }


def _aggregated_kind(kind: Kind) -> Obj:
    return {
        "resource": kind.plural,
        "responseKind": _response_kind(kind, kind.name),
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(("create",) if kind in REVIEW_KINDS else VERBS),
        **({"shortNames": list(kind.short_names)} if kind.short_names else {}),
        **_categories(kind),
        "subresources": [
            {"subresource": name, "responseKind": _response_kind(kind, of_kind), "verbs": list(verbs)}
            for name, of_kind, verbs in subresources(kind)
        ],
    }


def _response_kind(kind: Kind, name: str) -> Obj:
    return {"group": kind.group, "version": kind.version, "kind": name}


def openapi_index(kinds: Sequence[Kind]) -> Obj:
    """Answer /openapi/v3."""
    places = dict.fromkeys(_place(kind) for kind in kinds)
    return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places}}


def _place(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def openapi(place: str, kinds: Sequence[Kind]) -> Obj | None:
    """Answer /openapi/v3/{place}: that fields may be validated here, and custom kinds' fields; None: no such place."""
    own = [kind for kind in kinds if _place(kind) == place]
    if not own:
        return None
    schemas = {_schema_name(kind): _schema(kind) for kind in own}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": dict(_operations(kind) for kind in own),
        "components": {"schemas": schemas},
    }


def _schema_name(kind: Kind) -> str:
    return f"io.k8s.{kind.group or 'core'}.{kind.version}.{kind.name}"


def _schema(kind: Kind) -> Obj:
    named = [{"group": kind.group, "version": kind.version, "kind": kind.name}]
    return {
        "type": "object",
        "x-kubernetes-group-version-kind": named,
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            **_parts(kind),
        },
    }


def _parts(kind: Kind) -> Obj:
    """Return the parts of a custom kind whose fields are written out, with the names of these fields."""
    written = kind.schema if kind.is_custom and isinstance(kind.schema, Mapping) else {}
    anything = {"x-kubernetes-preserve-unknown-fields": True}
    return {
        name: {"type": "object", "properties": {field: anything for field in fields if field is not ...}}
        for name, fields in written.items()
        if isinstance(fields, Mapping)
    }


def _operations(kind: Kind) -> tuple[str, Obj]:
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string"}} for name in ("dryRun", "fieldValidation")
    ]
    named = {"group": kind.group, "version": kind.version, "kind": kind.name}
    namespaces = "/namespaces/{namespace}" if kind.namespaced else ""
    operations = {
        method: {
            "parameters": parameters,
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": method,
            "x-kubernetes-group-version-kind": named,
        }
        for method in ("post", "put", "patch")
    }
    return f"/{_place(kind)}{namespaces}/{kind.plural}/{{name}}", operations
