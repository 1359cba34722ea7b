"""Protobuf: the requests that kubectl's typed clients send in no other form; answers are JSON for them, too.

Numbers of fields are those of `generated.proto` in k8s.io/api and k8s.io/apimachinery.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError

MAX_SHIFT = 70
"""Bits of the ten bytes, with seven each, that a number of 64 bits takes at most."""
MAGIC = b"k8s\0"
Fields = Mapping[int, tuple[str, Any]]
"""Name and type of each field by its number: a scalar, `map`, `bytes_map`, or the fields of a message; in a list: many
of them."""

META: Fields = {
    1: ("name", "str"),
    2: ("generateName", "str"),
    3: ("namespace", "str"),
    6: ("resourceVersion", "str"),
    11: ("labels", "map"),
    12: ("annotations", "map"),
    14: ("finalizers", ["str"]),
}
RULE: Fields = {
    1: ("verbs", ["str"]),
    2: ("apiGroups", ["str"]),
    3: ("resources", ["str"]),
    4: ("resourceNames", ["str"]),
    5: ("nonResourceURLs", ["str"]),
}
SUBJECT: Fields = {1: ("kind", "str"), 2: ("apiGroup", "str"), 3: ("name", "str"), 4: ("namespace", "str")}
ROLE_REF: Fields = {1: ("apiGroup", "str"), 2: ("kind", "str"), 3: ("name", "str")}
RESOURCE: Fields = dict(
    enumerate(
        [
            (name, "str")
            for name in ("namespace", "verb", "group", "version", "resource", "subresource", "name")
        ],
        1,
    )
)
BINDING: Fields = {1: ("metadata", META), 2: ("subjects", [SUBJECT]), 3: ("roleRef", ROLE_REF)}
ROLE: Fields = {1: ("metadata", META), 2: ("rules", [RULE])}
KINDS: Mapping[str, Fields] = {
    "ConfigMap": {
        1: ("metadata", META),
        2: ("data", "map"),
        3: ("binaryData", "bytes_map"),
        4: ("immutable", "bool"),
    },
    "Secret": {
        1: ("metadata", META),
        2: ("data", "bytes_map"),
        3: ("type", "str"),
        4: ("stringData", "map"),
        5: ("immutable", "bool"),
    },
    "Namespace": {1: ("metadata", META)},
    "ServiceAccount": {1: ("metadata", META)},
    "Role": ROLE,
    "ClusterRole": ROLE,
    "RoleBinding": BINDING,
    "ClusterRoleBinding": BINDING,
    "SelfSubjectAccessReview": {1: ("metadata", META), 2: ("spec", {1: ("resourceAttributes", RESOURCE)})},
    "SelfSubjectRulesReview": {1: ("metadata", META), 2: ("spec", {1: ("namespace", "str")})},
    "SelfSubjectReview": {1: ("metadata", META)},
    "TokenRequest": {1: ("metadata", META), 2: ("spec", {4: ("expirationSeconds", "int")})},
    "DeleteOptions": {
        1: ("gracePeriodSeconds", "int"),
        4: ("propagationPolicy", "str"),
        5: ("dryRun", ["str"]),
    },
}


def decode(data: bytes) -> Obj:
    """Return a request's object. Raises 415 for a kind that is not known here, 400 for what is no protobuf."""
    envelope = {1: ("type", {1: ("apiVersion", "str"), 2: ("kind", "str")}), 2: ("raw", "raw")}
    try:
        if not data.startswith(MAGIC):
            raise ValueError("it does not begin as Kubernetes' protobuf does")
        unknown = _message(data[len(MAGIC) :], envelope)
        kind = unknown["type"]["kind"]
        if kind not in KINDS:
            text = f"the emulator reads {kind} as JSON and YAML only, not as protobuf"
            raise KubernetesError(415, "UnsupportedMediaType", text)
        return {**unknown["type"], **_message(unknown.get("raw", b""), KINDS[kind])}
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise KubernetesError(400, "BadRequest", f"the body is not protobuf: {error}") from error


def _message(data: bytes, fields: Fields) -> Obj:
    found: Obj = {}
    for number, value in _entries(data):
        if number not in fields:
            continue
        name, type_ = fields[number]
        if isinstance(type_, list):
            found.setdefault(name, []).append(_value(value, type_[0]))
        elif type_ in ("map", "bytes_map"):
            entry = _message(value, {1: ("key", "str"), 2: ("value", "str" if type_ == "map" else "bytes")})
            found.setdefault(name, {})[entry.get("key", "")] = entry.get("value", "")
        else:
            found[name] = _value(value, type_)
    # Empty texts and maps of Go are no fields at all.
    return {name: value for name, value in found.items() if value != ""}


def _value(value: Any, type_: Any) -> Any:
    if isinstance(type_, Mapping):
        return _message(value, type_)
    if type_ == "str":
        return value.decode()
    if type_ == "bytes":
        return base64.b64encode(value).decode()
    return bool(value) if type_ == "bool" else value


def _entries(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and raw value of each field: a number, or bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        wire = key & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield key >> 3, value
        elif wire in (1, 5):
            position += 8 if wire == 1 else 4
        elif wire == 2:
            length, position = _varint(data, position)
            if position + length > len(data):
                raise ValueError("a field is longer than the message")
            yield key >> 3, data[position : position + length]
            position += length
        else:
            raise ValueError(f"there is no wire type {wire}")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < MAX_SHIFT:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    raise ValueError("a number is longer than 64 bits")
