"""Fields: which an object of a kind may have, and of what type.

A type is a text (`str`, `int`, `bool`, `float`, `quantity`, `object`, `int_or_str`, `list[T]`, `dict[str, T]`, or the
name of a type in field_types.json), a mapping of fields to types (with `...` also others may be there), or a list that
holds the type of its members.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.emulator.body_models import MAX_INTEGER
from airflow_provider_ocidist.emulator.kubernetes import statuses
from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind, Obj
from airflow_provider_ocidist.emulator.kubernetes.quantities import amount
from airflow_provider_ocidist.emulator.kubernetes.statuses import Problem

FILE = Path(__file__).with_name("field_types.json")
CONTAINER = re.compile(r"(list|dict)\[(?:str, ?)?(.+)\]")
SCALARS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "datetime": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "quantity": (str, int, float),
    "int_or_str": (str, int),
}
GO_NAMES = {"str": "string", "datetime": "Time", "int": "int32", "float": "float64", "bool": "bool"}
JSON_NAMES = {"str": "string", "datetime": "string", "int": "integer", "float": "number", "bool": "boolean"}
JSON_TYPES = {str: "string", bool: "bool", int: "number", float: "number", dict: "object", list: "array"}
ALWAYS: Mapping[str, Any] = {"apiVersion": "str", "kind": "str", "metadata": "V1ObjectMeta"}

Type = str | Mapping[Any, Any] | Sequence[Any]


@cache
def types() -> Mapping[str, Mapping[str, str]]:
    found: Mapping[str, Mapping[str, str]] = json.loads(FILE.read_text())
    return found


@dataclass(slots=True)
class Findings:
    """What was found in an object that its kind does not have."""

    unknown: list[str] = field(default_factory=list)
    """Paths of unknown fields."""
    mistyped: list[tuple[str, str, Any]] = field(default_factory=list)
    """Path, required type and value of each field of a wrong type."""


def checked(kind: Kind, obj: Obj, validation: str = "Warn") -> tuple[Obj, list[str]]:
    """Return an object without the fields that its kind does not have, and warnings of them.

    `validation` is the client's wish: Strict raises 400 for those fields, Warn warns of them, Ignore says nothing.
    Raises 400 (422 for custom kinds) for a value of a wrong type.
    """
    if kind.schema is None:
        return obj, []
    schema: Type = kind.schema if isinstance(kind.schema, str) else {**ALWAYS, **kind.schema}
    findings = Findings()
    pruned = _pruned(obj, schema, "", findings)
    if findings.mistyped:
        raise _mistyped(kind, obj, findings)
    problems = [f'unknown field "{path}"' for path in findings.unknown]
    if problems and validation == "Strict":
        raise statuses.bad_request(f"{_preface(kind)}: strict decoding error: {', '.join(problems)}")
    return pruned, problems if validation == "Warn" else []


def read(body: Any, schema: Type, name: str) -> Obj:
    """Return what a request that is no stored object says: the fields of a schema. Raises 400 for a wrong type."""
    findings = Findings()
    found: Obj = _pruned(body, schema, "", findings) if body is not None else {}
    if not isinstance(body, dict | None) or findings.mistyped:
        path = findings.mistyped[0][0] if findings.mistyped else ""
        text = f"{name} cannot be handled: {path or 'the body'} is of another type"
        raise statuses.bad_request(text)
    return found


def _preface(kind: Kind) -> str:
    return f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}'


def _mistyped(kind: Kind, obj: Obj, findings: Findings) -> statuses.KubernetesError:
    if kind.is_custom:
        problems = [
            Problem(path, f"Invalid value: {json.dumps(_name(value))}: {path} in body must be of type"
                    f" {JSON_NAMES.get(wanted, wanted)}: {json.dumps(_name(value))}")
            for path, wanted, value in findings.mistyped
        ]  # fmt: skip
        return statuses.unprocessable(kind.title, obj["metadata"].get("name", ""), problems)
    path, wanted, value = findings.mistyped[0]
    if wanted == "quantity":
        return statuses.bad_request(f"{_preface(kind)}: quantities must match the regular expression: {path}")
    text = f"json: cannot unmarshal {_name(value)} into Go struct field {kind.name}.{path} of type"
    return statuses.bad_request(f"{_preface(kind)}: {text} {GO_NAMES.get(wanted, wanted)}")


def _name(value: Any) -> str:
    return JSON_TYPES.get(type(value), "null")


def _pruned(value: Any, type_: Type, path: str, findings: Findings) -> Any:
    if value is None or type_ == "object":
        return value
    if isinstance(type_, str):
        if match := CONTAINER.fullmatch(type_):
            return _pruned_members(value, match[1], match[2], path, findings)
        if type_ in SCALARS:
            if not _is(value, type_):
                findings.mistyped.append((path, type_, value))
            return value
    if isinstance(type_, list):
        return _pruned_members(value, "list", type_[0], path, findings)
    fields = type_ if isinstance(type_, Mapping) else types().get(str(type_), {})
    return _pruned_fields(value, fields, path, findings)


def _is(value: Any, scalar: str) -> bool:
    if not isinstance(value, SCALARS[scalar]) or isinstance(value, bool) != (scalar == "bool"):
        return False
    if scalar == "quantity":
        return _is_quantity(value)
    # Inside JSON a number can be larger than Go's types.
    return not isinstance(value, int) or abs(value) <= MAX_INTEGER


def _is_quantity(value: Any) -> bool:
    try:
        amount(value)
    except ValueError:
        return False
    return True


def _pruned_members(value: Any, holder: str, member: Type, path: str, findings: Findings) -> Any:
    if type(value).__name__ != holder:
        findings.mistyped.append((path, "array" if holder == "list" else "object", value))
        return value
    if holder == "list":
        return [_member(each, member, f"{path}[{index}]", findings) for index, each in enumerate(value)]
    return {name: _member(each, member, _below(path, name), findings) for name, each in value.items()}


def _member(value: Any, type_: Type, path: str, findings: Findings) -> Any:
    """Return what a member of a list or map is; null is an empty text there, and nothing else."""
    if value is None and type_ == "str":
        return ""
    if value is None:
        findings.mistyped.append((path, str(type_), value))
    return _pruned(value, type_, path, findings)


def _pruned_fields(value: Any, fields: Mapping[Any, Any], path: str, findings: Findings) -> Any:
    if not isinstance(value, dict):
        findings.mistyped.append((path, "object", value))
        return value
    if not fields:
        return value
    if ... not in fields:
        findings.unknown += [_below(path, name) for name in value if name not in fields]
    return dict(_known(value, fields, path, findings))


def _known(value: Obj, fields: Mapping[Any, Any], path: str, findings: Findings) -> Iterator[tuple[str, Any]]:
    """Yield the fields that are known. One that is null is one that is not there."""
    for name, each in value.items():
        if (name in fields or ... in fields) and each is not None:
            yield name, _pruned(each, fields.get(name, "object"), _below(path, name), findings)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
