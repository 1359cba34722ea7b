"""The search language of OCI Logging, as far as job logs need it: SEARCH ... | WHERE ... | SORT BY ..."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from itertools import islice
from typing import Any

from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.times import read_time
from airflow_provider_ocidist.emulator.wire import whole_number

TOKEN = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|(!=|<=|>=|=|<|>|\(|\)|,|\|)|([^\s'"=!<>(),|]+))""")
KNOWN_FIELDS = ("datetime", "id", "source", "subject", "type", "specversion", "message")
"""Names of known fields, besides all that begin with data. or oracle."""
TIMES = ("datetime", "time")
MAX_CHARS, MAX_TOKENS, MAX_NESTING = 50_000, 2_000, 50
UNKNOWN = object()
Lookup = Callable[[str], Any]
"""Function that returns a field of an entry: None when it has none of that name, UNKNOWN when the entry must be
read."""
Condition = Callable[[Lookup], bool | None]
"""Function that returns whether an entry matches; None when the lookup did not know enough."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Where to search: a compartment, in it one log group, in it one log."""

    compartment_id: str
    log_group_id: str | None = None
    log_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LogQuery:
    """A search, understood."""

    scopes: tuple[Scope, ...]
    condition: Condition
    descending: bool


def parse(text: str) -> LogQuery:
    """Understand a search. Raises 400 with what was not understood."""
    tokens = _Tokens(text)
    tokens.expect("search")
    scopes = tuple(_scopes(tokens))
    conditions: list[Condition] = []
    descending = True
    while tokens.skip("|"):
        if tokens.skip("where"):
            conditions.append(_alternatives(tokens))
        elif tokens.skip("sort"):
            descending = _order(tokens)
        else:
            raise invalid(f"Unsupported search stage: {tokens.peek()!r}.")
    if not tokens.at_end():
        raise invalid(f"Unexpected text in the search query: {tokens.peek()!r}.")
    return LogQuery(scopes=scopes, condition=_all(conditions), descending=descending)


class _Tokens:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARS:
            raise invalid(f"A search query may have at most {MAX_CHARS} characters, not {len(text)}.")
        self._tokens = list(islice(_tokenize(text), MAX_TOKENS + 1))
        if len(self._tokens) > MAX_TOKENS:
            raise invalid(f"A search query may have at most {MAX_TOKENS} words and signs.")
        self._next = 0
        self._depth = 0

    def deeper(self, steps: int) -> None:
        """Enter or leave a bracket or a NOT. Raises 400 where there are too many in one another."""
        self._depth += steps
        if self._depth > MAX_NESTING:
            raise invalid(f"A search query may nest at most {MAX_NESTING} brackets and NOTs.")

    def at_end(self) -> bool:
        return self._next >= len(self._tokens)

    def peek(self) -> str:
        return "" if self.at_end() else self._tokens[self._next][0]

    def take(self) -> str:
        token = self.peek()
        self._next += 1
        return token

    def is_quoted(self) -> bool:
        return not self.at_end() and self._tokens[self._next][1]

    def skip(self, word: str) -> bool:
        found = not self.is_quoted() and self.peek().lower() == word
        self._next += found
        return found

    def expect(self, word: str) -> None:
        if not self.skip(word):
            raise invalid(f"Expected {word.upper()} in the search query, found {self.peek()!r}.")


def _tokenize(text: str) -> Iterator[tuple[str, bool]]:
    place, end = 0, len(text.rstrip())
    while place < end:
        match = TOKEN.match(text, place)
        if match is None:
            raise invalid(f"The search query cannot be read at {text[place : place + 100]!r}.")
        place = match.end()
        double, single, sign, word = match.groups()
        quoted = double if double is not None else single
        yield (quoted, True) if quoted is not None else (sign or word, False)


def _scopes(tokens: _Tokens) -> Iterator[Scope]:
    while True:
        parts = tokens.take().split("/")
        if not 1 <= len(parts) <= 3 or not all(parts):
            raise invalid(
                'SEARCH needs "compartment", "compartment/log group" or "compartment/log group/log".'
            )
        yield Scope(*parts)
        # The comma between them may be left out.
        if not tokens.skip(",") and not tokens.is_quoted():
            return


def _order(tokens: _Tokens) -> bool:
    tokens.expect("by")
    field = tokens.take()
    if field.removeprefix("logContent.") not in TIMES:
        raise invalid(f"SORT BY {field} is not supported, only datetime and logContent.time.")
    if tokens.skip("desc"):
        return True
    tokens.skip("asc")
    return False


def _alternatives(tokens: _Tokens) -> Condition:
    choices = [_conjunction(tokens)]
    while tokens.skip("or"):
        choices.append(_conjunction(tokens))
    return _any(choices)


def _conjunction(tokens: _Tokens) -> Condition:
    parts = [_term(tokens)]
    while tokens.skip("and"):
        parts.append(_term(tokens))
    return _all(parts)


def _term(tokens: _Tokens) -> Condition:
    if tokens.skip("not"):
        tokens.deeper(1)
        inside = _not(_term(tokens))
        tokens.deeper(-1)
        return inside
    if tokens.skip("("):
        tokens.deeper(1)
        inside = _alternatives(tokens)
        tokens.expect(")")
        tokens.deeper(-1)
        return inside
    name = _field(tokens.take())
    if tokens.skip("not"):
        tokens.expect("in")
        return _not(_one_of(name, tokens))
    if tokens.skip("in"):
        return _one_of(name, tokens)
    sign = tokens.take()
    if sign not in COMPARISONS:
        raise invalid(f"WHERE {name} {sign}: the operators are {' '.join(COMPARISONS)}, IN and NOT IN.")
    return _comparison(name, sign, tokens.take())


def _field(name: str) -> str:
    """Return a field's place in the entry."""
    place = name.removeprefix("logContent.")
    if place in TIMES:
        return "datetime"
    if place == "message":
        return "data.message"
    if place not in KNOWN_FIELDS and not place.startswith(("data.", "oracle.")):
        raise invalid(f"WHERE {name}: known fields are {', '.join(KNOWN_FIELDS)}, data.* and oracle.*.")
    return place


def _one_of(name: str, tokens: _Tokens) -> Condition:
    tokens.expect("(")
    choices = [_comparison(name, "=", tokens.take())]
    while tokens.skip(","):
        choices.append(_comparison(name, "=", tokens.take()))
    tokens.expect(")")
    return _any(choices)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


def _comparison(name: str, sign: str, wanted: str) -> Condition:
    if name == "datetime":
        moment = whole_number(wanted)
        return _number_comparison(name, sign, read_time(wanted, name) if moment is None else moment)
    if sign == "!=":
        return _not(_comparison(name, "=", wanted))
    number = _number(wanted)
    if number is not None:
        return _any([_number_comparison(name, sign, number), _text_comparison(name, sign, wanted)])
    if sign != "=":
        raise invalid(f"WHERE {name} {sign}: text can only be compared with = and !=.")
    return _text_comparison(name, sign, wanted)


def _number_comparison(name: str, sign: str, wanted: float) -> Condition:
    compare = COMPARISONS[sign]

    def check(lookup: Lookup) -> bool | None:
        value = lookup(name)
        if value is UNKNOWN:
            return None
        return isinstance(value, int | float) and compare(value, wanted)

    return check


def _text_comparison(name: str, sign: str, wanted: str) -> Condition:
    matches = _wildcard(wanted)

    def check(lookup: Lookup) -> bool | None:
        value = lookup(name)
        if value is UNKNOWN:
            return None
        return sign == "=" and isinstance(value, str) and matches(value)

    return check


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@lru_cache
def _wildcard(pattern: str) -> Callable[[str], bool]:
    """Only `*` is special."""
    escaped = re.sub(r"([\[?])", r"[\1]", pattern)
    compiled = re.compile(translate(escaped))
    return lambda value: compiled.match(value) is not None


def _all(parts: list[Condition]) -> Condition:
    if len(parts) == 1:
        return parts[0]

    def check(lookup: Lookup) -> bool | None:
        answer: bool | None = True
        for part in parts:
            found = part(lookup)
            if found is False:
                return False
            answer = answer and found
        return answer

    return check


def _any(parts: list[Condition]) -> Condition:
    if len(parts) == 1:
        return parts[0]

    def check(lookup: Lookup) -> bool | None:
        answer: bool | None = False
        for part in parts:
            found = part(lookup)
            if found:
                return True
            answer = found if answer is False else answer
        return answer

    return check


def _not(part: Condition) -> Condition:
    def check(lookup: Lookup) -> bool | None:
        verdict = part(lookup)
        return None if verdict is None else not verdict

    return check
