"""The search language of OCI Logging, as far as job logs need it: SEARCH ... | WHERE ... | SORT BY ..."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import translate
from functools import lru_cache

from airflow_provider_ocidist.emulator.errors import invalid

TOKEN = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|(!=|<=|>=|=|<|>|\(|\)|,|\|)|([^\s'"=!<>(),|]+))""")
FIELD_NAMES = {
    name: name.rpartition(".")[2]
    for name in ("source", "type", "subject", "id", "datetime", "message", "data.message")
} | {f"logContent.{name}": name for name in ("source", "type", "subject", "id")}
FIELD_NAMES["logContent.data.message"] = "message"
Fields = Mapping[str, str | int]
Condition = Callable[[Fields], bool | None]
"""Says whether an entry matches; None when the fields given cannot tell."""


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
        self._tokens = list(_tokenize(text))
        self._next = 0

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
    place = 0
    while text[place:].strip():
        match = TOKEN.match(text, place)
        if match is None:
            raise invalid(f"The search query cannot be read at {text[place:]!r}.")
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
        if not tokens.skip(","):
            return


def _order(tokens: _Tokens) -> bool:
    tokens.expect("by")
    field = tokens.take()
    if field != "datetime":
        raise invalid(f"SORT BY {field} is not supported, only datetime.")
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
    if tokens.skip("("):
        inside = _alternatives(tokens)
        tokens.expect(")")
        return inside
    name = tokens.take()
    if name not in FIELD_NAMES:
        raise invalid(f"WHERE {name}: known fields are {', '.join(sorted(FIELD_NAMES))}.")
    sign = tokens.take()
    if sign not in ("=", "!=", "<", ">", "<=", ">="):
        raise invalid(f"WHERE {name} {sign}: the operators are = != < > <= >=.")
    return _comparison(FIELD_NAMES[name], sign, tokens.take())


def _comparison(name: str, sign: str, wanted: str) -> Condition:
    if name == "datetime":
        return _time_comparison(sign, _time_ms(wanted))
    if sign not in ("=", "!="):
        raise invalid(f"WHERE {name} {sign}: text can only be compared with = and !=.")
    matches = _wildcard(wanted)
    return lambda fields: matches(str(fields[name])) is (sign == "=") if name in fields else None


def _time_comparison(sign: str, wanted: int) -> Condition:
    def compare(fields: Fields) -> bool | None:
        if "datetime" not in fields:
            return None
        time_ms = int(fields["datetime"])
        below, equal = time_ms < wanted, time_ms == wanted
        answers = {"<": below, "<=": below or equal, "=": equal, "!=": not equal}
        return answers[sign] if sign in answers else not answers["<=" if sign == ">" else "<"]

    return compare


@lru_cache
def _wildcard(pattern: str) -> Callable[[str], bool]:
    """Only `*` is special."""
    escaped = re.sub(r"([\[?])", r"[\1]", pattern)
    compiled = re.compile(translate(escaped))
    return lambda value: compiled.match(value) is not None


def _time_ms(text: str) -> int:
    """Read milliseconds since 1970, or an ISO time."""
    if text.isdigit():
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError as error:
        raise invalid(f"datetime: {text!r} is neither milliseconds nor an ISO time.") from error


def _all(parts: list[Condition]) -> Condition:
    def check(fields: Fields) -> bool | None:
        answers = [part(fields) for part in parts]
        return False if False in answers else None if None in answers else True

    return check


def _any(parts: list[Condition]) -> Condition:
    def check(fields: Fields) -> bool | None:
        answers = [part(fields) for part in parts]
        return True if True in answers else None if None in answers else False

    return check
