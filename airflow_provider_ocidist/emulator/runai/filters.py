"""Filters and pages of lists: `filterBy`, `offset`, `limit`, `sortBy`, `sortOrder`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.emulator.runai.refusals import bad_request
from airflow_provider_ocidist.emulator.wire import whole_number

OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": lambda value, wanted: bool(value == wanted),
    "!=": lambda value, wanted: bool(value != wanted),
    "<=": lambda value, wanted: bool(value <= wanted),
    ">=": lambda value, wanted: bool(value >= wanted),
    "=@": lambda value, wanted: wanted in str(value),
    "!@": lambda value, wanted: wanted not in str(value),
    "=^": lambda value, wanted: str(value).startswith(wanted),
    "=$": lambda value, wanted: str(value).endswith(wanted),
}
FILTER = re.compile(r"(?P<field>[A-Za-z]+)(?P<operator>==|!=|<=|>=|=@|!@|=\^|=\$)(?P<value>.+)")
DEFAULT_LIMIT, MAX_LIMIT = 50, 500
MAX_FILTERS = 100
MAX_SHOWN = 200
Test = Callable[[Mapping[str, Any]], bool]


def page(
    items: Iterable[Mapping[str, Any]], query: Mapping[str, str], fields: Sequence[str], name: str
) -> dict[str, Any]:
    """Return a page of the items that fit, under a name, and `next`, the offset of the following page, if any.

    Raises the refusal 400 for parameters that the control plane does not know.
    """
    tests = _tests(query.get("filterBy", ""), fields)
    fitting = [item for item in items if all(test(item) for test in tests)]
    by = query.get("sortBy")
    if by is not None and by not in fields:
        raise bad_request(f"sortBy must be one of {', '.join(fields)}")
    fitting.sort(
        key=lambda item: str(item.get(by or "createdAt") or ""), reverse=query.get("sortOrder") == "desc"
    )
    offset, limit = (
        _number(query, "offset", 0, 0, 10**9),
        _number(query, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT),
    )
    found = fitting[offset : offset + limit]
    following = {"next": offset + limit} if offset + limit < len(fitting) else {}
    return {name: found, **following}


def _tests(text: str, fields: Sequence[str]) -> list[Test]:
    parts = [part for part in text.split(",") if part]
    if len(parts) > MAX_FILTERS:
        raise bad_request(f"filterBy may have at most {MAX_FILTERS} filters")
    return [_test(part, fields) for part in parts]


def _test(text: str, fields: Sequence[str]) -> Test:
    found = FILTER.fullmatch(text)
    if found is None or found["field"] not in fields:
        raise bad_request(
            f"filterBy {text[:MAX_SHOWN]!r} must be a field, an operator and a value; fields: {', '.join(fields)}"
        )
    field, operator, wanted = found["field"], OPERATORS[found["operator"]], found["value"]

    def fits(item: Mapping[str, Any]) -> bool:
        value = item.get(field)
        return value is not None and operator(str(value), wanted)

    return fits


def _number(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    number = whole_number(query.get(name, str(default)))
    if number is None or not low <= number <= high:
        raise bad_request(f"{name} must be a number from {low} to {high}")
    return number
