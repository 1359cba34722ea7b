"""The types of request bodies, as the OCI SDK's models have them: other types are refused on arrival."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.emulator.errors import ApiError, invalid

FILE = Path(__file__).with_name("body_models.json")
"""File that `python -m scripts.emulator_models` writes."""
MAX_INTEGER = 2**63 - 1
MAX_NESTING = 100
"""Most lists and objects in one another; JSON that is nested deeper could be read, but not written again."""
LIST = re.compile(r"list\[(.+)\]")
MAP = re.compile(r"dict\(str, (.+)\)")
PARAMETER = re.compile(r"\{[^}]*\}")
PLAIN = {"str": (str, "a text"), "datetime": (str, "a time, as a text"), "bool": (bool, "true or false")}


def operation(method: str, template: str) -> str:
    """Return the name of an operation: the method, and the path without the names of its parameters."""
    return f"{method} {PARAMETER.sub('{}', template)}"


def model_of(method: str, template: str) -> str | None:
    """Return the model of the body that a route takes; None where the SDK has none."""
    bodies: dict[str, str] = _models()["bodies"]
    return bodies.get(operation(method, template))


def check(model: str, body: Mapping[str, Any]) -> None:
    """Raise 400 for the first field that is not of its type. Fields that no model has are ignored, as is null."""
    _check_model(model, body, "")


def is_too_deep(raw: bytes, body: Any) -> bool:
    """Return whether JSON is nested deeper than anything that the services store."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_NESTING:
        return False
    level = [body]
    for _ in range(MAX_NESTING):
        level = [each for value in level for each in _parts(value)]
        if not level:
            return False
    return True


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


@cache
def _models() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text()))


def _check_model(name: str, value: Mapping[str, Any], place: str) -> None:
    model = _models()["models"][name]
    fields = dict(model["fields"])
    choice = model.get("choices", {}).get(_text(value.get(model.get("discriminator"))))
    if choice is not None and choice != name:
        fields |= _models()["models"][choice]["fields"]
    for field, found in value.items():
        # ADS writes some names with a capital letter, and handlers understand it.
        wanted = fields.get(field) or fields.get(field[:1].lower() + field[1:])
        if wanted is not None and found is not None:
            _check(wanted, found, f"{place}.{field}" if place else field)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _check(wanted: str, value: Any, place: str) -> None:
    """Compare one value with a type in the notation of the SDK."""
    if listed := LIST.fullmatch(wanted):
        for number, each in enumerate(_of(list, value, place, "a list")):
            if each is not None:
                _check(listed[1], each, f"{place}[{number}]")
    elif mapped := MAP.fullmatch(wanted):
        for key, each in _of(dict, value, place, "an object").items():
            if each is not None:
                _check(mapped[1], each, f"{place}.{key}")
    elif wanted in PLAIN:
        _of(*PLAIN[wanted][:1], value, place, PLAIN[wanted][1])
    elif wanted == "int":
        _check_integer(value, place)
    elif wanted == "float":
        _check_number(value, place)
    elif wanted != "object":
        _check_model(wanted, _of(dict, value, place, "an object"), place)


def _of(kind: type, value: Any, place: str, described: str) -> Any:
    if not isinstance(value, kind):
        raise _refusal(place, described)
    return value


def _check_integer(value: Any, place: str) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or abs(value) > MAX_INTEGER:
        raise _refusal(place, "a whole number of at most 64 bits")


def _check_number(value: Any, place: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not -math.inf < value < math.inf or abs(value) > 1e308:
        raise _refusal(place, "a number that a double can hold")


def _refusal(place: str, wanted: str) -> ApiError:
    return invalid(f"{place[:200]} must be {wanted}.")
