"""Filters and pages of lists: `filterBy`, `offset`, `limit`, `sortBy`, `sortOrder`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.emulator.runai.refusals import bad_request

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


def page(
    items: Iterable[Mapping[str, Any]], query: Mapping[str, str], fields: Sequence[str], name: str
) -> dict[str, Any]:
    """Return a page of the items that fit, under a name, and `next`, the offset of the following page, if any.

    Raises the refusal 400 for parameters that the control plane does not know.
    """
    fitting = [item for item in items if _fits(item, query.get("filterBy", ""), fields)]
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


def _fits(item: Mapping[str, Any], text: str, fields: Sequence[str]) -> bool:
    return all(_fits_one(item, part, fields) for part in text.split(",") if part)


def _fits_one(item: Mapping[str, Any], text: str, fields: Sequence[str]) -> bool:
    found = FILTER.fullmatch(text)
    if found is None or found["field"] not in fields:
        raise bad_request(
            f"filterBy {text!r} must be a field, an operator and a value; fields: {', '.join(fields)}"
        )
    value = item.get(found["field"])
    return value is not None and OPERATORS[found["operator"]](str(value), found["value"])


def _number(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = query.get(name, str(default))
    if not text.isdecimal() or not low <= int(text) <= high:
        raise bad_request(f"{name} must be a number from {low} to {high}")
    return int(text)
