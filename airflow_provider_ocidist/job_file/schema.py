"""Mapping -> dataclass, with all problems in readable messages."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import json
import re
import shlex
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.job_file.hints import (
    hint_at,
    hints_of,
    is_optional,
    metadata_of,
    plain_of,
    required_of,
)
from airflow_provider_ocidist.model.field_limits import Above, AtLeast, Duration
from airflow_provider_ocidist.model.job import is_placeholder
from airflow_provider_ocidist.storage import locations

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, SchemaValidator

T = TypeVar("T")
PLACEHOLDER = "{{ }}"
"""Text in place of an invalid one; like every Jinja placeholder it is not checked further."""

WORD = re.compile(r"[A-Za-z./-][\w./=-]*|--?[A-Za-z][\w./=-]*")
"""Texts that YAML reads as they are, but for `READ_AS_OTHERS`."""
READ_AS_OTHERS = ("yes", "no", "true", "false", "on", "off", "null", "-", ".inf", "-.inf", ".nan")

_VALIDATORS: dict[type[Any], SchemaValidator] = {}
"""Validators by class; creating one takes longer than all checks with it."""


def check(
    cls: type[T],
    value: Mapping[str, Any],
    at: str = "",
    homes: Mapping[str, str] | None = None,
    *,
    templates: bool = False,
) -> tuple[T, list[Problem]]:
    """Return the dataclass that a mapping describes, and its problems.

    The mapping holds dicts with text as keys, lists, and single values. Invalid ones are replaced by valid
    ones, so that rules across fields can still check all the others. `at` is the path of the mapping;
    `homes` maps each key to its section. With `templates`, a Jinja placeholder is valid
    for any single value, and is replaced by a valid one.
    """
    from pydantic_core import ValidationError

    try:
        return typing.cast("T", _validator(cls).validate_python(value)), []
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)
    problems = [
        Problem(_dotted(at, error), _message(cls, error, homes or {}))
        for error in errors
        if not (templates and _stands_for_a_value(cls, error))
    ]
    return typing.cast("T", _validator(cls).validate_python(_repaired(cls, value, errors))), problems


def unknown_key(key: str, known: Sequence[str], homes: Mapping[str, str] | None = None) -> str:
    """Return the message for an unknown key."""
    near = difflib.get_close_matches(key, known, n=1)
    if near:
        return f"unknown key {key!r}; did you mean {near[0]!r}?"
    if homes and key in homes:
        return f"unknown key {key!r}; it belongs {f'in {homes[key]!r}' if homes[key] else 'at the top'}"
    return f"unknown key {key!r}; there are {', '.join(known)}"


def value_shown(value: Any) -> str:
    """Return an invalid value for a message: short, and never the content of a section."""
    match value:
        case bool():
            return "true (YAML reads yes and on so too)" if value else "false (YAML reads no and off so too)"
        case str():
            text = locations.shown(value)
            return repr(text if len(text) <= 40 else f"{text[:37]}...")
        case int() | float():
            return str(value)
        case Mapping():
            return "a section"
        case list() | tuple():
            return "a list"
    return f"a {type(value).__name__}"


@functools.cache
def section_homes(cls: type[Any]) -> Mapping[str, str]:
    """Return the section that each key of a dataclass and of the sections in it belongs to; the top wins."""
    sections = {name: plain_of(hint) for name, hint in hints_of(cls).items()}
    inner = {
        key: name
        for name, section in reversed(sections.items())
        if dataclasses.is_dataclass(section)
        for key in hints_of(typing.cast("type[Any]", section))
    }
    return inner | dict.fromkeys(sections, "")


def optional_sections(cls: type[Any]) -> tuple[str, ...]:
    """Return the sections that a dataclass has only where they are written."""
    hints = hints_of(cls)
    return tuple(
        name for name, hint in hints.items() if is_optional(hint) and dataclasses.is_dataclass(plain_of(hint))
    )


def _validator(cls: type[Any]) -> SchemaValidator:
    if cls not in _VALIDATORS:
        from pydantic import TypeAdapter
        from pydantic_core import SchemaValidator

        _VALIDATORS[cls] = SchemaValidator(_strict(TypeAdapter(cls).core_schema))
    return _VALIDATORS[cls]


def _strict(schema: Any) -> Any:
    """Return the schema without the conversions that hide mistakes: `yes` is not 1, and `"2"` not 2.

    Fully strict it would refuse valid values: lists for tuples, numbers for text.
    """
    from pydantic_core import core_schema

    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(part) for key, part in schema.items()}
    if schema.get("type") == "bool":
        return core_schema.no_info_before_validator_function(_from_text, strict | {"strict": True})
    return strict | {"strict": True} if schema.get("type") in ("int", "float") else strict


def _from_text(value: Any) -> Any:
    """Return the boolean that Jinja has rendered as text."""
    return (
        {"True": True, "true": True, "False": False, "false": False}.get(value, value)
        if isinstance(value, str)
        else value
    )


def _stands_for_a_value(cls: type[Any], error: ErrorDetails) -> bool:
    if error["type"] == "unexpected_keyword_argument" or not _is_template(error["input"]):
        return False
    bare = plain_of(hint_at(cls, error["loc"]))
    return bare in (int, float, bool) or typing.get_origin(bare) is Literal


def _is_template(value: Any) -> bool:
    return isinstance(value, str) and is_placeholder(value)


def _dotted(at: str, error: ErrorDetails) -> str:
    return ".".join(str(part) for part in ((at,) if at else ()) + error["loc"])


def _message(cls: type[Any], error: ErrorDetails, homes: Mapping[str, str]) -> str:
    *above, last = error["loc"] or ("",)
    if error["type"] == "missing":
        return "is needed"
    if error["type"] == "unexpected_keyword_argument":
        return unknown_key(str(last), list(hints_of(plain_of(hint_at(cls, above)))), homes)
    expected, value = _expected(hint_at(cls, error["loc"])), error["input"]
    if value is None:
        return f"is empty, and must be {expected}"
    return f"must be {expected}, not {value_shown(value)}{_advice(expected, value)}"


def _advice(expected: str, value: Any) -> str:
    if _is_template(value):
        return ": only Airflow fills it in"
    if isinstance(value, bool) and expected == "text":
        return ": put it in quotes"
    if isinstance(value, str) and "number" in expected and value.replace(".", "", 1).isdigit():
        return ": remove the quotes"
    if isinstance(value, str) and value and value_shown(value) == repr(value):
        return _correction(expected, value)
    return ""


def _correction(expected: str, value: str) -> str:
    """Return how a text is written that stands in place of a list, or of a section with its kind."""
    if expected == "a list":
        try:
            return f": write [{', '.join(map(_item, shlex.split(value)))}]"
        except ValueError:
            return ""
    if expected.startswith("a section with kind,") and WORD.fullmatch(value):
        return f": write {{kind: {value}}}"
    return ""


def _item(text: str) -> str:
    """Return a text as an item of a list in YAML, in quotes where it would be read as something else."""
    return text if WORD.fullmatch(text) and text.lower() not in READ_AS_OTHERS else json.dumps(text)


def _expected(hint: Any) -> str:
    bare, metadata = plain_of(hint), metadata_of(hint)
    duration = next((item for item in metadata if isinstance(item, Duration)), None)
    if duration is not None:
        return f"a number of seconds{', 0 or' if duration.zero else ''} above 0, or as 90s, 15m, 2h, 1d"
    least = next((f" of at least {item.minimum:g}" for item in metadata if isinstance(item, AtLeast)), "")
    least = next((f" above {item.limit:g}" for item in metadata if isinstance(item, Above)), least)
    if typing.get_origin(bare) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(bare)))
    if dataclasses.is_dataclass(bare):
        return f"a section with {', '.join(hints_of(typing.cast('type[Any]', bare)))}"
    words = {int: f"a whole number{least}", float: f"a number{least}", bool: "true or false", str: "text"}
    return words.get(bare) or (
        "a list" if typing.get_origin(bare) is tuple else "a section of names and values"
    )


def _repaired(cls: type[Any], value: Mapping[str, Any], errors: Sequence[ErrorDetails]) -> Any:
    repaired = copy.deepcopy(dict(value))
    for error in errors:
        *above, last = error["loc"]
        holder: Any = repaired
        for part in above:
            holder = holder[part]
        if error["type"] == "unexpected_keyword_argument":
            del holder[last]
        else:
            holder[last] = _harmless(hint_at(cls, error["loc"]))
    return repaired


def _harmless(hint: Any) -> Any:
    bare, metadata = plain_of(hint), metadata_of(hint)
    if typing.get_origin(bare) is Literal:
        return typing.get_args(bare)[0]
    if dataclasses.is_dataclass(bare):
        cls = typing.cast("type[Any]", bare)
        return {name: _harmless(hints_of(cls)[name]) for name in required_of(cls)}
    least = next((item.minimum for item in metadata if isinstance(item, AtLeast)), 1)
    simple = {int: int(least), float: float(least), bool: False, str: PLACEHOLDER}
    return simple[bare] if bare in simple else () if typing.get_origin(bare) is tuple else {}
