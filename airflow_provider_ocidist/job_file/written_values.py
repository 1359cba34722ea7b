"""Written values: numbers that keep their text in the file, and texts that may be meant as numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LONGEST_NUMBER = 1000
"""Most digits of a number; Python refuses to parse whole numbers of more than 4300."""
INT = r"[-+]?(?:0|[1-9][0-9]*)"
FLOAT = r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"


class WrittenInt(int):
    """A whole number that keeps its text in the file: `+5` stays `+5` for a text field."""

    text: str
    is_text: bool = False
    """Whether it was written as text, which may be meant as a number."""

    def __str__(self) -> str:
        return self.text


class FilledText(str):
    """Text rendered by Jinja, which renders text only: a number in it may be meant as one."""

    __slots__ = ()


class WrittenFloat(float):
    """A number that keeps its text in the file: `1e-4` and `1.10` stay so for a text field."""

    text: str
    is_text: bool = False

    def __str__(self) -> str:
        return self.text


def whole_in(value: Any) -> int | None:
    """Return the whole number that a value is, or that its text is; None for any other value."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < LONGEST_NUMBER else None


def numbers(value: Any, kind: type[str]) -> Any:
    """Return a value with numbers in rendered text as numbers, which keep their text."""
    match value:
        case str() if isinstance(value, kind):
            number = _number(value)
            if number is not value:
                number.is_text = True
            return number
        case Mapping():
            return {key: numbers(item, kind) for key, item in value.items()}
        case list() | tuple():
            return [numbers(item, kind) for item in value]
    return value


def plain(value: Any) -> Any:
    """Return a value whose numbers and texts no longer know how they were written: text stays text."""
    match value:
        case WrittenInt() | WrittenFloat() if value.is_text:
            return value.text
        case WrittenInt():
            return int(value)
        case WrittenFloat():
            return float(value)
        case FilledText():
            return str(value)
        case Mapping():
            return {key: plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case tuple():
            return tuple(plain(item) for item in value)
    return value


def _number(text: str) -> Any:
    if re.fullmatch(INT, text) and len(text) < LONGEST_NUMBER:
        whole = WrittenInt(text)
        whole.text = text
        return whole
    if re.fullmatch(FLOAT, text):
        number = WrittenFloat(text)
        number.text = text
        return number
    return text
