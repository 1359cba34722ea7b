"""Selectors: which objects a client wants, by labels and by fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.statuses import bad_request

Test = Callable[[Mapping[str, str]], bool]

MAX_REQUIREMENTS = 100
"""Most requirements of one selector: all objects are compared with each."""
SET_BASED = re.compile(r"(?P<key>\S+)\s+(?P<verb>in|notin)\s*\((?P<values>[^()]*)\)")
EQUALITY = re.compile(r"(?P<key>[^\s=!,()]+)\s*(?P<sign>==|=|!=)\s*(?P<value>[^\s=!,()]*)")
EXISTENCE = re.compile(r"(?P<absent>!?)\s*(?P<key>[^\s=!,()]+)")
FIELDS: Mapping[str, Sequence[str]] = {
    "Pod": [
        *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
        *("status.phase", "status.podIP"),
    ],
    "Event": [
        *(
            f"involvedObject.{name}"
            for name in ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath")
        ),
        *("reason", "type", "reportingComponent", "source"),
    ],
    "Secret": ["type"],
    "Namespace": ["status.phase"],
    "Node": ["spec.unschedulable"],
    "Job": ["status.successful"],
}
"""Fields of each kind that can be selected by, besides name and namespace."""


def labels(text: str) -> Test:
    """Return a test for labels. Raises 400 for a selector that is none."""
    tests = [_requirement(part) for part in _parts(text)]
    return lambda found: all(test(found) for test in tests)


def _parts(text: str) -> Sequence[str]:
    """Split at commas that are not between brackets."""
    found, inside = [""], False
    for piece in re.split(r"([(),])", text):
        inside = piece == "(" or (inside and piece != ")")
        if piece == "," and not inside:
            found.append("")
        else:
            found[-1] += piece
    parts = [part.strip() for part in found if part.strip()]
    if len(parts) > MAX_REQUIREMENTS:
        raise bad_request(f"a selector may have {MAX_REQUIREMENTS} requirements")
    return parts


def _requirement(text: str) -> Test:
    if match := SET_BASED.fullmatch(text):
        return _in_set(match["key"], match["verb"], {value.strip() for value in match["values"].split(",")})
    if match := EQUALITY.fullmatch(text):
        key, value = match["key"], match["value"]
        if match["sign"] == "!=":
            return lambda found: found.get(key) != value
        return lambda found: found.get(key) == value
    if match := EXISTENCE.fullmatch(text):
        key, wanted = match["key"], not match["absent"]
        return lambda found: (key in found) == wanted
    raise bad_request(f"unable to parse requirement: {text!r:.200} is not a selector")


def _in_set(key: str, verb: str, values: set[str]) -> Test:
    if verb == "in":
        return lambda found: found.get(key) in values
    return lambda found: found.get(key) not in values


def of_object(selector: Mapping[str, Any]) -> Test:
    """Return the test of a `LabelSelector` in an object; an empty one takes all."""
    wanted = selector.get("matchLabels") or {}
    tests: list[Test] = [lambda found: all(found.get(key) == value for key, value in wanted.items())]
    tests += [_expression(each) for each in selector.get("matchExpressions") or ()]
    return lambda found: all(test(found) for test in tests)


def _expression(expression: Mapping[str, Any]) -> Test:
    key, verb = expression["key"], expression["operator"]
    if verb in ("Exists", "DoesNotExist"):
        return lambda found: (key in found) == (verb == "Exists")
    return _in_set(key, verb.lower(), set(expression.get("values") or ()))


def fields(text: str, kind: str) -> Callable[[Obj], bool]:
    """Return a test for objects of a kind. Raises 400 for a field that it cannot be selected by."""
    tests: list[Callable[[Obj], bool]] = []
    for part in _parts(text):
        match = EQUALITY.fullmatch(part)
        if match is None:
            raise bad_request(f"invalid selector: {part!r:.200}; can't understand {part!r:.200}")
        if match["key"] not in ("metadata.name", "metadata.namespace", *FIELDS.get(kind, ())):
            raise bad_request(f"field label not supported: {match['key']}")
        tests.append(_field(match["key"].split("."), match["value"], match["sign"] != "!="))
    return lambda obj: all(test(obj) for test in tests)


def _field(path: Sequence[str], value: str, wanted: bool) -> Callable[[Obj], bool]:
    return lambda obj: (_text_at(obj, path) == value) == wanted


def _text_at(obj: Obj, path: Sequence[str]) -> str:
    found: Any = obj
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return "" if found is None else str(found).lower() if isinstance(found, bool) else str(found)
