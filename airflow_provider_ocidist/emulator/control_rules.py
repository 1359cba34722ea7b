"""Control rules: the rules by which tests make an API of the emulator fail, built from JSON and checked."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

from starlette.responses import Response

from airflow_provider_ocidist.emulator import patterns
from airflow_provider_ocidist.emulator.errors import invalid, limit_exceeded
from airflow_provider_ocidist.emulator.wire import answer, encode_json

MAX_RULES = 1_000
"""Most rules of each kind: every request, or every node, is compared with all of them."""
MAX_SHOWN = 200
"""Most characters of a wrong value in a message."""
MAX_RULE_CHARS = 10_000
"""Most characters of each text of a rule."""
Rule = TypeVar("Rule")
RuleT_contra = TypeVar("RuleT_contra", contravariant=True)


class Rules(Protocol[RuleT_contra]):
    """Rules of one kind."""

    def add(self, rule: RuleT_contra, /) -> None: ...

    def bodies(self) -> Sequence[Any]: ...


def added(rules: Rules[Rule], rule: Rule) -> Response:
    """Add a rule, and answer with all of its kind. Raises 400 where there is no room for it."""
    check_room(rules)
    rules.add(rule)
    return answer(rules.bodies())


def check_room(rules: Rules[Any]) -> None:
    if len(rules.bodies()) >= MAX_RULES:
        raise limit_exceeded(f"There are {MAX_RULES} rules of this kind already.")


def rule_of(kind: type[Rule], details: Mapping[str, Any]) -> Rule:
    """Build a rule from JSON. Raises 400 for a field that it does not have."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # each kind is a dataclass
    unknown = set(details) - known
    if unknown:
        raise invalid(f"Unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}.")
    types = get_type_hints(kind)
    for name, value in details.items():
        if not _fits(value, types[name]):
            raise invalid(f"{name} cannot be {encode_json(value)[:MAX_SHOWN]}.")
    try:
        return kind(**details)
    except (TypeError, patterns.PatternError) as error:
        raise invalid(str(error)) from error


def _fits(value: Any, wanted: Any) -> bool:
    """Return whether a value from JSON is of a field's type."""
    if get_origin(wanted) is Literal:
        return value in get_args(wanted)
    if get_args(wanted):
        return any(_fits(value, each) for each in get_args(wanted))
    if wanted is float:
        return is_span(value)
    return type(value) is wanted and (wanted is not str or len(value) <= MAX_RULE_CHARS)


def is_span(value: Any) -> bool:
    """Return whether a value from JSON is a number from 0 on that a clock takes; whole ones may be larger than any."""
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max
