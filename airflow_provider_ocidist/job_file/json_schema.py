"""The JSON Schema of our YAML, generated from the dataclasses; `python -m` writes it beside this file."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import re
import sys
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.job_file.candidates import HOMES_OF_OTHERS, MOST_CANDIDATES, THE_SAME_EVERYWHERE
from airflow_provider_ocidist.job_file.hints import hints_of, is_optional, metadata_of, plain_of, required_of
from airflow_provider_ocidist.model.field_limits import Above, AtLeast, Duration
from airflow_provider_ocidist.model.job import TrainingJob

SCHEMA_FILE = Path(__file__).with_name("job.schema.json")
JINJA = {"$ref": "#/definitions/Jinja"}
TEXT = {"$ref": "#/definitions/Text"}
SIMPLE = {
    "Jinja": {"type": "string", "pattern": r"\{[{%]", "description": "Jinja, which Airflow fills in."},
    "Text": {"type": ["string", "number"], "description": "Text; a number is taken as it is written."},
}


def json_schema() -> dict[str, Any]:
    """Return the schema, of draft 7, which editors understand best. Imports every backend, for its options."""
    definitions: dict[str, Any] = {}
    job = _section(TrainingJob, definitions)
    job["properties"]["backend"] = _backend(definitions)
    job["required"].remove("backend")
    number = job["properties"]["nodes"]["anyOf"]
    job["properties"]["nodes"]["anyOf"] = [
        *number,
        {
            "type": "object",
            "properties": {"min": {"anyOf": number}, "max": {"anyOf": number}},
            "required": ["min", "max"],
            "additionalProperties": False,
        },
    ]
    launcher = definitions["LauncherOptions"]["properties"]["kind"]
    launcher["anyOf"] = [{"enum": kinds.names("launchers")}, JINJA]
    del launcher["allOf"]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "ocidist job file",
        **job,
        # A program is required, unless the container's start is set.
        "if": {"not": {"required": ["container"]}},
        "then": {"required": ["program"], "properties": {"program": {"required": ["script"]}}},
        "definitions": dict(sorted({**SIMPLE, **definitions}.items())),
    }


def descriptions(cls: type[Any]) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields, in one line each; those of its base first."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _docstrings(base)
    return found


def _section(cls: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    texts = descriptions(cls)
    properties = {}
    for item in dataclasses.fields(cls):
        schema = _value(hints_of(cls)[item.name], definitions)
        text = texts.get(item.name) or _of_its_items(hints_of(cls)[item.name])
        description = {"description": text} if text else {}
        properties[item.name] = {**_with_siblings(schema, description), **_default(item)}
    return {
        "description": " ".join((inspect.getdoc(cls) or "").split()),
        "type": "object",
        "properties": properties,
        "required": required_of(cls),
        "additionalProperties": False,
    }


def _of_its_items(hint: Any) -> str:
    """Return the docstring of the class of a list's sections; empty for a list of single values."""
    item = next(iter(typing.get_args(plain_of(hint))), None)
    return " ".join((inspect.getdoc(item) or "").split()) if dataclasses.is_dataclass(item) else ""


def _value(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = _present(plain_of(hint), metadata_of(hint), definitions)
    if not is_optional(hint):
        return schema
    return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}


def _present(plain: Any, notes: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(plain), typing.get_args(plain)
    for length in [note for note in notes if isinstance(note, Duration)]:
        duration = length.__get_pydantic_json_schema__(None, dict)
        return {"anyOf": [*duration["anyOf"], JINJA]}
    if dataclasses.is_dataclass(plain):
        name = typing.cast("type[Any]", plain).__name__
        if name not in definitions:
            definitions[name] = {}
            definitions[name].update(_section(typing.cast("type[Any]", plain), definitions))
        return {"$ref": f"#/definitions/{name}"}
    if origin is Literal:
        return _or_jinja({"enum": list(arguments)})
    if origin is tuple:
        return {"type": "array", "items": _value(arguments[0], definitions)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _value(arguments[1], definitions)}
    if plain is str:
        return dict(TEXT)
    if plain is Any:
        return {}
    schema: dict[str, Any] = {"type": {int: "integer", float: "number", bool: "boolean"}[plain]}
    for note in [note for note in notes if isinstance(note, AtLeast)]:
        schema["minimum"] = note.minimum
    for bound in [note for note in notes if isinstance(note, Above)]:
        schema["exclusiveMinimum"] = bound.limit
    return _or_jinja(schema)


def _or_jinja(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, JINJA]}


def _with_siblings(schema: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with more keys; draft 7 ignores keys beside a reference."""
    return {"allOf": [schema], **more} if "$ref" in schema and more else {**schema, **more}


def _default(item: dataclasses.Field[Any]) -> dict[str, Any]:
    value = item.default
    return {"default": value} if isinstance(value, bool | int | float | str) and value != "" else {}


def _backend(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a choice by kind; the first is the default."""
    choices = []
    for kind in sorted(kinds.names("backends"), key=lambda name: name != kinds.DEFAULT_BACKEND):
        options = kinds.load("backends", kind).OPTIONS
        section = _section(options, definitions)
        section["properties"]["kind"] = {"enum": [kind], "description": "Where to run."}
        section["required"] = [] if kind == kinds.DEFAULT_BACKEND else ["kind"]
        section["properties"]["candidates"] |= {
            "items": _candidate(kind, section["properties"], options.__name__),
            "maxItems": MOST_CANDIDATES,
        }
        definitions[options.__name__] = section
        choices.append({"$ref": f"#/definitions/{options.__name__}"})
    definitions.pop("BackendOptions", None)
    return {"description": "Where to run.", "oneOf": choices}


def _candidate(kind: str, keys: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what a candidate may change in the section of a kind of backend, whose definition has this name."""
    fixed = {*THE_SAME_EVERYWHERE, *([] if kind in HOMES_OF_OTHERS else ["conn_id"])}
    return {
        "type": "object",
        "properties": {
            key: {"$ref": f"#/definitions/{name}/properties/{key}"} for key in keys if key not in fixed
        },
        "minProperties": 1,
        "additionalProperties": False,
    }


@cache
def _module(name: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[name]))


def _docstrings(cls: type[Any]) -> dict[str, str]:
    (body,) = [
        node.body
        for node in _module(cls.__module__).body
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    ]
    found = {}
    for statement, after in itertools.pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match after:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    found[statement.target.id] = re.sub(r"\s+", " ", text.strip())
    return found


def schema_text() -> str:
    """Return the text of `job.schema.json`."""
    return json.dumps(json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
